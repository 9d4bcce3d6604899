//! Random admissions, starts, ends, rests and parkings against a naive model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::string::String;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Admit(u8),
    Start,
    Finish(usize),
    Rest(usize, u64),
    Pass(u64),
    GiveUp(usize),
    GiveUpResting,
    Park(usize),
    Unpark(usize),
    TakeUp(usize),
    GoOn(usize),
    GiveUpParked,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..9_u8).prop_map(Step::Admit),
        8 => Just(Step::Start),
        6 => any::<usize>().prop_map(Step::Finish),
        2 => (any::<usize>(), 1..50_u64).prop_map(|(which, wait)| Step::Rest(which, wait)),
        2 => (1..40_u64).prop_map(Step::Pass),
        1 => any::<usize>().prop_map(Step::GiveUp),
        1 => Just(Step::GiveUpResting),
        2 => any::<usize>().prop_map(Step::Park),
        1 => any::<usize>().prop_map(Step::Unpark),
        1 => any::<usize>().prop_map(Step::TakeUp),
        1 => any::<usize>().prop_map(Step::GoOn),
        1 => Just(Step::GiveUpParked),
    ]
}

/// What must be true, kept as plainly as possible.
#[derive(Default)]
struct Model {
    /// Per key, what was admitted and not handed out.
    waiting: BTreeMap<Option<Vec<u8>>, VecDeque<i64>>,
    running: BTreeMap<JobId, Option<Vec<u8>>>,
    resting: BTreeMap<JobId, (Option<Vec<u8>>, Instant)>,
    blocked: BTreeSet<Option<Vec<u8>>>,
    /// With the records that failed.
    parked: BTreeMap<JobId, (Option<Vec<u8>>, usize)>,
    /// Whose records were parked and go on before anything later of their key.
    again: BTreeMap<JobId, Option<Vec<u8>>>,
    pending: usize,
    /// The most records that were there at once.
    most: usize,
}

impl Model {
    fn busy(&self, key: &Option<Vec<u8>>) -> bool {
        self.running.values().chain(self.again.values()).any(|running| running == key)
            || self.resting.values().any(|(resting, _)| resting == key)
            || self.is_parked(key)
    }

    fn is_parked(&self, key: &Option<Vec<u8>>) -> bool {
        self.parked.values().any(|(parked, _)| parked == key)
    }

    fn parked_records(&self) -> usize {
        let line = |key| self.waiting.get(key).map_or(0, VecDeque::len);
        self.parked.values().map(|(key, held)| held + line(key)).sum()
    }

    /// The job's records are parked, or pending again.
    fn parks(&mut self, key: &Option<Vec<u8>>, held: usize, parks: bool) {
        let records = held + self.waiting.get(key).map_or(0, VecDeque::len);
        self.pending = if parks { self.pending - records } else { self.pending + records };
    }

    fn could_start(&self, now: Instant) -> bool {
        self.resting.values().any(|&(_, until)| until <= now)
            || !self.again.is_empty()
            || self.waiting.iter().any(|(key, line)| !line.is_empty() && !self.busy(key))
    }

    fn block(&mut self, key: Option<Vec<u8>>, held: usize) {
        self.pending -= held + self.waiting.remove(&key).map_or(0, |line| line.len());
        self.blocked.insert(key);
    }
}

fn key_of(number: u8) -> Option<Vec<u8>> {
    match number {
        0 => None,
        1 => Some(Vec::new()),
        number => {
            // Long ones that only differ outside of the sample, so that both hashes are met.
            let mut key = vec![7; 300];
            key[20] = number;
            Some(key)
        }
    }
}

