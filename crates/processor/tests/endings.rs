//! Ends that meet something else: refused commits, full queues, deadlines, restarts, returns.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, Running, for_each, lanes, run_on, secs, settle, tp};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, CommitPolicy, Delivered, ErrorPolicy, Lane, LaneCommitError, LaneOutcome, LaneStream,
    PartitionedBuilder, PartitionedExt, RunEndReason, RunError, StopPolicy, StopReason,
};
use tramline_wire::Record;

type Builder = PartitionedBuilder<MemorySource>;

#[tokio::test(start_paused = true)]
async fn t128_a_refused_commit_of_the_first_lane_leaves_the_others_stopped_and_committed_and_is_told() {
    for fails in [false, true] {
        let log = MemoryLog::new();
        for partition in 0..3 {
            log.produce_many(&tp(partition), 3);
        }
        let handler = move |record: Record, _: Lane| async move {
            if fails && record.partition() == 1 && record.offset() == 2 { Err("no") } else { Ok(()) }
        };
        let run = for_each(&log, &[0, 1, 2], |b| b, handler);
        run.control.fail_commits_of(Some(tp(0)));
        settle().await;
        let result = run.stop().await.0;
        let report = match &result {
            Ok(report) if !fails => report,
            Err(error @ RunError::Handler { .. }) if fails => error.report(),
            other => panic!("{other:?}"),
        };
        assert_eq!((&*report.uncommitted, report.commit_failures), (&[(tp(0), 3)][..], 1));
        assert_eq!((log.committed(&tp(0)), log.committed(&tp(2))), (None, Some(3)));
        assert_eq!(log.committed(&tp(1)), Some(if fails { 2 } else { 3 }));
        assert_eq!(report.lanes.len(), 3, "every lane has stopped: {:?}", report.lanes);
    }
}

#[tokio::test(start_paused = true)]
async fn t168_lanes_that_need_most_of_the_stop_timeout_each_drain_within_one() {
    for revoked in [false, true] {
        let log = MemoryLog::new();
        let all = [tp(0), tp(1), tp(2)];
        for partition in &all {
            log.produce_many(partition, 10);
        }
        let handler = |record: Record, _: Lane| async move {
            // The first one begins before the stop; the nine others take nine of ten seconds.
            tokio::time::sleep(if record.offset() == 0 { Duration::from_millis(1) } else { secs(1) }).await;
            Ok::<_, String>(())
        };
        let run = for_each(&log, &[0, 1, 2], |b| b.stop(StopPolicy::Drain, secs(10)), handler);
        settle().await;
        let before = Instant::now();
        if revoked {
            assert!(run.control.revoke(&all).released().await);
        } else {
            run.ask_to_stop();
        }
        let report = run.stop().await.0.unwrap();
        assert_eq!((before.elapsed().as_secs(), report.records_completed), (9, 30), "revoked: {revoked}");
        assert!(all.iter().all(|partition| log.committed(partition) == Some(10)));
    }
}

