//! Shutdown, commits and rebalances that meet each other, on virtual time.

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
    CommitConfiguration, CommitErrorKind, CommitPolicy, ConfigErrorKind, Delivered, Lane, LaneCommitError,
    LaneStream, PartitionedExt, RunError, StopPolicy,
};
use tramline_wire::Record;

#[tokio::test(start_paused = true)]
async fn t028_a_refused_run_leaves_nothing_behind_and_a_correct_one_works() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let auto = CommitConfiguration { auto_commit: true, auto_store: true, group: Some("g".into()) };
    let (source, control) = MemorySource::with_configuration(&log, auto);
    control.assign(&[tp(0)]);
    let refused = source.partitioned().build().unwrap_err();
    assert_eq!(refused.kind, ConfigErrorKind::AutoCommit);
    let revoking = control.revoke(&[tp(0)]);
    assert!(revoking.is_released(), "nobody holds what a refused run never listened to");
    control.assign(&[tp(0)]);
    let probe = Probe::default();
    let run = run_on(refused.source, control, |b| b.commit(CommitPolicy::UserManaged), probe.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(probe.done(0), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn t107_a_restart_in_the_middle_of_a_hole_goes_on_behind_it_and_repeats_nothing() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    log.skip_to(&tp(0), 50);
    log.produce_many(&tp(0), 3);
    log.set_committed(&tp(0), 20);
    let probe = Probe::default();
    let gate = probe.hold(0, 51);
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Cancel, secs(1)), probe.handler());
    settle().await;
    run.ask_to_stop();
    settle().await;
    gate.cancel();
    run.stop().await.0.unwrap();
    assert_eq!((probe.done(0), log.committed(&tp(0))), (vec![50, 51], Some(52)));
    let probe = Probe::default();
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!((probe.done(0), log.committed(&tp(0))), (vec![52], Some(53)));
}

#[tokio::test(start_paused = true)]
async fn t108_every_second_record_filtered_and_a_filtered_tail_are_committed_when_idle() {
    let log = MemoryLog::new();
    for _ in 0..10 {
        log.produce_many(&tp(0), 1);
        log.append_hidden(&tp(0), 1);
    }
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), Probe::default().handler());
    tokio::time::sleep(secs(2)).await;
    assert_eq!(log.committed(&tp(0)), Some(20));
    log.append_hidden(&tp(0), 30);
    tokio::time::sleep(secs(2)).await;
    assert_eq!(log.committed(&tp(0)), Some(50), "nothing but filtered records came");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t109_a_log_start_that_passes_the_frontier_of_a_stuck_handler_costs_nothing_but_the_gap() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), probe.handler());
    tokio::time::sleep(secs(3)).await;
    assert_eq!(log.committed(&tp(0)), Some(1));
    // What lay between is deleted: the next record the source can give lies far ahead.
    log.skip_to(&tp(0), 1_000);
    log.produce_many(&tp(0), 2);
    tokio::time::sleep(secs(3)).await;
    assert_eq!(log.committed(&tp(0)), Some(1), "the stuck record still holds the frontier");
    gate.cancel();
    tokio::time::sleep(secs(3)).await;
    run.stop().await.0.unwrap();
    assert_eq!((probe.done(0), log.commits_of(&tp(0))), (vec![0, 1, 1_000, 1_001], vec![1, 1_002]));
}

