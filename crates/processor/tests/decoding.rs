//! Values beside records: who is given them, which key they have, and what becomes of records without one.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering as Atomic};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Running, settle, tp};
use tokio_util::sync::CancellationToken;
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, Batch, DeadLetter, DeadLetters, Decoded, DecodedStream, ErrorPolicy, Handler, Lane, LaneKey,
    Ordering, Park, Partitioned, PartitionedExt, Processor, Retry, RunError, RunReport, Values,
};
use tramline_wire::Record;

type Seen<T> = Arc<Mutex<Vec<T>>>;

/// Numbers as text; what is no number cannot be decoded, and "boom" is worse.
fn number(record: &Record) -> Result<u64, String> {
    let text = std::str::from_utf8(record.value().unwrap_or_default()).map_err(|error| error.to_string())?;
    assert!(text != "boom", "unheard of");
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn values(log: &MemoryLog, values: &[&str]) {
    for value in values {
        log.produce(&tp(0), Some(b"k"), Some(value.as_bytes()));
    }
}

fn source(log: &MemoryLog) -> MemorySource {
    let (source, control) = MemorySource::new(log);
    control.assign(&[tp(0)]);
    source
}

/// Runs until nothing happens any more.
async fn quiet(run: Running<MemorySource, ()>) -> Result<RunReport, RunError> {
    tokio::time::sleep(Duration::from_secs(60)).await;
    run.stop().await.0
}

async fn run_for_each<V: Values, H: Handler<V::Given>>(
    run: Partitioned<MemorySource, V>,
    handler: H,
) -> Result<RunReport, RunError> {
    quiet(Running::of(run, (), handler)).await
}

fn keep(seen: &Seen<(i64, u64)>) -> impl Handler<Decoded<u64>> + use<> {
    let seen = Arc::clone(seen);
    move |Decoded { record, value }: Decoded<u64>, _: Lane| {
        seen.lock().unwrap().push((record.offset(), value));
        std::future::ready(Ok::<_, String>(()))
    }
}

#[tokio::test(start_paused = true)]
async fn handlers_get_the_value_beside_the_record_in_every_order() {
    for ordering in [Ordering::Partition, Ordering::Key, Ordering::Unordered] {
        let (log, seen) = (MemoryLog::new(), Seen::default());
        values(&log, &["7", "8"]);
        let run = source(&log).partitioned().ordering(ordering).decode(number).build().unwrap();
        run_for_each(run, keep(&seen)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [(0, 7), (1, 8)]);
        assert_eq!(log.committed(&tp(0)), Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn t224_a_record_that_cannot_be_decoded_ends_the_run_with_its_offset_and_is_never_committed_past() {
    for ordering in [Ordering::Partition, Ordering::Key] {
        let (log, seen) = (MemoryLog::new(), Seen::default());
        values(&log, &["1", "x", "3"]);
        let builder = source(&log).partitioned().ordering(ordering).max_concurrent_handlers(2);
        let run = builder.decode(number).build().unwrap();
        let error = run_for_each(run, keep(&seen)).await.unwrap_err();
        let RunError::Undecodable { lane, offset, source: cause, report } = error else {
            panic!("{error}");
        };
        assert_eq!((lane.topic_partition, offset, report.records_completed), (tp(0), Some(1), 1));
        assert_eq!(cause.to_string(), "x is no number");
        assert_eq!(log.committed(&tp(0)), Some(1));
        let run = source(&log).partitioned().decode(number).build().unwrap();
        let again = run_for_each(run, keep(&seen)).await.unwrap_err();
        assert!(matches!(again, RunError::Undecodable { offset: Some(1), .. }), "{again}");
    }
}

/// Keeps what it is given.
#[derive(Clone, Default)]
struct Letters(Arc<Mutex<Vec<DeadLetter>>>);

impl DeadLetters for Letters {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        self.0.lock().unwrap().push(letter);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_decoded_is_not_tried_again_and_its_dead_letter_has_the_raw_bytes() {
    let (log, seen, letters) = (MemoryLog::new(), Seen::default(), Letters::default());
    log.produce(&tp(0), Some(b"\xff"), Some(b"\xfe\xfd"));
    log.produce(&tp(0), None, None);
    values(&log, &["2"]);
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let decode = move |record: &Record| {
        counted.fetch_add(1, Atomic::SeqCst);
        number(record)
    };
    let policy = Retry::new(5, Backoff::default()).then(ErrorPolicy::dead_letter(letters.clone()));
    let run = source(&log).partitioned().ordering(Ordering::Key).on_error(policy).decode(decode).build();
    let report = run_for_each(run.unwrap(), keep(&seen)).await.unwrap();
    assert_eq!((report.retries, report.records_dead_lettered, report.records_completed), (0, 2, 3));
    assert_eq!(tries.load(Atomic::SeqCst), 3);
    let letters = letters.0.lock().unwrap();
    assert_eq!(
        (letters[0].record.key(), letters[0].record.value()),
        (Some(&b"\xff"[..]), Some(&b"\xfe\xfd"[..]))
    );
    assert_eq!((letters[1].record.key(), letters[1].record.value()), (None, None));
    assert!(letters[1].cause.starts_with("cannot be decoded: "), "{}", letters[1].cause);
    assert_eq!(*seen.lock().unwrap(), [(2, 2)]);
    assert_eq!(log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_decoding_is_a_failure_of_that_record() {
    for ordering in [Ordering::Partition, Ordering::Key, Ordering::Unordered] {
        let (log, seen) = (MemoryLog::new(), Seen::default());
        values(&log, &["1", "boom", "3"]);
        let builder = source(&log).partitioned().ordering(ordering).on_error(ErrorPolicy::Skip);
        let report = run_for_each(builder.decode(number).build().unwrap(), keep(&seen)).await.unwrap();
        assert_eq!((report.records_skipped, report.records_completed), (1, 3));
        assert_eq!(*seen.lock().unwrap(), [(0, 1), (2, 3)]);
    }
    let log = MemoryLog::new();
    values(&log, &["boom"]);
    let run = source(&log).partitioned().decode(number).build().unwrap();
    let error = run_for_each(run, keep(&Seen::default())).await.unwrap_err();
    assert_eq!(error.to_string().split(": ").last(), Some("unheard of"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_handled_again_is_decoded_again() {
    let (log, seen) = (MemoryLog::new(), Seen::<u64>::default());
    values(&log, &["1"]);
    let noted = Arc::clone(&seen);
    let handler = move |order: Decoded<u64>, _: Lane| {
        let mut seen = noted.lock().unwrap();
        seen.push(order.value);
        std::future::ready(if seen.len() < 3 { Err("not yet") } else { Ok(()) })
    };
    let builder = source(&log).partitioned().on_error(Retry::new(3, Backoff::default()));
    let report = run_for_each(builder.decode(number).build().unwrap(), handler).await.unwrap();
    assert_eq!((report.retries, &*seen.lock().unwrap()), (2, &vec![1, 1, 1]));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_record_parks_its_key_and_may_be_decoded_after_a_change() {
    let (log, seen) = (MemoryLog::new(), Seen::default());
    for (key, value) in [("a", "x"), ("b", "2"), ("a", "3")] {
        log.produce(&tp(0), Some(key.as_bytes()), Some(value.as_bytes()));
    }
    let known = CancellationToken::new();
    let understands = known.clone();
    let decode = move |record: &Record| match number(record) {
        Err(_) if understands.is_cancelled() => Ok(10),
        other => other,
    };
    let builder = source(&log).partitioned().ordering(Ordering::Key).on_error(Park::new());
    let run = builder.decode(decode).build().unwrap();
    let parked = run.parked();
    let task = tokio::spawn(run_for_each(run, keep(&seen)));
    settle().await;
    let list = parked.list();
    assert_eq!((list.len(), list[0].id.offset, list[0].waiting), (1, 0, 1));
    assert_eq!(list[0].error, "cannot be decoded: x is no number");
    known.cancel();
    parked.resume(&list[0].id).await.unwrap();
    task.await.unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, 2), (0, 10), (2, 3)]);
    assert_eq!(log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_values_and_an_undecodable_record_fails_alone() {
    let (log, seen, letters) = (MemoryLog::new(), Seen::<Vec<u64>>::default(), Letters::default());
    values(&log, &["0", "1", "x", "3", "4", "5"]);
    let noted = Arc::clone(&seen);
    let handler = move |batch: Batch<Decoded<u64>>, _: Lane| {
        noted.lock().unwrap().push(batch.into_vec().into_iter().map(|decoded| decoded.value).collect());
        std::future::ready(Ok::<_, String>(()))
    };
    let builder = source(&log).partitioned().max_handler_batch_size(10);
    let run = builder.on_error(ErrorPolicy::dead_letter(letters.clone())).decode(number).build().unwrap();
    let report = quiet(Running::of_batches(run, (), handler)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [vec![0, 1], vec![3, 4, 5]]);
    assert_eq!((report.records_dead_lettered, letters.0.lock().unwrap()[0].record.offset()), (1, 2));
    assert_eq!(log.committed(&tp(0)), Some(6));
}

#[tokio::test(start_paused = true)]
async fn the_key_may_come_from_the_value_and_what_has_none_keeps_its_own() {
    let (log, order) = (MemoryLog::new(), Seen::<i64>::default());
    values(&log, &["10", "11", "20", "x"]);
    let noted = Arc::clone(&order);
    let handler = move |decoded: Decoded<u64>, _: Lane| {
        let order = Arc::clone(&noted);
        async move {
            // The first of the even ones keeps the other waiting.
            if decoded.value == 10 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            order.lock().unwrap().push(decoded.record.offset());
            Ok::<_, String>(())
        }
    };
    let builder = source(&log).partitioned().ordering(Ordering::Key).max_concurrent_handlers(4);
    let builder = builder.on_error(Park::new()).decode(number);
    let run = builder.key_by(|decoded| LaneKey::from(decoded.value % 2)).build().unwrap();
    let parked = run.parked();
    let task = tokio::spawn(run_for_each(run, handler));
    settle().await;
    assert_eq!((*order.lock().unwrap()).clone(), [1]);
    assert_eq!(parked.list()[0].key, LaneKey::from("k"));
    task.await.unwrap().unwrap();
    assert_eq!(*order.lock().unwrap(), [1, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_by_record_that_was_set_before_decode_stays() {
    let (log, order) = (MemoryLog::new(), Seen::<i64>::default());
    values(&log, &["1", "2"]);
    let noted = Arc::clone(&order);
    let handler = move |decoded: Decoded<u64>, _: Lane| {
        let order = Arc::clone(&noted);
        async move {
            tokio::time::sleep(Duration::from_secs(5 - 2 * decoded.value)).await;
            order.lock().unwrap().push(decoded.record.offset());
            Ok::<_, String>(())
        }
    };
    let builder = source(&log).partitioned().ordering(Ordering::Key).max_concurrent_handlers(2);
    let by_offset = builder.key_by(|record| LaneKey::from(record.offset().unsigned_abs()));
    run_for_each(by_offset.decode(number).build().unwrap(), handler).await.unwrap();
    assert_eq!(*order.lock().unwrap(), [1, 0]);
}

async fn sum(mut lane: DecodedStream<u64>, seen: Seen<u64>) -> Result<(), String> {
    while let Some(delivered) = lane.next().await {
        assert_eq!(delivered.record().partition(), lane.topic_partition().partition);
        let value = delivered.done();
        seen.lock().unwrap().push(value);
    }
    Ok(())
}

async fn run_lanes<P: Processor<DecodedStream<u64>>>(
    log: &MemoryLog,
    processor: P,
) -> Result<RunReport, RunError> {
    let run = source(log).partitioned().decode(number).build_lanes().unwrap();
    quiet(Running::of_lanes(run, (), processor)).await
}

#[tokio::test(start_paused = true)]
async fn a_processor_of_a_whole_lane_gets_values_and_its_lane_fails_where_there_is_none() {
    let (log, seen) = (MemoryLog::new(), Seen::default());
    values(&log, &["1", "2"]);
    let noted = Arc::clone(&seen);
    run_lanes(&log, move |lane: DecodedStream<u64>| sum(lane, Arc::clone(&noted))).await.unwrap();
    assert_eq!((seen.lock().unwrap().clone(), log.committed(&tp(0))), (vec![1, 2], Some(2)));
    values(&log, &["3", "x", "5"]);
    let noted = Arc::clone(&seen);
    let error =
        run_lanes(&log, move |lane: DecodedStream<u64>| sum(lane, Arc::clone(&noted))).await.unwrap_err();
    assert!(matches!(error, RunError::Undecodable { offset: Some(3), .. }), "{error}");
    assert_eq!((seen.lock().unwrap().clone(), log.committed(&tp(0))), (vec![1, 2, 3], Some(3)));
}
