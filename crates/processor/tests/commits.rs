//! What is committed, when, and what never is.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::time::Duration;

use common::{Probe, for_each, lanes, run_on, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    CommitConfiguration, CommitErrorKind, CommitPolicy, Lane, LaneCommitError, LaneStream, StopPolicy,
    WaitingFor,
};
use tramline_wire::Record;

#[tokio::test(start_paused = true)]
async fn t106_gaps_and_markers_are_crossed_lag_reaches_zero_and_nothing_comes_twice() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    log.append_hidden(&tp(0), 1);
    log.produce_many(&tp(0), 2);
    log.skip_to(&tp(0), 100);
    log.produce_many(&tp(0), 1);
    log.append_hidden(&tp(0), 1);
    let probe = Probe::default();
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(log.end(&tp(0))));
    assert_eq!(probe.seen(0), [0, 1, 3, 4, 100]);
    let again = Probe::default();
    let run = for_each(&log, &[0], |b| b, again.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(again.seen(0), [] as [i64; 0]);
}

#[tokio::test(start_paused = true)]
async fn b013_a_marker_alone_lets_the_lag_reach_zero_without_further_records() {
    let log = MemoryLog::new();
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(5))), Probe::default().handler());
    log.produce_many(&tp(0), 1);
    tokio::time::sleep(secs(6)).await;
    assert_eq!(log.committed(&tp(0)), Some(1));
    log.append_hidden(&tp(0), 1);
    tokio::time::sleep(secs(6)).await;
    assert_eq!(log.committed(&tp(0)), Some(2));
    run.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn t138_the_leader_epoch_is_that_of_the_record_below_the_frontier() {
    let log = MemoryLog::new();
    log.set_leader_epoch(&tp(0), 7);
    log.produce_many(&tp(0), 2);
    log.set_leader_epoch(&tp(0), 8);
    log.produce_many(&tp(0), 1);
    let probe = Probe::default();
    let gate = probe.hold(0, 2);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), probe.handler());
    tokio::time::sleep(secs(2)).await;
    assert_eq!((log.committed(&tp(0)), log.committed_epoch(&tp(0))), (Some(2), Some(7)));
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!((log.committed(&tp(0)), log.committed_epoch(&tp(0))), (Some(3), Some(8)));
}

#[tokio::test(start_paused = true)]
async fn t120_a_revocation_commits_once_and_nothing_of_it_is_processed_afterwards() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let probe = Probe::default();
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    let revoking = run.control.revoke(&[tp(0)]);
    log.produce_many(&tp(0), 5);
    assert!(revoking.released().await);
    settle().await;
    assert_eq!((probe.seen(0), log.commits_of(&tp(0))), (vec![0], vec![1]));
    run.stop().await.0.unwrap();
    assert_eq!(log.commits().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn t122_user_managed_commits_nothing_by_itself() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    log.produce_many(&tp(1), 3);
    let run = for_each(&log, &[0, 1], |b| b.commit(CommitPolicy::UserManaged), Probe::default().handler());
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    run.stop().await.0.unwrap();
    assert!(log.commits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t123_t125_periodic_commits_every_interval_what_is_new_and_again_at_the_end() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let probe = Probe::default();
    let gate = probe.hold(0, 3);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(5))), probe.handler());
    tokio::time::sleep(secs(21)).await;
    assert_eq!(log.commits_of(&tp(0)), [3], "an unchanged frontier is not committed again");
    log.produce_many(&tp(0), 1);
    settle().await;
    gate.cancel();
    run.control.revoke(&[tp(0)]).released().await;
    assert_eq!(log.commits_of(&tp(0)), [3, 4], "before the interval, since the partition goes");
    run.control.assign(&[tp(0)]);
    log.produce_many(&tp(0), 1);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn t124_without_a_completed_record_nothing_is_committed() {
    for policy in [CommitPolicy::OnRevoke, CommitPolicy::Periodic(secs(1)), CommitPolicy::UserManaged] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 1);
        let probe = Probe::default();
        probe.hold(0, 0);
        let run =
            for_each(&log, &[0], |b| b.commit(policy).stop(StopPolicy::Drain, secs(1)), probe.handler());
        tokio::time::sleep(secs(3)).await;
        run.stop().await.0.unwrap_err();
        assert!(log.commits().is_empty(), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn t126_b004_a_failed_commit_is_tried_again_without_new_records() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 10);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(5))), Probe::default().handler());
    run.control.fail_commits(&[CommitErrorKind::Retriable, CommitErrorKind::Retriable]);
    tokio::time::sleep(Duration::from_millis(5050)).await;
    assert_eq!(log.committed(&tp(0)), None);
    let why = run.monitor.snapshot()[0].waiting_for.clone();
    assert!(matches!(why, WaitingFor::Commit { failures: 1, .. }), "{why:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(log.committed(&tp(0)), Some(10));
    assert_eq!(run.monitor.snapshot()[0].waiting_for, WaitingFor::Records);
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.commits, report.commit_failures), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn t127_a_refused_partition_does_not_keep_the_others_from_being_committed() {
    let log = MemoryLog::new();
    for partition in 0..3 {
        log.produce_many(&tp(partition), 2);
    }
    let run = for_each(&log, &[0, 1, 2], |b| b, Probe::default().handler());
    settle().await;
    run.control.fail_commits_of(Some(tp(0)));
    assert!(run.control.revoke(&[tp(0), tp(1)]).released().await);
    assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (None, Some(2)));
    assert!(!run.is_over());
    let report = run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(2)), Some(2));
    assert_eq!(report.uncommitted, [(tp(0), 2)]);
}

