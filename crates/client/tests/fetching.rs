//! Reading through changes of leaders, in sessions and past aborted transactions, against peers that do as they are told.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::fetch::{batch, data, each, refused};
use common::{Peer, Reply};
use tramline_client::{
    ClientConfig, ConsumeError, Consumer, ConsumerBuilder, Event, FetchError, IsolationLevel, OffsetReset,
    StartOffset,
};
use tramline_wire::batch::{BatchBuilder, set_base_offset_and_epoch};
use tramline_wire::messages::fetch_response::{
    AbortedTransaction, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use tramline_wire::messages::*;
use tramline_wire::{ApiKey, Compression, ErrorCode, TopicPartition};

fn tp() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn builder(peer: &Peer) -> ConsumerBuilder {
    let client = ClientConfig::new(peer.address())
        .retry_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20));
    Consumer::builder(client).assign([(tp(), StartOffset::At(0))])
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it takes too long")
}

/// The peer's log: ten records of epoch 0, until [`elect`] cuts it at 6 and writes eight of epoch 1.
fn serve(peer: &Peer, log: &Arc<Mutex<(i32, Bytes, Bytes)>>) {
    let kept = log.clone();
    peer.answer::<FetchRequest>(move |request, _| {
        let (epoch, old, new) = kept.lock().unwrap().clone();
        each(&request, |asked| match (asked.current_leader_epoch, asked.fetch_offset) {
            (asked, _) if asked < epoch => refused(ErrorCode::FencedLeaderEpoch),
            (_, 0..6) => data(14, old.clone()),
            (_, 6..14) if epoch == 0 => data(10, old.clone()),
            (_, 6..14) => data(14, new.clone()),
            _ => data(14, Bytes::new()),
        })
    });
    let kept = log.clone();
    peer.answer::<OffsetForLeaderEpochRequest>(move |request, version| {
        assert!(version >= 3, "before that it is for brokers");
        let epoch = kept.lock().unwrap().0;
        let asked = &request.topics[0].partitions[0];
        assert_eq!((asked.current_leader_epoch, asked.leader_epoch), (epoch, 0));
        let row = EpochEndOffset { partition: 0, leader_epoch: 0, end_offset: 6, error_code: 0 };
        let topic = OffsetForLeaderTopicResult { topic: "t".into(), partitions: vec![row] };
        OffsetForLeaderEpochResponse { topics: vec![topic], ..Default::default() }
    });
}

/// A reader that has read the ten records, and a new leader without the last four of them.
async fn cut(peer: &Peer, builder: ConsumerBuilder) -> Consumer {
    let log = Arc::new(Mutex::new((0, batch(0, 10, 0), Bytes::new())));
    serve(peer, &log);
    let consumer = builder.build().await.unwrap();
    for offset in 0..10 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), offset);
    }
    *log.lock().unwrap() = (1, batch(0, 6, 0), batch(6, 8, 1));
    peer.leader_epoch("t", 0, 1);
    consumer
}

#[tokio::test]
async fn a_log_that_was_cut_below_the_position_is_told_with_both_offsets() {
    let peer = Peer::with_topic("t", 1).await;
    peer.script(ApiKey::OffsetForLeaderEpoch, [Reply::Close, Reply::HalfFrame]);
    let consumer = cut(&peer, builder(&peer)).await;
    let error = soon(consumer.recv()).await.unwrap_err();
    assert!(
        matches!(
            error,
            ConsumeError::Partition(FetchError::Truncated { offset: 10, diverging_offset: 6, .. })
        ),
        "{error:?}"
    );
    assert_eq!(consumer.position(&tp()), Some(10));
    assert_eq!(peer.script_left(ApiKey::OffsetForLeaderEpoch), 0, "what went wrong was repeated");
    consumer.seek(&tp(), 6).unwrap();
    let record = soon(consumer.recv()).await.unwrap();
    assert_eq!((record.offset(), record.leader_epoch()), (6, Some(1)));
    soon(consumer.close()).await;
}

