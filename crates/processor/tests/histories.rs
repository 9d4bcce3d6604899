//! Random histories of key order: failures, panics, retries, restarts, skips, dead letters, refused commits and
//! rebalances, judged after every step.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{run_on, secs, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, CommitErrorKind, CommitPolicy, DeadLetter, DeadLetters, ErrorPolicy, Handler, Lane, Ordering,
    PartitionedBuilder, Retry,
};
use tramline_wire::Record;

const PARTITIONS: i32 = 2;
const ATTEMPTS: u32 = 3;

/// Small, seeded, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

type Key = (i32, Vec<u8>);

/// What is known of every record, whoever worked on it.
#[derive(Default)]
struct Oracle {
    /// The records of each key in order.
    lines: BTreeMap<Key, Vec<i64>>,
    running: BTreeSet<Key>,
    /// Done, skipped or stored as a dead letter.
    settled: BTreeMap<i32, BTreeSet<i64>>,
    failures: BTreeMap<(i32, i64), u32>,
    letters: usize,
    wrong: Vec<String>,
}

impl Oracle {
    fn settle(&mut self, partition: i32, offset: i64) {
        self.settled.entry(partition).or_default().insert(offset);
    }

    fn is_settled(&self, partition: i32, offset: i64) -> bool {
        self.settled.get(&partition).is_some_and(|settled| settled.contains(&offset))
    }

    fn first_unsettled(&self, partition: i32) -> i64 {
        (0..).find(|offset| !self.is_settled(partition, *offset)).unwrap()
    }

    /// A handler begins. How often the record has failed so far.
    fn enter(&mut self, key: &Key, offset: i64) -> u32 {
        if !self.running.insert(key.clone()) {
            self.wrong.push(format!("two handlers of {key:?}"));
        }
        let before = self.lines[key].iter().take_while(|before| **before < offset);
        let passed: Vec<i64> = before.copied().filter(|before| !self.is_settled(key.0, *before)).collect();
        if !passed.is_empty() {
            self.wrong.push(format!("{offset} of {key:?} began before {passed:?} were settled"));
        }
        self.failures.get(&(key.0, offset)).copied().unwrap_or(0)
    }
}

/// Leaves the key when its handler ends, however that is.
struct Inside(Arc<Mutex<Oracle>>, Key);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).running.remove(&self.1);
    }
}

#[derive(Clone)]
struct Shelf(Arc<Mutex<Oracle>>);

impl DeadLetters for Shelf {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let oracle = &mut *self.0.lock().unwrap();
        oracle.settle(letter.record.partition(), letter.record.offset());
        oracle.letters += 1;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Skip,
    Bury,
    Restart,
}

fn policy(kind: Kind, oracle: &Arc<Mutex<Oracle>>) -> ErrorPolicy {
    let short = Backoff::new(Duration::from_millis(3), Duration::from_millis(40));
    match kind {
        Kind::Skip => Retry::new(ATTEMPTS, short).then(ErrorPolicy::Skip),
        Kind::Bury => Retry::new(ATTEMPTS, short).then(ErrorPolicy::dead_letter(Shelf(Arc::clone(oracle)))),
        Kind::Restart => ErrorPolicy::RestartLane(short),
    }
}

/// Fails now and then, and some records always; takes notes.
fn handler(seed: u64, kind: Kind, oracle: &Arc<Mutex<Oracle>>) -> impl Handler + use<> {
    let judge = Arc::clone(oracle);
    move |record: Record, _: Lane| {
        let oracle = Arc::clone(&judge);
        async move {
            let (partition, offset) = (record.partition(), record.offset());
            let key = (partition, record.key().unwrap_or(b"none").to_vec());
            let failed = oracle.lock().unwrap().enter(&key, offset);
            let _inside = Inside(Arc::clone(&oracle), key);
            let mut dice = Dice(seed ^ ((offset as u64) << 8 | u64::from(failed)));
            dice.roll(2);
            tokio::time::sleep(Duration::from_millis(dice.roll(6))).await;
            let poisoned = kind != Kind::Restart && offset % 41 == 7;
            if poisoned || (dice.roll(10) == 0 && failed < 2) {
                // A member that left it to its successor begins to count anew, and so does this.
                let attempts = (failed + 1) % ATTEMPTS;
                {
                    let oracle = &mut *oracle.lock().unwrap();
                    oracle.failures.insert((partition, offset), attempts);
                    if kind == Kind::Skip && attempts == 0 {
                        oracle.settle(partition, offset);
                    }
                }
                if dice.roll(5) == 0 {
                    std::panic::panic_any("as planned".to_owned());
                }
                return Err("as planned");
            }
            let oracle = &mut *oracle.lock().unwrap();
            oracle.failures.remove(&(partition, offset));
            oracle.settle(partition, offset);
            Ok(())
        }
    }
}

