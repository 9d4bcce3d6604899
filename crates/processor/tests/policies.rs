//! What error policies make of failures: stopped partitions, restarted lanes, retries, skips, dead letters.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, Running, for_each, for_each_batch, lanes, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, Batch, ConfigErrorKind, DeadLetter, DeadLetters, ErrorPolicy, Handler, Lane, LaneStream,
    Ordering, Park, PartitionedExt, Retry, RunError,
};
use tramline_wire::Record;

/// Fails at chosen records so often; notes what it did and when.
#[derive(Clone, Default)]
struct Faulty(Arc<Mutex<FaultyState>>);

#[derive(Default)]
struct FaultyState {
    failures: BTreeMap<(i32, i64), u32>,
    tried: Vec<(i32, i64)>,
    done: Vec<(i32, i64)>,
    times: Vec<Duration>,
}

impl Faulty {
    fn at(failures: &[(i32, i64, u32)]) -> Self {
        let faulty = Self::default();
        let failures = failures.iter().map(|&(partition, offset, times)| ((partition, offset), times));
        faulty.0.lock().unwrap().failures = failures.collect();
        faulty
    }

    fn handler(&self) -> impl Handler + use<> {
        let (state, start) = (Arc::clone(&self.0), tokio::time::Instant::now());
        move |record: Record, _: Lane| {
            let state = Arc::clone(&state);
            async move {
                let at = (record.partition(), record.offset());
                let state = &mut *state.lock().unwrap();
                state.tried.push(at);
                match state.failures.get_mut(&at) {
                    Some(left) if *left > 0 => {
                        *left -= 1;
                        state.times.push(start.elapsed());
                        Err(format!("cannot do {}", at.1))
                    }
                    _ => {
                        state.done.push(at);
                        Ok(())
                    }
                }
            }
        }
    }

    fn done(&self, partition: i32) -> Vec<i64> {
        let state = self.0.lock().unwrap();
        state.done.iter().filter(|at| at.0 == partition).map(|at| at.1).collect()
    }

    fn tried(&self, partition: i32) -> Vec<i64> {
        let state = self.0.lock().unwrap();
        state.tried.iter().filter(|at| at.0 == partition).map(|at| at.1).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn t211_t219_b056_stop_partition_commits_and_pauses_one_partition_until_it_is_assigned_again() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 2, 1)]));
    log.produce_many(&tp(0), 5);
    log.produce_many(&tp(1), 5);
    let run = for_each(&log, &[0, 1], |b| b.on_error(ErrorPolicy::StopPartition), faulty.handler());
    settle().await;
    assert_eq!((faulty.tried(0), faulty.done(1)), (vec![0, 1, 2], vec![0, 1, 2, 3, 4]));
    assert_eq!(log.committed(&tp(0)), Some(2));
    assert_eq!(run.control.paused(), [tp(0)]);
    run.control.revoke(&[tp(0)]).released().await;
    run.control.assign(&[tp(0)]);
    settle().await;
    assert_eq!(faulty.done(0), [0, 1, 2, 3, 4]);
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.lane_failures, report.lanes_started), (1, 3));
    assert!(report.lanes[0].failure.as_deref() == Some("cannot do 2"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_partition_is_set_back_and_resumed_when_the_run_ends() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 1, 9)]));
    log.produce_many(&tp(0), 4);
    let run = for_each(&log, &[0], |b| b.on_error(ErrorPolicy::StopPartition), faulty.handler());
    settle().await;
    let control = run.control.clone();
    run.stop().await.0.unwrap();
    assert_eq!((control.position(&tp(0)), control.paused()), (Some(1), vec![]));
}

#[tokio::test(start_paused = true)]
async fn t212_t217_t218_a_restarted_lane_begins_at_its_frontier_and_nothing_queued_is_lost() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 10, 2), (0, 30, 1)]));
    log.produce_many(&tp(0), 50);
    let policy = ErrorPolicy::RestartLane(Backoff::default());
    let run = for_each(&log, &[0], |b| b.on_error(policy), faulty.handler());
    tokio::time::sleep(secs(5)).await;
    assert_eq!(faulty.done(0), (0..50).collect::<Vec<_>>());
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.lane_failures, report.lanes_started), (3, 4));
    assert_eq!(log.committed(&tp(0)), Some(50));
}

