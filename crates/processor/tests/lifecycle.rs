//! Assigned, revoked, lost, stopped: each lane ends as it should, and the others go on.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, for_each, lanes, run_on, secs, settle, tp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, DeadLetter, DeadLetters, ErrorPolicy, Lane, LaneStream, Ordering as RecordOrder, Park,
    PartitionedBuilder, Retry, RunEndReason, RunError, StopPolicy, StopReason, WaitingFor,
};
use tramline_wire::Record;

#[tokio::test(start_paused = true)]
async fn t030_t035_b026_a_blocked_partition_does_not_hold_the_others() {
    let log = MemoryLog::new();
    for partition in 0..10 {
        log.produce_many(&tp(partition), 1000);
    }
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let all: Vec<i32> = (0..10).collect();
    let run = for_each(&log, &all, |b| b, probe.handler());
    tokio::time::sleep(secs(3600)).await;
    for partition in 1..10 {
        assert_eq!(probe.done(partition).len(), 1000, "partition {partition}");
    }
    assert_eq!(run.control.paused(), [tp(0)]);
    gate.cancel();
    settle().await;
    assert_eq!(probe.seen(0), (0..1000).collect::<Vec<_>>());
    assert!(run.control.paused().is_empty());
    assert_eq!(probe.overlaps(), 0);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t032_a_processor_is_started_once_per_assignment_and_t034_may_complete_out_of_order() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let processor = move |mut lane: LaneStream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut kept = Vec::new();
            while let Some(record) = lane.next().await {
                kept.push(record);
                if kept.len() == 3 {
                    while let Some(record) = kept.pop() {
                        assert_eq!(lane.frontier(), None);
                        record.done();
                    }
                    assert_eq!(lane.frontier(), Some(3));
                }
            }
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0], |b| b, processor);
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    run.control.assign(&[tp(0)]);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!((starts.load(Ordering::SeqCst), log.commits_of(&tp(0))), (2, vec![3]));
}

#[tokio::test(start_paused = true)]
async fn t160_b037_a_partition_that_comes_back_at_once_gets_a_new_processor_after_the_old() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    // Lost and assigned again before the run has looked.
    run.control.lose(&[tp(0)]);
    run.control.assign(&[tp(0)]);
    settle().await;
    assert_eq!(probe.seen(0), [0], "the old handler still works on it");
    gate.cancel();
    settle().await;
    assert_eq!(probe.seen(0), [0, 0, 1]);
    assert_eq!(probe.overlaps(), 0);
    run.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [2], "nothing of the lost assignment is committed");
}

#[tokio::test(start_paused = true)]
async fn b020_t101_a_completion_of_an_old_delivery_does_not_count_for_the_new_one() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let processor = move |mut lane: LaneStream| {
        let keep = Arc::clone(&keep);
        async move {
            while let Some(record) = lane.next().await {
                keep.lock().unwrap().push(record);
            }
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0], |b| b, processor);
    settle().await;
    run.control.lose(&[tp(0)]);
    settle().await;
    run.control.assign(&[tp(0)]);
    settle().await;
    let mut records = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(records.len(), 4);
    let fresh = records.split_off(2);
    records.into_iter().for_each(tramline_processor::Delivered::done);
    settle().await;
    assert_eq!(run.monitor.snapshot()[0].frontier, None);
    fresh.into_iter().for_each(tramline_processor::Delivered::done);
    assert_eq!(run.monitor.snapshot()[0].frontier, Some(2));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t161_b011_a_lost_partition_is_cancelled_under_drain_and_never_committed() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reasons);
    let processor = move |mut lane: LaneStream| {
        let told = Arc::clone(&told);
        async move {
            if let Some(record) = lane.next().await {
                record.done();
            }
            lane.stopping().await;
            let ended = lane.next().await.is_none();
            told.lock().unwrap().push((lane.stop_reason(), ended));
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0], |b| b, processor);
    settle().await;
    run.control.lose(&[tp(0)]);
    settle().await;
    assert_eq!(*reasons.lock().unwrap(), [(Some(StopReason::Lost), true)]);
    assert!(!run.is_over());
    run.stop().await.0.unwrap();
    assert!(log.commits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t162_b056_cancel_drops_what_is_queued_and_commits_the_completed_prefix() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 53);
    let handler = |record: Record, lane: Lane| async move {
        if record.offset() == 3 {
            lane.stopping().await;
        }
        Ok::<_, String>(())
    };
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Cancel, secs(30)), handler);
    settle().await;
    let (result, source) = run.stop().await;
    let report = result.unwrap();
    assert_eq!(report.reason, RunEndReason::Shutdown);
    assert_eq!((log.committed(&tp(0)), report.records_delivered), (Some(4), 4));
    drop(source);
}

