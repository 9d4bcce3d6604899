//! Peers that break the protocol: each ends in an error that says so, or in what was wanted once the peer is well again;
//! nothing grows, nothing waits for ever, nothing is lost unsaid.

// Helpers of tests may fail by panicking.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Peer, Reply, jump, topic_id, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tramline_client::{
    Acks, Admin, AdminError, CallError, ClientConfig, DeliveryError, NewTopic, OffsetAndMetadata, Producer,
    ProducerConfig, ProducerRecord, StartOffset,
};
use tramline_wire::messages::create_topics_response::CreatableTopicResult;
use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use tramline_wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use tramline_wire::messages::*;
use tramline_wire::{ApiKey, TopicPartition};

const HOUR: Duration = Duration::from_secs(3600);

fn config(address: impl AsRef<str>) -> ClientConfig {
    ClientConfig::new(address)
        .retry_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(20))
        .request_timeout(HOUR)
        .connect_timeout(HOUR)
}

fn patient() -> ProducerConfig {
    ProducerConfig::new().delivery_timeout(9 * HOUR)
}

/// What stands on a port instead of a broker: sends these bytes to whoever connects, and closes if told to.
async fn instead(bytes: &'static [u8], close: bool) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut asked = [0; 64];
            let _ = socket.read(&mut asked).await;
            let _ = socket.write_all(bytes).await;
            if close {
                let _ = socket.shutdown().await;
            }
            kept.push(socket);
        }
    });
    (address, served)
}

#[tokio::test]
async fn what_is_no_broker_is_named_with_what_to_do() {
    let cases: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "web server; name the port of a broker"),
        (&[0x15, 3, 1, 0, 2, 2, 0x46], "TLS; name its plain listener"),
        (&[0x7f, 0xff, 0xff, 0xff, 0, 0], "its answer begins with"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer begins with \"SSH-2.0"),
    ];
    for (bytes, said) in cases {
        for close in [true, false] {
            let (address, served) = instead(bytes, close).await;
            let error = Producer::new(config(&address), patient()).await.unwrap_err().to_string();
            assert!(error.contains("is not a Kafka broker") && error.contains(said), "{error}");
            served.abort();
        }
    }
}

#[tokio::test]
async fn an_answer_that_never_ends_is_given_up_with_its_connection() {
    // A length of 100 MiB, and a few bytes of it.
    let (address, served) = instead(&[0x06, 0x40, 0, 0, 0, 0, 0, 1, 0, 0], false).await;
    let connects = Producer::new(config(&address), patient());
    let gives_up = async {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        jump(HOUR).await;
    };
    let (refused, ()) = tokio::join!(connects, gives_up);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("does not answer the version handshake"), "{error}");
    served.abort();
}

