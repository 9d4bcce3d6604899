//! Random histories of key order: failures, panics, retries, restarts, skips, dead letters, parked keys and what is
//! ordered about them, few bytes, refused commits and rebalances, judged after every step.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Running, secs, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, CommitErrorKind, CommitPolicy, DeadLetter, DeadLetters, ErrorPolicy, Handler, Lane, Ordering,
    Park, ParkedError, ParkedId, ParkedKeys, PartitionedExt, Retry,
};
use tramline_wire::Record;

const PARTITIONS: i32 = 2;
const ATTEMPTS: u32 = 3;
/// The bytes of a run whose records are large for that, and the largest poll of it.
const FEW_BYTES: usize = 20_000;
const POLL: usize = 4;
const LARGEST: u64 = 2_000;

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
    /// How often each was done in each generation.
    done: BTreeMap<(i32, i32, i64), u32>,
    /// Being skipped by order, which may not come to pass.
    skipping: BTreeSet<(i32, i64)>,
    /// Do not fail any more.
    mended: BTreeSet<(i32, i64)>,
    letters: usize,
    /// What came of the orders about parked keys: resumed, skipped, stored, not stored, come too late.
    orders: [u32; 5],
    wrong: Vec<String>,
}

impl Oracle {
    fn settle(&mut self, partition: i32, offset: i64) {
        self.settled.entry(partition).or_default().insert(offset);
    }

    fn is_settled(&self, partition: i32, offset: i64) -> bool {
        self.settled.get(&partition).is_some_and(|settled| settled.contains(&offset))
            || self.skipping.contains(&(partition, offset))
    }

