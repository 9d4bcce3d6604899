//! Random admissions, starts, ends and rests against a naive model, and the rules one by one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::format;
use std::string::String;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::lanes::OffsetTracker;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rec {
    key: Option<Vec<u8>>,
    offset: i64,
}

impl HasKey for Rec {
    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn key_bytes(&self) -> Option<Bytes> {
        self.key.clone().map(Bytes::from)
    }
}

fn named(name: &str) -> Option<Vec<u8>> {
    Some(name.as_bytes().to_vec())
}

/// A dispatcher with a tracker behind it, as a lane has them.
struct Bench {
    dispatcher: Dispatcher<Rec>,
    tracker: OffsetTracker,
    now: Instant,
    jobs: BTreeMap<JobId, Vec<(Rec, Ticket)>>,
}

impl Bench {
    fn new(config: DispatcherConfig) -> Self {
        Self {
            dispatcher: Dispatcher::new(config),
            tracker: OffsetTracker::new(),
            now: Instant::ZERO,
            jobs: BTreeMap::new(),
        }
    }

    fn by_key(max_buffered: usize, handlers: usize, max_batch: usize) -> Self {
        Self::new(DispatcherConfig::side_by_side(max_buffered, handlers, max_batch, (1, 2)))
    }

    fn admit(&mut self, key: Option<Vec<u8>>, offset: i64) {
        let ticket = self.tracker.deliver(offset, None);
        self.dispatcher.admit_by_key(Rec { key, offset }, ticket);
    }

    fn start(&mut self) -> Option<(JobId, Vec<i64>)> {
        let mut taken = Vec::new();
        let job = match self.dispatcher.start(self.now, |record, ticket| taken.push((record, ticket)))? {
            Start::Fresh(job) => {
                assert!(!taken.is_empty());
                assert!(self.jobs.insert(job, taken).is_none(), "a second job of a key");
                job
            }
            Start::Again(job) => {
                assert!(taken.is_empty());
                job
            }
        };
        Some((job, self.jobs[&job].iter().map(|(record, _)| record.offset).collect()))
    }

    fn start_all(&mut self) -> Vec<(JobId, Vec<i64>)> {
        std::iter::from_fn(|| self.start()).collect()
    }

    fn finish(&mut self, job: JobId) {
        for (_, ticket) in self.jobs.remove(&job).unwrap() {
            assert!(self.tracker.complete(ticket));
        }
        self.dispatcher.finish(job);
    }

    fn frontier(&self) -> Option<i64> {
        self.tracker.frontier().map(|frontier| frontier.offset)
    }
}

#[test]
fn t051_the_number_of_workers_and_the_batch_follow_from_the_buffer_by_integer_division() {
    let table = [
        ((256, 4, 100), (4, 64)),
        ((400, 4, 100), (4, 100)),
        ((3, 8, 10), (3, 1)),
        ((512, 8, 1), (8, 1)),
        ((1, 1, 1), (1, 1)),
        ((usize::MAX, usize::MAX, usize::MAX), (usize::MAX, 1)),
    ];
    for ((buffer, handlers, batch), expected) in table {
        let config = DispatcherConfig::side_by_side(buffer, handlers, batch, (0, 0));
        assert_eq!((config.workers, config.max_batch), expected);
    }
    // Also when one key is active.
    let mut bench = Bench::by_key(256, 4, 100);
    for offset in 0..256 {
        bench.admit(named("a"), offset);
    }
    let (_, offsets) = bench.start().unwrap();
    assert_eq!(offsets, (0..64).collect::<Vec<_>>());
    assert_eq!(bench.start(), None, "one job per key");
}

#[test]
fn t040_a_key_waits_for_its_own_record_and_other_keys_go_on() {
    let mut bench = Bench::by_key(16, 4, 1);
    bench.admit(named("a"), 0);
    bench.admit(named("a"), 1);
    bench.admit(named("b"), 2);
    let jobs = bench.start_all();
    assert_eq!(jobs.iter().map(|job| job.1[0]).collect::<Vec<_>>(), [0, 2]);
    bench.finish(jobs[1].0);
    assert_eq!(bench.start(), None);
    bench.finish(jobs[0].0);
    assert_eq!(bench.start().unwrap().1, [1]);
}