#[tokio::test]
async fn with_a_reset_policy_reading_goes_on_where_the_logs_part_and_that_is_told() {
    let peer = Peer::with_topic("t", 1).await;
    let consumer = cut(&peer, builder(&peer).offset_reset(OffsetReset::Latest)).await;
    let mut events = consumer.events();
    let record = soon(consumer.recv()).await.unwrap();
    assert_eq!((record.offset(), record.leader_epoch()), (6, Some(1)));
    let told = soon(async {
        loop {
            if let Some(Event::PositionReset { from, to, .. }) = events.next().await {
                return (from, to);
            }
        }
    });
    assert_eq!(told.await, (Some(10), 6));
    drop(events);
    soon(consumer.close()).await;
}

#[tokio::test]
async fn b091_a_broker_that_cannot_tell_where_epochs_end_is_read_on() {
    let peer = Peer::with_topic("t", 1).await;
    peer.max_version(ApiKey::OffsetForLeaderEpoch, 2);
    let consumer = cut(&peer, builder(&peer)).await;
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 10);
    assert_eq!(peer.count(ApiKey::OffsetForLeaderEpoch), 0);
    soon(consumer.close()).await;
}

#[tokio::test]
async fn the_leader_that_an_answer_names_is_read_from_without_asking_for_metadata() {
    let (old, new) = (Peer::with_topic("t", 1).await, Peer::with_topic("t", 1).await);
    let address = new.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    old.answer::<FetchRequest>(move |request, _| {
        let mut answer = each(&request, |asked| match asked.fetch_offset {
            0 => data(5, batch(0, 5, 0)),
            _ => PartitionData {
                current_leader: LeaderIdAndEpoch { leader_id: 2, leader_epoch: 1 },
                ..refused(ErrorCode::NotLeaderOrFollower)
            },
        });
        let host = host.as_str().into();
        answer.node_endpoints = vec![NodeEndpoint { node_id: 2, host, port, rack: None }];
        answer
    });
    new.answer::<FetchRequest>(|request, _| each(&request, |_| data(8, batch(5, 3, 1))));
    new.answer::<OffsetForLeaderEpochRequest>(|_, _| {
        let row = EpochEndOffset { partition: 0, leader_epoch: 0, end_offset: 5, error_code: 0 };
        let topic = OffsetForLeaderTopicResult { topic: "t".into(), partitions: vec![row] };
        OffsetForLeaderEpochResponse { topics: vec![topic], ..Default::default() }
    });
    let consumer = builder(&old).build().await.unwrap();
    for offset in 0..5 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), offset);
    }
    let asked = old.count(ApiKey::Metadata);
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 5);
    assert_eq!((old.count(ApiKey::Metadata), new.count(ApiKey::Metadata)), (asked, 0));
    assert_eq!(new.count(ApiKey::OffsetForLeaderEpoch), 1, "the position was confirmed first");
    soon(consumer.close()).await;
}

/// Every fetch of the peer's, in order: session, epoch, partitions named, partitions forgotten.
type Seen = Arc<Mutex<Vec<(i32, i32, usize, usize)>>>;

/// A peer that opens session 77, then answers with nothing but news: one record in each answer, at the next offset.
fn in_sessions(peer: &Peer) -> Seen {
    let seen = Seen::default();
    let kept = seen.clone();
    let mut next = 0;
    peer.answer::<FetchRequest>(move |request, _| {
        let named = request.topics.iter().map(|topic| topic.partitions.len()).sum();
        let forgotten = request.forgotten_topics_data.iter().map(|topic| topic.partitions.len()).sum();
        kept.lock().unwrap().push((request.session_id, request.session_epoch, named, forgotten));
        if let Some(row) = request.topics.iter().flat_map(|t| &t.partitions).find(|row| row.partition == 0) {
            next = row.fetch_offset;
        }
        let row = data(next + 1, batch(next, 1, 0));
        let topic = FetchableTopicResponse {
            topic_id: common::topic_id("t"),
            partitions: vec![row],
            ..Default::default()
        };
        let mut responses = vec![topic];
        if request.session_epoch == 0 {
            // A full answer names the partitions without news too.
            let quiet = |partition_index| PartitionData { partition_index, ..data(0, Bytes::new()) };
            responses[0].partitions.extend((1..3).map(quiet));
        }
        FetchResponse { session_id: 77, responses, ..Default::default() }
    });
    seen
}

