//! Why a lane is not further: each reason as a monitor shows it, and what is told as events.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/tracing_log.rs"]
mod tracing_log;

use std::time::Duration;

use common::{Probe, Running, for_each, lanes, secs, settle, tp};
use tracing::level_filters::LevelFilter;
use tracing_log::TracingLog;
use tramline_processor::testing::MemoryLog;
use tramline_processor::{
    Backoff, CommitErrorKind, CommitPolicy, DeadLetter, DeadLetters, ErrorPolicy, Lane, LaneState,
    LaneStream, Ordering, Park, Retry, StopPolicy, StopReason, WaitingFor,
};
use tramline_wire::Record;

fn why(run: &Running) -> WaitingFor {
    run.monitor.snapshot()[0].waiting_for.clone()
}

fn line(run: &Running) -> String {
    run.monitor.snapshot()[0].to_string()
}

/// Fails on records whose value is `bad`.
async fn picky(record: Record, _: Lane) -> Result<(), &'static str> {
    if record.value() == Some(b"bad") { Err("connection refused") } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn a_lane_without_records_is_idle_and_one_with_a_record_runs_it() {
    let log = MemoryLog::new();
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    settle().await;
    assert_eq!((why(&run), line(&run)), (WaitingFor::Records, "t-0: idle".to_owned()));
    log.produce_many(&tp(0), 1);
    settle().await;
    tokio::time::sleep(secs(3)).await;
    assert!(matches!(why(&run), WaitingFor::Handler { offset: 0, since } if since >= secs(3)));
    assert_eq!(line(&run), "t-0: running offset 0 for 3.0 s");
    gate.cancel();
    settle().await;
    assert_eq!(why(&run), WaitingFor::Records);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_names_the_record_that_fills_it() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 5);
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let run = for_each(&log, &[0], |b| b.max_buffered_records(2), probe.handler());
    tokio::time::sleep(secs(2)).await;
    assert!(matches!(why(&run), WaitingFor::Full { offset: Some(0), since } if since >= secs(1)));
    assert!(line(&run).starts_with("t-0: full; offset 0 is not finished for "), "{}", line(&run));
    let lane = run.monitor.snapshot().remove(0);
    assert_eq!((lane.queued, lane.unfinished, lane.position, lane.ahead()), (4, 1, Some(1), 0));
    gate.cancel();
    settle().await;
    let pauses = run.monitor.stats().partitions[&tp(0)].clone();
    assert!(pauses.pauses == 1 && pauses.paused >= secs(2), "{pauses:?}");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn in_key_order_the_key_that_holds_the_frontier_back_is_named() {
    let log = MemoryLog::new();
    for key in [Some(&b"a"[..]), None, Some(b"b"), Some(b"a")] {
        log.produce(&tp(0), key, None);
    }
    let probe = Probe::default();
    let (first, second) = (probe.hold(0, 0), probe.hold(0, 1));
    let order =
        |b: tramline_processor::PartitionedBuilder<_>| b.ordering(Ordering::Key).max_concurrent_handlers(4);
    let run = for_each(&log, &[0], order, probe.handler());
    tokio::time::sleep(secs(2)).await;
    assert!(
        matches!(why(&run), WaitingFor::Key { key: Some(key), offset: 0, since } if key == b"a" && since >= secs(1))
    );
    assert_eq!(run.monitor.snapshot()[0].keys, 2);
    first.cancel();
    settle().await;
    assert!(matches!(why(&run), WaitingFor::Key { key: None, offset: 1, .. }), "{:?}", why(&run));
    assert!(line(&run).starts_with("t-0: waiting for key null at offset 1"), "{}", line(&run));
    assert_eq!(run.monitor.snapshot()[0].ahead(), 3);
    second.cancel();
    settle().await;
    assert_eq!(why(&run), WaitingFor::Records);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_retry_tells_when_it_comes_and_why() {
    for order in [Ordering::Partition, Ordering::Key, Ordering::Unordered] {
        let log = MemoryLog::new();
        log.produce(&tp(0), None, Some(b"good"));
        log.produce(&tp(0), None, Some(b"bad"));
        let retry = Retry::new(3, Backoff::new(secs(4), secs(60)).without_jitter());
        let policy = retry.then(ErrorPolicy::Skip);
        let run = for_each(&log, &[0], |b| b.ordering(order).on_error(policy), picky);
        settle().await;
        let WaitingFor::Retry { offset: 1, attempt: 2, of: 3, due, error } = why(&run) else {
            panic!("{order:?}: {:?}", why(&run));
        };
        assert!(secs(3) < due && due <= secs(4) && error == "connection refused", "{due:?} {error}");
        tokio::time::sleep(secs(4)).await;
        assert!(matches!(why(&run), WaitingFor::Retry { attempt: 3, due, .. } if due > secs(7)));
        let expected = "t-0: retry of offset 1 in 8.0 s (attempt 3 of 3): connection refused";
        assert_eq!(line(&run), expected);
        tokio::time::sleep(secs(9)).await;
        assert_eq!(why(&run), WaitingFor::Records);
        let stats = run.monitor.stats().partitions[&tp(0)].clone();
        assert_eq!((stats.retries, stats.records_skipped), (2, 1));
        run.stop().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn parked_keys_are_counted_and_the_oldest_is_named() {
    let log = MemoryLog::new();
    log.produce(&tp(0), Some(b"a"), Some(b"good"));
    for value in [&b"bad"[..], b"good", b"good"] {
        log.produce(&tp(0), Some(b"b"), Some(value));
    }
    let with = |b: tramline_processor::PartitionedBuilder<_>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(4).on_error(Park::new())
    };
    let run = for_each(&log, &[0], with, picky);
    tokio::time::sleep(secs(2)).await;
    assert!(
        matches!(why(&run), WaitingFor::Parked { keys: 1, records: 3, oldest: 1, .. }),
        "{:?}",
        why(&run)
    );
    let lane = run.monitor.snapshot().remove(0);
    assert_eq!((lane.parked_keys, lane.parked), (1, 3));
    assert_eq!(run.monitor.stats().total().keys_parked, 1);
    run.stop().await.0.unwrap();
}

/// Never comes to an end.
struct Stuck;

impl DeadLetters for Stuck {
    type Error = String;

    async fn write(&self, _: DeadLetter) -> Result<(), String> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_is_not_acknowledged_is_told() {
    let log = MemoryLog::new();
    log.produce(&tp(0), None, Some(b"bad"));
    let run = for_each(&log, &[0], |b| b.on_error(ErrorPolicy::dead_letter(Stuck)), picky);
    tokio::time::sleep(secs(2)).await;
    assert!(
        matches!(why(&run), WaitingFor::DeadLetter { offset: 0, error, .. } if error == "connection refused")
    );
    run.stop().await.0.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn failing_commits_are_the_reason_of_lanes_with_something_to_commit_only() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let periodic = |b: tramline_processor::PartitionedBuilder<_>| b.commit(CommitPolicy::Periodic(secs(1)));
    let run = for_each(&log, &[0, 1], periodic, picky);
    run.control.fail_commits(&[CommitErrorKind::Retriable; 3]);
    tokio::time::sleep(Duration::from_millis(1050)).await;
    let shown = run.monitor.snapshot();
    let error = "commit refused: Retriable".to_owned();
    assert_eq!(shown[0].waiting_for, WaitingFor::Commit { failures: 1, error });
    assert_eq!(shown[1].waiting_for, WaitingFor::Records);
    tokio::time::sleep(secs(3)).await;
    assert_eq!(why(&run), WaitingFor::Records, "b023: gone when a commit works");
    let stats = run.monitor.stats();
    let of_lane = &stats.partitions[&tp(0)];
    assert_eq!((of_lane.commits, of_lane.commit_failures), (1, 3));
    assert_eq!((stats.commits, stats.commit_failures), (1, 3));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_will_be_started_again_is_shown_although_it_does_not_live() {
    let log = MemoryLog::new();
    log.produce(&tp(0), None, Some(b"good"));
    log.produce(&tp(0), None, Some(b"bad"));
    let policy = ErrorPolicy::RestartLane(Backoff::new(secs(10), secs(60)).without_jitter());
    let run = for_each(&log, &[0], |b| b.on_error(policy), picky);
    settle().await;
    let lane = run.monitor.snapshot().remove(0);
    assert_eq!((lane.state, lane.frontier, lane.unfinished), (LaneState::Stopped, Some(1), 0));
    let WaitingFor::Restart { due, failures: 1, error } = lane.waiting_for else { panic!("{lane:?}") };
    assert!(secs(9) < due && due <= secs(10) && error == "connection refused", "{due:?} {error}");
    assert_eq!(run.monitor.stats().lanes.restarting, 1);
    tokio::time::sleep(secs(11)).await;
    assert_eq!(line(&run), "t-0: starts again in 19.0 s (failure 2 in a row): connection refused");
    assert_eq!(run.monitor.snapshot().len(), 1);
    let stats = run.monitor.stats().partitions[&tp(0)].clone();
    assert_eq!((stats.lanes, stats.restarts, stats.lane_failures), (2, 1, 2));
    run.control.lose(&[tp(0)]);
    settle().await;
    assert!(run.monitor.snapshot().is_empty(), "not ours, nothing to tell");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_stopped_by_a_failure_stays_shown_until_it_is_assigned_anew() {
    let log = MemoryLog::new();
    log.produce(&tp(0), None, Some(b"bad"));
    let run = for_each(&log, &[0, 1], |b| b.on_error(ErrorPolicy::StopPartition), picky);
    tokio::time::sleep(secs(3600)).await;
    let shown = run.monitor.snapshot();
    let [other, stopped] = &*shown else { panic!("{shown:?}") };
    assert_eq!((&other.lane.topic_partition, &other.waiting_for), (&tp(1), &WaitingFor::Records));
    assert_eq!(stopped.to_string(), "t-0: stopped by its failure: connection refused");
    let lanes = run.monitor.stats().lanes;
    assert_eq!((lanes.running, lanes.stopped), (1, 1));
    run.control.revoke(&[tp(0)]).released().await;
    settle().await;
    assert_eq!(run.monitor.snapshot().len(), 1);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_draining_lane_tells_what_it_drains_for() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Drain, secs(60)), probe.handler());
    settle().await;
    let revoking = run.control.revoke(&[tp(0)]);
    tokio::time::sleep(secs(5)).await;
    assert!(matches!(
        why(&run),
        WaitingFor::Stopping { reason: StopReason::Revoke, hurry: false, offset: Some(1), since } if since >= secs(4)
    ));
    assert_eq!(run.monitor.stats().lanes.draining, 1);
    gate.cancel();
    assert!(revoking.released().await);
    settle().await;
    let stats = run.monitor.stats();
    assert!(stats.revocations_held.count() == 1 && stats.revocations_held.longest() >= secs(4));
    assert!(stats.stops.revoke.count() == 1 && stats.stops.revoke.longest() >= secs(4));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_does_not_move_is_told_once_and_told_again_when_it_moves() {
    let (told, _guard) = TracingLog::listen(LevelFilter::INFO);
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 2);
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run = for_each(&log, &[0], |b| b, probe.handler());
    tokio::time::sleep(secs(9)).await;
    assert!(told.events("does not move").is_empty(), "a busy handler is no trouble yet");
    tokio::time::sleep(secs(3600)).await;
    let events = told.events("does not move");
    let [event] = &*events else { panic!("{events:?}") };
    assert!(event.contains("lane=t-0 in generation 1") && event.contains("running offset 1"), "{event}");
    gate.cancel();
    tokio::time::sleep(secs(3600)).await;
    assert_eq!((told.events("does not move").len(), told.events("moves again").len()), (1, 1));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_many_lanes_that_do_not_move_a_few_are_told_and_the_rest_is_counted() {
    let (told, _guard) = TracingLog::listen(LevelFilter::INFO);
    let log = MemoryLog::new();
    let partitions: Vec<i32> = (0..100).collect();
    for &partition in &partitions {
        log.produce(&tp(partition), None, Some(b"bad"));
    }
    let run = for_each(&log, &partitions, |b| b.on_error(ErrorPolicy::StopPartition), picky);
    tokio::time::sleep(secs(6)).await;
    assert_eq!(told.events("does not move").len(), 16);
    assert!(told.events("more lanes").iter().any(|event| event.contains("lanes=84")));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_lane_is_told_with_its_generation() {
    let (told, _guard) = TracingLog::listen(LevelFilter::DEBUG);
    let log = MemoryLog::new();
    for partition in 0..3 {
        log.produce_many(&tp(partition), 1);
    }
    let probe = Probe::default();
    probe.hold(2, 0);
    let run = for_each(&log, &[0, 1, 2], |b| b.stop(StopPolicy::Drain, secs(1)), probe.handler());
    settle().await;
    run.control.revoke(&[tp(0)]).released().await;
    run.control.lose(&[tp(1)]);
    settle().await;
    run.stop().await.0.unwrap_err();
    for (event, lane) in [
        ("assigned", "generation=1"),
        ("revoked", "t-0 in generation 1"),
        ("lane stops", "t-0 in generation 1"),
        ("lane ended", "t-0 in generation 1"),
        ("committed", "t-0 in generation 1 at 1"),
        ("lost", "t-1 in generation 1"),
        ("did not stop in time", "t-2 in generation 1"),
    ] {
        assert!(
            told.events(event).iter().any(|text| text.contains(lane)),
            "{event} {lane}: {:?}",
            told.events("")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_is_kept_over_lanes_and_after_the_run() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 100);
    let handler = |record: Record, _: Lane| async move {
        if record.offset() % 10 == 0 {
            tokio::time::sleep(secs(1)).await;
        }
        Ok::<_, String>(())
    };
    let run = for_each(&log, &[0], |b| b, handler);
    tokio::time::sleep(secs(20)).await;
    let handled = run.monitor.stats().partitions[&tp(0)].handler_durations;
    assert!(handled.longest() >= secs(1) && handled.quantile(0.999) >= Some(secs(1)), "{handled:?}");
    assert!((70..=100).contains(&handled.count()), "a few of the last are not stood for yet: {handled:?}");
    run.control.revoke(&[tp(0)]).released().await;
    run.control.assign(&[tp(0)]);
    log.produce_many(&tp(0), 5);
    settle().await;
    let monitor = run.monitor.clone();
    let report = run.stop().await.0.unwrap();
    let stats = monitor.stats();
    let total = stats.total();
    assert_eq!((total.lanes, total.records_delivered, total.records_completed), (2, 105, 105));
    assert_eq!((report.lanes_started, report.records_completed, report.commits), (2, 105, stats.commits));
    assert_eq!((stats.stops.revoke.count(), stats.stops.shutdown.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_lived_processor_is_shown_like_any_other() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let processor = |mut lane: LaneStream| async move {
        let held = lane.next().await;
        while let Some(record) = lane.next().await {
            record.done();
        }
        drop(held);
        Ok::<_, String>(())
    };
    let run = lanes(&log, &[0], |b| b, processor);
    tokio::time::sleep(secs(2)).await;
    assert!(matches!(why(&run), WaitingFor::Handler { offset: 0, .. }), "{:?}", why(&run));
    let lane = run.monitor.snapshot().remove(0);
    assert_eq!((lane.last_processed, lane.position, lane.unfinished), (Some(2), Some(3), 1));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_waits_for_its_restart_when_the_run_stops_is_told_as_stopped_and_not_as_about_to_start()
 {
    let log = MemoryLog::new();
    log.produce(&tp(0), None, Some(b"bad"));
    log.produce(&tp(1), None, Some(b"slow"));
    let gate = tokio_util::sync::CancellationToken::new();
    let held = gate.clone();
    let handler = move |record: Record, lane: Lane| {
        let held = held.clone();
        async move {
            if record.partition() == 1 {
                held.cancelled().await;
            }
            picky(record, lane).await
        }
    };
    let policy = ErrorPolicy::RestartLane(Backoff::every(secs(5)));
    let run = for_each(&log, &[0, 1], |b| b.on_error(policy), handler);
    settle().await;
    let failed = |run: &Running| run.monitor.snapshot().last().map(ToString::to_string).unwrap();
    assert!(failed(&run).starts_with("t-0: starts again in "), "{}", failed(&run));
    run.ask_to_stop();
    tokio::time::sleep(secs(9)).await;
    assert!(failed(&run).starts_with("t-0: stopped by its failure: "), "{}", failed(&run));
    let lanes = run.monitor.stats().lanes;
    assert_eq!((lanes.restarting, lanes.stopped, lanes.draining), (0, 1, 1));
    gate.cancel();
    run.ended().await.0.unwrap();
}
