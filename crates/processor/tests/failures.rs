//! What a run makes of handlers, processors and sources that fail, of wrong settings, and of full queues.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Probe, for_each, lanes, run_on, secs, settle, tp};
use std::time::Duration;
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    CommitConfiguration, CommitErrorKind, CommitPolicy, ConfigErrorKind, Lane, LaneStream, PartitionedExt,
    RunError, StopPolicy, WaitingFor,
};
use tramline_wire::Record;

#[derive(Debug, thiserror::Error, PartialEq)]
#[error("bad record {0}")]
struct Bad(i64);

#[tokio::test(start_paused = true)]
async fn t210_b007_a_failing_handler_ends_the_run_with_its_error_and_what_was_completed_is_committed() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    log.produce_many(&tp(1), 5);
    let handler = |record: Record, _: Lane| async move {
        if record.partition() == 0 && record.offset() == 2 { Err(Bad(2)) } else { Ok(()) }
    };
    let run = for_each(&log, &[0, 1], |b| b, handler);
    let control = run.control.clone();
    let error = run.ended().await.0.unwrap_err();
    let RunError::Handler { lane, offset, source, .. } = error else { panic!("{error}") };
    assert_eq!((lane.topic_partition, offset), (tp(0), Some(2)));
    assert_eq!(source.downcast_ref::<Bad>(), Some(&Bad(2)));
    assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (Some(2), Some(5)));
    assert_eq!(control.position(&tp(0)), Some(2), "set back to what was not completed");
}

#[tokio::test(start_paused = true)]
async fn t220_the_handlers_error_comes_before_that_of_the_final_commit() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let handler =
        |record: Record, _: Lane| async move { if record.offset() == 1 { Err("no") } else { Ok(()) } };
    let run = for_each(&log, &[0], |b| b, handler);
    run.control.fail_commits(&[CommitErrorKind::Fenced]);
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { .. }));
    let report = error.report();
    assert_eq!((&*report.uncommitted, report.commit_failures), (&[(tp(0), 1)][..], 1));
    let [told] = &*report.further_failures else { panic!("{:?}", report.further_failures) };
    assert!(told.starts_with("the last commit failed: "), "{told}");
}

#[tokio::test(start_paused = true)]
async fn t221_of_two_failures_the_first_is_the_error_and_the_second_is_told() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let handler = |record: Record, _: Lane| async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Err::<(), _>(format!("p{}", record.partition()))
    };
    let error = for_each(&log, &[0, 1], |b| b, handler).ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { .. }), "{error}");
    assert_eq!(error.report().further_failures.len(), 1, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_while_draining_wins_over_the_wish_to_stop() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let handler = |_: Record, _: Lane| async {
        tokio::time::sleep(secs(1)).await;
        Err::<(), _>("late")
    };
    let run = for_each(&log, &[0], |b| b, handler);
    settle().await;
    assert!(matches!(run.stop().await.0.unwrap_err(), RunError::Handler { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_after_its_partition_was_lost_is_told_and_stops_nobody_else() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let handler = |record: Record, lane: Lane| async move {
        if record.partition() == 1 {
            return Ok(());
        }
        lane.stopping().await;
        Err("the store knows a newer owner")
    };
    let run = for_each(&log, &[0, 1], |b| b, handler);
    settle().await;
    run.control.lose(&[tp(0)]);
    settle().await;
    log.produce_many(&tp(1), 1);
    settle().await;
    let report = run.stop().await.0.unwrap();
    assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (None, Some(2)));
    let [told] = &*report.further_failures else { panic!("{:?}", report.further_failures) };
    assert!(told.contains("a newer owner"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn t223_a_panic_is_a_failure() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let handler = |record: Record, _: Lane| async move {
        assert!(record.offset() == 0, "cannot do {}", record.offset());
        Ok::<_, String>(())
    };
    let error = for_each(&log, &[0], |b| b, handler).ended().await.0.unwrap_err();
    assert!(matches!(&error, RunError::Panicked { message, .. } if message == "cannot do 1"), "{error}");
    assert_eq!(log.committed(&tp(0)), Some(1));
}

#[tokio::test(start_paused = true)]
async fn t166_a_processor_that_returns_early_is_a_failure() {
    let log = MemoryLog::new();
    let run = lanes(&log, &[0], |b| b, |_: LaneStream| async { Ok::<_, String>(()) });
    assert!(matches!(run.ended().await.0.unwrap_err(), RunError::EndedEarly { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_failing_source_ends_the_run_after_a_drain_and_a_commit() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let run = for_each(&log, &[0], |b| b, Probe::default().handler());
    settle().await;
    run.control.fail_poll("broken");
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(&error, RunError::Source { source, .. } if source.to_string() == "broken"), "{error}");
    assert_eq!(log.committed(&tp(0)), Some(2));
}

#[test]
fn t005_t006_settings_out_of_range_are_refused_and_the_source_comes_back() {
    let log = MemoryLog::new();
    let (source, _control) = MemorySource::new(&log);
    let error = source.partitioned().max_buffered_records(0).build().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "max_buffered_records", .. }));
    let error = error.source.partitioned().max_buffered_bytes(0).build().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "max_buffered_bytes", .. }));
    let error =
        error.source.partitioned().commit(CommitPolicy::Periodic(Duration::ZERO)).build().unwrap_err();
    assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "commit", .. }));
    for timeout in [Duration::ZERO, Duration::MAX] {
        let (source, _control) = MemorySource::new(&log);
        source.partitioned().stop(StopPolicy::Drain, timeout).build().unwrap();
    }
}

