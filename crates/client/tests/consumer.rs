//! The consumer over real sockets, against a peer that does as it is told.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::group::coordinate;
use common::{Peer, Reply, jump, until};
use tramline_client::{
    ClientConfig, CommitFailure, ConsumeError, Consumer, FetchError, Fetched, OffsetAndMetadata, StartOffset,
};
use tramline_wire::batch::{BatchBuilder, set_base_offset_and_epoch};
use tramline_wire::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::*;
use tramline_wire::{ApiKey, Compression, ErrorCode, Record, TopicPartition};

const RECORDS: i64 = 300;
const HOUR: Duration = Duration::from_secs(3600);

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn client(peer: &Peer) -> ClientConfig {
    ClientConfig::new(peer.address())
        .retry_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
}

/// Seven records from `base`.
fn batch(base: i64) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for offset in base..(base + 7).min(RECORDS) {
        builder.append(offset, None, Some(offset.to_string().as_bytes()), &[]).unwrap();
    }
    let mut bytes = BytesMut::from(&builder.build()[..]);
    set_base_offset_and_epoch(&mut bytes, base, 0);
    bytes.freeze()
}

fn fetched(request: FetchRequest) -> FetchResponse {
    let mut responses = Vec::new();
    for topic in request.topics {
        let mut partitions = Vec::new();
        for asked in topic.partitions {
            let base = asked.fetch_offset / 7 * 7;
            let is_end = asked.fetch_offset >= RECORDS;
            partitions.push(PartitionData {
                partition_index: asked.partition,
                high_watermark: RECORDS,
                records: Some(if is_end { Bytes::new() } else { batch(base) }),
                ..Default::default()
            });
        }
        responses.push(FetchableTopicResponse { topic: topic.topic, topic_id: topic.topic_id, partitions });
    }
    FetchResponse { responses, ..Default::default() }
}

/// A peer with a topic `t` of two partitions, 300 records each in batches of seven.
async fn peer() -> Peer {
    let peer = Peer::with_topic("t", 2).await;
    peer.answer::<FetchRequest>(|request, _| fetched(request));
    peer.answer::<ListOffsetsRequest>(|request, _| {
        let answer = |name: tramline_wire::Str, rows: &[list_offsets_request::ListOffsetsPartition]| {
            let row = |asked: &list_offsets_request::ListOffsetsPartition| ListOffsetsPartitionResponse {
                partition_index: asked.partition_index,
                offset: if asked.timestamp == -2 { 0 } else { RECORDS },
                ..Default::default()
            };
            ListOffsetsTopicResponse { name, partitions: rows.iter().map(row).collect() }
        };
        let topics =
            request.topics.iter().map(|topic| answer(topic.name.clone(), &topic.partitions)).collect();
        ListOffsetsResponse { topics, ..Default::default() }
    });
    peer
}

async fn reader(peer: &Peer) -> Consumer {
    let start = [(tp(0), StartOffset::Earliest)];
    Consumer::builder(client(peer)).assign(start).build().await.unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it takes too long")
}

