//! Topics over sockets: creating, growing, deleting, describing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use common::{Client, Stage, batch, create_topics};
use tramline_broker::BrokerConfig;
use tramline_wire::messages::create_partitions_request::CreatePartitionsTopic;
use tramline_wire::messages::delete_topics_request::DeleteTopicState;
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::metadata_request::MetadataRequestTopic;
use tramline_wire::messages::metadata_response::MetadataResponseTopic;
use tramline_wire::messages::{
    CreatePartitionsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest,
    MetadataRequest,
};
use tramline_wire::{ErrorCode, Str, Uuid};

async fn named(
    client: &mut Client,
    version: i16,
    names: &[&str],
    create: bool,
) -> Vec<MetadataResponseTopic> {
    let topics = names
        .iter()
        .map(|name| MetadataRequestTopic { name: Some((*name).into()), ..Default::default() })
        .collect();
    let request = MetadataRequest {
        topics: Some(topics),
        // Older versions cannot say no.
        allow_auto_topic_creation: create || version < 4,
        ..MetadataRequest::default()
    };
    client.call(version, &request).await.topics
}

#[tokio::test]
async fn creating_answers_each_topic_for_itself() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("exists.1", 1).await;
    let mut request = create_topics("fine", 2, &[("retention.ms", "1000")]);
    let bad = [
        ("exists.1", 1, -1, ErrorCode::TopicAlreadyExists),
        ("exists_1", 1, -1, ErrorCode::InvalidTopicException),
        ("no spaces", 1, -1, ErrorCode::InvalidTopicException),
        ("..", 1, -1, ErrorCode::InvalidTopicException),
        ("__consumer_offsets", 1, -1, ErrorCode::InvalidTopicException),
        ("none", 0, -1, ErrorCode::InvalidPartitions),
        ("too-many", 10_001, -1, ErrorCode::InvalidPartitions),
        ("replicas", 1, 3, ErrorCode::InvalidReplicationFactor),
    ];
    for (name, partitions, replicas, _) in bad {
        let mut topic = create_topics(name, partitions, &[]).topics.remove(0);
        topic.replication_factor = replicas;
        request.topics.push(topic);
    }
    request.topics.extend(create_topics("key", 1, &[("no.such.key", "1")]).topics);
    request.topics.extend(create_topics("value", 1, &[("retention.ms", "soon")]).topics);
    request.topics.extend(create_topics("twice", 1, &[]).topics);
    request.topics.extend(create_topics("twice", 1, &[]).topics);
    let response = client.call(7, &request).await;
    let codes: BTreeMap<String, ErrorCode> =
        response.topics.iter().map(|row| (row.name.to_string(), ErrorCode::from(row.error_code))).collect();
    let mut expected: BTreeMap<String, ErrorCode> =
        bad.iter().map(|(name, .., code)| ((*name).to_owned(), *code)).collect();
    expected.insert("fine".to_owned(), ErrorCode::None);
    expected.insert("key".to_owned(), ErrorCode::InvalidConfig);
    expected.insert("value".to_owned(), ErrorCode::InvalidConfig);
    expected.insert("twice".to_owned(), ErrorCode::InvalidRequest);
    assert_eq!(codes, expected);
    let fine = &response.topics[0];
    assert_eq!((fine.num_partitions, fine.replication_factor), (2, 1));
    assert!(!fine.topic_id.is_zero());
    assert_eq!(fine.configs.as_ref().unwrap().len(), 31);
    assert_eq!(client.produce("fine", 1, -1, batch(&["at once"])).await.error_code, 0);
}

#[tokio::test]
async fn validate_only_creates_nothing() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let mut request = create_topics("t", 1, &[]);
    request.validate_only = true;
    let row = &client.call(7, &request).await.topics[0];
    assert_eq!((row.error_code, row.topic_id), (0, Uuid::ZERO));
    assert_eq!(named(&mut client, 12, &["t"], false).await[0].error_code, 3);
}

#[tokio::test]
async fn topics_are_created_on_demand_only_where_allowed() {
    let stage = Stage::with(BrokerConfig::new().default_partitions(3)).await;
    let mut client = stage.client().await;
    assert_eq!(named(&mut client, 4, &["t"], false).await[0].error_code, 3);
    let topic = named(&mut client, 4, &["t"], true).await.remove(0);
    assert_eq!((topic.error_code, topic.partitions.len(), topic.partitions[2].leader_id), (0, 3, 1));
    assert_eq!(named(&mut client, 1, &["old"], false).await[0].error_code, 0, "versions 0 to 3 imply it");
    assert_eq!(named(&mut client, 12, &["no spaces"], true).await[0].error_code, 17);
    assert_eq!(named(&mut client, 12, &["t", "t"], true).await.len(), 1, "answered once");
    let none = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
    assert!(client.call(1, &none).await.topics.is_empty());
    assert_eq!(
        client.call(0, &none).await.topics.len(),
        3,
        "in version 0 none means all, the offsets log too"
    );
    let stage = stage.restart(BrokerConfig::new().auto_create_topics(false)).await;
    let mut client = stage.client().await;
    assert_eq!(named(&mut client, 4, &["u"], true).await[0].error_code, 3);
}