/// A handler that commits after each record, counted when it worked.
fn committing(
    answers: mpsc::UnboundedSender<Result<(), LaneCommitError>>,
    gate: CancellationToken,
) -> impl tramline_processor::Processor {
    move |mut lane: LaneStream| {
        let (answers, gate) = (answers.clone(), gate.clone());
        async move {
            while let Some(record) = lane.next().await {
                gate.cancelled().await;
                record.done();
                // The test may be over.
                let _ = answers.send(lane.commit().await);
            }
            Ok::<_, String>(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn t143_t144_shutdown_meets_a_full_queue_and_suspended_commits_and_both_commits_happen() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 6);
    let (answers, mut answered) = mpsc::unbounded_channel();
    let gate = CancellationToken::new();
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(2);
    control.assign(&[tp(0)]);
    let builder = source.partitioned().commit(CommitPolicy::UserManaged).max_buffered_records(1);
    let processor = committing(answers, gate.clone());
    let run = Running::of_lanes(builder.build_lanes().unwrap(), control.clone(), processor);
    settle().await;
    assert_eq!(control.paused(), [tp(0)], "the queue is full");
    control.stall_commits(true);
    gate.cancel();
    settle().await;
    run.ask_to_stop();
    settle().await;
    assert!(answered.try_recv().is_err() && !run.is_over(), "the commit hangs, and the drain with it");
    control.stall_commits(false);
    let (result, _) = run.ended().await;
    result.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [1, 2], "what was queued, and nothing more was read");
    assert_eq!((answered.recv().await, answered.recv().await), (Some(Ok(())), Some(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn t144_a_commit_that_hangs_through_the_whole_deadline_ends_with_it() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let (answers, mut answered) = mpsc::unbounded_channel();
    let gate = CancellationToken::new();
    gate.cancel();
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.commit(CommitPolicy::UserManaged).stop(StopPolicy::Drain, secs(3))
    };
    let (source, control) = MemorySource::new(&log);
    control.stall_commits(true);
    control.assign(&[tp(0)]);
    let before = Instant::now();
    let run = with(source.partitioned()).build_lanes().unwrap();
    let run = Running::of_lanes(run, control, committing(answers, gate));
    settle().await;
    let error = run.stop().await.0.unwrap_err();
    assert!(matches!(error, RunError::StopTimeout { .. }), "{error}");
    assert!(log.commits().is_empty() && answered.recv().await.is_none(), "its caller was dropped");
    // One second more for the commit under way.
    assert!(before.elapsed() <= secs(4) + Duration::from_millis(10), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn t145_what_is_assigned_after_the_shutdown_gets_no_processor() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    log.produce_many(&tp(1), 1);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    run.control.stall_commits(true);
    run.ask_to_stop();
    settle().await;
    run.control.assign(&[tp(1)]);
    settle().await;
    gate.cancel();
    settle().await;
    run.control.stall_commits(false);
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.lanes_started, probe.seen(1)), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn t146_a_lane_that_fails_while_another_drains_is_the_error_and_the_drain_goes_on() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    log.produce_many(&tp(1), 2);
    let handler = |record: Record, _: Lane| async move {
        tokio::time::sleep(secs(if record.partition() == 0 { 1 } else { 3 })).await;
        if record.partition() == 0 && record.offset() == 1 { Err("no") } else { Ok(()) }
    };
    let run = for_each(&log, &[0, 1], |b| b, handler);
    settle().await;
    let error = run.stop().await.0.unwrap_err();
    assert!(matches!(&error, RunError::Handler { offset: Some(1), .. }), "{error}");
    assert_eq!((log.committed(&tp(0)), log.committed(&tp(1))), (Some(1), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn t147_at_the_deadline_all_lanes_are_told_at_once_and_the_grace_is_not_renewed() {
    let log = MemoryLog::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    for partition in 0..3 {
        log.produce_many(&tp(partition), 1);
    }
    let tell = Arc::clone(&told);
    let handler = move |_: Record, lane: Lane| {
        let tell = Arc::clone(&tell);
        // A watcher beside the handler, since the handler itself is dropped at the deadline.
        tokio::spawn(async move {
            lane.stopping().await;
            tell.lock().unwrap().push(Instant::now());
        });
        std::future::pending::<Result<(), String>>()
    };
    let run = for_each(&log, &[0, 1, 2], |b| b.stop(StopPolicy::Drain, secs(10)), handler);
    settle().await;
    let before = Instant::now();
    let error = run.stop().await.0.unwrap_err();
    assert!(matches!(error, RunError::StopTimeout { lanes, .. } if lanes.len() == 3));
    assert_eq!(before.elapsed().as_secs(), 10);
    settle().await;
    let told = told.lock().unwrap();
    assert!(told.len() == 3 && told.iter().all(|at| at.duration_since(before).as_secs() == 10), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn t149_a_caller_that_stops_waiting_cancels_its_own_commit_only() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let (send, mut lanes) = mpsc::unbounded_channel();
    let handler = move |_: Record, lane: Lane| {
        send.send(lane).unwrap();
        async { Ok::<_, String>(()) }
    };
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::UserManaged), handler);
    let lane = lanes.recv().await.unwrap();
    settle().await;
    run.control.stall_commits(true);
    let first = tokio::spawn({
        let lane = lane.clone();
        async move { lane.commit().await }
    });
    settle().await;
    let second = tokio::spawn({
        let lane = lane.clone();
        async move { lane.commit().await }
    });
    settle().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    run.control.stall_commits(false);
    assert_eq!(second.await.unwrap(), Ok(()));
    assert_eq!(log.commits_of(&tp(0)), [2]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t164_a_full_lane_that_is_cancelled_hands_out_nothing_more_and_commits_only_when_revoked() {
    for lost in [false, true] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 10);
        let probe = Probe::default();
        let gate = probe.hold(0, 2);
        let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
            b.stop(StopPolicy::Cancel, secs(30)).max_buffered_records(1)
        };
        let run = for_each(&log, &[0], with, probe.handler());
        settle().await;
        assert_eq!(run.control.paused(), [tp(0)]);
        let revoking = if lost {
            run.control.lose(&[tp(0)]);
            None
        } else {
            Some(run.control.revoke(&[tp(0)]))
        };
        settle().await;
        gate.cancel();
        if let Some(revoking) = revoking {
            assert!(revoking.released().await);
        }
        settle().await;
        assert_eq!(probe.seen(0), [0, 1, 2]);
        let expected: &[i64] = if lost { &[] } else { &[3] };
        assert_eq!(log.commits_of(&tp(0)), expected);
        run.stop().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn t165_b005_a_partition_that_returns_while_its_old_lane_drains_waits_for_it_and_gets_its_own_batches()
{
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 8);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let (lanes, mut started) = mpsc::unbounded_channel();
    let work = probe.clone();
    let handler = move |record: Record, lane: Lane| {
        let (work, lanes) = (work.clone(), lanes.clone());
        async move {
            lanes.send((lane.generation(), record.offset())).unwrap();
            work.work(&record).await;
            Ok::<_, String>(())
        }
    };
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(2);
    control.assign(&[tp(0)]);
    let run = run_on(source, control, |b| b.max_buffered_records(2), handler);
    settle().await;
    assert_eq!(run.control.paused(), [tp(0)], "one with the handler, three queued, the rest at the source");
    let _revoking = run.control.revoke(&[tp(0)]);
    run.control.assign(&[tp(0), tp(1)]);
    settle().await;
    assert_eq!(run.control.paused(), [tp(0)], "what came for the new lane waits, and no more is asked for");
    gate.cancel();
    settle().await;
    assert_eq!(probe.overlaps(), 0);
    let mut seen = Vec::new();
    while let Ok(start) = started.try_recv() {
        seen.push(start);
    }
    // The old lane drains what it had; the new one begins at the committed offset, which is none.
    let old = (0..4).map(|offset| (1, offset));
    assert_eq!(seen, old.chain((0..8).map(|offset| (2, offset))).collect::<Vec<_>>());
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(8));
}

#[tokio::test(start_paused = true)]
async fn t167_a_full_queue_delays_neither_a_shutdown_nor_a_failure() {
    for fails in [false, true] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 100);
        log.produce_many(&tp(1), 1);
        let gate = CancellationToken::new();
        let held = gate.clone();
        let handler = move |record: Record, lane: Lane| {
            let held = held.clone();
            async move {
                if record.partition() == 1 {
                    held.cancelled().await;
                    return if fails { Err("no") } else { Ok(()) };
                }
                lane.stopping().await;
                Ok(())
            }
        };
        let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
            b.max_buffered_records(1).stop(StopPolicy::Cancel, secs(30))
        };
        let run = for_each(&log, &[0, 1], with, handler);
        settle().await;
        let before = Instant::now();
        if !fails {
            run.ask_to_stop();
        }
        gate.cancel();
        let (result, _) = run.ended().await;
        assert_eq!((result.is_err(), before.elapsed()), (fails, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn t171_assignments_are_noticed_under_constant_traffic() {
    let log = MemoryLog::new();
    let produce = |partition| {
        let log = log.clone();
        tokio::spawn(async move {
            loop {
                log.produce_many(&tp(partition), 3);
                tokio::task::yield_now().await;
            }
        })
    };
    let busy = produce(0);
    let probe = Probe::default();
    let run = for_each(&log, &[0], |b| b, probe.handler());
    let steps = async |until: &dyn Fn() -> bool| {
        for _ in 0..10_000 {
            if until() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("not noticed");
    };
    steps(&|| probe.seen(0).len() > 10).await;
    log.produce_many(&tp(1), 1);
    run.control.assign(&[tp(1)]);
    steps(&|| probe.seen(1) == [0]).await;
    let revoking = run.control.revoke(&[tp(0)]);
    steps(&|| revoking.is_released()).await;
    busy.abort();
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), probe.done(0).last().map(|last| last + 1));
}

#[tokio::test(start_paused = true)]
async fn t178_a_handlers_own_cancellation_is_an_ordinary_failure() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let handler = |_: Record, _: Lane| async {
        let inner = tokio::spawn(std::future::pending::<()>());
        inner.abort();
        inner.await
    };
    let error = for_each(&log, &[0], |b| b, handler).ended().await.0.unwrap_err();
    let RunError::Handler { source, .. } = &error else { panic!("{error}") };
    assert!(source.downcast_ref::<tokio::task::JoinError>().unwrap().is_cancelled());
    assert!(log.commits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t194_b028_what_a_full_lane_left_at_the_source_comes_in_order_and_others_flow_meanwhile() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 100);
    let probe = Probe::default();
    let gate = probe.hold(0, 3);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(5);
    control.assign(&[tp(0), tp(1)]);
    let run = run_on(source, control, |b| b.max_buffered_records(10), probe.handler());
    settle().await;
    assert_eq!(run.control.paused(), [tp(0)]);
    let position = run.control.position(&tp(0));
    log.produce_many(&tp(1), 100);
    settle().await;
    assert_eq!((probe.seen(0).len(), probe.done(1).len()), (4, 100));
    assert_eq!(run.control.position(&tp(0)), position, "nothing was read for a paused partition");
    gate.cancel();
    settle().await;
    assert_eq!(probe.done(0), (0..100).collect::<Vec<_>>());
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b010_a_commit_that_arrives_after_a_successor_committed_moves_nothing_back() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 80);
    let probe = Probe::default();
    let gate = probe.hold(0, 50);
    let slow = for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), probe.handler());
    slow.control.commit_latency(secs(10));
    tokio::time::sleep(secs(2)).await;
    // Its commit of 50 is on its way when the partition goes to another member, which is done soon.
    slow.control.lose(&[tp(0)]);
    let next =
        for_each(&log, &[0], |b| b.commit(CommitPolicy::Periodic(secs(1))), Probe::default().handler());
    tokio::time::sleep(secs(2)).await;
    assert_eq!(log.committed(&tp(0)), Some(80));
    gate.cancel();
    tokio::time::sleep(secs(20)).await;
    let refused: Vec<_> = log.commits().into_iter().filter(|commit| commit.failure.is_some()).collect();
    assert_eq!((refused.len(), refused[0].offsets[0].offset), (1, 50), "it came, and was refused");
    assert_eq!(refused[0].failure, Some(CommitErrorKind::Fenced));
    slow.stop().await.0.unwrap();
    next.stop().await.0.unwrap();
    assert_eq!(log.commits_of(&tp(0)), [80]);
}

