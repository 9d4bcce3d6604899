//! The rules of the dispatcher one by one, and random histories against a naive model.

use std::collections::BTreeMap;
use std::format;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::lanes::OffsetTracker;

mod model;
mod rules;

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
        let take = |record, ticket| taken.push((record, ticket));
        let job = match self.dispatcher.start(self.now, |_| false, take)? {
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
        let jobs: Vec<_> = std::iter::from_fn(|| self.start()).take(1000).collect();
        assert!(jobs.len() < 1000, "there is no end of jobs");
        jobs
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
    // A round takes as many records as there are places and workers at least.
    for _ in 0..513 {
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
    for _ in 0..257 {
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
    for _ in 0..60 {
        let (job, offsets) = bench.start().unwrap();
        order.extend(offsets);
        bench.finish(job);
    }
    assert_eq!(bench.start(), None);
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

fn parking(max_keys: usize, max_records: usize) -> DispatcherConfig {
    let limits = ParkingConfig { max_keys, max_records, holds_back: true };
    DispatcherConfig::side_by_side(8, 2, 1, (1, 2)).with_parking(limits)
}

#[test]
fn a_parked_key_waits_with_its_later_records_and_others_have_its_worker_and_its_places() {
    let mut bench = Bench::new(parking(2, 100));
    bench.admit(named("bad"), 0);
    bench.admit(named("bad"), 1);
    let (bad, _) = bench.start().unwrap();
    bench.dispatcher.park(bad);
    bench.admit(named("bad"), 2);
    assert_eq!((bench.dispatcher.room(), bench.dispatcher.pending()), (8, 0));
    assert_eq!((bench.dispatcher.parked_keys(), bench.dispatcher.parked_records()), (1, 3));
    bench.admit(named("good"), 3);
    let (good, offsets) = bench.start().unwrap();
    assert_eq!((offsets, bench.start()), (vec![3], None));
    bench.finish(good);
    assert_eq!((bench.frontier(), bench.tracker.last_processed()), (None, Some(3)));
    assert!(bench.dispatcher.unpark(bad));
    for offset in 0..3 {
        let (job, offsets) = bench.start().unwrap();
        assert_eq!(offsets, [offset]);
        bench.finish(job);
    }
    assert_eq!((bench.frontier(), bench.dispatcher.key_lanes()), (Some(4), 0));
}

#[test]
fn as_many_parked_keys_or_records_as_may_be_hold_the_lane_back() {
    let mut bench = Bench::new(parking(1, 100));
    bench.admit(named("bad"), 0);
    let (bad, _) = bench.start().unwrap();
    bench.dispatcher.park(bad);
    assert_eq!(bench.dispatcher.room(), 0, "one key");
    let mut bench = Bench::new(parking(5, 3));
    bench.admit(named("bad"), 0);
    let (bad, _) = bench.start().unwrap();
    bench.dispatcher.park(bad);
    assert_eq!(bench.dispatcher.room(), 2, "three records");
    bench.admit(named("bad"), 1);
    bench.admit(named("bad"), 2);
    assert!(bench.dispatcher.room() == 0 && bench.dispatcher.parking_is_full());
    assert!(bench.dispatcher.take_up(bad));
    bench.finish(bad);
    assert_eq!(bench.dispatcher.room(), 6);
}

#[test]
fn a_lane_that_is_one_key_admits_nothing_while_that_is_parked() {
    let limits = ParkingConfig { max_keys: 9, max_records: 9, holds_back: false };
    let mut bench = Bench::new(DispatcherConfig::one_by_one(1).with_parking(limits));
    let ticket = bench.tracker.deliver(0, None);
    bench.dispatcher.admit_together(Rec { key: None, offset: 0 }, ticket);
    let (job, _) = bench.start().unwrap();
    bench.dispatcher.park(job);
    assert_eq!(bench.dispatcher.room(), 0);
    assert!(bench.dispatcher.unpark(job));
    assert_eq!(bench.start(), Some((job, vec![0])));
    bench.finish(job);
    assert_eq!(bench.dispatcher.room(), 1);
}

#[test]
fn a_record_that_is_to_be_alone_makes_a_batch_of_its_own() {
    let mut bench = Bench::by_key(100, 1, 10);
    for offset in 0..6 {
        bench.admit(named("a"), offset);
    }
    let mut batches = Vec::new();
    for _ in 0..3 {
        let mut taken = Vec::new();
        let alone = |record: &Rec| record.offset == 2;
        let start = bench.dispatcher.start(bench.now, alone, |record, _| taken.push(record.offset));
        let Some(Start::Fresh(job)) = start else { panic!("{start:?}") };
        bench.dispatcher.finish(job);
        batches.push(taken);
    }
    assert_eq!(bench.start(), None);
    assert_eq!(batches, [vec![0, 1], vec![2], vec![3, 4, 5]]);
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
