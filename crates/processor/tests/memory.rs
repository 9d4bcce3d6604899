//! What records keep in memory, and what that makes a run do.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::{Probe, Running, for_each, lanes, run_on, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{Lane, LaneStream, Monitor, Ordering, Park, PartitionedExt};
use tramline_wire::Record;

fn held(monitor: &Monitor) -> usize {
    monitor.snapshot().iter().map(|lane| lane.held_bytes).sum()
}

/// Batches of 100 records of 100 bytes, each record with its own key.
fn batches(count: usize) -> MemoryLog {
    let log = MemoryLog::new();
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    for _ in 0..count {
        let records: Vec<_> = keys.iter().map(|key| (&key[..], &[b'x'; 100][..])).collect();
        log.produce_batch(&tp(0), &records);
    }
    log
}

#[tokio::test(start_paused = true)]
async fn t238_one_slow_record_of_a_large_batch_does_not_keep_the_batch() {
    const BUDGET: usize = 100_000;
    let log = batches(150);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(100);
    control.assign(&[tp(0)]);
    let run = source.partitioned().ordering(Ordering::Key).max_concurrent_handlers(8);
    let run = run.max_buffered_bytes(BUDGET).build().unwrap();
    let (monitor, most) = (run.monitor(), Arc::new(AtomicUsize::new(0)));
    let stop = tokio_util::sync::CancellationToken::new();
    let handler = {
        let (monitor, most, stop) = (monitor.clone(), Arc::clone(&most), stop.clone());
        move |record: Record, _: Lane| {
            let (monitor, most, stop) = (monitor.clone(), Arc::clone(&most), stop.clone());
            async move {
                most.fetch_max(held(&monitor), SeqCst);
                if record.offset() == 50 {
                    stop.cancelled().await;
                }
                Ok::<_, String>(())
            }
        }
    };
    let run = Running::of(run, control, handler);
    settle().await;
    let snapshot = monitor.snapshot();
    // All records of the stuck key wait behind it, each on its own.
    assert_eq!((snapshot[0].queued, snapshot[0].unfinished), (0, 150), "{snapshot:?}");
    assert!(held(&monitor) < 150 * 500, "{}", held(&monitor));
    let batch = 100 * 200;
    assert!(most.load(SeqCst) < BUDGET + batch, "{most:?}");
    stop.cancel();
    let (result, _) = run.stop().await;
    assert_eq!(result.unwrap().records_completed, 15_000);
    assert_eq!(held(&monitor), 0);
}

