//! What is completed above the committed offset, across restarts; how far lanes run ahead; partitions that
//! cannot be read on.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::time::Duration;

use common::{Probe, Running, for_each, lanes, run_on, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, Backpressure, CommitErrorKind, CommitPolicy, ErrorPolicy, Lane, LaneStream, Ordering,
    PartitionedBuilder, StopPolicy, WaitingFor,
};
use tramline_wire::Record;

type Builder = PartitionedBuilder<MemorySource>;

/// Each record has a key of its own but the first two, which share one.
fn keyed(count: i64) -> MemoryLog {
    let log = MemoryLog::new();
    for offset in 0..count {
        let key = if offset < 2 { "stuck".to_owned() } else { format!("key-{offset}") };
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    log
}

fn by_key(builder: Builder) -> Builder {
    builder.ordering(Ordering::Key).max_concurrent_handlers(4).stop(StopPolicy::Cancel, secs(1))
}

/// A run over `log` in which the record at 0 never ends, until all others are done; then it is stopped.
async fn run_with_a_stuck_key(log: &MemoryLog, with: impl FnOnce(Builder) -> Builder) {
    let probe = Probe::default();
    let _gate = probe.hold(0, 0);
    let run = for_each(log, &[0], |b| with(by_key(b)), probe.handler());
    settle().await;
    run.ask_to_stop();
    run.ended().await.0.expect_err("the stuck handler is dropped");
}

async fn rerun(log: &MemoryLog, with: impl FnOnce(Builder) -> Builder) -> (Vec<i64>, u64) {
    let probe = Probe::default();
    let run = for_each(log, &[0], |b| with(by_key(b)), probe.handler());
    settle().await;
    let report = run.stop().await.0.unwrap();
    let mut seen = probe.seen(0);
    seen.sort_unstable();
    (seen, report.records_already_done)
}

#[tokio::test(start_paused = true)]
async fn what_was_completed_above_a_stuck_key_does_not_run_again_after_a_restart() {
    let log = keyed(20);
    run_with_a_stuck_key(&log, |b| b).await;
    assert_eq!(log.committed(&tp(0)), Some(0));
    assert!(log.committed_metadata(&tp(0)).unwrap().starts_with("tl1:"));
    assert_eq!(rerun(&log, |b| b).await, (vec![0, 1], 18));
    assert_eq!((log.committed(&tp(0)), log.committed_metadata(&tp(0))), (Some(20), Some(String::new())));
}

#[tokio::test(start_paused = true)]
async fn with_the_switch_off_it_runs_again_and_no_text_is_written() {
    let log = keyed(20);
    run_with_a_stuck_key(&log, |b| b.commit_metadata(false)).await;
    assert_eq!((log.committed(&tp(0)), log.committed_metadata(&tp(0))), (None, None));
    run_with_a_stuck_key(&log, |b| b).await;
    assert_eq!(rerun(&log, |b| b.commit_metadata(false)).await, ((0..20).collect(), 0));
    assert!(log.commits().last().unwrap().offsets.iter().all(|offset| offset.metadata.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_second_restart_still_knows_what_the_first_run_completed() {
    let log = keyed(30);
    run_with_a_stuck_key(&log, |b| b).await;
    run_with_a_stuck_key(&log, |b| b).await;
    assert_eq!(rerun(&log, |b| b).await, (vec![0, 1], 28));
}

#[tokio::test(start_paused = true)]
async fn periodic_commits_revocations_and_a_lanes_own_commits_carry_it() {
    let carries =
        |log: &MemoryLog| log.committed_metadata(&tp(0)).is_some_and(|text| text.starts_with("tl1:"));
    let start = |log: &MemoryLog, probe: &Probe, with: fn(Builder) -> Builder| -> Running {
        for_each(log, &[0], |b| with(by_key(b)), probe.handler())
    };
    for way in ["periodic", "revoke", "lane"] {
        let (log, probe) = (keyed(10), Probe::default());
        let gate = probe.hold(0, 0);
        let run = match way {
            "periodic" => start(&log, &probe, |b| b.commit(CommitPolicy::Periodic(secs(5)))),
            "revoke" => start(&log, &probe, |b| b),
            _ => {
                let processor = |mut lane: LaneStream| async move {
                    let stuck = lane.next().await;
                    for _ in 0..4 {
                        if let Some(record) = lane.next().await {
                            record.done();
                        }
                    }
                    lane.commit().await.map_err(|error| error.to_string())?;
                    lane.stopping().await;
                    drop(stuck);
                    Ok::<_, String>(())
                };
                lanes(&log, &[0], |b| b.stop(StopPolicy::Cancel, secs(1)), processor)
            }
        };
        settle().await;
        if way == "periodic" {
            tokio::time::sleep(secs(6)).await;
        } else if way == "revoke" {
            let revoking = run.control.revoke(&[tp(0)]);
            tokio::time::sleep(secs(3)).await;
            assert!(revoking.is_released());
        }
        assert!(carries(&log), "{way}");
        assert_eq!(log.committed(&tp(0)), Some(0), "{way}");
        if way == "periodic" {
            let commits = log.commits().len();
            tokio::time::sleep(secs(60)).await;
            assert_eq!(log.commits().len(), commits, "nothing new, nothing sent");
        }
        gate.cancel();
        run.drop_it().await;
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_damaged_and_stale_texts_are_passed_over_and_replaced() {
    let log = keyed(20);
    run_with_a_stuck_key(&log, |b| b).await;
    let good = log.committed_metadata(&tp(0)).unwrap();
    let damaged = format!("{}A", &good[..good.len() - 1]);
    let stale = [(0, "host-7"), (0, &damaged[..]), (0, "tl9:abc"), (1, &good[..])];
    for (offset, text) in stale {
        log.set_committed_with(&tp(0), offset, text);
        assert_eq!(rerun(&log, |b| b).await, ((offset..20).collect(), 0), "{text} at {offset}");
        assert_eq!(log.committed_metadata(&tp(0)).as_deref(), Some(""));
    }
    let shorter = keyed(10);
    shorter.set_committed_with(&tp(0), 0, &good);
    assert_eq!(rerun(&shorter, |b| b).await.1, 0, "beyond the end of the log");
}

#[tokio::test(start_paused = true)]
async fn b017_a_small_limit_keeps_the_lowest_and_a_broker_that_refuses_gets_the_offset_alone() {
    let log = keyed(200);
    let probe = Probe::default();
    // Every third key is stuck, so that there are many ranges.
    let _gates: Vec<_> = (0..200).step_by(3).map(|offset| probe.hold(0, offset)).collect();
    let few = |b: Builder| by_key(b).max_concurrent_handlers(100).max_commit_metadata_bytes(30);
    let run = for_each(&log, &[0], few, probe.handler());
    settle().await;
    run.ask_to_stop();
    run.ended().await.0.expect_err("stuck handlers are dropped");
    let text = log.committed_metadata(&tp(0)).unwrap();
    assert!(text.len() <= 30 && text.starts_with("tl1:"), "{text}");
    let (seen, passed) = rerun(&log, |b| b).await;
    assert!(passed > 10 && seen.len() as u64 + passed == 200, "{passed}");

    let log = keyed(20);
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run = for_each(&log, &[0], |b| by_key(b).commit(CommitPolicy::Periodic(secs(5))), probe.handler());
    run.control.fail_commits(&[CommitErrorKind::MetadataTooLarge]);
    tokio::time::sleep(secs(6)).await;
    assert_eq!((log.committed(&tp(0)), log.committed_metadata(&tp(0)).as_deref()), (Some(1), Some("")));
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(20));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_restarts_passes_over_what_the_failed_one_completed() {
    let log = keyed(20);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let (inner, failed) = (probe.clone(), std::sync::atomic::AtomicBool::new(false));
    let handler = move |record: Record, _: Lane| {
        let fails = record.offset() == 0 && !failed.swap(true, std::sync::atomic::Ordering::Relaxed);
        let probe = inner.clone();
        async move {
            probe.work(&record).await;
            if fails { Err("once".to_owned()) } else { Ok(()) }
        }
    };
    let restart = ErrorPolicy::RestartLane(Backoff::every(secs(1)));
    let run = for_each(&log, &[0], |b| by_key(b).on_error(restart), handler);
    settle().await;
    gate.cancel();
    tokio::time::sleep(secs(5)).await;
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_already_done, report.lane_failures), (18, 1));
    assert_eq!(log.committed(&tp(0)), Some(20));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_max_ahead_records_run_past_a_stuck_one_and_the_reason_is_shown() {
    let log = keyed(100);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let limited = |b: Builder| by_key(b).max_ahead(10).max_buffered_records(16);
    let run = for_each(&log, &[0], limited, probe.handler());
    settle().await;
    assert_eq!(*probe.seen(0).iter().max().unwrap(), 10);
    let snapshot = run.monitor.snapshot();
    assert!(matches!(snapshot[0].waiting_for, WaitingFor::Ahead { offset: 0, .. }), "{snapshot:?}");
    assert_eq!(run.control.paused(), [tp(0)], "the queue is full behind it");
    gate.cancel();
    settle().await;
    assert_eq!(probe.seen(0).len(), 100);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_lived_processor_that_is_held_back_goes_on_when_the_oldest_is_done() {
    let log = keyed(6);
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let receiver = std::sync::Mutex::new(Some(receiver));
    let processor = move |mut lane: LaneStream| {
        let release = receiver.lock().unwrap().take();
        async move {
            if let (Some(oldest), Some(release)) = (lane.next().await, release) {
                tokio::spawn(async move {
                    let _ = release.await;
                    oldest.done();
                });
            }
            while let Some(record) = lane.next().await {
                record.done();
            }
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0], |b| b.max_ahead(2), processor);
    settle().await;
    assert_eq!(run.monitor.snapshot()[0].delivered, 3);
    sender.send(()).unwrap();
    settle().await;
    assert_eq!(run.monitor.snapshot()[0].completed, 6);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_read_on_waits_alone_and_goes_on_when_it_can() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    log.produce_many(&tp(1), 5);
    let probe = Probe::default();
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0), tp(1)]);
    control.block_fetches(&tp(0), Some("a record of 2 GiB"));
    let run = run_on(source, control.clone(), |b| b, probe.handler());
    settle().await;
    assert_eq!((probe.seen(0).len(), probe.seen(1).len()), (0, 5));
    tokio::time::sleep(secs(100)).await;
    let snapshot = run.monitor.snapshot();
    let WaitingFor::Fetch { offset, error, since } = &snapshot[0].waiting_for else { panic!("{snapshot:?}") };
    assert_eq!((offset, &error[..]), (&Some(0), "a record of 2 GiB"));
    assert!(*since >= secs(100), "{since:?}");
    log.produce_many(&tp(1), 1);
    settle().await;
    assert_eq!(probe.seen(1).len(), 6, "the others go on");
    control.block_fetches(&tp(0), None);
    tokio::time::sleep(secs(31)).await;
    assert_eq!(probe.seen(0).len(), 5);
    assert!(!matches!(run.monitor.snapshot()[0].waiting_for, WaitingFor::Fetch { .. }));
    let report = run.stop().await.0.unwrap();
    assert!((4..=16).contains(&report.fetch_failures), "{}", report.fetch_failures);
    assert!(report.lanes.iter().all(|lane| lane.fetch_blocked.is_none()));
}

#[tokio::test(start_paused = true)]
async fn awaiting_capacity_a_full_lane_stops_all_reading_and_no_event_commit_or_stop() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 20);
    log.produce_many(&tp(1), 20);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(4);
    control.assign(&[tp(0)]);
    let mode = |b: Builder| {
        b.backpressure(Backpressure::AwaitCapacity)
            .max_buffered_records(4)
            .commit(CommitPolicy::Periodic(Duration::from_secs(5)))
    };
    let run = run_on(source, control.clone(), mode, probe.handler());
    settle().await;
    control.assign(&[tp(1)]);
    settle().await;
    assert_eq!((probe.seen(0), probe.seen(1).len()), (vec![0], 0), "nobody reads");
    assert_eq!(run.monitor.snapshot().len(), 2, "events are taken");
    assert!(control.pauses().is_empty());
    let revoking = control.revoke_within(&[tp(0)], secs(60));
    settle().await;
    assert_eq!(probe.seen(1).len(), 20, "a lane that stops keeps nobody waiting");
    tokio::time::sleep(secs(6)).await;
    assert_eq!(log.committed(&tp(1)), Some(20), "commits go on");
    gate.cancel();
    assert!(revoking.released().await);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t196_awaiting_capacity_a_full_lane_that_fails_does_not_hang_the_run() {
    for policy in [ErrorPolicy::StopPartition, ErrorPolicy::RestartLane(Backoff::every(secs(1)))] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 20);
        log.produce_many(&tp(1), 20);
        let probe = Probe::default();
        let gate = probe.hold(0, 0);
        let inner = probe.clone();
        let handler = move |record: Record, _: Lane| {
            let probe = inner.clone();
            async move {
                probe.work(&record).await;
                if record.partition() == 0 { Err("no".to_owned()) } else { Ok(()) }
            }
        };
        let mode = |b: Builder| {
            b.backpressure(Backpressure::AwaitCapacity).max_buffered_records(4).on_error(policy.clone())
        };
        let run = for_each(&log, &[0, 1], mode, handler);
        settle().await;
        gate.cancel();
        tokio::time::sleep(secs(10)).await;
        assert_eq!(probe.seen(1).len(), 20, "{policy:?}");
        run.stop().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn t197_the_low_mark_decides_when_a_partition_is_resumed() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 10);
    let probe = Probe::default();
    let gates: Vec<_> = (0..10).map(|offset| probe.hold(0, offset)).collect();
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(5);
    control.assign(&[tp(0)]);
    let marks =
        |b: Builder| b.max_buffered_records(5).backpressure(Backpressure::PauseResume { resume_at: Some(1) });
    let run = run_on(source, control.clone(), marks, probe.handler());
    for gate in &gates[..2] {
        settle().await;
        gate.cancel();
    }
    settle().await;
    assert_eq!(control.paused(), [tp(0)], "two wait");
    gates[2].cancel();
    settle().await;
    assert_eq!(control.pauses().iter().map(|pause| pause.1).collect::<Vec<_>>(), [true, false, true]);
    gates.iter().for_each(tokio_util::sync::CancellationToken::cancel);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_be_are_refused() {
    use tramline_processor::PartitionedExt;
    let refused = |with: fn(Builder) -> Builder| {
        let (source, _) = MemorySource::new(&MemoryLog::new());
        with(source.partitioned()).build().unwrap_err().kind.to_string()
    };
    assert!(refused(|b| b.max_ahead(0)).starts_with("max_ahead"));
    let low =
        |b: Builder| b.max_buffered_records(5).backpressure(Backpressure::PauseResume { resume_at: Some(5) });
    assert!(refused(low).starts_with("backpressure"));
}