#[tokio::test(start_paused = true)]
async fn b056_drain_finishes_what_is_queued_and_fetches_nothing_more() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 53);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.ask_to_stop();
    settle().await;
    log.produce_many(&tp(0), 10);
    settle().await;
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!((probe.done(0).len(), log.committed(&tp(0))), (53, Some(53)));
}

#[tokio::test(start_paused = true)]
async fn t177_b001_what_was_dropped_comes_again_in_the_next_run_on_the_same_source() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 10);
    let handler = |record: Record, lane: Lane| async move {
        if record.offset() == 4 {
            lane.stopping().await;
            std::future::pending::<()>().await;
        }
        Ok::<_, String>(())
    };
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Cancel, secs(1)), handler);
    settle().await;
    let control = run.control.clone();
    let (result, source) = run.stop().await;
    assert!(matches!(result.unwrap_err(), RunError::StopTimeout { .. }));
    assert_eq!((log.committed(&tp(0)), control.position(&tp(0))), (Some(4), Some(4)));
    let probe = Probe::default();
    let run = run_on(source, control, |b| b, probe.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(probe.seen(0), [4, 5, 6, 7, 8, 9]);
}

#[tokio::test(start_paused = true)]
async fn t163_stuck_processors_end_the_run_under_every_policy_and_share_one_deadline() {
    let policies = [
        ErrorPolicy::StopRun,
        ErrorPolicy::StopPartition,
        ErrorPolicy::RestartLane(Backoff::default()),
        ErrorPolicy::Skip,
        Retry::new(9, Backoff::default()).into(),
    ];
    for (policy, revoked) in policies.iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let log = MemoryLog::new();
        let probe = Probe::default();
        for partition in 0..3 {
            log.produce_many(&tp(partition), 2);
            probe.hold(partition, 1);
        }
        let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
            b.stop(StopPolicy::Drain, secs(10)).on_error(policy.clone())
        };
        let run = for_each(&log, &[0, 1, 2], with, probe.handler());
        settle().await;
        let before = Instant::now();
        let _revoking = revoked.then(|| run.control.revoke(&[tp(0), tp(1), tp(2)]));
        let (result, _) = if revoked { run.ended().await } else { run.stop().await };
        let RunError::StopTimeout { lanes, still_running, report } = result.unwrap_err() else {
            panic!("not a timeout");
        };
        assert_eq!((lanes.len(), still_running.len()), (3, 0));
        assert_eq!(before.elapsed().as_secs(), 10);
        assert_eq!(log.committed(&tp(2)), Some(1), "what is completed is ours to commit");
        assert!(report.uncommitted.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn t169_t170_while_one_lane_drains_the_others_get_new_records_and_commit() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(
        &log,
        &[0, 1],
        |b| b.commit(tramline_processor::CommitPolicy::Periodic(secs(1))),
        probe.handler(),
    );
    settle().await;
    let revoking = run.control.revoke(&[tp(0)]);
    for expected in 2..6 {
        log.produce_many(&tp(1), 1);
        tokio::time::sleep(secs(2)).await;
        assert_eq!(log.committed(&tp(1)), Some(expected));
    }
    let why = run.monitor.snapshot()[0].waiting_for.clone();
    assert!(
        matches!(why, WaitingFor::Stopping { reason: StopReason::Revoke, offset: Some(0), .. }),
        "{why:?}"
    );
    assert!(!revoking.is_released(), "held until drain and commit are done");
    gate.cancel();
    assert!(revoking.released().await);
    assert_eq!(log.committed(&tp(0)), Some(1));
    let starts = run.stop().await.0.unwrap().lanes_started;
    assert_eq!(starts, 2);
}

