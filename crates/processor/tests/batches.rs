//! Handlers that take several records at a time.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::{Arc, Mutex};

use common::{for_each_batch, secs, settle, tp};
use tramline_processor::testing::MemoryLog;
use tramline_processor::{Backoff, Batch, ErrorPolicy, Lane, Ordering, Retry, RunError};
use tramline_wire::Record;

type Seen = Arc<Mutex<Vec<Vec<i64>>>>;

fn offsets(batch: &Batch) -> Vec<i64> {
    batch.iter().map(Record::offset).collect()
}

#[tokio::test(start_paused = true)]
async fn t080_t084_batches_are_what_is_there_up_to_the_limit_in_order() {
    let (log, seen) = (MemoryLog::new(), Seen::default());
    log.produce_many(&tp(0), 7);
    let noted = Arc::clone(&seen);
    let handler = move |batch: Batch, _: Lane| {
        let seen = Arc::clone(&noted);
        async move {
            seen.lock().unwrap().push(offsets(&batch));
            tokio::time::sleep(secs(1)).await;
            Ok::<_, String>(())
        }
    };
    let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(3), handler);
    tokio::time::sleep(secs(10)).await;
    log.produce_many(&tp(0), 1);
    settle().await;
    assert_eq!(seen.lock().unwrap().last(), Some(&vec![7]), "one record is a batch of one, at once");
    let (result, _) = run.stop().await;
    assert_eq!(result.unwrap().records_completed, 8);
    assert_eq!(*seen.lock().unwrap(), [vec![0, 1, 2], vec![3, 4, 5], vec![6], vec![7]]);
    assert_eq!(log.committed(&tp(0)), Some(8));
}

#[tokio::test(start_paused = true)]
async fn t081_a_failed_batch_completes_none_of_its_records_and_the_ones_before_stay() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 6);
    let handler = |batch: Batch, _: Lane| async move {
        if batch.iter().any(|record| record.offset() == 4) { Err("no") } else { Ok(()) }
    };
    let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(3), handler);
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { offset: Some(3), .. }), "{error}");
    assert_eq!(log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn t082_t085_in_key_order_a_batch_has_one_key_and_is_never_empty() {
    let (log, seen) = (MemoryLog::new(), Seen::default());
    for key in ["a", "b", "a", "b", "a"] {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
    log.append_hidden(&tp(0), 3);
    let noted = Arc::clone(&seen);
    let handler = move |batch: Batch, _: Lane| {
        noted.lock().unwrap().push(offsets(&batch));
        async { Ok::<_, String>(()) }
    };
    let with = |b: tramline_processor::PartitionedBuilder<_>| {
        b.ordering(Ordering::Key).max_concurrent_handlers(2).max_handler_batch_size(10)
    };
    let run = for_each_batch(&log, &[0], with, handler);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(*seen.lock().unwrap(), [vec![0, 2, 4], vec![1, 3]]);
    assert_eq!(log.committed(&tp(0)), Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_tried_again_as_it_was_and_skipped_as_a_whole() {
    let (log, seen) = (MemoryLog::new(), Seen::default());
    log.produce_many(&tp(0), 2);
    let noted = Arc::clone(&seen);
    let handler = move |batch: Batch, _: Lane| {
        noted.lock().unwrap().push(offsets(&batch));
        async move { if batch[0].offset() == 0 { Err("no") } else { Ok(()) } }
    };
    let policy = Retry::new(2, Backoff::every(secs(1))).then(ErrorPolicy::Skip);
    let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(5).on_error(policy), handler);
    settle().await;
    log.produce_many(&tp(0), 1);
    tokio::time::sleep(secs(3)).await;
    let report = run.stop().await.0.unwrap();
    assert_eq!(*seen.lock().unwrap(), [vec![0, 1], vec![0, 1], vec![2]]);
    assert_eq!((report.retries, report.records_skipped, report.records_completed), (1, 2, 3));
    assert_eq!(log.committed(&tp(0)), Some(3));
}