/// Metadata about topic `t` with these partitions, all led by the peer, and `more` rows that nobody asked for.
fn metadata(address: &str, partitions: &[i32], more: usize, round: usize) -> MetadataResponse {
    let (host, port) = address.rsplit_once(':').unwrap();
    let broker = MetadataResponseBroker {
        node_id: 1,
        host: host.into(),
        port: port.parse().unwrap(),
        ..Default::default()
    };
    let row = |partition: &i32| MetadataResponsePartition {
        partition_index: *partition,
        leader_id: 1,
        ..Default::default()
    };
    let topic = |name: String| MetadataResponseTopic {
        topic_id: topic_id(&name),
        name: Some(name.into()),
        partitions: partitions.iter().map(row).collect(),
        ..Default::default()
    };
    let names = std::iter::once("t".to_owned()).chain((0..more).map(|n| format!("never-{round}-{n}")));
    MetadataResponse {
        brokers: vec![broker],
        controller_id: 1,
        topics: names.map(topic).collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_partition_with_the_last_number_there_is_and_rows_never_asked_for_take_no_memory() {
    let peer = Peer::with_topic("t", 1).await;
    let address = peer.address();
    let mut round = 0;
    peer.answer::<MetadataRequest>(move |_, _| {
        round += 1;
        // Partitions are numbered without gaps: rows beyond their own count are not believed.
        metadata(&address, &[0, i32::MAX, i32::MAX - 1, -1], 100, round)
    });
    let producer = Producer::new(config(peer.address()), patient()).await.unwrap();
    let delivery = producer.send(ProducerRecord::to("t").value("x")).await.unwrap();
    assert_eq!(delivery.topic_partition().partition, 0);
    assert_eq!(delivery.await.unwrap().offset, Some(0));
    let admin = Admin::new(config(peer.address()));
    let described = admin.describe_topic("t").await.unwrap();
    assert_eq!(described.partitions.len(), 1);
    let unknown = admin.describe_topic("never-1-1").await.unwrap_err();
    assert!(matches!(unknown, AdminError::Missing(_)), "{unknown}");
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_produce_answer_without_the_row_or_with_others_is_asked_for_again() {
    let peer = Peer::with_topic("t", 1).await;
    let mut answers = 0;
    peer.answer::<ProduceRequest>(move |request, _| {
        answers += 1;
        let topic = &request.topic_data[0];
        let row = |index| PartitionProduceResponse { index, base_offset: 70, ..Default::default() };
        let rows = match answers {
            1 => vec![],
            2 => vec![row(1), row(i32::MAX), row(-1)],
            // Twice: the first counts.
            _ => vec![row(0), PartitionProduceResponse { index: 0, error_code: 87, ..Default::default() }],
        };
        let told = TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_responses: rows,
        };
        let responses = if answers == 1 { vec![] } else { vec![told] };
        ProduceResponse { responses, ..Default::default() }
    });
    let producer = Producer::new(config(peer.address()), patient()).await.unwrap();
    let delivery = producer.send(ProducerRecord::to("t").value("x")).await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, Some(70));
    assert_eq!(peer.count(ApiKey::Produce), 3);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn an_unknown_error_code_is_told_and_kills_nothing() {
    let peer = Peer::with_topic("t", 1).await;
    let producer = Producer::new(config(peer.address()), patient()).await.unwrap();
    peer.script(ApiKey::Produce, [Reply::Error(31_000)]);
    let refused = producer.send(ProducerRecord::to("t").value("x")).await.unwrap().await.unwrap_err();
    assert!(matches!(refused, DeliveryError::Refused { code, .. } if code.code() == 31_000), "{refused}");
    let next = producer.send(ProducerRecord::to("t").value("y")).await.unwrap();
    assert_eq!(next.await.unwrap().offset, Some(0));
    assert_eq!(producer.close().await.unwrap_err().failed, 1, "and told once more by the flush");
}

#[tokio::test]
async fn a_producer_id_that_is_none_is_asked_for_again() {
    let peer = Peer::with_topic("t", 1).await;
    let mut answers = 0;
    peer.answer::<InitProducerIdRequest>(move |_, _| {
        answers += 1;
        let producer_id = if answers < 3 { -1 } else { 5 };
        InitProducerIdResponse { producer_id, producer_epoch: 0, ..Default::default() }
    });
    let producer = Producer::new(config(peer.address()), patient()).await.unwrap();
    let delivery = producer.send(ProducerRecord::to("t").value("x")).await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, Some(0));
    let ids: Vec<i64> = peer.stored("t", 0, |s| s.batches.iter().map(|batch| batch.producer_id).collect());
    assert_eq!(ids, [5]);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_connection_closed_after_each_request_costs_time_and_no_record() {
    let peer = Peer::with_topic("t", 1).await;
    peer.script(ApiKey::Produce, std::iter::repeat_n(Reply::DoAndClose, 20));
    peer.script(ApiKey::Metadata, [Reply::DoAndClose, Reply::Normal, Reply::DoAndClose]);
    peer.script(ApiKey::InitProducerId, [Reply::DoAndClose]);
    let producer = Producer::new(config(peer.address()), patient().batch_records(1)).await.unwrap();
    let mut deliveries = Vec::new();
    for n in 0..10 {
        deliveries.push(producer.send(ProducerRecord::to("t").value(n.to_string())).await.unwrap());
    }
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, Some(n as i64));
    }
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0).len(), 10);
}

