//! How long records stay in memory: for as long as somebody may look at them, and no longer.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{Running, for_each, for_each_batch, lanes, secs, settle, tp};
use tokio_util::sync::CancellationToken;
use tramline_processor::testing::MemoryLog;
use tramline_processor::{
    Batch, Lane, LaneKey, LaneStream, Ordering, PartitionedBuilder, RunError, StopPolicy,
};
use tramline_wire::Record;

/// Counts the values that are in memory.
#[derive(Clone, Default)]
struct Storage(Arc<AtomicUsize>);

struct Stored {
    bytes: Vec<u8>,
    storage: Storage,
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.storage.0.fetch_sub(1, AtomicOrdering::SeqCst);
    }
}

impl Storage {
    fn live(&self) -> usize {
        self.0.load(AtomicOrdering::SeqCst)
    }

    fn bytes(&self, text: &str) -> Bytes {
        self.0.fetch_add(1, AtomicOrdering::SeqCst);
        Bytes::from_owner(Stored { bytes: text.into(), storage: self.clone() })
    }

    /// A record whose key, value and header share one piece of memory.
    fn produce(&self, log: &MemoryLog, key: &str) {
        let all = self.bytes(&format!("{key}value-of-{key}"));
        let (key, value) = (all.slice(..key.len()), all.slice(key.len()..));
        let header = ("h".into(), Some(value.clone()));
        log.produce_record(&tp(0), Some(key), Some(value), vec![header]);
    }

    fn produce_many(&self, log: &MemoryLog, count: usize) {
        (0..count).for_each(|number| self.produce(log, &number.to_string()));
    }
}

/// The log keeps nothing: what is in memory is the run's, or a handler's.
fn forget(log: &MemoryLog) {
    log.delete_before(&tp(0), log.end(&tp(0)));
}

fn is_whole(record: &Record) -> bool {
    let key = std::str::from_utf8(record.key().unwrap()).unwrap();
    let expected = format!("value-of-{key}");
    let header = record.headers().next().unwrap().1;
    record.value() == Some(expected.as_bytes()) && header == Some(expected.as_bytes())
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Record(Ordering),
    Batch(Ordering),
    Lanes,
}

/// Starts a run whose handlers look at their records once the gate is open; tells how many were whole.
fn start(log: &MemoryLog, form: Form, gate: &CancellationToken, whole: &Arc<AtomicUsize>) -> Running {
    let (gate, whole) = (gate.clone(), Arc::clone(whole));
    let look = move |records: Vec<Record>| {
        let (gate, whole) = (gate.clone(), Arc::clone(&whole));
        async move {
            gate.cancelled().await;
            whole.fetch_add(records.iter().filter(|record| is_whole(record)).count(), AtomicOrdering::SeqCst);
            Ok::<_, String>(())
        }
    };
    let with = |ordering| {
        move |b: PartitionedBuilder<_>| {
            b.ordering(ordering).max_concurrent_handlers(2).max_handler_batch_size(3)
        }
    };
    match form {
        Form::Record(ordering) => {
            for_each(log, &[0], with(ordering), move |record: Record, _: Lane| look(vec![record]))
        }
        Form::Batch(ordering) => {
            for_each_batch(log, &[0], with(ordering), move |batch: Batch, _: Lane| look(batch.to_vec()))
        }
        Form::Lanes => lanes(
            log,
            &[0],
            |b| b,
            move |mut lane: LaneStream| {
                let look = look.clone();
                async move {
                    while let Some(record) = lane.next().await {
                        look(vec![record.record().clone()]).await?;
                        record.done();
                    }
                    Ok::<_, String>(())
                }
            },
        ),
    }
}