#[tokio::test]
async fn b095_a_session_goes_on_after_each_answer_and_begins_anew_when_an_answer_is_lost() {
    let peer = Peer::with_topic("t", 3).await;
    let seen = in_sessions(&peer);
    peer.script(ApiKey::Fetch, [Reply::Normal, Reply::Normal, Reply::Normal, Reply::DoAndClose]);
    let start = (0..3).map(|partition| (TopicPartition::new("t", partition), StartOffset::At(0)));
    let consumer = builder(&peer).assign(start).build().await.unwrap();
    for offset in 0..6 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), offset, "the reader sees none of it");
    }
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen[..4], [(0, 0, 3, 0), (77, 1, 1, 0), (77, 2, 1, 0), (77, 3, 1, 0)], "{seen:?}");
    let (session, epoch, named, _) = seen[4];
    assert_eq!((session, epoch), (77, 0), "the old session is closed: {seen:?}");
    assert!(named >= 1);
    soon(consumer.close()).await;
}

#[tokio::test]
async fn sessions_can_be_switched_off() {
    let peer = Peer::with_topic("t", 3).await;
    let seen = in_sessions(&peer);
    let consumer = builder(&peer).fetch_sessions(false).build().await.unwrap();
    for offset in 0..3 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), offset);
    }
    assert!(seen.lock().unwrap().iter().all(|fetch| *fetch == (0, -1, 1, 0)));
    soon(consumer.close()).await;
}

#[tokio::test]
async fn b086_a_reader_of_committed_records_sees_no_aborted_ones_and_ends_at_the_stable_offset() {
    let peer = Peer::with_topic("t", 1).await;
    let transaction = |base: i64, end: Option<bool>| {
        let mut builder = BatchBuilder::new(Compression::None);
        let key = [0, 0, 0, u8::from(end == Some(true))];
        builder.append(base, end.map(|_| &key[..]), Some(b"v"), &[]).unwrap();
        builder.producer(9, 0, 0).transactional(true).control(end.is_some());
        let mut bytes = BytesMut::from(&builder.build()[..]);
        set_base_offset_and_epoch(&mut bytes, base, 0);
        bytes.freeze()
    };
    let log = [
        transaction(0, None),
        transaction(1, Some(false)),
        transaction(2, None),
        transaction(3, Some(true)),
        batch(4, 1, 0),
    ];
    let log = Bytes::from(log.concat());
    peer.answer::<FetchRequest>(move |request, _| {
        assert_eq!(request.isolation_level, 1);
        each(&request, |asked| PartitionData {
            last_stable_offset: 5,
            aborted_transactions: Some(vec![AbortedTransaction { producer_id: 9, first_offset: 0 }]),
            ..data(7, if asked.fetch_offset < 5 { log.clone() } else { Bytes::new() })
        })
    });
    peer.answer::<ListOffsetsRequest>(|request, _| {
        assert_eq!(request.isolation_level, 1);
        let row = ListOffsetsPartitionResponse { offset: 5, ..Default::default() };
        let topic = ListOffsetsTopicResponse { name: "t".into(), partitions: vec![row] };
        ListOffsetsResponse { topics: vec![topic], ..Default::default() }
    });
    let committed = builder(&peer).isolation_level(IsolationLevel::ReadCommitted);
    let consumer = committed.build().await.unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 2);
    assert_eq!(consumer.position(&tp()), Some(3));
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 4);
    assert_eq!((consumer.position(&tp()), consumer.lag(&tp())), (Some(5), Some(0)));
    assert_eq!(soon(consumer.end_offsets(&[tp()])).await.unwrap()[&tp()], 5);
    soon(consumer.close()).await;
}