#[tokio::test]
async fn a_peer_that_stops_reading_unanswered_requests_is_left_for_another_connection() {
    let peer = Peer::with_topic("t", 1).await;
    let config = config(peer.address());
    let producer =
        Producer::new(config, patient().acks(Acks::None).max_request_bytes(8 << 20)).await.unwrap();
    let first = producer.send(ProducerRecord::to("t").value("x")).await.unwrap();
    assert_eq!(first.await.unwrap().offset, None);
    // It waits before it answers a request that has no answer, and so reads nothing behind it.
    peer.script(ApiKey::Produce, [Reply::Deaf]);
    drop(producer.send(ProducerRecord::to("t").value("y")).await.unwrap());
    until(|| peer.script_left(ApiKey::Produce) == 0).await;
    let connections = peer.connections();
    let large = vec![7u8; 6 << 20];
    for _ in 0..4 {
        drop(producer.send(ProducerRecord::to("t").value(large.clone())).await.unwrap());
    }
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
    assert_eq!(peer.connections(), connections);
    jump(HOUR).await;
    until(|| peer.connections() > connections).await;
    producer.close().await.unwrap();
}

/// Says who coordinates a group as `rows` makes it.
fn coordinate(peer: &Peer, mut rows: impl FnMut(usize, Coordinator) -> Vec<Coordinator> + Send + 'static) {
    let address = peer.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    let mut answers = 0;
    peer.answer::<FindCoordinatorRequest>(move |request, _| {
        answers += 1;
        let key = request.coordinator_keys[0].clone();
        let honest = Coordinator { key, node_id: 1, host: host.as_str().into(), port, ..Default::default() };
        FindCoordinatorResponse { coordinators: rows(answers, honest), ..Default::default() }
    });
}

#[tokio::test]
async fn a_coordinator_that_is_not_named_is_asked_for_again() {
    let peer = Peer::with_topic("t", 1).await;
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = seen.clone();
    coordinate(&peer, move |answers, honest| {
        asked.store(answers, std::sync::atomic::Ordering::Relaxed);
        let other = Coordinator { key: "another".into(), node_id: 9, ..honest.clone() };
        match answers {
            1 => vec![],
            2 => vec![other],
            _ => vec![other, honest],
        }
    });
    peer.answer::<DeleteGroupsRequest>(|request, _| {
        let row = |group_id: &tramline_wire::Str| delete_groups_response::DeletableGroupResult {
            group_id: group_id.clone(),
            ..Default::default()
        };
        DeleteGroupsResponse { results: request.groups_names.iter().map(row).collect(), ..Default::default() }
    });
    Admin::new(config(peer.address())).delete_group("g").await.unwrap();
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 3);
}

fn missing<T: std::fmt::Debug>(outcome: Result<T, AdminError>, what: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, AdminError::Missing(missing) if missing == what), "{error}");
    assert!(!error.is_retriable());
}

#[tokio::test]
async fn an_admin_answer_that_leaves_out_what_was_asked_is_an_error_and_never_a_success() {
    let peer = Peer::with_topic("t", 2).await;
    coordinate(&peer, |_, honest| vec![honest]);
    let admin = Admin::new(config(peer.address()));
    peer.answer::<CreateTopicsRequest>(|_, _| {
        let row = |name: &str| CreatableTopicResult { name: name.into(), ..Default::default() };
        CreateTopicsResponse { topics: vec![row("a"), row("never asked for")], ..Default::default() }
    });
    missing(admin.create_topics([NewTopic::new("a", 1), NewTopic::new("b", 1)]).await, "b");
    let told = admin.create_topics([NewTopic::new("a", 1)]).await.unwrap();
    assert_eq!(told.keys().collect::<Vec<_>>(), ["a"]);
    peer.answer::<DeleteTopicsRequest>(|_, _| DeleteTopicsResponse::default());
    missing(admin.delete_topics(["a"]).await, "a");
    peer.answer::<DeleteGroupsRequest>(|_, _| {
        let row =
            delete_groups_response::DeletableGroupResult { group_id: "other".into(), ..Default::default() };
        DeleteGroupsResponse { results: vec![row], ..Default::default() }
    });
    missing(admin.delete_group("g").await, "g");
    peer.answer::<DescribeGroupsRequest>(|_, _| DescribeGroupsResponse::default());
    missing(admin.describe_group("g").await, "g");
    peer.answer::<OffsetCommitRequest>(|_, _| OffsetCommitResponse::default());
    let offset = (TopicPartition::new("t", 0), OffsetAndMetadata::new(3));
    missing(admin.set_group_offsets("g", [offset]).await, "t-0");
    peer.answer::<ListOffsetsRequest>(|request, _| {
        let row = list_offsets_response::ListOffsetsPartitionResponse {
            partition_index: 0,
            offset: 4,
            ..Default::default()
        };
        let name = request.topics[0].name.clone();
        let topics = vec![list_offsets_response::ListOffsetsTopicResponse { name, partitions: vec![row] }];
        ListOffsetsResponse { topics, ..Default::default() }
    });
    missing(admin.list_offsets("t", StartOffset::Latest).await, "t-1");
}

