//! Records of one partition side by side: by key, without order, and what must stay the same meanwhile.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, for_each, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    CommitPolicy, ConfigErrorKind, Lane, LaneKey, Ordering, PartitionedExt, RunError, StopPolicy,
};
use tramline_wire::Record;

fn keyed(log: &MemoryLog, keys: &[&str]) {
    for key in keys {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
}

/// Counts how many are inside at once, in all and per key.
#[derive(Clone, Default)]
struct Crowd(Arc<Mutex<CrowdState>>);

#[derive(Default)]
struct CrowdState {
    inside: BTreeMap<Option<Vec<u8>>, usize>,
    most: usize,
    overlaps: usize,
    order: BTreeMap<Option<Vec<u8>>, Vec<i64>>,
}

impl Crowd {
    async fn work(&self, record: &Record, time: Duration) {
        let key = record.key().map(<[u8]>::to_vec);
        {
            let state = &mut *self.0.lock().unwrap();
            *state.inside.entry(key.clone()).or_default() += 1;
            state.overlaps += usize::from(state.inside[&key] > 1);
            state.most = state.most.max(state.inside.values().sum());
            state.order.entry(key.clone()).or_default().push(record.offset());
        }
        tokio::time::sleep(time).await;
        *self.0.lock().unwrap().inside.get_mut(&key).unwrap() -= 1;
    }
}

#[tokio::test(start_paused = true)]
async fn t040_a_key_waits_for_its_own_record_and_other_keys_go_on() {
    let (log, probe) = (MemoryLog::new(), Probe::default());
    keyed(&log, &["a", "a", "b"]);
    let gate = probe.hold(0, 0);
    let by_key = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(4)
    };
    let run = for_each(&log, &[0], by_key, probe.handler());
    settle().await;
    assert_eq!((probe.seen(0), probe.done(0)), (vec![0, 2], vec![2]));
    gate.cancel();
    settle().await;
    assert_eq!(probe.done(0), [2, 0, 1]);
    let (result, _) = run.stop().await;
    assert_eq!(result.unwrap().records_completed, 3);
    assert_eq!(log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn t042_b014_nothing_is_committed_past_an_unfinished_record_and_all_of_it_afterwards() {
    let (log, probe) = (MemoryLog::new(), Probe::default());
    keyed(&log, &["a", "b"]);
    let gate = probe.hold(0, 0);
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        let b = b.ordering(Ordering::Key).max_concurrent_handlers(2).commit_metadata(false);
        b.commit(CommitPolicy::Periodic(secs(1)))
    };
    let run = for_each(&log, &[0], with, probe.handler());
    tokio::time::sleep(secs(5)).await;
    assert_eq!((probe.done(0), log.committed(&tp(0))), (vec![1], None));
    gate.cancel();
    tokio::time::sleep(secs(2)).await;
    assert_eq!(log.commits_of(&tp(0)), [2]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t043_a_revocation_waits_for_every_handler_of_the_lane_and_commits_behind_them() {
    let (log, probe) = (MemoryLog::new(), Probe::default());
    log.set_leader_epoch(&tp(0), 7);
    keyed(&log, &["a"]);
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b.ordering(Ordering::Key), probe.handler());
    settle().await;
    let revoking = run.control.revoke(&[tp(0)]);
    tokio::time::sleep(secs(1)).await;
    assert!(log.commits().is_empty());
    gate.cancel();
    revoking.released().await;
    assert_eq!((log.committed(&tp(0)), log.committed_epoch(&tp(0))), (Some(1), Some(7)));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t048_a_failure_is_noticed_while_input_never_runs_dry() {
    let log = MemoryLog::new();
    for number in 0..2000 {
        log.produce(&tp(0), Some(format!("k{number}").as_bytes()), None);
    }
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let handler = move |record: Record, _: Lane| {
        counted.fetch_add(1, Atomic::SeqCst);
        async move {
            if record.offset() == 0 {
                tokio::task::yield_now().await;
                return Err("no");
            }
            Ok(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(2).commit_metadata(false)
    };
    let error = for_each(&log, &[0], with, handler).ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { offset: Some(0), .. }), "{error}");
    assert!(started.load(Atomic::SeqCst) <= 3 * 64 + 2, "{started:?}");
    assert_eq!(log.committed(&tp(0)), None);
}

#[tokio::test(start_paused = true)]
async fn t041_t047_t055_a_failure_hurries_the_other_handlers_waits_for_them_and_starts_no_more() {
    let log = MemoryLog::new();
    keyed(&log, &["good", "bad", "good", "late"]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |record: Record, lane: Lane| {
        let seen = Arc::clone(&noted);
        async move {
            if record.key() == Some(b"bad") {
                tokio::time::sleep(secs(1)).await;
                return Err("first");
            }
            seen.lock().unwrap().push(record.offset());
            lane.stopping().await;
            tokio::time::sleep(secs(3)).await;
            seen.lock().unwrap().push(-record.offset());
            Ok(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(2)
    };
    let start = tokio::time::Instant::now();
    let error = for_each(&log, &[0], with, handler).ended().await.0.unwrap_err();
    let RunError::Handler { offset: Some(1), source, report, .. } = error else { panic!("{error}") };
    assert_eq!(source.to_string(), "first");
    assert_eq!(start.elapsed().as_secs(), 4, "the other handler was waited for");
    assert_eq!(*seen.lock().unwrap(), [0, 0], "began and ended; nothing else began");
    assert_eq!((report.records_completed, log.committed(&tp(0))), (1, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn t161_handlers_that_do_not_stop_are_dropped_at_the_deadline() {
    let log = MemoryLog::new();
    keyed(&log, &["a", "b"]);
    let handler = |_: Record, _: Lane| std::future::pending::<Result<(), String>>();
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(2).stop(StopPolicy::Drain, secs(3))
    };
    let run = for_each(&log, &[0], with, handler);
    settle().await;
    let error = run.stop().await.0.unwrap_err();
    let RunError::StopTimeout { still_running, .. } = error else { panic!("{error}") };
    assert!(still_running.is_empty());
}

#[tokio::test(start_paused = true)]
async fn t052_eight_handlers_over_many_keys_never_overlap_a_key_and_keep_busy() {
    let (log, crowd) = (MemoryLog::new(), Crowd::default());
    for number in 0..800 {
        let key = format!("k{}", number * 7 % 100);
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    let inside = crowd.clone();
    let handler = move |record: Record, _: Lane| {
        let crowd = inside.clone();
        async move {
            crowd.work(&record, Duration::from_millis(10)).await;
            Ok::<_, String>(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(8)
    };
    let start = tokio::time::Instant::now();
    let run = for_each(&log, &[0], with, handler);
    while crowd.0.lock().unwrap().order.values().map(Vec::len).sum::<usize>() < 800 {
        settle().await;
    }
    assert!(start.elapsed() < Duration::from_millis(1100), "{:?}", start.elapsed());
    run.stop().await.0.unwrap();
    let state = crowd.0.lock().unwrap();
    assert_eq!((state.most, state.overlaps), (8, 0));
    assert!(state.order.values().all(|offsets| offsets.is_sorted()));
    assert_eq!(log.committed(&tp(0)), Some(800));
}

#[tokio::test(start_paused = true)]
async fn unordered_records_run_side_by_side_whatever_their_keys_and_the_frontier_holds() {
    let (log, probe) = (MemoryLog::new(), Probe::default());
    keyed(&log, &["same", "same", "same", "same"]);
    let gate = probe.hold(0, 0);
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Unordered).max_concurrent_handlers(2)
    };
    let run = for_each(&log, &[0], with, probe.handler());
    settle().await;
    assert_eq!(probe.done(0), [1, 2, 3]);
    assert_eq!(run.monitor.snapshot()[0].frontier, None);
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(4));
}

#[tokio::test(start_paused = true)]
async fn t033_t067_in_partition_order_neither_more_handlers_nor_keys_change_anything() {
    let (log, crowd) = (MemoryLog::new(), Crowd::default());
    keyed(&log, &["a", "b", "c", "d"]);
    let inside = crowd.clone();
    let handler = move |record: Record, _: Lane| {
        let crowd = inside.clone();
        async move {
            crowd.work(&record, secs(1)).await;
            Ok::<_, String>(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.max_concurrent_handlers(8).key_by(|_| panic!("not asked for"))
    };
    let run = for_each(&log, &[0], with, handler);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(crowd.0.lock().unwrap().most, 1);
}

#[tokio::test(start_paused = true)]
async fn t061_t066_null_and_empty_keys_are_apart_and_key_by_may_join_what_differs() {
    for join in [false, true] {
        let (log, probe) = (MemoryLog::new(), Probe::default());
        for key in [None, Some(&b""[..]), Some(b"A"), Some(b"a"), None, Some(b"")] {
            log.produce(&tp(0), key, None);
        }
        for offset in 0..4 {
            let _held = probe.hold(0, offset);
        }
        let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
            let b = b.ordering(Ordering::Key).max_concurrent_handlers(8).stop(StopPolicy::Cancel, secs(1));
            if !join {
                return b;
            }
            b.key_by(|record| match record.key() {
                Some(key) => LaneKey::new(key.to_ascii_lowercase()),
                None => LaneKey::NULL,
            })
        };
        let run = for_each(&log, &[0], with, probe.handler());
        settle().await;
        assert_eq!(probe.seen(0), if join { vec![0, 1, 2] } else { vec![0, 1, 2, 3] });
        run.drop_it().await;
    }
}

#[tokio::test(start_paused = true)]
async fn t053_handlers_that_never_wait_starve_neither_commits_nor_the_stop() {
    let log = MemoryLog::new();
    for number in 0..100_000 {
        log.produce(&tp(0), Some(&u32::to_be_bytes(number % 50)), None);
    }
    let answered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answered);
    let handler = move |record: Record, lane: Lane| {
        let answered = Arc::clone(&counted);
        async move {
            if record.offset() % 10_000 == 9_999 {
                lane.commit().await?;
                answered.fetch_add(1, Atomic::SeqCst);
            }
            Ok::<_, tramline_processor::LaneCommitError>(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(8)
    };
    let run = for_each(&log, &[0], with, handler);
    while run.monitor.snapshot().first().is_none_or(|lane| lane.frontier != Some(100_000)) {
        settle().await;
    }
    run.stop().await.0.unwrap();
    assert_eq!((log.committed(&tp(0)), answered.load(Atomic::SeqCst)), (Some(100_000), 10));
    assert!(log.commits().len() > 3, "commits went out while handlers never waited");
}

#[tokio::test(start_paused = true)]
async fn t001_t002_t007_wrong_settings_are_refused_before_anything_starts() {
    let log = MemoryLog::new();
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    log.produce_many(&tp(0), 1);
    let error = source.partitioned().max_concurrent_handlers(0).build().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "max_concurrent_handlers", .. }));
    let error = error.source.partitioned().max_handler_batch_size(0).build().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "max_handler_batch_size", .. }));
    assert_eq!((control.polls(), control.position(&tp(0))), (0, Some(0)), "nothing was asked of the source");
    let mut source = error.source;
    for ordering in [Ordering::Key, Ordering::Unordered] {
        let error = source.partitioned().ordering(ordering).build_lanes().unwrap_err();
        assert_eq!(error.kind, ConfigErrorKind::OrderingNeedsHandlers);
        source = error.source;
    }
    let error = source.partitioned().max_ahead(0).build_lanes().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "max_ahead", .. }));
}