#[tokio::test(start_paused = true)]
async fn b022_unfinished_business_of_a_lane_ends_with_it_and_pauses_nothing_afterwards() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 20);
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
    let run = lanes(&log, &[0], |b| b.max_buffered_records(4).commit_metadata(false), processor);
    settle().await;
    // All out, none done in order: the first five stay open.
    for record in kept.lock().unwrap().split_off(5) {
        record.done();
    }
    run.control.revoke(&[tp(0)]).released().await;
    assert!(log.commits().is_empty());
    run.control.assign(&[tp(0)]);
    settle().await;
    let mut records = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(records.len(), 25, "five of before, twenty again");
    let fresh = records.split_off(5);
    fresh.into_iter().for_each(Delivered::done);
    records.into_iter().for_each(Delivered::done);
    log.produce_many(&tp(0), 20);
    settle().await;
    kept.lock().unwrap().drain(..).for_each(Delivered::done);
    assert!(run.control.paused().is_empty());
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(40));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_dropped_instead_of_done_is_counted_and_holds_the_frontier() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    let processor = |mut lane: LaneStream| async move {
        while let Some(record) = lane.next().await {
            if record.offset() == 2 {
                drop(record);
            } else {
                record.done();
            }
        }
        Ok::<_, String>(())
    };
    let run = lanes(&log, &[0], |b| b, processor);
    let control = run.control.clone();
    settle().await;
    assert_eq!(run.monitor.snapshot()[0].abandoned, 1);
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_delivered, report.records_completed, report.records_abandoned), (5, 4, 1));
    assert_eq!((report.lanes[0].frontier, report.lanes[0].last_processed), (Some(2), Some(4)));
    assert_eq!((log.committed(&tp(0)), control.position(&tp(0))), (Some(2), Some(2)), "it comes again");
}

#[tokio::test(start_paused = true)]
async fn a_fencing_token_grows_with_every_record_and_every_assignment() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let (send, mut tokens) = mpsc::unbounded_channel();
    let handler = move |record: Record, lane: Lane| {
        send.send(lane.fencing_token(&record)).unwrap();
        async { Ok::<_, String>(()) }
    };
    let run = for_each(&log, &[0], |b| b.commit(CommitPolicy::UserManaged), handler);
    settle().await;
    run.control.lose(&[tp(0)]);
    run.control.assign(&[tp(0)]);
    settle().await;
    run.stop().await.0.unwrap();
    let mut seen = Vec::new();
    while let Some(token) = tokens.recv().await {
        assert_eq!((token.group.as_deref(), &token.topic_partition), (Some("test"), &tp(0)));
        seen.push(token);
    }
    let numbers: Vec<_> = seen.iter().map(|token| (token.generation, token.offset)).collect();
    assert_eq!(numbers, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]);
    assert!(seen.is_sorted(), "an older owner compares lower, whatever its offset");
}