#[tokio::test(start_paused = true)]
async fn t213_t214_t215_a_lane_that_always_fails_waits_longer_each_time_and_delays_no_other() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 0, 5)]));
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let policy = ErrorPolicy::RestartLane(Backoff::default().without_jitter());
    let run = for_each(&log, &[0, 1], |b| b.on_error(policy), faulty.handler());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((faulty.tried(0), faulty.done(1)), (vec![0], vec![0]));
    log.produce_many(&tp(1), 1);
    settle().await;
    assert_eq!(faulty.done(1), [0, 1]);
    tokio::time::sleep(secs(10)).await;
    let times: Vec<_> = faulty.0.lock().unwrap().times.iter().map(Duration::as_millis).collect();
    assert_eq!(times, [0, 100, 300, 700, 1500]);
    assert_eq!(faulty.done(0), [0]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t175_a_revocation_during_the_wait_commits_what_was_done_and_starts_nothing() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 3, 9)]));
    log.produce_many(&tp(0), 5);
    let policy = ErrorPolicy::RestartLane(Backoff::every(secs(60)));
    let run = for_each(&log, &[0], |b| b.on_error(policy), faulty.handler());
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    assert_eq!(log.committed(&tp(0)), Some(3));
    tokio::time::sleep(secs(120)).await;
    assert_eq!(run.stop().await.0.unwrap().lanes_started, 1);
}

#[tokio::test(start_paused = true)]
async fn t225_a_failing_key_is_tried_again_in_order_while_other_keys_go_on() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 0, 2)]));
    for key in ["a", "b", "a", "c", "b"] {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    let retry = Retry::new(5, Backoff::every(secs(1)).without_jitter());
    let run = for_each(&log, &[0], |b| b.ordering(Ordering::Key).on_error(retry), faulty.handler());
    settle().await;
    assert_eq!(faulty.tried(0), [0, 1, 3, 4], "one worker serves the others meanwhile");
    tokio::time::sleep(secs(3)).await;
    assert_eq!(faulty.tried(0), [0, 1, 3, 4, 0, 0, 2]);
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.retries, log.committed(&tp(0))), (2, Some(5)));
}

#[tokio::test(start_paused = true)]
async fn in_partition_order_the_partition_waits_for_the_retry() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 1, 1)]));
    log.produce_many(&tp(0), 3);
    let run = for_each(&log, &[0], |b| b.on_error(Retry::new(2, Backoff::every(secs(1)))), faulty.handler());
    tokio::time::sleep(secs(2)).await;
    assert_eq!(faulty.tried(0), [0, 1, 1, 2]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_the_last_attempt_the_run_stops_unless_told_otherwise() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 1, 9)]));
    log.produce_many(&tp(0), 3);
    let run = for_each(&log, &[0], |b| b.on_error(Retry::new(3, Backoff::every(secs(1)))), faulty.handler());
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { offset: Some(1), .. }), "{error}");
    assert_eq!((faulty.tried(0), log.committed(&tp(0))), (vec![0, 1, 1, 1], Some(1)));
}

