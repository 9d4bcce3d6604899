//! What takes a producer minutes, and what must not take it a round trip.

use std::sync::Arc;

use tokio::sync::Notify;
use tramline_wire::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use tramline_wire::messages::{ProduceRequest, ProduceResponse};
use tramline_wire::{ApiKey, ErrorCode};

use super::*;
use crate::SendError;
use crate::common::Reply;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_topic_the_cluster_does_not_have_is_waited_for_half_a_minute_and_refused_with_its_code() {
    let peer = peer("missing-topic");
    let producer = producer(&peer, ProducerConfig::new()).await;
    let (sent, took) = timed(producer.send(ProducerRecord::to("missing").value("x"))).await;
    let code = Some(ErrorCode::UnknownTopicOrPartition);
    assert_eq!(sent.unwrap_err(), SendError::UnknownTopic { topic: "missing".into(), code });
    assert!(took >= 30 * SECOND && took < 32 * SECOND, "{took:?}");
    let (sent, took) = timed(producer.send(to("x").partition(7))).await;
    assert!(matches!(sent, Err(SendError::UnknownPartition { count: 1, .. })), "{sent:?}");
    assert!(took >= 30 * SECOND && took < 32 * SECOND, "{took:?}");
    let (batch, took) = timed(producer.send_batch("missing", 0, vec![to("x")])).await;
    assert!(batch.unwrap_err().to_string().contains("missing is not known"));
    assert!(took < 32 * SECOND, "{took:?}");
    assert_eq!(peer.count(ApiKey::Produce), 0);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_made_while_it_is_waited_for_is_written_to() {
    let peer = peer("late-topic");
    let producer = producer(&peer, ProducerConfig::new()).await;
    let late = async {
        tokio::time::sleep(29 * SECOND).await;
        peer.topic("late", 1);
    };
    let (sent, ()) = tokio::join!(producer.send(ProducerRecord::to("late").value("x")), late);
    assert_eq!(offset(sent.unwrap()).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn while_no_broker_answers_a_topic_is_waited_for_until_the_delivery_timeout() {
    let peer = peer("silent");
    let producer = producer(&peer, ProducerConfig::new()).await;
    peer.script(ApiKey::Metadata, vec![Reply::Silence; 100]);
    let (sent, took) = timed(producer.send(ProducerRecord::to("missing").value("x"))).await;
    assert_eq!(sent.unwrap_err(), SendError::UnknownTopic { topic: "missing".into(), code: None });
    assert_eq!(took.as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn a_topic_whose_name_cannot_be_is_refused_at_once() {
    let peer = peer("bad-name");
    let producer = producer(&peer, ProducerConfig::new()).await;
    peer.script(ApiKey::Metadata, [Reply::Error(17)]);
    let (sent, took) = timed(producer.send(to("x"))).await;
    let code = ErrorCode::InvalidTopicException;
    assert_eq!(sent.unwrap_err(), SendError::TopicRefused { topic: "t".into(), code });
    assert!(took < SECOND);
}

/// Answers each produce with "not me: node 2 leads, and this is where it is".
fn passes_on(peer: &Peer, to: &Peer, epoch: i32) {
    let address = to.address();
    peer.answer::<ProduceRequest>(move |request, _| {
        let (host, port) = address.rsplit_once(':').unwrap();
        let endpoint =
            NodeEndpoint { node_id: 2, host: host.into(), port: port.parse().unwrap(), rack: None };
        let row = |index| PartitionProduceResponse {
            index,
            error_code: 6,
            current_leader: LeaderIdAndEpoch { leader_id: 2, leader_epoch: epoch },
            ..Default::default()
        };
        let topics = request.topic_data.iter().map(|topic| TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_responses: topic.partition_data.iter().map(|data| row(data.index)).collect(),
        });
        ProduceResponse { responses: topics.collect(), node_endpoints: vec![endpoint], ..Default::default() }
    });
}

#[tokio::test(start_paused = true)]
async fn a_hint_at_the_new_leader_is_followed_at_once_and_without_metadata() {
    let (old, new) = (peer("hint-old"), peer("hint-new"));
    let producer = producer(&old, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to("before")).await.unwrap()).await, Some(0));
    passes_on(&old, &new, 5);
    let held = Arc::new(Notify::new());
    old.script(ApiKey::Metadata, vec![Reply::Hold(held); 10]);
    let (written, took) = timed(async { offset(producer.send(to("after")).await.unwrap()).await }).await;
    assert_eq!((written, new.values("t", 0)), (Some(0), vec!["after".to_owned()]));
    assert_eq!(new.count(ApiKey::Metadata), 0);
    assert!(took < Duration::from_millis(50), "not even the backoff is waited for: {took:?}");
    assert_eq!(offset(producer.send(to("and on")).await.unwrap()).await, Some(1));
    assert_eq!(old.count(ApiKey::Produce), 2, "nothing more is sent to the old leader");
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_is_older_than_what_is_known_moves_nothing() {
    let (old, new) = (peer("hint-stale"), peer("hint-nobody"));
    let producer = producer(&old, ProducerConfig::new()).await;
    // Epoch 0 is the one that metadata told.
    passes_on(&old, &new, 0);
    let delivery = producer.send(to("stays")).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(new.count(ApiKey::Produce), 0);
    assert!(old.count(ApiKey::Produce) > 1, "it is tried again where it was refused");
    drop((delivery, producer));
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_was_deleted_and_made_again_is_written_to_under_its_new_id() {
    let peer = peer("made-again");
    let producer = producer(&peer, ProducerConfig::new().batch_records(1)).await;
    for n in 0..3 {
        assert_eq!(offset(producer.send(to("old")).await.unwrap()).await, Some(n));
    }
    peer.recreate_topic("t", 1);
    let mut deliveries = Vec::new();
    for n in 0..20 {
        deliveries.push(producer.send(to(&n.to_string())).await.unwrap());
    }
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(delivery).await, Some(n as i64), "in order, from the beginning of the new log");
    }
    assert_eq!(peer.values("t", 0), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    let versions = peer.seen().into_iter().filter(|(key, ..)| *key == ApiKey::Produce).map(|(_, v, _)| v);
    assert!(versions.min().is_some_and(|version| version >= 13), "topics go by their id");
}

#[tokio::test(start_paused = true)]
async fn partitions_that_a_topic_gains_are_written_to_after_the_next_look_at_the_cluster() {
    let peer = peer("grown");
    let config = ProducerConfig::new().spread(crate::Spread::RoundRobin);
    let producer = producer(&peer, config).await;
    offset(producer.send(to("x")).await.unwrap()).await;
    peer.topic("t", 3);
    tokio::time::sleep(301 * SECOND).await;
    for _ in 0..3 {
        offset(producer.send(to("x")).await.unwrap()).await;
    }
    let lengths = [0, 1, 2].map(|partition| peer.values("t", partition).len());
    assert_eq!(lengths.iter().sum::<usize>(), 4);
    assert!(lengths.iter().all(|length| *length > 0), "{lengths:?}");
}