#[tokio::test(start_paused = true)]
async fn t180_runs_over_one_source_follow_each_other() {
    let log = MemoryLog::new();
    let (mut source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    // That two at once cannot be written is shown beside `PartitionedExt::partitioned`.
    for round in 1..=3 {
        log.produce_many(&tp(0), 2);
        let probe = Probe::default();
        let run = run_on(source, control.clone(), |b| b, probe.handler());
        settle().await;
        let (result, back) = run.stop().await;
        assert_eq!(result.unwrap().reason, RunEndReason::Shutdown);
        assert_eq!(
            (probe.done(0), log.committed(&tp(0))),
            (vec![2 * round - 2, 2 * round - 1], Some(2 * round))
        );
        source = back;
    }
}

#[tokio::test(start_paused = true)]
async fn t103_a_record_completes_in_the_lane_that_handed_it_out_and_in_no_other() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    log.produce_many(&tp(1), 3);
    let kept = Arc::new(Mutex::new(Vec::<Delivered>::new()));
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
    let run = lanes(&log, &[0, 1], |b| b, processor);
    settle().await;
    let frontiers = || run.monitor.snapshot().iter().map(|lane| lane.frontier).collect::<Vec<_>>();
    let (of_one, of_other): (Vec<_>, Vec<_>) =
        kept.lock().unwrap().drain(..).partition(|record| record.partition() == 0);
    // Wherever it is completed from: the other lane's task, or none.
    tokio::spawn(async move { of_one.into_iter().for_each(Delivered::done) }).await.unwrap();
    assert_eq!(frontiers(), [Some(3), None]);
    of_other.into_iter().for_each(Delivered::done);
    assert_eq!(frontiers(), [Some(3), Some(3)]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t166_a_processor_that_returns_early_with_a_full_queue_ends_the_run_and_its_queue_comes_again() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 20);
    let processor = |mut lane: LaneStream| async move {
        lane.next().await.unwrap().done();
        tokio::time::sleep(secs(5)).await;
        Ok::<_, String>(())
    };
    let run = lanes(&log, &[0], |b| b.max_buffered_records(2), processor);
    settle().await;
    let control = run.control.clone();
    assert_eq!(control.paused(), [tp(0)]);
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(&error, RunError::EndedEarly { lane, .. } if lane.topic_partition == tp(0)), "{error}");
    assert_eq!((log.committed(&tp(0)), control.position(&tp(0))), (Some(1), Some(1)));
    assert!(control.paused().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t144_a_cancelled_shutdown_during_a_commit_under_way_leads_to_no_further_one() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 4);
    let (answers, mut answered) = mpsc::unbounded_channel();
    let processor = move |mut lane: LaneStream| {
        let answers = answers.clone();
        async move {
            while let Some(record) = lane.next().await {
                record.done();
                answers.send(lane.commit().await).unwrap();
            }
            Ok::<_, String>(())
        }
    };
    let with = |b: Builder| b.commit(CommitPolicy::UserManaged).stop(StopPolicy::Cancel, secs(30));
    let run = lanes(&log, &[0], with, processor);
    run.control.stall_commits(true);
    settle().await;
    run.ask_to_stop();
    settle().await;
    run.control.stall_commits(false);
    run.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [1], "the one that was sent, and none of what was queued");
    assert_eq!((answered.recv().await, answered.recv().await), (Some(Ok(())), None));
}

#[tokio::test(start_paused = true)]
async fn t160_revoked_and_assigned_before_the_run_looks_starts_a_second_lane_and_commits_nothing_by_itself() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let probe = Probe::default();
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::UserManaged), probe.handler());
    settle().await;
    let old = run.monitor.snapshot()[0].lane.generation;
    let _revoking = run.control.revoke(&[tp(0)]);
    run.control.assign(&[tp(0)]);
    log.produce_many(&tp(0), 1);
    settle().await;
    assert_eq!((probe.seen(0), probe.overlaps()), (vec![0, 0, 1], 0));
    let lane = &run.monitor.snapshot()[0];
    assert!(lane.lane.generation > old && lane.frontier == Some(2));
    assert_eq!(run.stop().await.0.unwrap().lanes_started, 2);
    assert!(log.commits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t218_commits_while_a_record_keeps_failing_stay_below_it() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 50);
    let broken = CancellationToken::new();
    let mended = broken.clone();
    let handler = move |record: Record, _: Lane| {
        let mended = mended.is_cancelled();
        async move { if record.offset() == 10 && !mended { Err("not yet") } else { Ok(()) } }
    };
    let policy = ErrorPolicy::RestartLane(Backoff::new(Duration::from_millis(10), secs(1)));
    let every = CommitPolicy::Periodic(Duration::from_millis(100));
    let run = for_each(&log, &[0], |b| b.on_error(policy).commit(every), handler);
    tokio::time::sleep(secs(10)).await;
    assert_eq!(log.commits_of(&tp(0)), [10], "over many restarts and intervals");
    broken.cancel();
    tokio::time::sleep(secs(2)).await;
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(50));
}

