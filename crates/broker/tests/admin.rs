//! Settings that can be changed and act, records and offsets that can be deleted, and what tools probe.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Client, Stage, batch, batch_at, now};
use tramline_broker::BrokerConfig;
use tramline_wire::Compression;
use tramline_wire::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use tramline_wire::messages::create_acls_request::AclCreation;
use tramline_wire::messages::delete_acls_request::DeleteAclsFilter;
use tramline_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use tramline_wire::messages::describe_producers_request::TopicRequest as ProducersOf;
use tramline_wire::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use tramline_wire::messages::elect_leaders_request::TopicPartitions;
use tramline_wire::messages::incremental_alter_configs_request as incremental;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use tramline_wire::messages::{
    AlterConfigsRequest, CreateAclsRequest, DeleteAclsRequest, DeleteRecordsRequest, DescribeAclsRequest,
    DescribeClientQuotasRequest, DescribeConfigsRequest, DescribeLogDirsRequest, DescribeProducersRequest,
    DescribeTopicPartitionsRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest, ListPartitionReassignmentsRequest, OffsetCommitRequest, OffsetDeleteRequest,
    OffsetFetchRequest,
};

const SET: i8 = 0;
const REMOVE: i8 = 1;
const APPEND: i8 = 2;

async fn alter(client: &mut Client, version: i16, configs: &[(&str, i8, &str)]) -> i16 {
    let config = |(name, config_operation, value): &(&str, i8, &str)| incremental::AlterableConfig {
        name: (*name).into(),
        config_operation: *config_operation,
        value: (*config_operation != REMOVE).then(|| (*value).into()),
    };
    let resource = incremental::AlterConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        configs: configs.iter().map(config).collect(),
    };
    let request = IncrementalAlterConfigsRequest {
        resources: vec![resource],
        ..IncrementalAlterConfigsRequest::default()
    };
    client.call(version, &request).await.responses[0].error_code
}

async fn replace(client: &mut Client, version: i16, name: &str, configs: &[(&str, &str)]) -> i16 {
    let config =
        |(name, value): &(&str, &str)| AlterableConfig { name: (*name).into(), value: Some((*value).into()) };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: name.into(),
        configs: configs.iter().map(config).collect(),
    };
    let request = AlterConfigsRequest { resources: vec![resource], ..AlterConfigsRequest::default() };
    client.call(version, &request).await.responses[0].error_code
}

/// Value and source of one setting.
async fn setting(client: &mut Client, kind: i8, resource: &str, name: &str) -> (String, i8) {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: resource.into(),
        configuration_keys: Some(vec![name.into()]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    let response = client.call(4, &request).await;
    let row = &response.results[0].configs[0];
    (row.value.clone().unwrap().to_string(), row.config_source)
}

#[tokio::test]
async fn altered_settings_act_at_once_and_after_a_restart() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let large = "x".repeat(600);
    assert_eq!(client.produce("t", 0, -1, batch(&[&large])).await.error_code, 0);
    assert_eq!(
        alter(
            &mut client,
            1,
            &[("max.message.bytes", SET, "500"), ("message.timestamp.type", SET, "LogAppendTime")]
        )
        .await,
        0
    );
    assert_eq!(client.produce("t", 0, -1, batch(&[&large])).await.error_code, 10);
    let before = now();
    let stamped = client.produce("t", 0, -1, batch_at(&["a"], 5, Compression::None)).await;
    assert!(stamped.log_append_time_ms >= before);
    assert_eq!(client.offset_at("t", 0, before).await.offset, stamped.base_offset);
    let stage = stage.kill_and_restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    assert_eq!(client.produce("t", 0, -1, batch(&[&large])).await.error_code, 10);
    assert_eq!(setting(&mut client, 2, "t", "max.message.bytes").await, ("500".to_owned(), 1));
    assert_eq!(
        alter(&mut client, 0, &[("max.message.bytes", REMOVE, ""), ("message.timestamp.type", REMOVE, "")])
            .await,
        0
    );
    assert_eq!(setting(&mut client, 2, "t", "max.message.bytes").await, ("1048588".to_owned(), 5));
    let unstamped = client.produce("t", 0, -1, batch(&[&large])).await;
    assert_eq!((unstamped.error_code, unstamped.log_append_time_ms), (0, -1));
}

