//! A consumer that keeps its positions itself, on the broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use common::{Stand, soon, tp};
use tramline::broker::BrokerConfig;
use tramline::client::{
    ConsumeError, Consumer, Event, FetchError, OffsetReset, ProducerConfig, ProducerRecord, SeekError,
    StartOffset, Stream,
};

async fn from(stand: &Stand, topic: &str, start: StartOffset) -> Consumer {
    let builder = Consumer::builder(stand.client()).fetch_max_wait(Duration::from_millis(100));
    builder.assign([(tp(topic, 0), start)]).build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_holds_from_the_next_record_on_and_resume_goes_on_there() {
    let stand = Stand::start().await;
    let topic = stand.topic(2).await;
    stand.produce(&topic, 0, 0..50).await;
    stand.produce(&topic, 1, 0..50).await;
    let builder = Consumer::builder(stand.client()).prefetch(1 << 20);
    let consumer = builder.assign_topic(&*topic, StartOffset::Earliest).build().await.unwrap();
    let mut next = [0, 0];
    // Ten of the first partition, wherever the others are.
    while next[0] < 10 {
        let record = soon(consumer.recv()).await.unwrap();
        let next = &mut next[usize::try_from(record.partition()).unwrap()];
        assert_eq!(record.offset(), *next);
        *next += 1;
    }
    consumer.pause(&[tp(&topic, 0)]);
    assert_eq!(consumer.paused(), [tp(&topic, 0)]);
    stand.produce(&topic, 1, 50..60).await;
    while next[1] < 60 {
        let record = soon(consumer.recv()).await.unwrap();
        assert_eq!((record.partition(), record.offset()), (1, next[1]));
        next[1] += 1;
    }
    assert_eq!(consumer.position(&tp(&topic, 0)), Some(10), "what is prefetched moves nothing");
    // Resuming what is not paused must not move anything (it rewinds in other clients).
    consumer.resume(&[tp(&topic, 1)]);
    assert_eq!(consumer.position(&tp(&topic, 1)), Some(60));
    consumer.resume(&[tp(&topic, 0)]);
    while next[0] < 50 {
        let record = soon(consumer.recv()).await.unwrap();
        assert_eq!((record.partition(), record.offset()), (0, next[0]));
        next[0] += 1;
    }
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_makes_everything_older_invisible_and_the_stream_of_a_dropped_loop_goes_on() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    stand.produce(&topic, 0, 0..1_000).await;
    for prefetch in [0, 1 << 20] {
        let builder = Consumer::builder(stand.client()).prefetch(prefetch).max_poll_records(100);
        let consumer = builder.assign([(tp(&topic, 0), StartOffset::At(5))]).build().await.unwrap();
        // A loop over the stream that is left in the middle of a batch.
        {
            let mut records = pin!(consumer.stream());
            for expected in 5..30 {
                let record = soon(poll_fn(|cx| records.as_mut().poll_next(cx))).await.unwrap().unwrap();
                assert_eq!(record.offset(), expected);
            }
        }
        assert_eq!(consumer.position(&tp(&topic, 0)), Some(30));
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 30);
        // A poll that is dropped half way takes nothing with it.
        for _ in 0..20 {
            let mut waiting = pin!(consumer.next_batch());
            let taken = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
            let expected = consumer.position(&tp(&topic, 0)).unwrap();
            if let Poll::Ready(batch) = taken {
                assert_eq!(batch.unwrap().next_offset, expected);
            }
        }
        let position = consumer.position(&tp(&topic, 0)).unwrap();
        if position < 1_000 {
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), position);
        }
        consumer.seek(&tp(&topic, 0), 3).unwrap();
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 3);
        assert_eq!(consumer.seek(&tp(&topic, 7), 3), Err(SeekError::NotAssigned(tp(&topic, 7))));
        assert_eq!(consumer.seek(&tp(&topic, 0), -3), Err(SeekError::Negative { offset: -3 }));
        soon(consumer.close()).await;
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_prefetch_zero_nothing_is_read_that_nobody_asked_for() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    stand.produce(&topic, 0, 0..5).await;
    let consumer = from(&stand, &topic, StartOffset::Earliest).await;
    assert_eq!(soon(consumer.next_batch()).await.unwrap().records.len(), 5);
    assert_eq!(consumer.buffered_bytes(), 0);
    stand.produce(&topic, 0, 5..10).await;
    // Nobody polled meanwhile, so nothing can have been fetched.
    assert_eq!(consumer.buffered_bytes(), 0);
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 5);
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_above_the_readers_limit_is_an_error_that_says_which_limit_would_do() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    for size in [10, 60_000, 10] {
        let record = ProducerRecord::to(&*topic).value(vec![1; size]);
        soon(soon(producer.send(record)).await.unwrap()).await.unwrap();
    }
    soon(producer.close()).await.unwrap();
    let builder = Consumer::builder(stand.client()).max_bytes(10_000);
    let consumer = builder.assign([(tp(&topic, 0), StartOffset::Earliest)]).build().await.unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
    let error = soon(consumer.recv()).await.unwrap_err();
    let ConsumeError::Partition(FetchError::RecordExceedsMaxBytes {
        offset, needed_bytes, max_bytes, ..
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((offset, max_bytes, consumer.position(&tp(&topic, 0))), (1, 10_000, Some(1)));
    assert!(needed_bytes > 60_000);
    consumer.seek(&tp(&topic, 0), 2).unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 2, "past it, on purpose");
    soon(consumer.close()).await;
    let builder = Consumer::builder(stand.client()).max_bytes(needed_bytes);
    let consumer = builder.assign([(tp(&topic, 0), StartOffset::At(1))]).build().await.unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().value().unwrap().len(), 60_000, "the limit it named");
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b209_out_of_range_is_an_error_without_and_a_told_reset_with_a_policy() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    stand.produce(&topic, 0, 0..10).await;
    let consumer = from(&stand, &topic, StartOffset::At(99)).await;
    let error = soon(consumer.recv()).await.unwrap_err();
    assert!(matches!(error, ConsumeError::Partition(FetchError::OffsetOutOfRange { offset: 99, .. })));
    assert_eq!(consumer.position(&tp(&topic, 0)), Some(99), "nothing moved");
    soon(consumer.close()).await;
    for (policy, to) in [(OffsetReset::Earliest, 0), (OffsetReset::Latest, 10)] {
        let builder = Consumer::builder(stand.client()).offset_reset(policy);
        let consumer = builder.assign([(tp(&topic, 0), StartOffset::At(99))]).build().await.unwrap();
        let mut events = consumer.events();
        let reset = async {
            loop {
                if let Some(Event::PositionReset { from, to, .. }) = events.next().await {
                    return (from, to);
                }
            }
        };
        let told = tokio::select! {
            told = soon(reset) => told,
            // Somebody has to ask for records.
            error = async { loop { if let Err(error) = consumer.recv().await { break error } } } => panic!("{error}"),
        };
        assert_eq!(told, (Some(99), to), "{policy:?}");
        drop(events);
        soon(consumer.close()).await;
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_starts_at_a_timestamp_and_at_the_end_when_nothing_is_that_young() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let producer = stand.producer(ProducerConfig::new()).await;
    for n in 0..10 {
        let record = ProducerRecord::to(&*topic).timestamp(1_000 + n * 100).value(n.to_string());
        soon(soon(producer.send(record)).await.unwrap()).await.unwrap();
    }
    for (at, expected) in [(0, 0), (1_000, 0), (1_250, 3), (1_900, 9)] {
        let consumer = from(&stand, &topic, StartOffset::Timestamp(at)).await;
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), expected, "from {at}");
        soon(consumer.close()).await;
    }
    let consumer = from(&stand, &topic, StartOffset::Timestamp(99_999)).await;
    let mut waiting = pin!(consumer.recv());
    let known = async {
        while consumer.position(&tp(&topic, 0)).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        record = &mut waiting => panic!("{record:?}"),
        () = soon(known) => {}
    }
    let late = ProducerRecord::to(&*topic).timestamp(5).value("late");
    soon(soon(producer.send(late)).await.unwrap()).await.unwrap();
    assert_eq!(soon(waiting).await.unwrap().offset(), 10);
    soon(producer.close()).await.unwrap();
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_and_comes_back_is_read_on_from_the_very_same_offset() {
    let mut stand = Stand::embedded(BrokerConfig::new()).await;
    let topic = stand.topic(1).await;
    stand.produce(&topic, 0, 0..100).await;
    let builder = Consumer::builder(stand.client()).prefetch(1 << 20).max_poll_records(10);
    let consumer = builder.assign([(tp(&topic, 0), StartOffset::Earliest)]).build().await.unwrap();
    let mut next = 0;
    for in_order in [true, false, true] {
        for _ in 0..30 {
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), next);
            next += 1;
        }
        stand.restart(in_order).await;
    }
    stand.produce(&topic, 0, 100..110).await;
    while next < 110 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), next);
        next += 1;
    }
    soon(consumer.close()).await;
    stand.close().await;
}