#[tokio::test(start_paused = true)]
async fn t223_a_panic_is_tried_again_like_any_failure_and_siblings_live_on() {
    let (log, faulty) = (MemoryLog::new(), Faulty::default());
    for key in ["a", "b"] {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    let tried = Arc::clone(&faulty.0);
    let handler = move |record: Record, _: Lane| {
        let tried = Arc::clone(&tried);
        async move {
            let first = {
                let mut state = tried.lock().unwrap();
                state.tried.push((0, record.offset()));
                state.tried.len() == 1
            };
            assert!(!first, "the first one");
            tokio::time::sleep(secs(1)).await;
            Ok::<_, String>(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(2).on_error(Retry::new(2, Backoff::every(secs(1))))
    };
    let run = for_each(&log, &[0], with, handler);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(run.stop().await.0.unwrap().records_completed, 2);
    assert_eq!(faulty.tried(0), [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_does_not_wait_for_a_retry_and_the_record_is_left_to_the_next_owner() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 1, 9)]));
    for key in ["a", "b", "c", "b"] {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    let retry = Retry::new(9, Backoff::every(secs(600)));
    let run = for_each(&log, &[0], |b| b.ordering(Ordering::Key).on_error(retry), faulty.handler());
    settle().await;
    let start = tokio::time::Instant::now();
    run.control.revoke(&[tp(0)]).released().await;
    assert!(start.elapsed() < secs(1));
    assert_eq!((faulty.tried(0), log.committed(&tp(0))), (vec![0, 1, 2], Some(1)));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn skip_drops_exactly_the_failing_record_and_counts_it() {
    for ordering in [Ordering::Partition, Ordering::Key, Ordering::Unordered] {
        let (log, faulty) = (MemoryLog::new(), Faulty::at(&[(0, 1, 1), (0, 3, 1)]));
        log.produce_many(&tp(0), 5);
        let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
            b.ordering(ordering).on_error(ErrorPolicy::Skip)
        };
        let run = for_each(&log, &[0], with, faulty.handler());
        settle().await;
        let report = run.stop().await.0.unwrap();
        assert_eq!(faulty.done(0), [0, 2, 4]);
        assert_eq!((report.records_skipped, report.records_completed, report.retries), (2, 5, 0));
        assert_eq!(log.committed(&tp(0)), Some(5));
    }
}

/// Keeps dead letters, after a while; refuses so many first.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<(u32, Vec<DeadLetter>)>>);

impl DeadLetters for Shelf {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        tokio::time::sleep(secs(1)).await;
        let (refusals, kept) = &mut *self.0.lock().unwrap();
        if *refusals > 0 {
            *refusals -= 1;
            return Err("no room".to_owned());
        }
        kept.push(letter);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn t226_a_dead_letter_carries_the_record_and_its_story_and_completes_it_when_it_is_stored() {
    let (log, faulty, shelf) = (MemoryLog::new(), Faulty::at(&[(0, 1, 9), (0, 2, 9)]), Shelf::default());
    log.produce(&tp(0), None, None);
    log.produce(&tp(0), Some(b""), None);
    log.produce(&tp(0), Some(b"k"), Some(b""));
    let policy = Retry::new(2, Backoff::every(secs(1))).then(ErrorPolicy::dead_letter(shelf.clone()));
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(4).on_error(policy)
    };
    let run = for_each(&log, &[0], with, faulty.handler());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(run.monitor.snapshot()[0].frontier, Some(1), "not before the letter is stored");
    tokio::time::sleep(secs(1)).await;
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_dead_lettered, report.records_completed), (2, 3));
    assert_eq!(log.committed(&tp(0)), Some(3));
    let mut kept = std::mem::take(&mut shelf.0.lock().unwrap().1);
    kept.sort_by_key(|letter| letter.record.offset());
    let raw: Vec<_> = kept.iter().map(|letter| (letter.record.key(), letter.record.value())).collect();
    assert_eq!(raw, [(Some(&b""[..]), None), (Some(&b"k"[..]), Some(&b""[..]))]);
    assert_eq!((kept[0].attempts, kept[0].cause.as_str()), (2, "cannot do 1"));
    let values: Vec<String> = kept[0].headers().into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["cannot do 1", "2", "t", "0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn t227_a_dead_letter_that_cannot_be_stored_completes_nothing() {
    for stop_partition in [false, true] {
        let (log, faulty, shelf) = (MemoryLog::new(), Faulty::at(&[(0, 1, 9)]), Shelf::default());
        log.produce_many(&tp(0), 3);
        shelf.0.lock().unwrap().0 = 1;
        let policy = if stop_partition {
            ErrorPolicy::dead_letter_or_stop_partition(shelf)
        } else {
            ErrorPolicy::dead_letter(shelf)
        };
        let run = for_each(&log, &[0], |b| b.on_error(policy), faulty.handler());
        tokio::time::sleep(secs(2)).await;
        let result = run.stop().await.0;
        if stop_partition {
            assert_eq!(result.unwrap().lane_failures, 1);
        } else {
            let error = result.unwrap_err();
            assert!(matches!(error, RunError::DeadLetter { offset: Some(1), .. }), "{error}");
        }
        assert_eq!((faulty.tried(0), log.committed(&tp(0))), (vec![0, 1], Some(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn b184_failing_keys_are_bounded_by_the_buffer_and_hold_the_source_back() {
    let (log, probe) = (MemoryLog::new(), Probe::default());
    for number in 0..1000_u32 {
        log.produce(&tp(0), Some(&number.to_be_bytes()), None);
    }
    let handler = |_: Record, _: Lane| async { Err::<(), _>("down") };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key)
            .max_buffered_records(16)
            .on_error(Retry::new(1000, Backoff::every(secs(3600))))
    };
    let run = for_each(&log, &[0], with, handler);
    run.control.max_poll_records(8);
    tokio::time::sleep(secs(60)).await;
    let lane = &run.monitor.snapshot()[0];
    assert_eq!((lane.unfinished, lane.paused), (16, true));
    assert!(probe.seen(0).is_empty() && run.control.position(&tp(0)) < Some(600));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t003_t004_policies_that_make_no_sense_are_refused() {
    let log = MemoryLog::new();
    let (mut source, _control) = MemorySource::new(&log);
    for policy in [
        ErrorPolicy::RestartLane(Backoff::every(Duration::ZERO)),
        ErrorPolicy::RestartLane(Backoff::new(secs(2), secs(1))),
        ErrorPolicy::RestartLane(Backoff::new(secs(2), Duration::ZERO)),
        Retry::new(0, Backoff::default()).into(),
        Retry::new(1, Backoff::default()).then(Retry::new(1, Backoff::default())),
    ] {
        let error = source.partitioned().on_error(policy).build().unwrap_err();
        assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "on_error", .. }));
        source = error.source;
    }
    for policy in [
        ErrorPolicy::Skip,
        Park::new().into(),
        Retry::new(2, Backoff::default()).into(),
        Retry::new(1, Backoff::default()).then(Park::new()),
        ErrorPolicy::dead_letter(Shelf::default()),
    ] {
        let error = source.partitioned().on_error(policy).build_lanes().unwrap_err();
        assert_eq!(error.kind, ConfigErrorKind::PolicyNeedsHandlers);
        source = error.source;
    }
    for policy in [ErrorPolicy::StopPartition, ErrorPolicy::RestartLane(Backoff::default())] {
        let (source, _control) = MemorySource::new(&log);
        assert!(source.partitioned().on_error(policy).build_lanes().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_knows_which_attempt_this_is_also_after_its_key_was_parked() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let attempts = Arc::clone(&noted);
    let handler = move |record: Record, lane: Lane| {
        attempts.lock().unwrap().push((record.offset(), lane.attempt()));
        async move { if record.offset() == 1 { Err("no") } else { Ok(()) } }
    };
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    let policy = Retry::new(2, Backoff::every(secs(1))).then(Park::new());
    let run = source.partitioned().on_error(policy).build().unwrap();
    let parked = run.parked();
    let run = Running::of(run, control, handler);
    tokio::time::sleep(secs(5)).await;
    parked.resume(&parked.list()[0].id).await.unwrap();
    tokio::time::sleep(secs(5)).await;
    assert_eq!(parked.list()[0].attempts, 4);
    parked.skip(&parked.list()[0].id).await.unwrap();
    settle().await;
    assert_eq!(*noted.lock().unwrap(), [(0, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_handler_and_a_processor_know_their_attempt_and_a_restarted_lane_begins_at_1() {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let attempts = Arc::clone(&noted);
    let batches = move |batch: Batch, lane: Lane| {
        attempts.lock().unwrap().push((batch.len(), lane.attempt()));
        async move { if lane.attempt() < 3 { Err("not yet") } else { Ok(()) } }
    };
    let retry = Retry::new(3, Backoff::every(secs(1)));
    let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(2).on_error(retry), batches);
    tokio::time::sleep(secs(5)).await;
    run.stop().await.0.unwrap();
    assert_eq!(*noted.lock().unwrap(), [(2, 1), (2, 2), (2, 3)]);
    log.produce_many(&tp(0), 1);
    let attempts = Arc::clone(&noted);
    let processor = move |mut lane: LaneStream| {
        let attempts = Arc::clone(&attempts);
        async move {
            while let Some(record) = lane.next().await {
                attempts.lock().unwrap().push((usize::MAX, lane.attempt()));
                if attempts.lock().unwrap().len() < 5 {
                    return Err("once more");
                }
                record.done();
            }
            Ok(())
        }
    };
    let restart = ErrorPolicy::RestartLane(Backoff::every(secs(1)));
    let run = lanes(&log, &[0], |b| b.on_error(restart), processor);
    tokio::time::sleep(secs(5)).await;
    run.stop().await.0.unwrap();
    assert_eq!(noted.lock().unwrap()[3..], [(usize::MAX, 1), (usize::MAX, 1)]);
}