#[tokio::test]
async fn deleted_records_are_told_of_each_partition_that_was_asked_about_and_of_no_other() {
    let peer = Peer::with_topic("t", 2).await;
    let admin = Admin::new(config(peer.address()));
    let answer = |topic: &'static str, rows: &'static [(i32, i64, i16)]| {
        peer.answer::<DeleteRecordsRequest>(move |_, _| {
            let row = |(partition_index, low_watermark, error_code): &(i32, i64, i16)| {
                delete_records_response::DeleteRecordsPartitionResult {
                    partition_index: *partition_index,
                    low_watermark: *low_watermark,
                    error_code: *error_code,
                }
            };
            let partitions = rows.iter().map(row).collect();
            let topics =
                vec![delete_records_response::DeleteRecordsTopicResult { name: topic.into(), partitions }];
            DeleteRecordsResponse { topics, ..Default::default() }
        });
    };
    let before = || [(0, 5), (1, 6)].into();
    answer("t", &[]);
    missing(admin.delete_records("t", before()).await, "t-0");
    answer("t", &[(0, 5, 0), (7, 6, 0)]);
    missing(admin.delete_records("t", before()).await, "t-1");
    answer("u", &[(0, 5, 0), (1, 6, 0)]);
    missing(admin.delete_records("t", before()).await, "t-0");
    // Twice: the first counts.
    answer("t", &[(1, 6, 0), (0, 5, 1), (7, 0, 29), (0, 5, 0)]);
    let deleted = admin.delete_records("t", before()).await.unwrap();
    let told: Vec<_> = deleted.into_iter().map(|(of, row)| (of, row.map_err(|e| e.code.code()))).collect();
    assert_eq!(told, [(0, Err(1)), (1, Ok(6))]);
}

#[tokio::test]
async fn offsets_of_another_group_are_never_taken_for_those_that_were_asked_for() {
    use offset_fetch_response::*;
    for version in [7, 9] {
        let peer = Peer::with_topic("t", 1).await;
        peer.max_version(ApiKey::OffsetFetch, version);
        coordinate(&peer, |_, honest| vec![honest]);
        let admin = Admin::new(config(peer.address()));
        let of = |group: &str, committed_offset| {
            let partitions = vec![OffsetFetchResponsePartitions { committed_offset, ..Default::default() }];
            let topics =
                vec![OffsetFetchResponseTopics { name: "t".into(), partitions, ..Default::default() }];
            OffsetFetchResponseGroup { group_id: group.into(), topics, ..Default::default() }
        };
        let refused = OffsetFetchResponseGroup { error_code: 30, ..of("h", 7) };
        let answer = |groups: Vec<OffsetFetchResponseGroup>| {
            peer.answer::<OffsetFetchRequest>(move |_, version| match version {
                8.. => OffsetFetchResponse { groups: groups.clone(), ..Default::default() },
                _ => OffsetFetchResponse::default(),
            });
        };
        answer(vec![refused.clone(), of("g", 4)]);
        let committed = admin.group_offsets("g").await.unwrap();
        let committed: Vec<_> = committed.into_values().map(|at| at.offset).collect();
        if version < 8 {
            // The whole answer is about the one group, and says that there is nothing.
            assert!(committed.is_empty());
            continue;
        }
        assert_eq!(committed, [4]);
        for groups in [vec![], vec![refused], vec![of("h", 7)]] {
            answer(groups);
            missing(admin.group_offsets("g").await, "g");
        }
    }
}

