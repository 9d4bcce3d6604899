//! Progress above the committed offset over the real consumer and broker, and partitions that cannot be read on.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::time::Duration;

use common::{Stand, soon, tp, unique};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tramline::client::{Consumer, OffsetAndMetadata, ProducerConfig, ProducerRecord};
use tramline::prelude::*;
use tramline::processor::{Ordering, PartitionedBuilder, RunError, RunReport, WaitingFor};

const RECORDS: i64 = 40;

type Ended = (Result<RunReport, RunError>, Consumer);

/// A topic of one partition whose first two records share a key; every other has its own.
async fn keyed(stand: &Stand) -> String {
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    let key = |n| if n < 2 { "stuck".to_owned() } else { format!("key-{n}") };
    let records = (0..RECORDS).map(|n| ProducerRecord::to(&topic).key(key(n)).value(n.to_string())).collect();
    soon(producer.send_batch(&*topic, 0, records)).await.unwrap();
    producer.close().await.unwrap();
    topic
}

fn by_key(builder: PartitionedBuilder<Consumer>) -> PartitionedBuilder<Consumer> {
    builder
        .ordering(Ordering::Key)
        .max_concurrent_handlers(4)
        .stop(StopPolicy::Cancel, Duration::from_secs(1))
}

/// Runs until `count` records were handled; the record at 0 never is when it is `stuck`.
async fn run_until(
    consumer: Consumer,
    with: impl FnOnce(PartitionedBuilder<Consumer>) -> PartitionedBuilder<Consumer>,
    stuck: bool,
    count: i64,
) -> (Vec<i64>, Ended) {
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let send = send.clone();
        async move {
            if stuck && record.offset() == 0 {
                std::future::pending::<()>().await;
            }
            send.send(record.offset()).unwrap();
            Ok::<_, String>(())
        }
    };
    let stop = CancellationToken::new();
    let run = with(by_key(consumer.partitioned())).build().unwrap();
    let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
    let mut offsets = Vec::new();
    for _ in 0..count {
        offsets.push(soon(seen.recv()).await.unwrap());
    }
    stop.cancel();
    let ended = soon(task).await.unwrap();
    while let Ok(offset) = seen.try_recv() {
        offsets.push(offset);
    }
    offsets.sort_unstable();
    (offsets, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_completed_above_a_stuck_key_does_not_run_again_unless_that_is_switched_off() {
    let stand = Stand::start().await;
    for on in [true, false] {
        let (topic, group) = (keyed(&stand).await, unique("group"));
        let consumer = stand.member(&topic, &group).build().await.unwrap();
        let (_, (result, consumer)) = run_until(consumer, |b| b.commit_metadata(on), true, RECORDS - 2).await;
        assert!(matches!(result, Err(RunError::StopTimeout { .. })), "{result:?}");
        soon(consumer.close()).await;

        let consumer = stand.member(&topic, &group).build().await.unwrap();
        let again = if on { 2 } else { RECORDS };
        let (seen, (result, consumer)) = run_until(consumer, |b| b.commit_metadata(on), false, again).await;
        let report = result.unwrap();
        assert_eq!(seen, (0..again).collect::<Vec<_>>(), "on: {on}");
        assert_eq!(report.records_already_done, u64::try_from(RECORDS - again).unwrap());
        let committed = soon(consumer.committed(&[tp(&topic, 0)])).await.unwrap();
        let committed = committed[&tp(&topic, 0)].clone().unwrap();
        assert_eq!((committed.offset, &committed.metadata[..]), (RECORDS, ""));
        soon(consumer.close()).await;
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_run_on_the_same_consumer_passes_over_what_the_first_one_committed() {
    let stand = Stand::start().await;
    let (topic, group) = (keyed(&stand).await, unique("group"));
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (_, (_, consumer)) = run_until(consumer, |b| b, true, RECORDS - 2).await;
    let committed = consumer.last_committed(&tp(&topic, 0)).unwrap();
    assert_eq!(committed.offset, 0);
    assert!(committed.metadata.starts_with("tl1:"), "{committed:?}");
    let (seen, (result, consumer)) = run_until(consumer, |b| b, false, 2).await;
    assert_eq!((seen, result.unwrap().records_already_done), (vec![0, 1], 38));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_of_another_client_is_passed_over() {
    let stand = Stand::start().await;
    let (topic, group) = (keyed(&stand).await, unique("group"));
    let other = Consumer::builder(stand.client()).group(&*group);
    let other =
        other.assign([(tp(&topic, 0), tramline::client::StartOffset::Committed)]).build().await.unwrap();
    let text = OffsetAndMetadata::new(5).metadata("bgBBAAAA");
    soon(other.commit([(tp(&topic, 0), text)])).await.unwrap();
    soon(other.close()).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (seen, (result, consumer)) = run_until(consumer, |b| b, false, RECORDS - 5).await;
    assert_eq!((seen.len(), result.unwrap().records_already_done), (35, 0));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_larger_than_the_consumer_takes_blocks_its_partition_and_no_other() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    let producer = stand.producer(ProducerConfig::new()).await;
    let large = vec![ProducerRecord::to(&topic).value(vec![b'x'; 100_000])];
    soon(producer.send_batch(&*topic, 0, large)).await.unwrap();
    producer.close().await.unwrap();
    let consumer = stand.member(&topic, &group).max_bytes(10_000).build().await.unwrap();
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let send = send.clone();
        async move {
            send.send((record.partition(), record.offset())).unwrap();
            Ok::<_, String>(())
        }
    };
    let stop = CancellationToken::new();
    let run = consumer.partitioned().build().unwrap();
    let monitor = run.monitor();
    let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
    let blocked = async {
        loop {
            let snapshot = monitor.snapshot();
            let found = snapshot.iter().find_map(|lane| match &lane.waiting_for {
                WaitingFor::Fetch { offset, error, .. } => Some((*offset, error.clone())),
                _ => None,
            });
            if let Some(found) = found {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    let (offset, error) = soon(blocked).await;
    assert_eq!(offset, Some(0));
    assert!(error.contains("the limit is 10000"), "{error}");
    for n in 0..5 {
        stand.produce(&topic, 1, n..n + 1).await;
        assert_eq!(soon(seen.recv()).await.unwrap(), (1, n));
    }
    stop.cancel();
    let (result, consumer) = soon(task).await.unwrap();
    let report = result.unwrap();
    assert!(report.fetch_failures >= 1);
    assert!(report.lanes.iter().any(|lane| lane.fetch_blocked.is_some()));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t199_a_partition_that_the_program_paused_before_the_run_is_paused_during_and_after_it() {
    let stand = Stand::start().await;
    let topic = stand.topic(2).await;
    stand.produce(&topic, 0, 0..5).await;
    stand.produce(&topic, 1, 0..600).await;
    let consumer = Consumer::builder(stand.client()).assign_topic(&*topic, StartOffset::Earliest);
    let consumer = consumer.build().await.unwrap();
    consumer.pause([&tp(&topic, 0)]);
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let send = send.clone();
        async move {
            send.send((record.partition(), record.offset())).unwrap();
            Ok::<_, String>(())
        }
    };
    let stop = CancellationToken::new();
    let run = consumer.partitioned().max_buffered_records(10).build().unwrap();
    let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
    for n in 0..600 {
        assert_eq!(soon(seen.recv()).await.unwrap(), (1, n));
    }
    stop.cancel();
    let (result, consumer) = soon(task).await.unwrap();
    assert_eq!(result.unwrap().records_delivered, 600);
    assert_eq!(consumer.paused(), [tp(&topic, 0)]);
    soon(consumer.close()).await;
    stand.close().await;
}
