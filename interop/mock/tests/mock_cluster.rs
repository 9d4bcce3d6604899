//! Our client on librdkafka's mock cluster: three brokers in memory that refuse, move and die on command.
//!
//! The mock answers `ApiVersions` up to 2 only, has older ranges than any of our other peers and no CreateTopics.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::time::Duration;

use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka_sys::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};
use tramline_client::{
    ClientConfig, Consumer, ConsumerBuilder, OffsetAndMetadata, OffsetReset, Producer, ProducerConfig,
    ProducerRecord, StartOffset, TopicPartition,
};

const PATIENCE: Duration = Duration::from_secs(60);
const TOPIC: &str = "t";

type Mock = MockCluster<'static, DefaultProducerContext>;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Three brokers, and a topic of one partition led by the first.
fn mock() -> (Mock, ClientConfig) {
    let mock = MockCluster::new(3).unwrap();
    mock.create_topic(TOPIC, 1, 3).unwrap();
    mock.partition_leader(TOPIC, 0, Some(1)).unwrap();
    mock.coordinator(MockCoordinator::Group("g".to_owned()), 2).unwrap();
    // The mock reads an array of JoinGroup 6 as one of version 5 and hangs up: what librdkafka itself speaks is capped.
    for (api, newest) in [(Api::JoinGroup, 5), (Api::SyncGroup, 3), (Api::Heartbeat, 3), (Api::LeaveGroup, 1)]
    {
        mock.apiversion(api, Some(0), Some(newest)).unwrap();
    }
    let config = ClientConfig::new(mock.bootstrap_servers()).metadata_max_age(Duration::from_secs(2));
    (mock, config)
}

fn tp() -> TopicPartition {
    TopicPartition::new(TOPIC, 0)
}

async fn send(producer: &Producer, numbers: std::ops::Range<u32>) {
    let mut deliveries = Vec::new();
    for n in numbers {
        let record = ProducerRecord::to(TOPIC).value(n.to_string());
        deliveries.push(soon(producer.send(record)).await.unwrap());
    }
    for delivery in deliveries {
        soon(delivery).await.unwrap();
    }
}

/// Everything in the partition, which must be the numbers from 0 on, once each and in order.
async fn check(config: &ClientConfig, count: u32) {
    let consumer =
        Consumer::builder(config.clone()).assign([(tp(), StartOffset::Earliest)]).build().await.unwrap();
    for n in 0..count {
        let record = soon(consumer.recv()).await.unwrap();
        assert_eq!((record.offset(), record.value()), (i64::from(n), Some(n.to_string().as_bytes())));
    }
    assert_eq!(consumer.lag(&tp()), Some(0));
    soon(consumer.close()).await;
}

fn member(config: &ClientConfig) -> ConsumerBuilder {
    Consumer::builder(config.clone())
        .group("g")
        .subscribe([TOPIC])
        .offset_reset(OffsetReset::Earliest)
        .session_timeout(Duration::from_secs(6))
        .heartbeat_interval(Duration::from_millis(200))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_back_from_a_broker_with_old_versions() {
    let (_mock, config) = mock();
    let producer = soon(Producer::new(config.clone(), ProducerConfig::new())).await.unwrap();
    send(&producer, 0..500).await;
    producer.close().await.unwrap();
    check(&config, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_batches_are_repeated_once_each_and_in_order() {
    let (mock, config) = mock();
    let producer = soon(Producer::new(config.clone(), ProducerConfig::new())).await.unwrap();
    send(&producer, 0..10).await;
    for (round, code) in [
        Code::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Code::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        Code::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Code::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        Code::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        Code::RD_KAFKA_RESP_ERR__TRANSPORT,
    ]
    .into_iter()
    .enumerate()
    {
        mock.request_errors(Api::Produce, &[code, code]);
        let first = 10 + 20 * u32::try_from(round).unwrap();
        send(&producer, first..first + 20).await;
    }
    producer.close().await.unwrap();
    check(&config, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_moves_or_dies_is_followed_by_producer_and_consumer() {
    let (mock, config) = mock();
    let producer = soon(Producer::new(config.clone(), ProducerConfig::new())).await.unwrap();
    let consumer =
        Consumer::builder(config.clone()).assign([(tp(), StartOffset::Earliest)]).build().await.unwrap();
    for (round, leader) in [1, 2, 3, 1].into_iter().enumerate() {
        mock.partition_leader(TOPIC, 0, Some(leader)).unwrap();
        let first = 20 * u32::try_from(round).unwrap();
        send(&producer, first..first + 20).await;
        for n in first..first + 20 {
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), i64::from(n));
        }
    }
    mock.broker_down(1).unwrap();
    mock.partition_leader(TOPIC, 0, Some(2)).unwrap();
    send(&producer, 80..100).await;
    mock.broker_up(1).unwrap();
    for n in 80..100 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), n);
    }
    soon(consumer.close()).await;
    producer.close().await.unwrap();
    check(&config, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_rides_out_what_its_coordinator_says_and_its_move() {
    let (mock, config) = mock();
    let producer = soon(Producer::new(config.clone(), ProducerConfig::new())).await.unwrap();
    send(&producer, 0..100).await;
    mock.request_errors(Api::FindCoordinator, &[Code::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE]);
    mock.request_errors(
        Api::JoinGroup,
        &[
            Code::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
            Code::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
            Code::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    mock.request_errors(Api::SyncGroup, &[Code::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS]);
    let consumer = member(&config).build().await.unwrap();
    for n in 0..50 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), n);
    }
    for code in [
        Code::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        Code::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
        Code::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Code::RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        mock.request_errors(Api::OffsetCommit, &[code]);
        soon(consumer.commit([(tp(), OffsetAndMetadata::new(50))])).await.unwrap();
    }
    mock.coordinator(MockCoordinator::Group("g".to_owned()), 3).unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 50);
    soon(consumer.commit([(tp(), OffsetAndMetadata::new(51))])).await.unwrap();
    soon(consumer.close()).await;
    let next = member(&config).build().await.unwrap();
    assert_eq!(soon(next.recv()).await.unwrap().offset(), 51);
    soon(next.close()).await;
    producer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_is_refused_is_asked_again_at_the_same_offset() {
    let (mock, config) = mock();
    let producer = soon(Producer::new(config.clone(), ProducerConfig::new())).await.unwrap();
    send(&producer, 0..50).await;
    let codes = [
        Code::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Code::RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH,
        Code::RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE,
        Code::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        Code::RD_KAFKA_RESP_ERR__TRANSPORT,
    ];
    for code in codes {
        mock.request_errors(Api::Fetch, &[code]);
        check(&config, 50).await;
    }
    producer.close().await.unwrap();
}