/// Polls the future a few times, letting others run in between, and drops it if it is not ready.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx)));
        if let std::task::Poll::Ready(value) = ready.await {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn b191_every_future_can_be_dropped_at_every_await_and_nothing_is_lost() {
    let peer = peer().await;
    let consumer = reader(&peer).await;
    let mut next = 0;
    let mut round = 0;
    while next < RECORDS {
        round += 1;
        assert!(round < 1_000_000, "stuck at {next}");
        let patience = round % 4;
        if round % 3 == 0 {
            if let Some(fetched) = polled(consumer.next_batch(), patience).await {
                let Fetched { records, next_offset, .. } = fetched.unwrap();
                for record in records {
                    assert_eq!(record.offset(), next);
                    next += 1;
                }
                assert_eq!(next_offset, next);
            }
        } else if let Some(record) = polled(consumer.recv(), patience).await {
            assert_eq!(record.unwrap().offset(), next);
            next += 1;
        } else {
            tokio::task::yield_now().await;
        }
        assert_eq!(consumer.position(&tp(0)).unwrap_or(0), next, "the position is what was handed out");
    }
    soon(consumer.close()).await;
}

#[tokio::test]
async fn the_stream_gives_each_record_once_and_can_be_dropped_in_the_middle() {
    let peer = peer().await;
    let consumer = reader(&peer).await;
    let mut next = 0;
    while next < RECORDS {
        let mut records = pin!(consumer.stream());
        for _ in 0..11 {
            let record =
                soon(std::future::poll_fn(|cx| futures_core::Stream::poll_next(records.as_mut(), cx)));
            if next == RECORDS {
                break;
            }
            let record: Record = record.await.unwrap().unwrap();
            assert_eq!(record.offset(), next);
            next += 1;
        }
    }
    soon(consumer.close()).await;
    let mut records = pin!(consumer.stream());
    let end = std::future::poll_fn(|cx| futures_core::Stream::poll_next(records.as_mut(), cx)).await;
    assert!(end.is_none(), "the stream of a closed consumer ends");
}

#[tokio::test]
async fn b095_broken_connections_in_the_middle_of_fetches_are_repaired_unseen() {
    let peer = peer().await;
    let faults = [
        Reply::Normal,
        Reply::HalfFrame,
        Reply::Normal,
        Reply::Close,
        Reply::WrongId,
        Reply::Normal,
        Reply::Truncated,
        Reply::DoAndClose,
    ];
    peer.script(ApiKey::Fetch, faults);
    peer.script(ApiKey::ListOffsets, [Reply::Close, Reply::HalfFrame]);
    let consumer = reader(&peer).await;
    for expected in 0..RECORDS {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), expected);
    }
    assert_eq!(peer.script_left(ApiKey::Fetch), 0);
    soon(consumer.close()).await;
}

#[tokio::test]
async fn nothing_is_fetched_before_somebody_polls() {
    let peer = peer().await;
    let consumer = reader(&peer).await;
    let ends = consumer.end_offsets(&[tp(0), tp(1)]).await.unwrap();
    assert_eq!(ends, BTreeMap::from([(tp(0), RECORDS), (tp(1), RECORDS)]));
    assert_eq!(peer.count(ApiKey::Fetch), 0);
    for _ in 0..7 {
        soon(consumer.recv()).await.unwrap();
    }
    assert!(polled(consumer.end_offsets(&[tp(0)]), 10_000).await.is_some());
    assert_eq!(peer.count(ApiKey::Fetch), 1, "the last record of the batch is with the program");
    soon(consumer.close()).await;
}