#[test]
fn t044_t045_no_key_lane_is_left_when_nothing_is_pending() {
    let mut bench = Bench::by_key(7, 4, 1);
    let mut next = 0;
    let mut handled = Vec::new();
    while handled.len() < 513 {
        while bench.dispatcher.room() > 0 && next < 513 {
            bench.admit(named(&format!("key-{next}")), next);
            next += 1;
        }
        for (job, offsets) in bench.start_all() {
            handled.extend(offsets);
            bench.finish(job);
        }
    }
    assert_eq!(handled, (0..513).collect::<Vec<_>>());
    assert_eq!(bench.frontier(), Some(513));
    assert_eq!((bench.dispatcher.key_lanes(), bench.dispatcher.pending()), (0, 0));
    assert!(bench.dispatcher.places.len() <= 7, "memory is that of the unfinished records");
}

#[test]
fn t046_later_keys_run_past_a_stuck_record_without_growing_and_the_frontier_stays() {
    let mut bench = Bench::by_key(2, 2, 1);
    bench.admit(named("stuck"), 10);
    let (stuck, _) = bench.start().unwrap();
    for offset in [12, 20, 21, 30, 31] {
        assert_eq!(bench.dispatcher.room(), 1);
        bench.admit(named(&format!("k{offset}")), offset);
        let (job, _) = bench.start().unwrap();
        bench.finish(job);
    }
    assert_eq!((bench.frontier(), bench.tracker.last_processed()), (None, Some(31)));
    assert_eq!(bench.dispatcher.places.len(), 1);
    bench.finish(stuck);
    assert_eq!(bench.frontier(), Some(32));
}

#[test]
fn t050_large_limits_cost_nothing_until_records_are_there_and_a_growing_key_stays_in_order() {
    let mut bench = Bench::by_key(usize::MAX, 1, 32);
    assert_eq!(bench.dispatcher.places.capacity(), 0);
    let mut seen = Vec::new();
    let mut largest = 0;
    bench.admit(named("a"), 0);
    let mut job = bench.start().unwrap();
    for offset in 1..257 {
        bench.admit(named("a"), offset);
    }
    loop {
        largest = largest.max(job.1.len());
        seen.extend(job.1);
        bench.finish(job.0);
        match bench.start() {
            Some(next) => job = next,
            None => break,
        }
    }
    assert_eq!((seen, largest), ((0..257).collect(), 32));
}

#[test]
fn t052_a_cold_record_waits_for_at_most_one_job_of_the_hot_key() {
    let mut bench = Bench::by_key(100, 1, 1);
    for offset in 0..50 {
        bench.admit(named("hot"), offset);
    }
    for cold in 0..10 {
        bench.admit(named(&format!("cold-{cold}")), 50 + cold);
    }
    let mut order = Vec::new();
    while let Some((job, offsets)) = bench.start() {
        order.extend(offsets);
        bench.finish(job);
    }
    assert_eq!(order[..12], [0, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 1]);
}

#[test]
fn t054_a_key_that_comes_back_while_its_last_record_runs_does_not_overlap() {
    let mut bench = Bench::by_key(4, 4, 1);
    bench.admit(named("a"), 0);
    let (first, _) = bench.start().unwrap();
    bench.admit(named("a"), 1);
    assert_eq!(bench.start(), None);
    bench.finish(first);
    assert_eq!(bench.start().unwrap().1, [1]);
}