#[tokio::test]
async fn what_is_told_of_something_else_or_of_nothing_is_no_answer_to_an_admin() {
    let peer = Peer::with_topic("t", 1).await;
    let admin = Admin::new(config(peer.address()));
    // Known from before, and left out now.
    admin.describe_topic("t").await.unwrap();
    let address = peer.address();
    peer.answer::<MetadataRequest>(move |_, _| MetadataResponse {
        topics: vec![],
        ..metadata(&address, &[0], 0, 0)
    });
    missing(admin.describe_topic("t").await, "t");
    let address = peer.address();
    peer.answer::<MetadataRequest>(move |_, _| metadata(&address, &[0], 0, 0));
    // A broker of the topic's name.
    peer.answer::<DescribeConfigsRequest>(|request, _| {
        let resource_name = request.resources[0].resource_name.clone();
        let row = describe_configs_response::DescribeConfigsResourceResult {
            name: "key".into(),
            ..Default::default()
        };
        let result = |resource_type| describe_configs_response::DescribeConfigsResult {
            resource_type,
            resource_name: resource_name.clone(),
            configs: vec![row.clone()],
            ..Default::default()
        };
        let asked = request.resources[0].resource_type;
        // That of brokers is answered for both.
        let results = if asked == 2 { vec![result(4)] } else { vec![result(2), result(4)] };
        DescribeConfigsResponse { results, ..Default::default() }
    });
    missing(admin.describe_topic_configs("t").await, "t");
    assert_eq!(admin.describe_broker_configs(1).await.unwrap().len(), 1);
    // An end that is no offset, a time that no record reaches, and rows of another topic.
    let places = |topic: &'static str, end: i64| {
        peer.answer::<ListOffsetsRequest>(move |request, _| {
            let offset = if request.topics[0].partitions[0].timestamp >= 0 { -1 } else { end };
            let row = list_offsets_response::ListOffsetsPartitionResponse { offset, ..Default::default() };
            let again = list_offsets_response::ListOffsetsPartitionResponse { offset: 70, ..row.clone() };
            let topics = vec![list_offsets_response::ListOffsetsTopicResponse {
                name: topic.into(),
                partitions: vec![row, again],
            }];
            ListOffsetsResponse { topics, ..Default::default() }
        });
    };
    places("t", 8);
    for at in [StartOffset::Latest, StartOffset::Timestamp(5)] {
        let found = admin.list_offsets("t", at).await.unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(0, 8)]);
    }
    places("t", -1);
    for at in [StartOffset::Earliest, StartOffset::Latest, StartOffset::Timestamp(5)] {
        missing(admin.list_offsets("t", at).await, "t-0");
    }
    places("u", 8);
    missing(admin.list_offsets("t", StartOffset::Latest).await, "t-0");
}

#[tokio::test]
async fn a_refusal_of_an_offset_that_was_never_set_is_none() {
    let peer = Peer::with_topic("t", 1).await;
    coordinate(&peer, |_, honest| vec![honest]);
    let admin = Admin::new(config(peer.address()));
    peer.answer::<OffsetCommitRequest>(|request, _| {
        use offset_commit_response::*;
        let row = |partition_index, error_code| OffsetCommitResponsePartition { partition_index, error_code };
        let name = request.topics[0].name.clone();
        let partitions = vec![row(9, 29), row(0, 0), row(0, 29)];
        let topics = vec![OffsetCommitResponseTopic { name, partitions, ..Default::default() }];
        OffsetCommitResponse { topics, ..Default::default() }
    });
    let offset = (TopicPartition::new("t", 0), OffsetAndMetadata::new(3));
    admin.set_group_offsets("g", [offset]).await.unwrap();
}

#[tokio::test]
async fn garbage_in_the_middle_of_a_conversation_is_a_lost_connection() {
    let peer = Peer::with_topic("t", 1).await;
    let admin = Admin::new(config(peer.address()));
    admin.describe_topic("t").await.unwrap();
    for reply in [Reply::Bytes(b"HTTP/1.1 408 Timeout\r\n\r\n"), Reply::Bytes(&[0x7f, 0xff, 0xff, 0xff, 0])] {
        peer.script(ApiKey::Metadata, [reply]);
        let lost = admin.describe_topic("t").await.unwrap_err();
        assert!(
            matches!(&lost, AdminError::Call(error @ CallError::Lost(_)) if error.is_retriable()),
            "{lost}"
        );
        admin.describe_topic("t").await.unwrap();
    }
    // Half-closed: it goes on reading and never answers again.
    peer.script(ApiKey::Metadata, [Reply::HalfClose]);
    assert!(matches!(admin.describe_topic("t").await, Err(AdminError::Call(CallError::Lost(_)))));
    // The same answer twice: the second belongs to nobody, nor does the question that met it.
    peer.script(ApiKey::Metadata, [Reply::Twice]);
    admin.describe_topic("t").await.unwrap();
    while admin.describe_topic("t").await.is_err() {}
}
