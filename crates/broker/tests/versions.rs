//! Every advertised version of every API is answered by a frame that decodes, with contents that only newer versions
//! can carry left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Client, Stage, batch, create_topics, fetch, produce};
use tramline_wire::messages::create_partitions_request::CreatePartitionsTopic;
use tramline_wire::messages::delete_topics_request::DeleteTopicState;
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use tramline_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use tramline_wire::messages::{
    CreatePartitionsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest,
    FindCoordinatorRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, OffsetCommitRequest,
    OffsetFetchRequest, OffsetForLeaderEpochRequest,
};

async fn topic_id(client: &mut Client) -> tramline_wire::Uuid {
    let response = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).await;
    response.topics.iter().find(|topic| topic.name.as_deref() == Some("t")).unwrap().topic_id
}

#[tokio::test]
async fn records_in_every_version() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic_with("t", 1, &[("max.message.bytes", "500")]).await;
    client.create_topic_with("compact", 1, &[("cleanup.policy", "compact")]).await;
    for version in 3..=11 {
        let large = "x".repeat(600);
        for (topic, bytes, fine) in
            [("t", batch(&["x"]), true), ("t", batch(&[&large]), false), ("compact", batch(&["x"]), false)]
        {
            let row = common::only_row(&client.call(version, &produce(topic, 0, -1, bytes)).await);
            assert_eq!(row.error_code == 0, fine, "produce version {version}");
        }
    }
    let id = topic_id(&mut client).await;
    for version in 4..=17 {
        for isolation_level in [0, 1] {
            for offset in [0, 99] {
                let mut request = fetch("t", 0, offset, 0, 1);
                request.isolation_level = isolation_level;
                if version < 7 {
                    request.session_epoch = -1;
                }
                if version >= 13 {
                    (request.topics[0].topic, request.topics[0].topic_id) = (Default::default(), id);
                }
                let row = common::only_partition(&client.call(version, &request).await);
                assert_eq!(row.error_code, i16::from(offset == 99), "fetch version {version}");
            }
        }
    }
    for version in 1..=10 {
        for timestamp in [-2, -1, 0, i64::MAX, -4, -5] {
            let partition = ListOffsetsPartition { partition_index: 0, current_leader_epoch: -1, timestamp };
            let request = ListOffsetsRequest {
                replica_id: -1,
                topics: vec![ListOffsetsTopic { name: "t".into(), partitions: vec![partition] }],
                ..ListOffsetsRequest::default()
            };
            let response = client.call(version, &request).await;
            let served = timestamp > -4 || version >= 4 - i16::try_from(timestamp).unwrap();
            let code = if served { 0 } else { 35 };
            assert_eq!(response.topics[0].partitions[0].error_code, code, "list offsets version {version}");
        }
    }
    for version in 2..=4 {
        let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch: -1, leader_epoch: 0 };
        let request = OffsetForLeaderEpochRequest {
            replica_id: -1,
            topics: vec![OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] }],
        };
        assert_eq!(client.call(version, &request).await.topics[0].partitions[0].end_offset, 9);
    }
}