#[test]
fn t061_t062_t063_null_empty_and_other_keys_are_apart_and_each_is_one_lane() {
    let mut bench = Bench::by_key(16, 16, 1);
    let keys = [None, Some(vec![]), named("key"), named("KEY"), named("key2")];
    for (offset, key) in (0..).zip(keys.iter().chain(&keys)) {
        bench.admit(key.clone(), offset);
    }
    let jobs = bench.start_all();
    assert_eq!(jobs.iter().map(|job| job.1[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn t082_a_batch_has_one_key_and_takes_what_is_there() {
    let mut bench = Bench::by_key(100, 4, 10);
    for (offset, key) in (0..).zip(["a", "b", "a", "a", "b", "a"]) {
        bench.admit(named(key), offset);
    }
    let jobs = bench.start_all();
    assert_eq!(jobs.iter().map(|job| &job.1[..]).collect::<Vec<_>>(), [&[0, 2, 3, 5][..], &[1, 4]]);
}

#[test]
fn t225_a_resting_key_keeps_its_order_and_its_worker_serves_others() {
    let mut bench = Bench::by_key(16, 1, 1);
    bench.admit(named("a"), 0);
    bench.admit(named("a"), 1);
    bench.admit(named("b"), 2);
    let (failing, _) = bench.start().unwrap();
    let until = bench.now + Duration::from_secs(1);
    bench.dispatcher.rest(failing, until);
    assert_eq!(bench.dispatcher.next_timeout(), Some(until));
    let (other, offsets) = bench.start().unwrap();
    assert_eq!(offsets, [2]);
    bench.finish(other);
    assert_eq!(bench.start(), None);
    bench.now = until;
    assert_eq!(bench.start().unwrap(), (failing, vec![0]));
    bench.finish(failing);
    assert_eq!(bench.start().unwrap().1, [1]);
}

#[test]
fn after_a_job_was_given_up_no_later_record_of_its_key_runs_and_others_do() {
    let mut bench = Bench::by_key(16, 4, 1);
    bench.admit(named("a"), 0);
    bench.admit(named("a"), 1);
    let (failing, _) = bench.start().unwrap();
    bench.dispatcher.give_up(failing);
    bench.admit(named("a"), 2);
    bench.admit(named("b"), 3);
    assert_eq!(bench.start().unwrap().1, [3]);
    assert_eq!(bench.start(), None);
    assert_eq!((bench.dispatcher.pending(), bench.frontier()), (1, None));
}

#[test]
fn records_without_order_run_as_workers_are_free_and_in_batches() {
    let mut bench = Bench::by_key(100, 2, 3);
    for offset in 0..7 {
        let ticket = bench.tracker.deliver(offset, None);
        bench.dispatcher.admit_alone(Rec { key: named("same"), offset }, ticket);
    }
    let jobs = bench.start_all();
    assert_eq!(jobs.iter().map(|job| &job.1[..]).collect::<Vec<_>>(), [&[0, 1, 2][..], &[3, 4, 5]]);
    bench.finish(jobs[1].0);
    assert_eq!(bench.start().unwrap().1, [6]);
}

#[derive(Clone, Debug)]
enum Step {
    Admit(u8),
    Start,
    Finish(usize),
    Rest(usize, u64),
    Pass(u64),
    GiveUp(usize),
    GiveUpResting,
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
    pending: usize,
}

impl Model {
    fn busy(&self, key: &Option<Vec<u8>>) -> bool {
        self.running.values().any(|running| running == key)
            || self.resting.values().any(|(resting, _)| resting == key)
    }

    fn could_start(&self, now: Instant) -> bool {
        self.resting.values().any(|&(_, until)| until <= now)
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
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut bench = Bench::by_key(buffer, handlers, batch);
        let config = bench.dispatcher.config;
        let mut model = Model::default();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Admit(number) if bench.dispatcher.room() > 0 => {
                    let key = key_of(number);
                    bench.admit(key.clone(), next);
                    if !model.blocked.contains(&key) {
                        model.waiting.entry(key).or_default().push_back(next);
                        model.pending += 1;
                    }
                    next += 1;
                }
                Step::Admit(_) => prop_assert_eq!(model.pending, config.max_pending),
                Step::Start => match bench.start() {
                    Some((job, offsets)) => {
                        prop_assert!(model.running.len() < config.workers);
                        let key = bench.jobs[&job][0].0.key.clone();
                        if let Some((rested, until)) = model.resting.remove(&job) {
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
                        model.running.len() == config.workers || !model.could_start(bench.now),
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
                    prop_assert_eq!(&given_up, &model.resting.keys().copied().collect());
                    for job in given_up {
                        let (key, _) = model.resting.remove(&job).unwrap();
                        model.block(key, bench.jobs.remove(&job).unwrap().len());
                    }
                }
            }
            prop_assert_eq!(bench.dispatcher.pending(), model.pending);
            prop_assert_eq!(bench.dispatcher.running(), model.running.len());
            prop_assert!(bench.dispatcher.places.len() <= config.max_pending);
            prop_assert!(bench.dispatcher.key_lanes() <= model.pending + model.blocked.len());
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
            prop_assert!(rounds <= 2 * buffer, "stuck: {}", String::from("nothing is ready"));
        }
        prop_assert_eq!(bench.dispatcher.key_lanes(), model.blocked.len());
    }

    #[test]
    fn drop_waiting_leaves_what_runs_and_nothing_else(
        keys in prop::collection::vec(0..5_u8, 1..40), started in 0..6_usize, rested in 0..3_usize,
    ) {
        let mut bench = Bench::by_key(64, 5, 2);
        for (offset, &number) in (0..).zip(&keys) {
            bench.admit(key_of(number), offset);
        }
        let jobs: Vec<JobId> = (0..started).filter_map(|_| bench.start()).map(|(job, _)| job).collect();
        let rested = rested.min(jobs.len());
        for &job in &jobs[..rested] {
            bench.dispatcher.rest(job, Instant::from_start(Duration::from_secs(1)));
        }
        bench.dispatcher.drop_waiting();
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