#[tokio::test(start_paused = true)]
async fn t129_a_hanging_final_commit_ends_with_the_stop_timeout_and_is_told() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let timeout = Duration::from_millis(50);
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Drain, timeout), Probe::default().handler());
    settle().await;
    run.control.stall_commits(true);
    let before = tokio::time::Instant::now();
    let report = run.stop().await.0.unwrap();
    assert_eq!(report.uncommitted, [(tp(0), 2)]);
    assert!(before.elapsed() <= timeout + Duration::from_millis(5), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn t130_partitions_that_stop_together_share_one_request() {
    let log = MemoryLog::new();
    for partition in 0..4 {
        log.produce_many(&tp(partition), 2);
    }
    let run = for_each(&log, &[0, 1, 2, 3], |b| b, Probe::default().handler());
    settle().await;
    assert!(run.control.revoke(&[tp(0), tp(1)]).released().await);
    run.stop().await.0.unwrap();
    let sizes: Vec<_> = log.commits().iter().map(|commit| commit.offsets.len()).collect();
    assert_eq!(sizes, [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn t027_t133_without_a_group_progress_is_tracked_and_never_committed() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let (source, control) = MemorySource::with_configuration(&log, CommitConfiguration::default());
    control.assign(&[tp(0)]);
    let (send, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let run = run_on(
        source,
        control,
        |b| b,
        move |_: Record, lane: Lane| {
            let send = send.clone();
            async move {
                send.send(lane.commit().await).unwrap();
                Ok::<_, String>(())
            }
        },
    );
    settle().await;
    let report = run.stop().await.0.unwrap();
    assert_eq!(report.lanes[0].frontier, Some(3));
    assert!(log.commits().is_empty() && report.uncommitted.is_empty());
    assert_eq!(answers.recv().await, Some(Err(LaneCommitError::NoGroup)));
}

#[tokio::test(start_paused = true)]
async fn t121_t136_t140_a_lane_commits_for_itself_while_its_queue_is_full() {
    let log = MemoryLog::new();
    log.set_leader_epoch(&tp(0), 7);
    log.produce_many(&tp(0), 5);
    let run = for_each(
        &log,
        &[0],
        |b| b.commit(CommitPolicy::UserManaged).max_buffered_records(1),
        |_: Record, lane: Lane| async move { lane.commit().await },
    );
    settle().await;
    run.stop().await.0.unwrap();
    // At the first record nothing is completed, so that commit needs no request.
    assert_eq!(log.commits_of(&tp(0)), [1, 2, 3, 4]);
    assert_eq!(log.committed_epoch(&tp(0)), Some(7));
}

#[tokio::test(start_paused = true)]
async fn t141_t142_a_draining_lane_may_commit_each_record() {
    for shutdown in [false, true] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 3);
        let gate = tokio_util::sync::CancellationToken::new();
        let held = gate.clone();
        let processor = move |mut lane: LaneStream| {
            let held = held.clone();
            async move {
                while let Some(record) = lane.next().await {
                    held.cancelled().await;
                    record.done();
                    lane.commit().await?;
                }
                Ok::<_, LaneCommitError>(())
            }
        };
        let run =
            lanes(&log, &[0], |b| b.commit(CommitPolicy::UserManaged).max_buffered_records(1), processor);
        settle().await;
        let revoking = if shutdown {
            run.ask_to_stop();
            None
        } else {
            Some(run.control.revoke(&[tp(0)]))
        };
        settle().await;
        gate.cancel();
        if let Some(revoking) = revoking {
            revoking.released().await;
        }
        run.stop().await.0.unwrap();
        assert_eq!(log.commits_of(&tp(0)), [1, 2, 3], "shutdown: {shutdown}");
    }
}

#[tokio::test(start_paused = true)]
async fn t148_a_lane_kept_after_its_end_commits_nothing() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let (send, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let run = for_each(
        &log,
        &[0],
        |b| b,
        move |_: Record, lane: Lane| {
            send.send(lane).unwrap();
            async { Ok::<_, String>(()) }
        },
    );
    let lane = kept.recv().await.unwrap();
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    assert_eq!(lane.commit().await, Err(LaneCommitError::LaneClosed));
    assert!(lane.stop_reason().is_some() && lane.is_stopping());
    run.stop().await.0.unwrap();
    assert_eq!(lane.commit().await, Err(LaneCommitError::LaneClosed));
    assert_eq!(log.commits().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_authority_ends_the_run() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), Probe::default().handler());
    run.control.fail_commits(&[CommitErrorKind::Unauthorised]);
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(error, tramline_processor::RunError::CommitRefused { .. }), "{error}");
    assert_eq!(log.commits().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn b059_the_last_commit_is_acknowledged_before_the_run_ends() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 100);
    let run = for_each(&log, &[0], |b| b, Probe::default().handler());
    run.control.commit_latency(Duration::from_millis(300));
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(100));
}

#[tokio::test(start_paused = true)]
async fn b211_a_slow_commit_does_not_hold_a_revocation_of_another_partition() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let probe = Probe::default();
    probe.hold(1, 0);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), probe.handler());
    tokio::time::sleep(Duration::from_millis(500)).await;
    run.control.commit_latency(secs(5));
    tokio::time::sleep(secs(1)).await;
    run.control.assign(&[tp(2)]);
    settle().await;
    let before = tokio::time::Instant::now();
    assert!(run.control.revoke(&[tp(2)]).released().await);
    assert_eq!(before.elapsed(), Duration::ZERO);
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(1));
}