    fn note_done(&mut self, lane: &Lane, offset: i64) {
        let (partition, generation) = (lane.topic_partition().partition, lane.generation());
        let times = self.done.entry((partition, generation, offset)).or_default();
        *times += 1;
        if *times > 1 {
            self.wrong.push(format!("{offset} was done {times} times in {}", lane.id()));
        }
        self.settle(partition, offset);
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

/// Stores dead letters, and refuses one in four when it is told to.
#[derive(Clone)]
struct Shelf {
    oracle: Arc<Mutex<Oracle>>,
    refuses: bool,
}

impl DeadLetters for Shelf {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let oracle = &mut *self.oracle.lock().unwrap();
        oracle.letters += 1;
        if self.refuses && oracle.letters.is_multiple_of(4) {
            return Err("no room".to_owned());
        }
        oracle.settle(letter.record.partition(), letter.record.offset());
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Skip,
    Bury,
    Restart,
    /// Parked, and then what is ordered.
    Park,
    /// Parked; when that is full, the lane starts again.
    ParkFew,
}

impl Kind {
    fn parks(self) -> bool {
        matches!(self, Self::Park | Self::ParkFew)
    }
}

fn policy(kind: Kind, oracle: &Arc<Mutex<Oracle>>) -> ErrorPolicy {
    let short = Backoff::new(Duration::from_millis(3), Duration::from_millis(40));
    match kind {
        Kind::Skip => Retry::new(ATTEMPTS, short).then(ErrorPolicy::Skip),
        Kind::Bury => {
            let shelf = Shelf { oracle: Arc::clone(oracle), refuses: false };
            Retry::new(ATTEMPTS, short).then(ErrorPolicy::dead_letter(shelf))
        }
        Kind::Restart => ErrorPolicy::RestartLane(short),
        Kind::Park => Retry::new(2, short).then(Park::new().max_keys(4).max_records(12)),
        Kind::ParkFew => {
            Retry::new(2, short).then(Park::new().max_keys(2).when_full(ErrorPolicy::RestartLane(short)))
        }
    }
}

/// Fails now and then, and some records always; takes notes.
fn handler(seed: u64, kind: Kind, oracle: &Arc<Mutex<Oracle>>) -> impl Handler + use<> {
    let judge = Arc::clone(oracle);
    move |record: Record, lane: Lane| {
        let oracle = Arc::clone(&judge);
        async move {
            let (partition, offset) = (record.partition(), record.offset());
            let key = (partition, record.key().unwrap_or(b"none").to_vec());
            let failed = oracle.lock().unwrap().enter(&key, offset);
            let _inside = Inside(Arc::clone(&oracle), key);
            let mut dice = Dice(seed ^ ((offset as u64) << 8 | u64::from(failed)));
            dice.roll(2);
            tokio::time::sleep(Duration::from_millis(dice.roll(6))).await;
            let poisoned = match kind {
                Kind::Restart => false,
                Kind::Skip | Kind::Bury => offset % 41 == 7,
                Kind::Park | Kind::ParkFew => {
                    offset % 23 == 7 && !oracle.lock().unwrap().mended.contains(&(partition, offset))
                }
            };
            if poisoned || (dice.roll(10) == 0 && failed < 2) {
                // A member that left it to its successor begins to count anew, and so does this.
                let attempts = if kind.parks() { failed + 1 } else { (failed + 1) % ATTEMPTS };
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
            oracle.note_done(&lane, offset);
            Ok(())
        }
    }
}

const KEYS: [Option<&str>; 6] = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("e")];

fn produce(log: &MemoryLog, oracle: &Mutex<Oracle>, dice: &mut Dice, kind: Kind) {
    for partition in 0..PARTITIONS {
        for _ in 0..dice.roll(15) {
            let oracle = &mut *oracle.lock().unwrap();
            let mut note = |key: Option<&str>, offset| {
                let line = (partition, key.unwrap_or("none").as_bytes().to_vec());
                oracle.lines.entry(line).or_default().push(offset);
            };
            let value = vec![0; if kind.parks() { dice.roll(LARGEST) as usize } else { 0 }];
            if kind.parks() && dice.roll(4) == 0 {
                let keys: Vec<&str> = (0..POLL).map(|_| KEYS[1 + dice.roll(5) as usize].unwrap()).collect();
                let first = log.end(&tp(partition));
                let records: Vec<_> = keys.iter().map(|&key| (key, &value[..value.len() / POLL])).collect();
                log.produce_batch(&tp(partition), &records);
                (first..).zip(keys).for_each(|(offset, key)| note(Some(key), offset));
            } else {
                let key = KEYS[dice.roll(6) as usize];
                note(key, log.produce(&tp(partition), key.map(str::as_bytes), Some(&value)));
            }
        }
    }
}

/// Orders something about every third parked key, or about all.
async fn decide(
    parked: &ParkedKeys,
    known: &mut Vec<ParkedId>,
    oracle: &Arc<Mutex<Oracle>>,
    dice: &mut Dice,
    all: bool,
) {
    // Something that was seen before, and was dealt with meanwhile, or not.
    if !known.is_empty() && !all {
        let old = known.swap_remove(dice.roll(known.len() as u64) as usize);
        match parked.resume(&old).await {
            Ok(()) => oracle.lock().unwrap().orders[0] += 1,
            Err(ParkedError::NotParked | ParkedError::LaneClosed) => oracle.lock().unwrap().orders[4] += 1,
            Err(other) => panic!("{other}"),
        }
    }
    for key in parked.list() {
        known.push(key.id.clone());
        if !all && dice.roll(3) > 0 {
            continue;
        }
        let (id, at) = (&key.id, (key.id.lane.topic_partition.partition, key.id.offset));
        let shelf = Shelf { oracle: Arc::clone(oracle), refuses: true };
        let (what, result) = match dice.roll(4) {
            0 => {
                if dice.roll(2) == 0 {
                    oracle.lock().unwrap().mended.insert(at);
                }
                (0, parked.resume(id).await)
            }
            1 => {
                oracle.lock().unwrap().skipping.insert(at);
                let skipped = parked.skip(id).await;
                let oracle = &mut *oracle.lock().unwrap();
                oracle.skipping.remove(&at);
                if skipped.is_ok() {
                    oracle.settle(at.0, at.1);
                }
                (1, skipped.map(|records| assert_eq!(records, 1)))
            }
            2 => (2, parked.dead_letter(id, shelf).await.map(|records| assert_eq!(records, 1))),
            _ => (2, parked.dead_letter_all(id, shelf).await.map(|records| assert!(records > 0))),
        };
        let what = match result {
            Ok(()) => what,
            Err(ParkedError::Write { .. }) => 3,
            Err(ParkedError::NotParked | ParkedError::LaneClosed) => 4,
            Err(other) => panic!("{other}"),
        };
        oracle.lock().unwrap().orders[what] += 1;
    }
}

fn judge_bytes(run: &Running, when: &str) {
    let held: usize = run.monitor.snapshot().iter().map(|lane| lane.held_bytes).sum();
    assert_eq!(run.monitor.stats().buffered_bytes, held, "{when}: the run's bytes are those of its lanes");
    let most = FEW_BYTES + PARTITIONS as usize * POLL * (LARGEST as usize + 500);
    assert!(held < most, "{when}: {held} bytes");
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
    control.max_poll_records(if kind.parks() { POLL } else { 20 });
    control.assign(&(0..PARTITIONS).map(tp).collect::<Vec<_>>());
    let run = source
        .partitioned()
        .ordering(Ordering::Key)
        .max_concurrent_handlers(6)
        .max_buffered_records(24)
        .max_buffered_bytes(if kind.parks() { FEW_BYTES } else { 64 << 20 })
        .on_error(policy(kind, &oracle))
        .commit(CommitPolicy::Periodic(Duration::from_millis(50)))
        .build()
        .unwrap();
    let parked = run.parked();
    let run = Running::of(run, control.clone(), handler(seed, kind, &oracle));
    let (mut dice, mut known) = (Dice(seed), Vec::new());
    for round in 0..60 {
        let when = format!("seed {seed} {kind:?} round {round}");
        produce(&log, &oracle, &mut dice, kind);
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
            _ => decide(&parked, &mut known, &oracle, &mut dice, false).await,
        }
        assert!(!run.is_over(), "{when}");
        judge_commits(&log, &oracle, &when);
        if kind.parks() {
            judge_bytes(&run, &when);
        }
    }
    let committed = || (0..PARTITIONS).all(|at| log.committed(&tp(at)).unwrap_or(0) == log.end(&tp(at)));
    for _ in 0..1000 {
        if !committed() {
            decide(&parked, &mut known, &oracle, &mut dice, true).await;
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
        Kind::Park => assert!(oracle.orders.iter().all(|orders| *orders > 0), "{:?}", oracle.orders),
        Kind::ParkFew => assert!(report.lane_failures > 5 && report.keys_parked > 5),
    }
}

#[tokio::test(start_paused = true)]
async fn t137_t262_b050_per_key_order_holds_and_every_record_is_settled_over_random_histories() {
    for seed in 1..=3 {
        for kind in [Kind::Skip, Kind::Bury, Kind::Restart, Kind::Park, Kind::ParkFew] {
            history(seed, kind).await;
        }
    }
}