fn produce(log: &MemoryLog, oracle: &Mutex<Oracle>, dice: &mut Dice) {
    for partition in 0..PARTITIONS {
        for _ in 0..dice.roll(15) {
            let key = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("e")][dice.roll(6) as usize];
            let mut oracle = oracle.lock().unwrap();
            let offset = log.produce(&tp(partition), key.map(str::as_bytes), None);
            let line = (partition, key.unwrap_or("none").as_bytes().to_vec());
            oracle.lines.entry(line).or_default().push(offset);
        }
    }
}

fn judge_commits(log: &MemoryLog, oracle: &Mutex<Oracle>, when: &str) {
    for partition in 0..PARTITIONS {
        let committed = log.committed(&tp(partition)).unwrap_or(0);
        let unsettled = oracle.lock().unwrap().first_unsettled(partition);
        assert!(committed <= unsettled, "{when}: {committed} over {unsettled}");
        assert!(log.commits_of(&tp(partition)).is_sorted(), "{when}: went back");
    }
}

async fn history(seed: u64, kind: Kind) {
    let (log, oracle) = (MemoryLog::new(), Arc::new(Mutex::new(Oracle::default())));
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(20);
    control.assign(&(0..PARTITIONS).map(tp).collect::<Vec<_>>());
    let with = |b: PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key)
            .max_concurrent_handlers(6)
            .max_buffered_records(24)
            .on_error(policy(kind, &oracle))
            .commit(CommitPolicy::Periodic(Duration::from_millis(50)))
    };
    let run = run_on(source, control.clone(), with, handler(seed, kind, &oracle));
    let mut dice = Dice(seed);
    for round in 0..60 {
        let when = format!("seed {seed} {kind:?} round {round}");
        produce(&log, &oracle, &mut dice);
        tokio::time::sleep(Duration::from_millis(dice.roll(60))).await;
        let one = [tp(dice.roll(PARTITIONS as u64) as i32)];
        match dice.roll(6) {
            // With `Skip` the handler settles on its last attempt, which counts anew with each lane.
            0 if kind != Kind::Skip => {
                control.lose(&one);
                control.assign(&one);
            }
            1 if kind != Kind::Skip => {
                assert!(control.revoke_within(&one, secs(60)).released().await, "{when}");
                control.assign(&one);
            }
            2 => control.fail_commits(&[CommitErrorKind::Retriable]),
            _ => {}
        }
        assert!(!run.is_over(), "{when}");
        judge_commits(&log, &oracle, &when);
    }
    let committed = || (0..PARTITIONS).all(|at| log.committed(&tp(at)).unwrap_or(0) == log.end(&tp(at)));
    for _ in 0..1000 {
        if !committed() {
            tokio::time::sleep(secs(1)).await;
        }
    }
    let when = format!("seed {seed} {kind:?} at the end");
    let report = run.stop().await.0.unwrap_or_else(|error| panic!("{when}: {error}"));
    judge_commits(&log, &oracle, &when);
    assert!(committed(), "{when}: every record is settled, so that all can be committed");
    let oracle = oracle.lock().unwrap();
    assert_eq!(oracle.wrong, [] as [String; 0], "{when}");
    match kind {
        Kind::Skip => assert!(report.records_skipped > 0 && report.retries > 0),
        Kind::Bury => assert!(oracle.letters > 0 && report.records_dead_lettered as usize <= oracle.letters),
        Kind::Restart => assert!(report.lane_failures > 5),
    }
}

#[tokio::test(start_paused = true)]
async fn t137_t262_b050_per_key_order_holds_and_every_record_is_settled_over_random_histories() {
    for seed in 1..=3 {
        for kind in [Kind::Skip, Kind::Bury, Kind::Restart] {
            history(seed, kind).await;
        }
    }
}