proptest! {
    #[test]
    fn order_per_key_no_overlap_and_bounded_memory_whatever_comes(
        (buffer, handlers, batch) in (1..12_usize, 1..6_usize, 1..5_usize),
        (max_keys, max_records, holds_back) in (1..4_usize, 1..9_usize, any::<bool>()),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let parking = ParkingConfig { max_keys, max_records, holds_back };
        let config = DispatcherConfig::side_by_side(buffer, handlers, batch, (1, 2)).with_parking(parking);
        let mut bench = Bench::new(config);
        let mut model = Model::default();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Admit(number) if bench.dispatcher.room() > 0 => {
                    let key = key_of(number);
                    bench.admit(key.clone(), next);
                    if !model.blocked.contains(&key) {
                        model.pending += usize::from(!model.is_parked(&key));
                        model.waiting.entry(key).or_default().push_back(next);
                    }
                    next += 1;
                }
                Step::Admit(_) => prop_assert!(
                    model.pending >= config.max_pending
                        || (!model.parked.is_empty() && bench.dispatcher.parking_is_full())
                ),
                Step::Start => match bench.start() {
                    Some((job, offsets)) => {
                        prop_assert!(model.running.len() < config.workers);
                        let key = bench.jobs[&job][0].0.key.clone();
                        if let Some(parked) = model.again.remove(&job) {
                            prop_assert!(parked == key);
                        } else if let Some((rested, until)) = model.resting.remove(&job) {
                            prop_assert!(until <= bench.now && rested == key);
                        } else {
                            prop_assert!(!model.busy(&key), "overlap");
                            let line = model.waiting.get_mut(&key).unwrap();
                            let due: Vec<i64> = line.drain(..offsets.len()).collect();
                            prop_assert_eq!(&offsets, &due, "{:?} out of order", key);
                            prop_assert!(due.len() == config.max_batch || line.is_empty());
                        }
                        model.running.insert(job, key);
                    }
                    None => prop_assert!(
                        model.running.len() >= config.workers || !model.could_start(bench.now),
                        "work was ready and a worker free"
                    ),
                },
                Step::Finish(which) => {
                    if let Some((&job, _)) = model.running.iter().nth(which % model.running.len().max(1)) {
                        model.running.remove(&job);
                        model.pending -= bench.jobs[&job].len();
                        bench.finish(job);
                    }
                }
                Step::Rest(which, wait) => {
                    if let Some((&job, _)) = model.running.iter().nth(which % model.running.len().max(1)) {
                        let key = model.running.remove(&job).unwrap();
                        let until = bench.now + Duration::from_millis(wait);
                        model.resting.insert(job, (key, until));
                        bench.dispatcher.rest(job, until);
                    }
                }
                Step::Park(which) => {
                    if let Some((&job, _)) = model.running.iter().nth(which % model.running.len().max(1)) {
                        let key = model.running.remove(&job).unwrap();
                        let held = bench.jobs[&job].len();
                        model.parks(&key, held, true);
                        model.parked.insert(job, (key, held));
                        bench.dispatcher.park(job);
                    }
                }
                Step::Unpark(which) | Step::TakeUp(which) => {
                    if let Some((&job, _)) = model.parked.iter().nth(which % model.parked.len().max(1)) {
                        let (key, held) = model.parked.remove(&job).unwrap();
                        model.parks(&key, held, false);
                        if let Step::Unpark(_) = step {
                            model.again.insert(job, key);
                            prop_assert!(bench.dispatcher.unpark(job));
                        } else {
                            model.running.insert(job, key);
                            prop_assert!(bench.dispatcher.take_up(job));
                        }
                        prop_assert!(!bench.dispatcher.unpark(job) && !bench.dispatcher.take_up(job));
                    }
                }
                Step::GoOn(which) => {
                    if let Some((&job, key)) = model.running.iter().nth(which % model.running.len().max(1)) {
                        let line = model.waiting.entry(key.clone()).or_default();
                        prop_assert_eq!(bench.dispatcher.behind(job), line.len());
                        let mut taken = Vec::new();
                        let goes_on =
                            bench.dispatcher.go_on(job, |_| false, |record, ticket| taken.push((record, ticket)));
                        prop_assert_eq!(goes_on, !line.is_empty());
                        if goes_on {
                            let offsets: Vec<i64> = taken.iter().map(|(record, _)| record.offset).collect();
                            let due: Vec<i64> = line.drain(..taken.len()).collect();
                            prop_assert_eq!(offsets, due);
                            let before = bench.jobs.insert(job, taken).unwrap();
                            model.pending -= before.len();
                            for (_, ticket) in before {
                                prop_assert!(bench.tracker.complete(ticket));
                            }
                        }
                    }
                }
                Step::GiveUpParked => {
                    let mut given_up = BTreeSet::new();
                    bench.dispatcher.give_up_parked(|job| {
                        given_up.insert(job);
                    });
                    prop_assert_eq!(&given_up, &model.parked.keys().copied().collect());
                    for job in given_up {
                        let (key, held) = model.parked.remove(&job).unwrap();
                        model.parks(&key, held, false);
                        model.block(key, bench.jobs.remove(&job).unwrap().len());
                    }
                }
                Step::Pass(wait) => bench.now += Duration::from_millis(wait),
                Step::GiveUp(which) => {
                    if let Some((&job, _)) = model.running.iter().nth(which % model.running.len().max(1)) {
                        let key = model.running.remove(&job).unwrap();
                        model.block(key, bench.jobs.remove(&job).unwrap().len());
                        bench.dispatcher.give_up(job);
                    }
                }
                Step::GiveUpResting => {
                    let mut given_up = BTreeSet::new();
                    bench.dispatcher.give_up_resting(|job| {
                        given_up.insert(job);
                    });
                    let due = model.resting.keys().chain(model.again.keys()).copied().collect();
                    prop_assert_eq!(&given_up, &due);
                    for job in given_up {
                        let again = model.again.remove(&job);
                        let key = again.unwrap_or_else(|| model.resting.remove(&job).unwrap().0);
                        model.block(key, bench.jobs.remove(&job).unwrap().len());
                    }
                }
            }
            prop_assert_eq!(bench.dispatcher.pending(), model.pending);
            prop_assert_eq!(bench.dispatcher.running(), model.running.len());
            prop_assert_eq!(bench.dispatcher.parked_keys(), model.parked.len());
            prop_assert_eq!(bench.dispatcher.parked_records(), model.parked_records());
            model.most = model.most.max(model.pending + model.parked_records());
            prop_assert!(model.most <= 2 * config.max_pending + config.parking.max_records);
            prop_assert!(bench.dispatcher.places.len() <= model.most);
            let lanes = model.pending + model.blocked.len() + model.parked.len();
            prop_assert!(bench.dispatcher.key_lanes() <= lanes);
        }
        for &job in model.parked.keys() {
            prop_assert!(bench.dispatcher.unpark(job));
        }
        // Nobody is forgotten: what was not given up can be finished, in rounds of what is ready.
        bench.now += Duration::from_secs(1);
        for job in model.running.keys() {
            bench.finish(*job);
        }
        let mut rounds = 0;
        while bench.dispatcher.pending() > 0 {
            for (job, _) in bench.start_all() {
                bench.finish(job);
            }
            rounds += 1;
            prop_assert!(rounds <= 2 * model.most, "stuck: {}", String::from("nothing is ready"));
        }
        prop_assert_eq!(bench.dispatcher.key_lanes(), model.blocked.len());
    }

    #[test]
    fn drop_waiting_leaves_what_runs_and_nothing_else(
        keys in prop::collection::vec(0..5_u8, 1..40), started in 0..6_usize, rested in 0..3_usize,
        parks in any::<bool>(),
    ) {
        let mut bench = Bench::by_key(64, 5, 2);
        for (offset, &number) in (0..).zip(&keys) {
            bench.admit(key_of(number), offset);
        }
        let jobs: Vec<JobId> = (0..started).filter_map(|_| bench.start()).map(|(job, _)| job).collect();
        let rested = rested.min(jobs.len());
        for &job in &jobs[..rested] {
            if parks {
                bench.dispatcher.park(job);
            } else {
                bench.dispatcher.rest(job, Instant::from_start(Duration::from_secs(1)));
            }
        }
        bench.dispatcher.drop_waiting();
        prop_assert_eq!((bench.dispatcher.parked_keys(), bench.dispatcher.parked_records()), (0, 0));
        let held: usize = jobs[rested..].iter().map(|job| bench.jobs[job].len()).sum();
        prop_assert_eq!(bench.dispatcher.pending(), held);
        prop_assert_eq!(bench.start(), None);
        prop_assert_eq!(bench.dispatcher.next_timeout(), None);
        for &job in &jobs[rested..] {
            bench.finish(job);
        }
        prop_assert_eq!((bench.dispatcher.pending(), bench.dispatcher.key_lanes()), (0, 0));
    }
}