#[tokio::test(start_paused = true)]
async fn t175_a_drain_longer_than_the_group_allows_is_cut_before_the_partition_goes() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let probe = Probe::default();
    probe.hold(0, 2);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    let revoking = run.control.revoke_within(&[tp(0)], secs(10));
    assert!(revoking.released().await, "given up before the deadline");
    assert!(matches!(run.ended().await.0.unwrap_err(), RunError::StopTimeout { .. }));
    assert_eq!(log.commits_of(&tp(0)), [2]);
}

#[tokio::test(start_paused = true)]
async fn t176_a_closed_source_ends_the_run_well() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let run = for_each(&log, &[0], |b| b, Probe::default().handler());
    settle().await;
    run.control.close();
    assert_eq!(run.ended().await.0.unwrap().reason, RunEndReason::SourceClosed);
    assert_eq!(log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn t181_dropping_the_run_aborts_its_lanes_and_commits_nothing() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.drop_it().await;
    settle().await;
    gate.cancel();
    settle().await;
    assert_eq!((probe.done(0), log.commits().len()), (vec![0], 0));
}

#[tokio::test(start_paused = true)]
async fn b038_queued_records_of_a_lost_partition_vanish() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 500);
    let probe = Probe::default();
    let gate = probe.hold(0, 3);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.control.lose(&[tp(0)]);
    settle().await;
    gate.cancel();
    settle().await;
    assert_eq!(probe.seen(0), [0, 1, 2, 3]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b055_a_loss_is_no_failure_of_the_others_and_the_member_may_come_back() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let probe = Probe::default();
    let run = for_each(&log, &[0, 1], |b| b, probe.handler());
    settle().await;
    run.control.lose(&[tp(0)]);
    log.produce_many(&tp(1), 1);
    settle().await;
    run.control.assign(&[tp(0)]);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!((probe.seen(0), probe.seen(1)), (vec![0, 0], vec![0, 1]));
    assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (Some(1), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn b002_frequent_rebalances_without_traffic_never_commit_past_the_end() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 10);
    log.set_committed(&tp(0), 9);
    let run = for_each(&log, &[], |b| b, Probe::default().handler());
    for _ in 0..20 {
        run.control.assign(&[tp(0)]);
        settle().await;
        run.control.revoke(&[tp(0)]).released().await;
    }
    run.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [10]);
}