#[tokio::test]
async fn b160_a_topic_deleted_and_made_again_is_a_new_one() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, -1, batch(&["old"])).await;
    let old = named(&mut client, 12, &["t"], false).await[0].topic_id;
    let delete = DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: None, topic_id: old }],
        ..DeleteTopicsRequest::default()
    };
    assert_eq!(client.call(6, &delete).await.responses[0].error_code, 0);
    assert_eq!(client.call(6, &delete).await.responses[0].error_code, ErrorCode::UnknownTopicId.code());
    assert_eq!(client.produce("t", 0, -1, batch(&["lost"])).await.error_code, 3);
    assert!(!stage.dir.path().join("t-0").exists());
    client.create_topic("t", 1).await;
    let new = named(&mut client, 12, &["t"], false).await[0].topic_id;
    assert_ne!(old, new);
    assert!(client.values("t", 0, 0).await.is_empty());
    assert_eq!(client.produce("t", 0, -1, batch(&["new"])).await.base_offset, 0);
    let by_id = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { topic_id: old, name: None }]),
        ..MetadataRequest::default()
    };
    let row = &client.call(12, &by_id).await.topics[0];
    assert_eq!((row.error_code, &row.name), (ErrorCode::UnknownTopicId.code(), &None));
}

#[tokio::test]
async fn b154_partitions_are_added_and_never_taken_away() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 2).await;
    client.produce("t", 1, -1, batch(&["kept"])).await;
    let topic = |name: &str, count| CreatePartitionsTopic { name: name.into(), count, ..Default::default() };
    let request = CreatePartitionsRequest {
        topics: vec![topic("t", 4), topic("t", 2), topic("nope", 9)],
        ..CreatePartitionsRequest::default()
    };
    let response = client.call(3, &request).await;
    let codes: Vec<i16> = response.results.iter().map(|row| row.error_code).collect();
    assert_eq!(codes, [0, 37, 3]);
    assert_eq!(client.produce("t", 3, -1, batch(&["x"])).await.base_offset, 0);
    let stage = stage.restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    assert_eq!(named(&mut client, 12, &["t"], false).await[0].partitions.len(), 4);
    assert_eq!(client.values("t", 1, 0).await.len(), 1);
}

#[tokio::test]
async fn every_setting_is_described_with_its_source() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic_with("t", 1, &[("retention.ms", "1000")]).await;
    let resource = |resource_type, name: &str, keys: Option<Vec<Str>>| DescribeConfigsResource {
        resource_type,
        resource_name: name.into(),
        configuration_keys: keys,
    };
    let request = DescribeConfigsRequest {
        resources: vec![
            resource(2, "t", None),
            resource(2, "t", Some(vec!["retention.ms".into()])),
            resource(2, "nope", None),
            resource(4, "1", None),
            resource(4, "2", None),
        ],
        include_synonyms: true,
        ..DescribeConfigsRequest::default()
    };
    let response = client.call(4, &request).await;
    let codes: Vec<i16> = response.results.iter().map(|row| row.error_code).collect();
    assert_eq!(codes, [0, 0, 3, 0, 42]);
    assert_eq!(response.results[0].configs.len(), 31);
    let retention = &response.results[1].configs[0];
    assert_eq!(
        (retention.value.as_deref(), retention.config_source, retention.config_type),
        (Some("1000"), 1, 5)
    );
    assert_eq!(retention.synonyms.len(), 2);
    assert!(response.results[3].configs.iter().any(|row| &*row.name == "auto.create.topics.enable"));
}

#[tokio::test]
async fn the_cluster_is_one_broker_at_the_advertised_address() {
    let stage = Stage::with(BrokerConfig::new().advertised_host("example.test").advertised_port(1234)).await;
    let mut client = stage.client().await;
    let cluster = client.call(1, &DescribeClusterRequest::default()).await;
    assert_eq!((cluster.error_code, cluster.controller_id), (0, 1));
    assert_eq!((&*cluster.brokers[0].host, cluster.brokers[0].port), ("example.test", 1234));
    let metadata = client.call(12, &MetadataRequest { topics: Some(Vec::new()), ..Default::default() }).await;
    assert_eq!(metadata.cluster_id, Some(cluster.cluster_id.clone()));
    assert_eq!(cluster.cluster_id.len(), 22);
    assert_eq!((&*metadata.brokers[0].host, metadata.brokers[0].port), ("example.test", 1234));
}