#[tokio::test(start_paused = true)]
async fn records_with_handlers_count_until_they_are_completed() {
    let log = MemoryLog::new();
    for key in ["a", "b", "c"] {
        log.produce(&tp(0), Some(key.as_bytes()), Some(&[0; 10_000]));
    }
    let probe = Probe::default();
    let gates: Vec<_> = (0..3).map(|offset| probe.hold(0, offset)).collect();
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(1);
    control.assign(&[tp(0)]);
    let by_key = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(3).max_buffered_bytes(15_000)
    };
    let run = run_on(source, control, by_key, probe.handler());
    settle().await;
    assert_eq!(probe.seen(0), [0, 1], "the second took the bytes over the mark");
    assert!((20_000..21_000).contains(&held(&run.monitor)));
    gates[0].cancel();
    settle().await;
    assert_eq!(probe.seen(0), [0, 1], "still above the low mark");
    gates.iter().for_each(tokio_util::sync::CancellationToken::cancel);
    settle().await;
    assert_eq!((probe.seen(0).len(), held(&run.monitor)), (3, 0));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stuck_partition_that_holds_most_of_the_bytes_starves_no_other() {
    let log = MemoryLog::new();
    for partition in 0..2 {
        for _ in 0..10 {
            log.produce(&tp(partition), None, Some(&[0; 15_000]));
        }
    }
    let probe = Probe::default();
    let gate = probe.hold(0, 0);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(1);
    control.assign(&[tp(0), tp(1)]);
    let run = run_on(source, control, |b| b.max_buffered_bytes(20_000), probe.handler());
    settle().await;
    assert_eq!((probe.seen(0).len(), probe.seen(1).len()), (1, 10));
    gate.cancel();
    settle().await;
    assert_eq!((probe.seen(0).len(), held(&run.monitor)), (10, 0));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t105_records_that_a_processor_drops_or_keeps_uncompleted_hold_only_what_they_must() {
    let log = batches(2);
    let processor = |mut lane: LaneStream| async move {
        let mut kept = None;
        while let Some(record) = lane.next().await {
            if record.offset() == 199 {
                kept = Some(record);
            }
        }
        drop(kept);
        Ok::<_, String>(())
    };
    let run = lanes(&log, &[0], |b| b.max_buffered_bytes(100_000), processor);
    settle().await;
    let snapshot = run.monitor.snapshot();
    assert_eq!((snapshot[0].unfinished, snapshot[0].abandoned), (200, 199));
    assert!(held(&run.monitor) < 1_000, "the last one was copied out: {}", held(&run.monitor));
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_a_run_that_is_over_holds_nothing() {
    for way in ["shutdown", "lost", "dropped"] {
        let log = batches(20);
        let probe = Probe::default();
        let _gate = probe.hold(0, 30);
        let run =
            for_each(&log, &[0], |b| b.ordering(Ordering::Key).max_concurrent_handlers(4), probe.handler());
        settle().await;
        let monitor = run.monitor.clone();
        assert!(held(&monitor) > 0);
        match way {
            "lost" => {
                run.control.lose(&[tp(0)]);
                run.ended().await.0.expect_err("the stuck handler is dropped");
                assert_eq!(held(&monitor), 0);
            }
            "dropped" => run.drop_it().await,
            _ => {
                run.ask_to_stop();
                run.ended().await.0.expect_err("the stuck handler is dropped");
                assert_eq!(held(&monitor), 0);
            }
        }
    }
}

/// As many batches as rounds, each with a small record of the key that fails beside a hundred others.
fn with_a_bad_record_each(rounds: usize) -> MemoryLog {
    let log = MemoryLog::new();
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    for _ in 0..rounds {
        let mut records: Vec<_> = keys.iter().map(|key| (&key[..], &[b'x'; 100][..])).collect();
        records.insert(50, ("bad", &[b'x'; 100]));
        log.produce_batch(&tp(0), &records);
    }
    log
}

/// Refuses the key `bad`.
async fn picky(record: Record, _: Lane) -> Result<(), String> {
    if record.key() == Some(b"bad") { Err("bad".to_owned()) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn small_records_that_are_parked_let_their_batches_go_and_count_as_what_they_are() {
    let log = with_a_bad_record_each(40);
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(101);
    control.assign(&[tp(0)]);
    let by_key = source.partitioned().ordering(Ordering::Key).max_concurrent_handlers(4);
    // With these bytes nothing of such batches is copied when it is handed out.
    let run = by_key.on_error(Park::new()).max_buffered_bytes(64 << 20).build().unwrap();
    let parked = run.parked();
    let run = Running::of(run, control, picky);
    settle().await;
    let snapshot = run.monitor.snapshot();
    assert_eq!((snapshot[0].parked, snapshot[0].completed), (40, 4_000));
    let bytes = held(&run.monitor);
    // Each of them has about a hundred bytes of its own; the batches have 20,000 each.
    assert!((40 * 100..40 * 400).contains(&bytes), "{bytes}");
    assert_eq!(run.monitor.stats().buffered_bytes, bytes);
    parked.skip(&parked.list()[0].id).await.unwrap();
    settle().await;
    let fewer = held(&run.monitor);
    assert!(fewer < bytes && parked.list()[0].waiting == 38, "{bytes} and then {fewer}");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn parked_records_count_among_the_bytes_of_the_run_and_make_room_when_they_are_dealt_with() {
    let log = MemoryLog::new();
    let produce = |partition, key: &[u8]| {
        for _ in 0..10 {
            log.produce(&tp(partition), Some(key), Some(&[0; 10_000]));
        }
    };
    produce(0, b"bad");
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(1);
    control.assign(&[tp(0), tp(1)]);
    let by_key = source.partitioned().ordering(Ordering::Key).max_buffered_bytes(35_000);
    let run = by_key.on_error(Park::new()).build().unwrap();
    let parked = run.parked();
    let run = Running::of(run, control, picky);
    settle().await;
    produce(1, b"good");
    settle().await;
    let snapshot = run.monitor.snapshot();
    assert_eq!((snapshot[0].parked, snapshot[0].queued, snapshot[0].paused), (4, 0, true), "{snapshot:?}");
    assert_eq!((snapshot[1].completed, snapshot[1].paused), (10, false), "who holds nothing is given more");
    assert!((40_000..41_000).contains(&held(&run.monitor)));
    for left in (0..10).rev() {
        parked.skip(&parked.list()[0].id).await.unwrap();
        settle().await;
        let reached = run.monitor.snapshot()[0].completed;
        assert_eq!(reached, 10 - left);
    }
    assert_eq!((held(&run.monitor), log.committed(&tp(0))), (0, None));
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(10));
}