#[tokio::test]
async fn b083_an_oversized_batch_is_reported_and_other_partitions_go_on() {
    let peer = peer().await;
    let needed = batch(140).len();
    let start = [(tp(0), StartOffset::At(140)), (tp(1), StartOffset::At(RECORDS - 1))];
    let consumer =
        Consumer::builder(client(&peer)).assign(start).max_bytes(needed - 1).build().await.unwrap();
    let (mut errors, mut offsets) = (0, Vec::new());
    while errors == 0 || offsets.is_empty() {
        match soon(consumer.recv()).await {
            Ok(record) => offsets.push(record.offset()),
            Err(ConsumeError::Partition(FetchError::RecordExceedsMaxBytes {
                offset,
                needed_bytes,
                max_bytes,
                ..
            })) => {
                assert_eq!((offset, needed_bytes, max_bytes), (140, needed, needed - 1));
                errors += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(offsets, [RECORDS - 1]);
    assert_eq!(consumer.position(&tp(0)), Some(140));
    soon(consumer.close()).await;
}

async fn committer(peer: &Peer) -> Consumer {
    let start = [(tp(0), StartOffset::Committed), (tp(1), StartOffset::Committed)];
    Consumer::builder(client(peer)).group("g").assign(start).commit_timeout(HOUR).build().await.unwrap()
}

#[tokio::test]
async fn b074_a_commit_is_repeated_until_the_coordinator_takes_it() {
    let peer = peer().await;
    let offsets = coordinate(&peer);
    let consumer = committer(&peer).await;
    offsets.lock().unwrap().codes =
        vec![ErrorCode::CoordinatorLoadInProgress, ErrorCode::NotCoordinator, ErrorCode::RebalanceInProgress];
    peer.script(ApiKey::OffsetCommit, [Reply::Normal, Reply::Close, Reply::HalfFrame]);
    let offset = OffsetAndMetadata::new(42).metadata("here");
    soon(consumer.commit([(tp(0), offset)])).await.unwrap();
    let committed = soon(consumer.committed(&[tp(0), tp(1)])).await.unwrap();
    assert_eq!(committed[&tp(0)], Some(OffsetAndMetadata::new(42).metadata("here")));
    assert_eq!(committed[&tp(1)], None);
    soon(consumer.close()).await;
}

#[tokio::test]
async fn commits_of_a_partition_keep_their_order_even_when_futures_are_dropped() {
    let peer = peer().await;
    let offsets = coordinate(&peer);
    let consumer = committer(&peer).await;
    for offset in 0..200 {
        let commit = consumer.commit([(tp(0), OffsetAndMetadata::new(offset))]);
        // Dropped at some await of its way; what was taken keeps its place.
        let _ = polled(commit, usize::try_from(offset % 5).unwrap()).await;
    }
    soon(consumer.commit([(tp(0), OffsetAndMetadata::new(200))])).await.unwrap();
    let history = offsets.lock().unwrap().history.clone();
    assert!(history.is_sorted(), "{history:?}");
    assert_eq!(history.last(), Some(&200));
    soon(consumer.close()).await;
}

#[tokio::test]
async fn a_refused_commit_names_its_partitions_and_its_reason() {
    let peer = peer().await;
    let offsets = coordinate(&peer);
    let consumer = committer(&peer).await;
    offsets.lock().unwrap().codes = vec![ErrorCode::OffsetMetadataTooLarge];
    let wanted = [(tp(0), OffsetAndMetadata::new(1)), (tp(1), OffsetAndMetadata::new(-1))];
    let error = soon(consumer.commit(wanted)).await.unwrap_err();
    assert_eq!(error.failed[&tp(0)], CommitFailure::Refused(ErrorCode::OffsetMetadataTooLarge));
    assert_eq!(error.failed[&tp(1)], CommitFailure::InvalidOffset(-1));
    assert!(!error.is_retriable());
    offsets.lock().unwrap().codes = vec![ErrorCode::CoordinatorLoadInProgress; 1000];
    let asked = peer.count(ApiKey::OffsetCommit);
    let refused_twice = async {
        until(|| peer.count(ApiKey::OffsetCommit) >= asked + 2).await;
        jump(HOUR).await;
    };
    let (error, ()) = tokio::join!(consumer.commit([(tp(0), OffsetAndMetadata::new(1))]), refused_twice);
    let error = error.unwrap_err();
    assert!(matches!(&error.failed[&tp(0)], CommitFailure::TimedOut { .. }), "{error:?}");
    assert!(error.is_retriable());
    soon(consumer.close()).await;
}

#[tokio::test]
async fn reading_starts_at_the_committed_offset_and_reports_a_partition_without_one() {
    let peer = peer().await;
    let offsets = coordinate(&peer);
    offsets.lock().unwrap().committed.insert(0, (250, String::new()));
    peer.script(ApiKey::OffsetFetch, [Reply::Close, Reply::HalfFrame]);
    peer.script(ApiKey::FindCoordinator, [Reply::Close]);
    let consumer = committer(&peer).await;
    let (mut first, mut errors) = (None, Vec::new());
    while first.is_none() || errors.is_empty() {
        match soon(consumer.recv()).await {
            Ok(record) => first = first.or(Some(record.offset())),
            Err(error) => errors.push(error),
        }
    }
    assert_eq!(first, Some(250));
    assert!(matches!(&errors[0], ConsumeError::Partition(FetchError::NoPosition { .. })), "{errors:?}");
    soon(consumer.close()).await;
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let peer = peer().await;
    let build =
        |builder: tramline_client::ConsumerBuilder| async { builder.build().await.map(|_| ()).unwrap_err() };
    let base = || Consumer::builder(client(&peer));
    let assigned = || base().assign([(tp(0), StartOffset::Earliest)]);
    for (builder, word) in [
        (base(), "assigned partitions or subscribed topics"),
        (assigned().group("g").subscribe(["t"]), "assigned partitions or subscribed topics"),
        (base().subscribe(["t"]), "subscribe needs a group"),
        (base().assign([(tp(0), StartOffset::Committed)]), "needs a group"),
        (assigned().max_bytes(10), "max_bytes"),
        (assigned().fetch_min_bytes(0), "fetch_min_bytes"),
        (base().assign([(tp(0), StartOffset::At(-5))]), "negative"),
        (base().group("").subscribe(["t"]), "the name is empty"),
    ] {
        let error = build(builder).await.to_string();
        assert!(error.contains(word), "{error} does not say {word}");
    }
}