#[test]
fn t020_to_t026_b008_the_auto_commit_guard_follows_the_whole_table() {
    let log = MemoryLog::new();
    let policies = [CommitPolicy::UserManaged, CommitPolicy::OnRevoke, CommitPolicy::Periodic(secs(1))];
    for (auto_commit, auto_store, group) in
        (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, (bits & 4 != 0).then(|| "g".into())))
    {
        for policy in policies {
            let refused = auto_commit && auto_store && group.is_some() && policy != CommitPolicy::UserManaged;
            let configuration = CommitConfiguration { auto_commit, auto_store, group: group.clone() };
            let (source, _control) = MemorySource::with_configuration(&log, configuration.clone());
            let built = source.partitioned().commit(policy).build();
            let kind = built.err().map(|error| error.kind);
            assert_eq!(kind, refused.then_some(ConfigErrorKind::AutoCommit), "{configuration:?} {policy:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn t190_t195_a_full_lane_pauses_its_partition_and_resumes_it_when_read() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 4);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(1);
    control.assign(&[tp(0)]);
    let run = run_on(source, control, |b| b.max_buffered_records(1), probe.handler());
    tokio::time::sleep(secs(60)).await;
    let polls = run.control.polls();
    assert_eq!(run.control.paused(), [tp(0)]);
    let lane = run.monitor.snapshot().remove(0);
    assert!(
        matches!(lane.waiting_for, WaitingFor::Full { offset: Some(0), since } if since >= secs(59)),
        "{lane:?}"
    );
    assert_eq!((lane.queued, lane.paused), (1, true));
    tokio::time::sleep(secs(60)).await;
    assert_eq!(run.control.polls(), polls, "nothing is asked for while all is paused");
    gate.cancel();
    settle().await;
    assert_eq!(probe.seen(0), [0, 1, 2, 3]);
    assert!(run.control.paused().is_empty());
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t198_the_byte_budget_pauses_earlier_and_takes_one_large_record_alone() {
    let log = MemoryLog::new();
    for partition in 0..3 {
        for _ in 0..3 {
            log.produce(&tp(partition), None, Some(&[0; 10_000]));
        }
    }
    let probe = Probe::default();
    let gates: Vec<_> = (0..3).map(|partition| probe.hold(partition, 0)).collect();
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(1);
    control.assign(&[tp(0), tp(1), tp(2)]);
    let run = run_on(source, control, |b| b.max_buffered_bytes(5_000), probe.handler());
    settle().await;
    let queued: usize = run.monitor.snapshot().iter().map(|lane| lane.queued).sum();
    assert!(queued <= 3, "one batch per partition at most, not {queued}");
    gates.iter().for_each(tokio_util::sync::CancellationToken::cancel);
    settle().await;
    for partition in 0..3 {
        assert_eq!(probe.seen(partition), [0, 1, 2]);
    }
    assert!(run.control.paused().is_empty());
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t199_what_the_user_paused_stays_paused_and_t201_the_run_resumes_only_its_own() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    log.produce_many(&tp(1), 5);
    let probe = Probe::default();
    let gate = probe.hold(1, 0);
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0), tp(1)]);
    control.set_paused(&tp(0), true);
    let run = run_on(source, control.clone(), |b| b.max_buffered_records(1), probe.handler());
    settle().await;
    assert_eq!(control.paused(), [tp(0), tp(1)]);
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!((control.paused(), probe.seen(0).len()), (vec![tp(0)], 0));
}

#[tokio::test(start_paused = true)]
async fn t200_b025_a_partition_that_left_while_paused_is_read_when_it_comes_back() {
    for revoked in [false, true] {
        leaves_while_paused(revoked).await;
    }
}

async fn leaves_while_paused(revoked: bool) {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b.max_buffered_records(1), probe.handler());
    settle().await;
    assert_eq!(run.control.paused(), [tp(0)]);
    let revoking = revoked.then(|| run.control.revoke(&[tp(0)]));
    if !revoked {
        run.control.lose(&[tp(0)]);
    }
    settle().await;
    gate.cancel();
    settle().await;
    assert!(revoking.is_none_or(|revoking| revoking.is_released()));
    run.control.assign(&[tp(0)]);
    tokio::time::sleep(secs(12 * 3600)).await;
    log.produce_many(&tp(0), 1);
    settle().await;
    let expected: &[i64] = if revoked { &[0, 1, 2, 3] } else { &[0, 0, 1, 2, 3] };
    assert_eq!(probe.seen(0), expected, "revoked: {revoked}");
    assert!(run.control.paused().is_empty());
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b035_the_clock_of_a_record_starts_with_its_handler() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 10);
    let handler = |_: Record, _: Lane| async {
        tokio::time::sleep(secs(8)).await;
        Ok::<_, String>(())
    };
    let run = for_each(&log, &[0], |b| b, handler);
    for _ in 0..7 {
        tokio::time::sleep(secs(11)).await;
        let why = run.monitor.snapshot()[0].waiting_for.clone();
        assert!(matches!(why, WaitingFor::Handler { since, .. } if since <= secs(8)), "{why:?}");
    }
    run.stop().await.0.unwrap();
}
