//! What makes two keys the same one, and key functions that misbehave.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{Probe, for_each, run_on, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, CommitPolicy, ErrorPolicy, Lane, LaneKey, Ordering, PartitionedBuilder, Retry, RunError,
    StopPolicy,
};
use tramline_wire::{Record, TopicPartition};

fn by_key(handlers: usize) -> impl Fn(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource> {
    move |b| b.ordering(Ordering::Key).max_concurrent_handlers(handlers).stop(StopPolicy::Cancel, secs(1))
}

/// Which offsets are in a handler at once when none of them returns.
async fn side_by_side(
    log: &MemoryLog,
    with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
) -> Vec<i64> {
    let probe = Probe::default();
    for offset in 0..log.end(&tp(0)) {
        let _held = probe.hold(0, offset);
    }
    let run = for_each(log, &[0], with, probe.handler());
    settle().await;
    run.drop_it().await;
    probe.seen(0)
}

#[tokio::test(start_paused = true)]
async fn t060_equal_key_bytes_in_different_memory_are_one_key_within_the_bounds_of_their_slices() {
    let log = MemoryLog::new();
    for key in [&b"key"[..], b"key", b"KEY", b"key2", b"key"] {
        log.produce(&tp(0), Some(key), None);
    }
    assert_eq!(side_by_side(&log, by_key(8)).await, [0, 2, 3]);

    // Every way to make a key of the same bytes: whole, cut out of something longer, text, a number.
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 7);
    let with = |b: PartitionedBuilder<MemorySource>| {
        by_key(8)(b).key_by(|record| match record.offset() {
            0 => LaneKey::new(Bytes::from_static(b"\0\0\0\0\0\0\0A")),
            1 => LaneKey::new(Bytes::copy_from_slice(b"before\0\0\0\0\0\0\0Aafter").slice(6..14)),
            2 => LaneKey::from(String::from("\0\0\0\0\0\0\0A")),
            3 => LaneKey::from("\0\0\0\0\0\0\0A"),
            4 => LaneKey::from(65_u64),
            5 => LaneKey::new(vec![0, 0, 0, 0, 0, 0, 0, b'A']),
            _ => LaneKey::new(Bytes::copy_from_slice(b"before\0\0\0\0\0\0\0Aafter").slice(6..15)),
        })
    };
    assert_eq!(side_by_side(&log, with).await, [0, 6]);
}

#[tokio::test(start_paused = true)]
async fn t064_no_key_never_equals_one_and_the_key_function_sees_every_record_once() {
    let log = MemoryLog::new();
    for key in [None, Some(&b""[..]), Some(b"null"), Some(b"\0"), None] {
        log.produce(&tp(0), key, None);
    }
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let with = move |b: PartitionedBuilder<MemorySource>| {
        by_key(8)(b).key_by(move |record| {
            noted.lock().unwrap().push(record.offset());
            LaneKey::of(record)
        })
    };
    assert_eq!(side_by_side(&log, with).await, [0, 1, 2, 3]);
    assert_eq!(*asked.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn t069_a_key_that_changes_while_its_record_runs_keeps_its_lane() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 6);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let moment = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&moment);
    // What the key of a record is depends on when one asks: the first four are asked for before, the others after.
    let with = move |b: PartitionedBuilder<MemorySource>| {
        by_key(8)(b).key_by(move |record| {
            LaneKey::from(record.offset() as u64 % 2 + 2 * now.load(Atomic::SeqCst) as u64)
        })
    };
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(4);
    control.set_paused(&tp(0), true);
    control.assign(&[tp(0)]);
    let run = run_on(source, control, with, probe.handler());
    settle().await;
    assert_eq!(probe.seen(0)[..2], [0, 1]);
    moment.store(1, Atomic::SeqCst);
    log.produce_many(&tp(0), 2);
    settle().await;
    gate.cancel();
    settle().await;
    run.stop().await.0.unwrap();
    let mut done = probe.done(0);
    done.sort_unstable();
    assert_eq!((done, log.committed(&tp(0))), ((0..8).collect(), Some(8)), "each once, and nothing is stuck");
    let old: Vec<i64> = probe.done(0).into_iter().filter(|offset| [0, 2, 4].contains(offset)).collect();
    assert_eq!(old, [0, 2, 4], "those with the first key kept their order");
}

#[tokio::test(start_paused = true)]
async fn t070_a_key_function_that_panics_fails_its_lane_once_and_nothing_is_committed_over() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    log.produce_many(&tp(1), 5);
    let key = |record: &Record| {
        assert!(record.partition() == 1 || record.offset() < 3, "no key for {}", record.offset());
        LaneKey::from("same")
    };
    for policy in [ErrorPolicy::StopRun, ErrorPolicy::StopPartition] {
        let (log, probe) = (log.clone(), Probe::default());
        log.set_committed(&tp(0), 0);
        let stops_run = matches!(policy, ErrorPolicy::StopRun);
        let (source, control) = MemorySource::new(&log);
        control.max_poll_records(3);
        control.assign(&[tp(0), tp(1)]);
        let with = |b: PartitionedBuilder<MemorySource>| by_key(4)(b).key_by(key).on_error(policy);
        let run = run_on(source, control.clone(), with, probe.handler());
        settle().await;
        let result = run.stop().await.0;
        if stops_run {
            let error = result.unwrap_err();
            let RunError::Panicked { lane, message, .. } = &error else { panic!("{error}") };
            assert_eq!((&lane.topic_partition, message.as_str()), (&tp(0), "no key for 3"));
        } else {
            assert_eq!(result.unwrap().lane_failures, 1);
        }
        // How many of the three before it were completed when their lane met it is a matter of turns.
        let committed = log.committed(&tp(0)).unwrap_or(0);
        assert!(committed <= 3 && probe.done(0).iter().all(|offset| *offset < 3));
        assert_eq!(control.position(&tp(0)), Some(committed), "it comes again");
        assert_eq!(log.committed(&tp(1)), Some(5));
    }
}

