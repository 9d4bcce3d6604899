//! Spans around handlers.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/tracing_log.rs"]
mod tracing_log;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{for_each, for_each_batch, secs, settle, tp};
use tracing::level_filters::LevelFilter;
use tracing_log::TracingLog;
use tramline_processor::testing::MemoryLog;
use tramline_processor::{Backoff, Batch, ErrorPolicy, Lane, Retry, TraceContext};
use tramline_wire::Record;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced(log: &MemoryLog, parent: &'static str) {
    let header = ("traceparent".into(), Some(Bytes::from_static(parent.as_bytes())));
    log.produce_record(&tp(0), Some(Bytes::from_static(b"21")), None, vec![header]);
}

#[tokio::test(start_paused = true)]
async fn a_span_is_around_the_handler_and_continues_the_producers_trace() {
    let (told, _guard) = TracingLog::listen(LevelFilter::DEBUG);
    let log = MemoryLog::new();
    traced(&log, PARENT);
    traced(&log, "what is this");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |record: Record, _: Lane| {
        let noted = Arc::clone(&noted);
        async move {
            noted.lock().unwrap().push(TraceContext::of(&record).map(|context| context.traceparent()));
            tokio::time::sleep(secs(1)).await;
            Ok::<_, String>(())
        }
    };
    let run = for_each(&log, &[0], |b| b, handler);
    tokio::time::sleep(secs(3)).await;
    run.stop().await.0.unwrap();
    let spans = told.spans();
    let [first, second] = &*spans else { panic!("{spans:?}") };
    for part in [
        "handle",
        " topic=\"t\"",
        " partition=0",
        " offset=0",
        " attempt=1",
        " key_hash=c5f2f8ec",
        " trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
        " parent_span_id=00f067aa0ba902b7",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(second.contains(" offset=1") && !second.contains("trace_id="), "ignored: {second}");
    assert_eq!(*seen.lock().unwrap(), [Some(PARENT.to_owned()), None]);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_its_span_and_a_batch_has_one() {
    let (told, _guard) = TracingLog::listen(LevelFilter::DEBUG);
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    let policy = || Retry::new(2, Backoff::every(secs(1))).then(ErrorPolicy::Skip);
    let handler = |_: Batch, _: Lane| async { Err::<(), _>("no") };
    let with = |b: tramline_processor::PartitionedBuilder<_>| b.max_handler_batch_size(3).on_error(policy());
    let run = for_each_batch(&log, &[0], with, handler);
    tokio::time::sleep(secs(3)).await;
    run.stop().await.0.unwrap();
    let spans = told.spans();
    let [first, second] = &*spans else { panic!("{spans:?}") };
    assert!(first.contains(" records=3 attempt=1"), "{first}");
    assert!(second.contains(" records=3 attempt=2"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn no_span_is_opened_when_nobody_listens_to_debugging() {
    let (told, _guard) = TracingLog::listen(LevelFilter::INFO);
    let log = MemoryLog::new();
    traced(&log, PARENT);
    let run = for_each(&log, &[0], |b| b, |_: Record, _: Lane| async { Ok::<_, String>(()) });
    settle().await;
    run.stop().await.0.unwrap();
    assert!(told.spans().is_empty());
}
