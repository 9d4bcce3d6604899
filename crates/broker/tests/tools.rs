//! What command line tools and user interfaces ask a broker for, answered by one that has one node and no more than it says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Client, Stage, now};
use tramline_wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_quorum_request::{PartitionData, TopicData};
use tramline_wire::messages::describe_user_scram_credentials_request::UserName;
use tramline_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use tramline_wire::messages::{
    AlterPartitionReassignmentsRequest, DescribeClusterRequest, DescribeConfigsRequest,
    DescribeQuorumRequest, DescribeTransactionsRequest, DescribeUserScramCredentialsRequest,
    IncrementalAlterConfigsRequest, ListTransactionsRequest,
};

const UNKNOWN_PARTITION: i16 = 3;

fn quorum_of(topics: &[(&str, &[i32])]) -> DescribeQuorumRequest {
    let topic = |(name, partitions): &(&str, &[i32])| TopicData {
        topic_name: (*name).into(),
        partitions: partitions.iter().map(|n| PartitionData { partition_index: *n }).collect(),
    };
    DescribeQuorumRequest { topics: topics.iter().map(topic).collect() }
}

#[tokio::test]
async fn the_quorum_is_this_node_alone_and_of_no_other_log() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let cluster = client.call(0, &DescribeClusterRequest::default()).await;
    let (me, port) = (cluster.controller_id, stage.broker.local_addr().port());
    let mut epochs = Vec::new();
    for version in 0..=2 {
        let before = now();
        let told = client.call(version, &quorum_of(&[("__cluster_metadata", &[0])])).await;
        let row = &told.topics[0].partitions[0];
        assert_eq!((told.error_code, row.error_code, row.leader_id), (0, 0, me), "version {version}");
        let voters: Vec<i32> = row.current_voters.iter().map(|voter| voter.replica_id).collect();
        assert_eq!((voters, row.observers.len()), (vec![me], 0));
        if version >= 1 {
            assert!((before..=now()).contains(&row.current_voters[0].last_caught_up_timestamp));
        }
        let ports: Vec<u16> = told.nodes.iter().flat_map(|node| &node.listeners).map(|at| at.port).collect();
        assert_eq!(ports, if version < 2 { vec![] } else { vec![port] });
        epochs.push(row.leader_epoch);
        for other in [
            quorum_of(&[("__cluster_metadata", &[1])]),
            quorum_of(&[("__cluster_metadata", &[0, 0])]),
            quorum_of(&[("t", &[0])]),
            quorum_of(&[("__cluster_metadata", &[0]), ("t", &[0])]),
        ] {
            let told = client.call(version, &other).await;
            let rows = told.topics.iter().flat_map(|topic| &topic.partitions);
            assert!(rows.clone().count() > 0);
            assert!(
                rows.into_iter()
                    .all(|row| row.error_code == UNKNOWN_PARTITION && row.current_voters.is_empty())
            );
        }
    }
    let stage = stage.restart(Default::default()).await;
    let mut client = stage.client().await;
    let told = client.call(2, &quorum_of(&[("__cluster_metadata", &[0])])).await;
    assert!(
        epochs.iter().all(|epoch| *epoch < told.topics[0].partitions[0].leader_epoch),
        "a start is an epoch"
    );
}

/// The codes of one partition, once for each place it is told to go to.
async fn moved(client: &mut Client, name: &str, places: &[Option<&[i32]>]) -> Vec<i16> {
    let mut codes = Vec::new();
    for version in 0..=1 {
        for place in places {
            let partition =
                ReassignablePartition { partition_index: 0, replicas: place.map(<[i32]>::to_vec) };
            let topic = ReassignableTopic { name: name.into(), partitions: vec![partition] };
            let request = AlterPartitionReassignmentsRequest { topics: vec![topic], ..Default::default() };
            let told = client.call(version, &request).await;
            codes.push(told.responses[0].partitions[0].error_code);
        }
    }
    codes
}

#[tokio::test]
async fn a_partition_may_be_moved_to_where_it_is_and_nowhere_else() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let me = client.call(0, &DescribeClusterRequest::default()).await.controller_id;
    let places: [Option<&[i32]>; 5] = [Some(&[me]), Some(&[me + 1]), Some(&[me, me + 1]), Some(&[]), None];
    assert_eq!(moved(&mut client, "t", &places).await, [0, 39, 39, 39, 85, 0, 39, 39, 39, 85]);
    assert_eq!(moved(&mut client, "nope", &places[..1]).await, [UNKNOWN_PARTITION; 2]);
}

#[tokio::test]
async fn there_are_no_credentials_and_no_transactions_and_what_is_named_is_unknown() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    for users in [None, Some(Vec::new())] {
        let told = client.call(0, &DescribeUserScramCredentialsRequest { users }).await;
        assert_eq!((told.error_code, told.results.len()), (0, 0));
    }
    let users = Some(vec![UserName { name: "ada".into() }]);
    let told = client.call(0, &DescribeUserScramCredentialsRequest { users }).await;
    assert_eq!((&*told.results[0].user, told.results[0].error_code), ("ada", 91));
    for version in 0..=2 {
        let told = client.call(version, &ListTransactionsRequest::default()).await;
        assert_eq!((told.error_code, told.transaction_states.len()), (0, 0));
    }
    let transactional_ids = vec!["one".into(), "two".into()];
    let told = client.call(0, &DescribeTransactionsRequest { transactional_ids }).await;
    let rows: Vec<_> =
        told.transaction_states.iter().map(|row| (&*row.transactional_id, row.error_code)).collect();
    assert_eq!(rows, [("one", 105), ("two", 105)]);
}

#[tokio::test]
async fn what_has_no_settings_has_an_empty_list_of_them_and_throttles_may_be_taken_away_but_not_set() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let me = client.call(0, &DescribeClusterRequest::default()).await.controller_id;
    let (mine, other) = (me.to_string(), (me + 1).to_string());
    let asked = [(8, &*mine), (8, &*other), (16, "m"), (16, ""), (32, "g"), (32, ""), (64, "x")];
    let resource = |(kind, name): (i8, &str)| DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: None,
    };
    let resources = asked.map(resource).into();
    let told = client.call(4, &DescribeConfigsRequest { resources, ..Default::default() }).await;
    let codes: Vec<i16> = told.results.iter().map(|row| row.error_code).collect();
    assert_eq!(codes, [0, 42, 0, 42, 0, 42, 42]);
    assert!(told.results.iter().all(|row| row.configs.is_empty()));

    let mut codes = Vec::new();
    for (name, config_operation) in [
        ("leader.replication.throttled.rate", 1),
        ("follower.replication.throttled.rate", 1),
        ("replica.alter.log.dirs.io.max.bytes.per.second", 1),
        ("leader.replication.throttled.rate", 0),
        ("no.such.setting", 1),
    ] {
        let config = AlterableConfig { name: name.into(), config_operation, value: Some("1".into()) };
        let resource =
            AlterConfigsResource { resource_type: 4, resource_name: (&*mine).into(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        codes.push(client.call(1, &request).await.responses[0].error_code);
    }
    assert_eq!(codes, [0, 0, 0, 42, 40]);
}