#[tokio::test]
async fn topics_and_settings_in_every_version() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    for version in 2..=7 {
        for partitions in [1, 0] {
            let mut request = create_topics(&format!("t{version}"), partitions, &[]);
            request.topics[0].replication_factor = 1;
            let response = client.call(version, &request).await;
            assert_eq!(response.topics[0].error_code == 0, partitions == 1, "create version {version}");
        }
    }
    for version in 0..=13 {
        let topics = if version == 0 { Some(Vec::new()) } else { None };
        let response = client.call(version, &MetadataRequest { topics, ..MetadataRequest::default() }).await;
        // Six and the offsets log, which version 0 cannot mark.
        assert_eq!(response.topics.len(), 7, "metadata version {version}");
    }
    for version in 0..=3 {
        for count in [version + 2, 1] {
            let topic =
                CreatePartitionsTopic { name: "t7".into(), count: count.into(), ..Default::default() };
            let request =
                CreatePartitionsRequest { topics: vec![topic], ..CreatePartitionsRequest::default() };
            let code = client.call(version, &request).await.results[0].error_code;
            assert_eq!(code == 0, count > 1, "create partitions version {version}");
        }
    }
    for version in 1..=4 {
        let resource = |name: &str| DescribeConfigsResource {
            resource_type: 2,
            resource_name: name.into(),
            configuration_keys: None,
        };
        let request = DescribeConfigsRequest {
            resources: vec![resource("t7"), resource("nope")],
            include_synonyms: true,
            ..DescribeConfigsRequest::default()
        };
        let response = client.call(version, &request).await;
        assert_eq!(response.results[0].configs.len(), 31, "describe configs version {version}");
    }
    for version in 1..=6 {
        let name = format!("t{}", version + 1);
        for code in [0, 3] {
            let mut request = DeleteTopicsRequest::default();
            if version >= 6 {
                request
                    .topics
                    .push(DeleteTopicState { name: Some((&name).into()), ..DeleteTopicState::default() });
            } else {
                request.topic_names.push((&name).into());
            }
            assert_eq!(
                client.call(version, &request).await.responses[0].error_code,
                code,
                "delete version {version}"
            );
        }
    }
}

#[tokio::test]
async fn producer_ids_and_coordinators_in_every_version() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    for version in 0..=5 {
        let request = InitProducerIdRequest { transactional_id: None, ..InitProducerIdRequest::default() };
        assert_eq!(client.call(version, &request).await.error_code, 0);
        let mut request = FindCoordinatorRequest::default();
        if version < 4 {
            request.key = "g".into();
        } else {
            request.coordinator_keys.push("g".into());
        }
        let response = client.call(version, &request).await;
        let port = response.coordinators.first().map_or(response.port, |coordinator| coordinator.port);
        assert_eq!(port, i32::from(stage.broker.local_addr().port()));
    }
    for version in 0..=2 {
        assert_eq!(client.call(version, &DescribeClusterRequest::default()).await.brokers.len(), 1);
    }
}

#[tokio::test]
async fn offsets_in_every_version() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for version in 2..=9 {
        let partition = |partition_index| OffsetCommitRequestPartition {
            partition_index,
            committed_metadata: Some("note".into()),
            ..OffsetCommitRequestPartition::default()
        };
        let request = OffsetCommitRequest {
            group_id: "g".into(),
            topics: vec![OffsetCommitRequestTopic {
                name: "t".into(),
                partitions: vec![partition(0), partition(1)],
                ..OffsetCommitRequestTopic::default()
            }],
            ..OffsetCommitRequest::default()
        };
        let response = client.call(version, &request).await;
        let codes: Vec<i16> = response.topics[0].partitions.iter().map(|row| row.error_code).collect();
        assert_eq!(codes, [0, 3], "commit version {version}");
    }
    for version in 1..=9 {
        let mut request = OffsetFetchRequest::default();
        if version >= 8 {
            let topics = OffsetFetchRequestTopics {
                name: "t".into(),
                partition_indexes: vec![0, 1],
                ..Default::default()
            };
            let group = OffsetFetchRequestGroup {
                group_id: "g".into(),
                topics: Some(vec![topics]),
                ..Default::default()
            };
            request.groups.push(group);
        } else {
            request.group_id = "g".into();
            request.topics =
                Some(vec![OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![0, 1] }]);
        }
        let response = client.call(version, &request).await;
        let found: Vec<i64> = if version >= 8 {
            response.groups[0].topics[0].partitions.iter().map(|row| row.committed_offset).collect()
        } else {
            response.topics[0].partitions.iter().map(|row| row.committed_offset).collect()
        };
        assert_eq!(found, [0, -1], "offset fetch version {version}");
    }
}