#[tokio::test(start_paused = true)]
async fn t216_the_wait_before_a_restart_is_short_again_after_progress_and_after_a_revocation() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let start = Instant::now();
    let handler = move |_: Record, _: Lane| {
        noted.lock().unwrap().push(start.elapsed().as_millis());
        async { Err::<(), _>("always") }
    };
    let policy = ErrorPolicy::RestartLane(Backoff::default().without_jitter());
    let run = for_each(&log, &[0], |b| b.on_error(policy), handler);
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(std::mem::take(&mut *times.lock().unwrap()), [0, 100, 300, 700, 1500]);
    run.control.revoke(&[tp(0)]).released().await;
    run.control.assign(&[tp(0)]);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let times = times.lock().unwrap().clone();
    let waits: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(waits, [100, 200], "{times:?}");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_report_tells_of_each_lane_how_its_processor_ended() {
    let log = MemoryLog::new();
    (0..4).for_each(|partition| log.produce_many(&tp(partition), 1));
    let handler = |record: Record, _: Lane| async move {
        match record.partition() {
            0 => Ok(()),
            1 => Err("no"),
            2 => panic!("cannot"),
            _ => std::future::pending().await,
        }
    };
    let with = |b: Builder| b.on_error(ErrorPolicy::StopPartition).stop(StopPolicy::Drain, secs(10));
    let run = for_each(&log, &[0, 1, 2, 3], with, handler);
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    run.control.lose(&[tp(3)]);
    tokio::time::sleep(secs(11)).await;
    let report = run.ended().await.0.unwrap_err();
    let report = report.report();
    let mut lanes: Vec<_> =
        report.lanes.iter().map(|lane| (lane.lane.topic_partition.partition, lane)).collect();
    lanes.sort_by_key(|&(partition, _)| partition);
    let told: Vec<_> = lanes.iter().map(|(_, lane)| (lane.reason, lane.outcome)).collect();
    assert_eq!(
        told,
        [
            (Some(StopReason::Revoke), LaneOutcome::Finished),
            (None, LaneOutcome::Failed),
            (None, LaneOutcome::Failed),
            (Some(StopReason::Lost), LaneOutcome::Aborted),
        ]
    );
    let failures: Vec<_> = lanes.iter().map(|(_, lane)| lane.failure.is_some()).collect();
    assert_eq!(failures, [false, true, true, false]);
}

/// A transaction of another client that never commits stands for whatever a handler may wait for.
#[tokio::test(start_paused = true)]
async fn b058_a_revocation_that_meets_a_transaction_tells_it_to_hurry_and_is_given_back_in_time() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let (told, mut aborted) = mpsc::unbounded_channel();
    let handler = move |_: Record, lane: Lane| {
        let told = told.clone();
        async move {
            // The watcher stands for the code that aborts the transaction.
            tokio::spawn(async move {
                lane.stopping().await;
                told.send((lane.stop_reason(), lane.commit().await)).unwrap();
            });
            std::future::pending::<Result<(), String>>().await
        }
    };
    let run = for_each(
        &log,
        &[0],
        |b| b.commit(CommitPolicy::UserManaged).stop(StopPolicy::Drain, secs(300)),
        handler,
    );
    settle().await;
    let revoking = run.control.revoke_within(&[tp(0)], secs(10));
    assert!(revoking.released().await, "given back before the group takes it");
    let (reason, commit) = aborted.recv().await.unwrap();
    assert_eq!(reason, Some(StopReason::Revoke));
    assert!(matches!(commit, Ok(()) | Err(LaneCommitError::LaneClosed)), "{commit:?}");
    assert!(matches!(run.ended().await.0.unwrap_err(), RunError::StopTimeout { .. }));
    assert!(log.commits().is_empty(), "nothing that was not completed");
}

#[tokio::test(start_paused = true)]
async fn a_source_of_one_run_serves_every_form_after_another() {
    let log = MemoryLog::new();
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    log.produce_many(&tp(0), 3);
    let records = |_: Record, _: Lane| async { Ok::<_, String>(()) };
    let run = Running::of(source.partitioned().build().unwrap(), control.clone(), records);
    settle().await;
    let (result, source) = run.stop().await;
    assert_eq!(result.unwrap().records_completed, 3);
    log.produce_many(&tp(0), 3);
    let processor = |mut lane: LaneStream| async move {
        while let Some(record) = lane.next().await {
            record.done();
        }
        Ok::<_, String>(())
    };
    let run = Running::of_lanes(source.partitioned().build_lanes().unwrap(), control, processor);
    settle().await;
    assert_eq!(run.stop().await.0.unwrap().records_completed, 3);
    assert_eq!(log.committed(&tp(0)), Some(6));
}