#[tokio::test]
async fn altering_replaces_all_or_single_settings_and_refuses_nonsense_whole() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic_with("t", 1, &[("retention.ms", "5000000")]).await;
    for version in 0..=2 {
        assert_eq!(replace(&mut client, version, "t", &[("segment.ms", "9")]).await, 0);
    }
    assert_eq!(setting(&mut client, 2, "t", "retention.ms").await, ("604800000".to_owned(), 5));
    assert_eq!(alter(&mut client, 1, &[("cleanup.policy", APPEND, "compact")]).await, 0);
    assert_eq!(setting(&mut client, 2, "t", "cleanup.policy").await, ("delete,compact".to_owned(), 1));
    assert_eq!(alter(&mut client, 1, &[("segment.ms", SET, "10"), ("segment.bytes", SET, "-3")]).await, 40);
    assert_eq!(setting(&mut client, 2, "t", "segment.ms").await, ("9".to_owned(), 1), "all or none");
    assert_eq!(alter(&mut client, 1, &[("segment.ms", APPEND, "10")]).await, 40);
    assert_eq!(alter(&mut client, 1, &[("segment.ms", 9, "10")]).await, 42);
    assert_eq!(replace(&mut client, 2, "nope", &[]).await, 3);
    assert_eq!(replace(&mut client, 2, "__consumer_offsets", &[("segment.ms", "9")]).await, 3);
    let directory = setting(&mut client, 4, "1", "log.dirs").await.0;
    assert_eq!(directory, stage.dir.path().display().to_string());
}

async fn delete_records(client: &mut Client, version: i16, topic: &str, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 1000 };
    let row = client.call(version, &request).await.topics[0].partitions[0].clone();
    (row.error_code, row.low_watermark)
}

#[tokio::test]
async fn deleted_records_are_gone_for_readers_and_after_a_kill() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.create_topic_with("compact", 1, &[("cleanup.policy", "compact")]).await;
    for value in ["a", "b", "c", "d"] {
        client.produce("t", 0, 1, batch(&[value])).await;
    }
    for version in 0..=2 {
        let offset = i64::from(version) + 1;
        assert_eq!(delete_records(&mut client, version, "t", offset).await, (0, offset));
    }
    assert_eq!(delete_records(&mut client, 2, "t", 1).await, (0, 3), "never back");
    assert_eq!(delete_records(&mut client, 2, "t", 5).await, (1, -1));
    assert_eq!(delete_records(&mut client, 2, "nope", 0).await, (3, -1));
    assert_eq!(delete_records(&mut client, 2, "compact", 0).await, (44, -1));
    assert_eq!(delete_records(&mut client, 2, "__consumer_offsets", -1).await, (17, -1));
    assert_eq!(client.fetch("t", 0, 2).await.error_code, 1);
    let stage = stage.kill_and_restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    assert_eq!(client.values("t", 0, 3).await, [(3, "d".to_owned())]);
    assert_eq!(client.fetch("t", 0, 2).await.error_code, 1);
    assert_eq!(delete_records(&mut client, 2, "t", -1).await, (0, 4));
    assert_eq!(client.offset_at("t", 0, -2).await.offset, 4);
}

async fn delete_offset(client: &mut Client, group: &str, partition_index: i32) -> (i16, Vec<i16>) {
    let topic = OffsetDeleteRequestTopic {
        name: "t".into(),
        partitions: vec![OffsetDeleteRequestPartition { partition_index }],
    };
    let request = OffsetDeleteRequest { group_id: group.into(), topics: vec![topic] };
    let response = client.call(0, &request).await;
    let rows = response.topics.iter().flat_map(|topic| &topic.partitions);
    (response.error_code, rows.map(|row| row.error_code).collect())
}

#[tokio::test]
async fn a_deleted_offset_is_gone_also_after_a_kill() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 2).await;
    assert_eq!(delete_offset(&mut client, "g", 0).await, (69, vec![]));
    let row = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 7,
        ..OffsetCommitRequestPartition::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: "t".into(),
        partitions: vec![row(0), row(1)],
        ..OffsetCommitRequestTopic::default()
    };
    let commit =
        OffsetCommitRequest { group_id: "g".into(), topics: vec![topic], ..OffsetCommitRequest::default() };
    client.call(8, &commit).await;
    assert_eq!(delete_offset(&mut client, "g", 0).await, (0, vec![0]));
    assert_eq!(delete_offset(&mut client, "g", 9).await, (0, vec![3]));
    let stage = stage.kill_and_restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    let topics = vec![OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![0, 1] }];
    let request =
        OffsetFetchRequest { group_id: "g".into(), topics: Some(topics), ..OffsetFetchRequest::default() };
    let response = client.call(7, &request).await;
    let offsets: Vec<i64> = response.topics[0].partitions.iter().map(|row| row.committed_offset).collect();
    assert_eq!(offsets, [-1, 7]);
}