#[tokio::test(start_paused = true)]
async fn t179_lanes_start_for_what_is_assigned_before_and_during_the_run() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let probe = Probe::default();
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    let run = run_on(source, control, |b| b, probe.handler());
    settle().await;
    run.control.assign(&[tp(1)]);
    settle().await;
    assert_eq!((probe.seen(0), probe.seen(1)), (vec![0], vec![0]));
    let names: Vec<_> = run.monitor.snapshot().into_iter().map(|lane| lane.lane.generation).collect();
    assert_eq!(names, [1, 2]);
    run.stop().await.0.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_timeout_of_for_ever_waits_for_ever() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Drain, Duration::MAX), probe.handler());
    settle().await;
    run.ask_to_stop();
    tokio::time::sleep(secs(100_000)).await;
    assert!(!run.is_over());
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_timeout_of_zero_waits_for_nobody() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let probe = Probe::default();
    probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Drain, Duration::ZERO), probe.handler());
    settle().await;
    assert!(matches!(run.stop().await.0.unwrap_err(), RunError::StopTimeout { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_lane_tells_why_it_stops() {
    let log = MemoryLog::new();
    for partition in 0..3 {
        log.produce_many(&tp(partition), 1);
    }
    let (send, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let processor = move |mut lane: LaneStream| {
        let send = send.clone();
        async move {
            while let Some(record) = lane.next().await {
                record.done();
            }
            send.send((lane.topic_partition().partition, lane.stop_reason(), lane.is_stopping())).unwrap();
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0, 1, 2], |b| b, processor);
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    run.control.lose(&[tp(1)]);
    settle().await;
    let report = run.stop().await.0.unwrap();
    assert_eq!(ended.recv().await, Some((0, Some(StopReason::Revoke), false)));
    assert_eq!(ended.recv().await, Some((1, Some(StopReason::Lost), true)));
    assert_eq!(ended.recv().await, Some((2, Some(StopReason::Shutdown), false)));
    let told: Vec<_> = report.lanes.iter().map(|lane| lane.reason).collect();
    assert_eq!(told, [Some(StopReason::Revoke), Some(StopReason::Lost), Some(StopReason::Shutdown)]);
}

/// Works until it is told to hurry, and gives up then.
async fn gives_up(record: Record, lane: Lane) -> Result<(), &'static str> {
    if record.offset() > 0 {
        lane.stopping().await;
        return Err("interrupted");
    }
    Ok(())
}

#[derive(Clone)]
struct NoLetters;

impl DeadLetters for NoLetters {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        panic!("a letter for {}", letter.record.offset())
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_gives_up_when_it_is_hurried_is_no_failure_under_any_policy_and_comes_again() {
    let again = Backoff::every(secs(1));
    for policy in [
        ErrorPolicy::StopRun,
        ErrorPolicy::StopPartition,
        ErrorPolicy::RestartLane(again),
        ErrorPolicy::Skip,
        ErrorPolicy::dead_letter(NoLetters),
        Retry::new(3, again).then(ErrorPolicy::Skip),
        Park::new().into(),
    ] {
        for ordering in [RecordOrder::Partition, RecordOrder::Key] {
            let log = MemoryLog::new();
            log.produce_many(&tp(0), 3);
            log.produce_many(&tp(1), 1);
            let with = |b: PartitionedBuilder<MemorySource>| {
                b.ordering(ordering).on_error(policy.clone()).stop(StopPolicy::Cancel, secs(30))
            };
            let run = for_each(&log, &[0, 1], with, gives_up);
            settle().await;
            assert!(run.control.revoke(&[tp(0)]).released().await);
            settle().await;
            assert_eq!(log.committed(&tp(0)), Some(1), "{policy:?}: 1 was given up");
            log.produce_many(&tp(1), 1);
            settle().await;
            let report = run.stop().await.0.unwrap_or_else(|error| panic!("{policy:?}: {error}"));
            let counts = (report.records_skipped, report.records_dead_lettered, report.lane_failures);
            assert_eq!(counts, (0, 0, 0), "{policy:?}");
            assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (Some(1), Some(1)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_gives_up_when_it_is_hurried_has_not_failed_and_one_that_drains_has() {
    for (policy, fails) in [(StopPolicy::Cancel, false), (StopPolicy::Drain, true)] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 2);
        let gate = CancellationToken::new();
        let open = gate.clone();
        let processor = move |mut lane: LaneStream| {
            let open = open.clone();
            async move {
                if let Some(record) = lane.next().await {
                    record.done();
                }
                tokio::select! {
                    () = lane.stopping() => {}
                    () = open.cancelled() => {}
                }
                Err::<(), _>("interrupted")
            }
        };
        let run = lanes(&log, &[0], |b| b.stop(policy, secs(30)), processor);
        settle().await;
        run.ask_to_stop();
        settle().await;
        gate.cancel();
        let result = run.ended().await.0;
        assert_eq!((result.is_err(), log.committed(&tp(0))), (fails, Some(1)), "{policy:?}: {result:?}");
    }
}