#[tokio::test(start_paused = true)]
async fn t049_sixty_four_rounds_of_three_that_end_in_reverse_are_each_seen_once() {
    let log = MemoryLog::new();
    for offset in 0..192 {
        log.produce(&tp(0), Some(format!("k{}", offset % 3).as_bytes()), None);
    }
    let probe = Probe::default();
    let gates: Vec<_> = (0..192).map(|offset| probe.hold(0, offset)).collect();
    let with = |b: PartitionedBuilder<MemorySource>| by_key(3)(b).commit(CommitPolicy::UserManaged);
    let run = for_each(&log, &[0], with, probe.handler());
    for round in 0..64 {
        settle().await;
        let base = round * 3;
        assert_eq!(probe.seen(0).len(), base + 3);
        for at in [2, 1, 0] {
            assert_eq!(run.monitor.snapshot()[0].completed, (base + 2 - at) as u64);
            gates[base + at].cancel();
            // Its completion is told before its key's next record begins, which is held.
            while run.monitor.snapshot()[0].completed < (base + 3 - at) as u64 {
                settle().await;
            }
            if at > 0 {
                assert_eq!(run.monitor.snapshot()[0].frontier.unwrap_or(0), base as i64);
            }
        }
    }
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_completed, report.lanes[0].frontier), (192, Some(192)));
}

#[tokio::test(start_paused = true)]
async fn b049_one_key_in_two_topics_is_two_key_lanes() {
    let log = MemoryLog::new();
    let (one, two) = (TopicPartition::new("one", 0), TopicPartition::new("two", 0));
    for partition in [&one, &two] {
        log.produce(partition, Some(b"a"), None);
        log.produce(partition, Some(b"a"), None);
    }
    let done = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&done);
    let handler = move |record: Record, _: Lane| {
        let done = Arc::clone(&noted);
        async move {
            if record.topic() == "one" {
                std::future::pending::<()>().await;
            }
            done.lock().unwrap().push((record.topic().to_owned(), record.offset()));
            Ok::<_, String>(())
        }
    };
    let (source, control) = MemorySource::new(&log);
    control.assign(&[one, two.clone()]);
    let run = run_on(source, control, by_key(4), handler);
    settle().await;
    assert_eq!(*done.lock().unwrap(), [("two".to_owned(), 0), ("two".to_owned(), 1)]);
    run.stop().await.0.unwrap_err();
    assert_eq!(log.committed(&two), Some(2));
}

/// Judges every start of a handler: per key in order of offsets, never two at once, a failed record again before
/// the next one.
#[derive(Default)]
struct KeyOracle {
    running: BTreeMap<Vec<u8>, i64>,
    /// The last record of a key that was done.
    done: BTreeMap<Vec<u8>, i64>,
    failed: BTreeMap<Vec<u8>, i64>,
    handled: usize,
    failures: usize,
}

#[tokio::test(start_paused = true)]
async fn b050_order_per_key_holds_over_many_records_with_random_times_failures_and_retries() {
    const RECORDS: i64 = 30_000;
    let seed = 0x5eed_u64;
    let log = MemoryLog::new();
    let mix = move |offset: i64, salt: u64| {
        let mixed = (offset as u64 ^ seed ^ (salt << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
    };
    for offset in 0..RECORDS {
        log.produce(&tp(0), Some(format!("k{}", mix(offset, 1) % 1000).as_bytes()), None);
    }
    let oracle = Arc::new(Mutex::new(KeyOracle::default()));
    let judged = Arc::clone(&oracle);
    let handler = move |record: Record, _: Lane| {
        let oracle = Arc::clone(&judged);
        async move {
            let (key, offset) = (record.key().unwrap().to_vec(), record.offset());
            let fails = {
                let oracle = &mut *oracle.lock().unwrap();
                assert_eq!(oracle.running.insert(key.clone(), offset), None, "seed {seed}: two of {key:?}");
                assert!(
                    oracle.done.get(&key).is_none_or(|&done| done < offset),
                    "seed {seed}: {key:?} went back"
                );
                let again = oracle.failed.remove(&key);
                assert!(
                    again.is_none_or(|again| again == offset),
                    "seed {seed}: {again:?} of {key:?} was passed"
                );
                again.is_none() && mix(offset, 2) % 20 == 0
            };
            tokio::time::sleep(Duration::from_millis(mix(offset, 3) % 5)).await;
            let oracle = &mut *oracle.lock().unwrap();
            oracle.running.remove(&key);
            if fails {
                oracle.failed.insert(key, offset);
                oracle.failures += 1;
                return Err("now and then");
            }
            oracle.done.insert(key, offset);
            oracle.handled += 1;
            Ok(())
        }
    };
    let retry = Retry::new(3, Backoff::new(Duration::from_millis(1), Duration::from_millis(20)));
    let with = |b: PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key)
            .max_concurrent_handlers(64)
            .on_error(retry)
            .commit(CommitPolicy::Periodic(secs(1)))
    };
    let run = for_each(&log, &[0], with, handler);
    while log.committed(&tp(0)) != Some(RECORDS) {
        assert!(!run.is_over(), "seed {seed}");
        tokio::time::sleep(secs(1)).await;
    }
    run.stop().await.0.unwrap();
    let oracle = oracle.lock().unwrap();
    assert_eq!(oracle.handled as i64, RECORDS, "seed {seed}: each once");
    assert!(oracle.failures > 1000 && oracle.failed.is_empty(), "seed {seed}");
    assert!(log.commits_of(&tp(0)).is_sorted());
}