#[tokio::test]
async fn log_directories_tell_the_size_of_each_partition_in_every_version() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 2).await;
    let bytes = batch(&["value"]);
    client.produce("t", 1, -1, bytes.clone()).await;
    let topic = DescribableLogDirTopic { topic: "t".into(), partitions: vec![0, 1] };
    for version in 1..=4 {
        for topics in [None, Some(vec![topic.clone()])] {
            let response = client.call(version, &DescribeLogDirsRequest { topics }).await;
            let found = response.results[0].topics.iter().find(|topic| topic.name.as_str() == "t").unwrap();
            let sizes: Vec<i64> = found.partitions.iter().map(|row| row.partition_size).collect();
            assert_eq!(sizes, [0, i64::try_from(bytes.len()).unwrap()]);
        }
    }
}

#[tokio::test]
async fn topics_are_described_page_by_page() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    for name in ["a", "b", "c"] {
        client.create_topic(name, 2).await;
    }
    let mut cursor: Option<Cursor> = None;
    let mut pages = Vec::new();
    loop {
        let request =
            DescribeTopicPartitionsRequest { topics: Vec::new(), response_partition_limit: 3, cursor };
        let response = client.call(0, &request).await;
        for row in response.topics.iter().flat_map(|topic| &topic.partitions) {
            // Kafka's admin client fails on null.
            assert_eq!(row.eligible_leader_replicas.as_deref(), Some(&[][..]));
            assert_eq!(row.last_known_elr.as_deref(), Some(&[][..]));
        }
        let rows = response.topics.iter().flat_map(|topic| {
            let name = topic.name.clone().unwrap();
            topic.partitions.iter().map(move |row| format!("{name}{}", row.partition_index))
        });
        pages.push(rows.collect::<Vec<_>>().join(" "));
        let Some(next) = response.next_cursor else { break };
        cursor = Some(Cursor { topic_name: next.topic_name, partition_index: next.partition_index });
    }
    assert_eq!(pages, ["__consumer_offsets0 a0 a1", "b0 b1 c0", "c1"]);
    let topics = vec![TopicRequest { name: "nope".into() }];
    let request = DescribeTopicPartitionsRequest { topics, ..DescribeTopicPartitionsRequest::default() };
    assert_eq!(client.call(0, &request).await.topics[0].error_code, 3);
}

#[tokio::test]
async fn what_is_not_there_is_told_so_that_tools_go_on() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for version in 1..=3 {
        let request = DescribeAclsRequest {
            resource_type_filter: 1,
            pattern_type_filter: 3,
            operation: 1,
            permission_type: 1,
            ..DescribeAclsRequest::default()
        };
        assert_eq!(client.call(version, &request).await.error_code, 54);
        let request = CreateAclsRequest { creations: vec![AclCreation::default()] };
        assert_eq!(client.call(version, &request).await.results[0].error_code, 54);
        let request = DeleteAclsRequest {
            filters: vec![DeleteAclsFilter { pattern_type_filter: 3, ..DeleteAclsFilter::default() }],
        };
        assert_eq!(client.call(version, &request).await.filter_results[0].error_code, 54);
    }
    for version in 0..=2 {
        let asked = TopicPartitions { topic: "t".into(), partitions: vec![0, 1] };
        let request =
            ElectLeadersRequest { topic_partitions: Some(vec![asked]), ..ElectLeadersRequest::default() };
        let response = client.call(version, &request).await;
        let rows = response.replica_election_results[0].partition_result.iter();
        assert_eq!(rows.map(|row| row.error_code).collect::<Vec<_>>(), [84, 3]);
        let request = ElectLeadersRequest { topic_partitions: None, ..ElectLeadersRequest::default() };
        assert!(client.call(version, &request).await.replica_election_results.is_empty());
    }
    assert!(client.call(0, &ListPartitionReassignmentsRequest::default()).await.topics.is_empty());
    for version in 0..=1 {
        let quotas = client.call(version, &DescribeClientQuotasRequest::default()).await;
        assert_eq!((quotas.error_code, quotas.entries.map(|entries| entries.len())), (0, Some(0)));
        let resources = client.call(version, &ListConfigResourcesRequest::default()).await.config_resources;
        let found: Vec<(i8, &str)> =
            resources.iter().map(|row| (row.resource_type, row.resource_name.as_str())).collect();
        let expected: &[(i8, &str)] =
            if version == 0 { &[] } else { &[(2, "__consumer_offsets"), (2, "t"), (4, "1")] };
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn the_producers_of_a_partition_are_told() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for sequence in [0, 2] {
        let row = client.produce("t", 0, -1, common::sequenced(&["a", "b"], 5, 1, sequence)).await;
        assert_eq!(row.error_code, 0);
    }
    let topic = ProducersOf { name: "t".into(), partition_indexes: vec![0, 1] };
    let response = client.call(0, &DescribeProducersRequest { topics: vec![topic] }).await;
    let rows = &response.topics[0].partitions;
    let found = &rows[0].active_producers[0];
    assert_eq!((found.producer_id, found.producer_epoch, found.last_sequence), (5, 1, 3));
    assert_eq!(rows[1].error_code, 3);
}