#[tokio::test(start_paused = true)]
async fn t230_keys_values_and_headers_are_readable_long_after_the_fetch_and_gone_after_the_run() {
    let orders = [Ordering::Partition, Ordering::Key, Ordering::Unordered];
    let forms = orders.into_iter().flat_map(|order| [Form::Record(order), Form::Batch(order)]);
    for form in forms.chain([Form::Lanes]) {
        let (log, storage) = (MemoryLog::new(), Storage::default());
        storage.produce_many(&log, 10);
        let (gate, whole) = (CancellationToken::new(), Arc::default());
        let run = start(&log, form, &gate, &whole);
        settle().await;
        forget(&log);
        assert_eq!(storage.live(), 10, "{form:?}");
        gate.cancel();
        settle().await;
        assert_eq!(whole.load(AtomicOrdering::SeqCst), 10, "{form:?}");
        run.stop().await.0.unwrap();
        assert_eq!(storage.live(), 0, "{form:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn t231_a_batch_is_released_once_whether_it_worked_or_not() {
    for works in [true, false] {
        let (log, storage) = (MemoryLog::new(), Storage::default());
        storage.produce_many(&log, 6);
        let handler = move |batch: Batch, _: Lane| async move {
            tokio::time::sleep(secs(1)).await;
            assert!(batch.iter().all(is_whole));
            if works { Ok(()) } else { Err("no") }
        };
        let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(3), handler);
        settle().await;
        forget(&log);
        tokio::time::sleep(secs(5)).await;
        assert_eq!(storage.live(), 0, "{works}");
        assert_eq!(run.stop().await.0.is_ok(), works);
    }
}

#[tokio::test(start_paused = true)]
async fn t232_t235_what_is_queued_is_released_when_its_partition_goes_and_what_is_refused_never_kept() {
    for lost in [true, false] {
        let (log, storage) = (MemoryLog::new(), Storage::default());
        storage.produce_many(&log, 50);
        let (gate, whole) = (CancellationToken::new(), Arc::default());
        let run = start(&log, Form::Record(Ordering::Partition), &gate, &whole);
        settle().await;
        forget(&log);
        assert_eq!(storage.live(), 50);
        if lost {
            run.control.lose(&[tp(0)]);
            settle().await;
            assert_eq!(storage.live(), 1, "t233: only what is with the handler");
            // Comes for nobody.
            storage.produce_many(&log, 5);
            forget(&log);
            gate.cancel();
        } else {
            let revoking = run.control.revoke(&[tp(0)]);
            settle().await;
            assert_eq!(storage.live(), 50, "drained first");
            gate.cancel();
            assert!(revoking.released().await);
        }
        settle().await;
        assert_eq!(storage.live(), 0, "lost: {lost}");
        run.stop().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn t233_what_a_handler_keeps_outlives_the_stop_timeout_and_nothing_else_does() {
    let (log, storage) = (MemoryLog::new(), Storage::default());
    storage.produce_many(&log, 10);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = Arc::clone(&kept);
    let handler = move |record: Record, _: Lane| {
        keeping.lock().unwrap().push(record);
        std::future::pending::<Result<(), String>>()
    };
    let run = for_each(&log, &[0], |b| b.stop(StopPolicy::Drain, secs(1)), handler);
    settle().await;
    forget(&log);
    assert!(matches!(run.stop().await.0, Err(RunError::StopTimeout { .. })));
    assert!(storage.live() == 1 && is_whole(&kept.lock().unwrap()[0]));
    kept.lock().unwrap().clear();
    assert_eq!(storage.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn t234_a_delivered_record_is_kept_until_it_is_done_or_dropped() {
    let (log, storage) = (MemoryLog::new(), Storage::default());
    storage.produce_many(&log, 2);
    let gates = [CancellationToken::new(), CancellationToken::new()];
    let waits = gates.clone();
    let processor = move |mut lane: LaneStream| {
        let waits = waits.clone();
        async move {
            let first = lane.next().await.unwrap();
            waits[0].cancelled().await;
            assert!(is_whole(&first));
            first.done();
            let second = lane.next().await.unwrap();
            waits[1].cancelled().await;
            drop(second);
            while lane.next().await.is_some() {}
            Ok::<_, String>(())
        }
    };
    let run = lanes(&log, &[0], |b| b, processor);
    settle().await;
    forget(&log);
    for (gate, left) in gates.iter().zip([1, 0]) {
        assert_eq!(storage.live(), left + 1);
        gate.cancel();
        settle().await;
        assert_eq!(storage.live(), left);
    }
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t236_a_key_lane_keeps_its_key_and_not_longer_than_it_has_records() {
    let (log, storage) = (MemoryLog::new(), Storage::default());
    storage.produce(&log, "k");
    storage.produce(&log, "k");
    let order = Arc::new(Mutex::new(Vec::new()));
    let (gate, noted) = (CancellationToken::new(), Arc::clone(&order));
    let wait = gate.clone();
    let handler = move |record: Record, _: Lane| {
        let (wait, noted) = (wait.clone(), Arc::clone(&noted));
        async move {
            if record.offset() == 1 {
                wait.cancelled().await;
            }
            assert!(is_whole(&record));
            noted.lock().unwrap().push(record.offset());
            Ok::<_, String>(())
        }
    };
    let with = |b: PartitionedBuilder<_>| b.ordering(Ordering::Key).max_concurrent_handlers(4);
    let run = for_each(&log, &[0], with, handler);
    settle().await;
    // The first record is done; its key is what the third one is compared with.
    storage.produce(&log, "k");
    settle().await;
    forget(&log);
    assert_eq!(*order.lock().unwrap(), [0]);
    gate.cancel();
    settle().await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    assert_eq!(storage.live(), 0, "no record, no key lane, no key");
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t237_a_loss_from_inside_the_choice_of_a_key_neither_frees_the_record_nor_handles_it() {
    let (log, storage) = (MemoryLog::new(), Storage::default());
    let inside = Arc::new(Mutex::new(None));
    let lose: Arc<Mutex<Option<tramline_processor::testing::MemoryControl>>> = Arc::clone(&inside);
    let with = move |b: PartitionedBuilder<_>| {
        b.ordering(Ordering::Key).key_by(move |record| {
            if let Some(control) = lose.lock().unwrap().take() {
                control.lose(&[tp(0)]);
                assert!(is_whole(record));
            }
            LaneKey::of(record)
        })
    };
    let (gate, handled) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&handled);
    let handler = move |_: Record, _: Lane| {
        counting.fetch_add(1, AtomicOrdering::SeqCst);
        let gate = gate.clone();
        async move {
            gate.cancelled().await;
            Ok::<_, String>(())
        }
    };
    let run = for_each(&log, &[0], with, handler);
    *inside.lock().unwrap() = Some(run.control.clone());
    storage.produce_many(&log, 5);
    settle().await;
    forget(&log);
    tokio::time::sleep(secs(60)).await;
    assert!(handled.load(AtomicOrdering::SeqCst) <= 1, "what had begun, and nothing more");
    run.stop().await.0.unwrap_err();
    assert_eq!(storage.live(), 0);
}

/// A day on the clock that stands still: ever new keys, and a rebalance every hour.
#[tokio::test(start_paused = true)]
async fn t239_over_a_day_memory_lanes_and_key_lanes_stay_flat() {
    let (log, storage) = (MemoryLog::new(), Storage::default());
    let handler = |record: Record, _: Lane| async move {
        tokio::time::sleep(std::time::Duration::from_millis(1 + record.offset().unsigned_abs() % 7)).await;
        Ok::<_, String>(())
    };
    let with = |b: PartitionedBuilder<_>| b.ordering(Ordering::Key).max_concurrent_handlers(4);
    let run = for_each(&log, &[0], with, handler);
    for minute in 0..24 * 60 {
        (0..10).for_each(|number| storage.produce(&log, &format!("{minute}-{}", number % 7)));
        tokio::time::sleep(secs(60)).await;
        forget(&log);
        let shown = run.monitor.snapshot();
        let [lane] = &*shown else { panic!("minute {minute}: {shown:?}") };
        assert_eq!((lane.keys, lane.unfinished, lane.held_bytes), (0, 0, 0), "minute {minute}: {lane:?}");
        assert_eq!((storage.live(), run.monitor.stats().processors), (0, 1), "minute {minute}");
        if minute % 60 == 30 {
            assert!(run.control.revoke(&[tp(0)]).released().await);
            run.control.assign(&[tp(0)]);
        }
    }
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_completed, report.lanes_started), (24 * 60 * 10, 25));
}
