//! Consumer groups over sockets: joining, committing, and going on after a restart.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Client, Stage, batch};
use tokio::time::timeout;
use tramline_broker::BrokerConfig;
use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;
use tramline_wire::messages::leave_group_request::MemberIdentity;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use tramline_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use tramline_wire::messages::{
    DeleteGroupsRequest, DeleteTopicsRequest, DescribeGroupsRequest, FindCoordinatorRequest,
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest,
    MetadataRequest, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, SyncGroupRequest,
};
use tramline_wire::{ErrorCode, Str};

const HANG: Duration = Duration::from_secs(20);

fn join_request(member_id: Str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        member_id,
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: "subscription".into() }],
        ..JoinGroupRequest::default()
    }
}

/// Joins as a new member, by way of the id that the coordinator gives out.
async fn join(client: &mut Client) -> JoinGroupResponse {
    let asked = client.call(9, &join_request(Str::new())).await;
    assert_eq!(asked.error_code, ErrorCode::MemberIdRequired.code());
    timeout(HANG, client.call(9, &join_request(asked.member_id))).await.unwrap()
}

async fn stable_member(client: &mut Client) -> JoinGroupResponse {
    let joined = join(client).await;
    assert_eq!((joined.error_code, &joined.leader), (0, &joined.member_id));
    let request = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: vec![SyncGroupRequestAssignment {
            member_id: joined.member_id.clone(),
            assignment: "all of it".into(),
        }],
        ..SyncGroupRequest::default()
    };
    let synced = timeout(HANG, client.call(5, &request)).await.unwrap();
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"all of it"[..]));
    joined
}

fn commit_request(
    member: Option<&JoinGroupResponse>,
    topic: &str,
    partition: i32,
    offset: i64,
) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: member.map_or(-1, |member| member.generation_id),
        member_id: member.map(|member| member.member_id.clone()).unwrap_or_default(),
        topics: vec![OffsetCommitRequestTopic {
            name: topic.into(),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: partition,
                committed_offset: offset,
                committed_leader_epoch: 3,
                committed_metadata: Some("note".into()),
            }],
            ..OffsetCommitRequestTopic::default()
        }],
        ..OffsetCommitRequest::default()
    }
}

fn code(response: &OffsetCommitResponse) -> ErrorCode {
    ErrorCode::from(response.topics[0].partitions[0].error_code)
}

async fn committed(client: &mut Client, partition: i32) -> (i64, i32, String) {
    let request = OffsetFetchRequest {
        group_id: "g".into(),
        topics: Some(vec![OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![partition] }]),
        ..OffsetFetchRequest::default()
    };
    let response = client.call(7, &request).await;
    let row = &response.topics[0].partitions[0];
    assert_eq!((response.error_code, row.error_code), (0, 0));
    (row.committed_offset, row.committed_leader_epoch, row.metadata.clone().unwrap().to_string())
}

fn heartbeat(member: &JoinGroupResponse) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: "g".into(),
        generation_id: member.generation_id,
        member_id: member.member_id.clone(),
        ..HeartbeatRequest::default()
    }
}

#[tokio::test]
async fn the_coordinator_is_this_node_at_its_bound_port() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let port = i32::from(stage.broker.local_addr().port());
    for version in 0..=3 {
        let request = FindCoordinatorRequest { key: "g".into(), ..FindCoordinatorRequest::default() };
        let found = client.call(version, &request).await;
        assert_eq!((found.error_code, found.node_id, &*found.host, found.port), (0, 1, "127.0.0.1", port));
    }
    let request = FindCoordinatorRequest {
        coordinator_keys: vec!["g".into(), "h".into()],
        ..FindCoordinatorRequest::default()
    };
    let found = client.call(4, &request).await;
    assert_eq!(found.coordinators.len(), 2);
    assert!(found.coordinators.iter().all(|row| row.error_code == 0 && row.port == port));
}

#[tokio::test]
async fn b152_a_member_joins_commits_with_a_text_and_goes_on_by_heartbeat_after_a_restart() {
    for clean in [true, false] {
        let stage = Stage::new().await;
        let mut client = stage.client().await;
        client.create_topic("t", 2).await;
        client.produce("t", 0, 1, batch(&["a", "b", "c"])).await;
        let member = stable_member(&mut client).await;
        assert_eq!(code(&client.call(9, &commit_request(Some(&member), "t", 0, 2)).await), ErrorCode::None);
        assert_eq!(client.call(4, &heartbeat(&member)).await.error_code, 0);
        let stage = if clean {
            stage.restart(BrokerConfig::default()).await
        } else {
            stage.kill_and_restart(BrokerConfig::default()).await
        };
        let mut client = stage.client().await;
        assert_eq!(
            client.call(4, &heartbeat(&member)).await.error_code,
            0,
            "no rebalance, clean stop: {clean}"
        );
        assert_eq!(committed(&mut client, 0).await, (2, 3, "note".to_owned()));
        assert_eq!(committed(&mut client, 1).await, (-1, -1, String::new()), "never committed");
        assert_eq!(code(&client.call(9, &commit_request(Some(&member), "t", 0, 3)).await), ErrorCode::None);
        let described = client
            .call(6, &DescribeGroupsRequest { groups: vec!["g".into()], ..DescribeGroupsRequest::default() })
            .await;
        assert_eq!((&*described.groups[0].group_state, described.groups[0].members.len()), ("Stable", 1));
        stage.broker.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_commit_makes_the_data_below_it_durable_first() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, 1, batch(&["a", "b", "c"])).await;
    assert_eq!(stage.broker.metrics().barriers, 0);
    assert_eq!(code(&client.call(9, &commit_request(None, "t", 0, 3)).await), ErrorCode::None);
    assert_eq!(stage.broker.metrics().barriers, 2, "one for the data, one for the commit");
}

#[tokio::test]
async fn commits_for_what_does_not_exist_and_from_strangers_are_refused() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let member = stable_member(&mut client).await;
    let cases = [("nope", 0), ("t", 1)];
    for (topic, partition) in cases {
        let response = client.call(9, &commit_request(Some(&member), topic, partition, 0)).await;
        assert_eq!(code(&response), ErrorCode::UnknownTopicOrPartition);
    }
    let mut old = member.clone();
    old.generation_id -= 1;
    assert_eq!(
        code(&client.call(9, &commit_request(Some(&old), "t", 0, 0)).await),
        ErrorCode::IllegalGeneration
    );
    assert_eq!(code(&client.call(9, &commit_request(None, "t", 0, 0)).await), ErrorCode::UnknownMemberId);
}

#[tokio::test]
async fn b164_groups_are_listed_left_twice_and_deleted() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let member = stable_member(&mut client).await;
    client.call(9, &commit_request(Some(&member), "t", 0, 0)).await;
    let listed = client.call(5, &ListGroupsRequest::default()).await;
    assert_eq!((&*listed.groups[0].group_id, &*listed.groups[0].group_state), ("g", "Stable"));
    let delete = DeleteGroupsRequest { groups_names: vec!["g".into()] };
    assert_eq!(client.call(2, &delete).await.results[0].error_code, ErrorCode::NonEmptyGroup.code());
    let leave = LeaveGroupRequest {
        group_id: "g".into(),
        members: vec![MemberIdentity { member_id: member.member_id.clone(), ..MemberIdentity::default() }],
        ..LeaveGroupRequest::default()
    };
    let left = client.call(5, &leave).await;
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    let again = client.call(5, &leave).await;
    assert_eq!(again.members[0].error_code, ErrorCode::UnknownMemberId.code(), "the second time");
    assert_eq!(client.call(2, &delete).await.results[0].error_code, 0);
    assert_eq!(committed(&mut client, 0).await.0, -1, "a fresh group has no offsets");
}

#[tokio::test]
async fn deleting_a_topic_deletes_its_committed_offsets() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.call(9, &commit_request(None, "t", 0, 0)).await;
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(client.call(5, &request).await.responses[0].error_code, 0);
    client.create_topic("t", 1).await;
    assert_eq!(committed(&mut client, 0).await.0, -1);
}

#[tokio::test]
async fn the_offsets_log_is_shown_as_internal_to_who_asks_for_all_or_by_name() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    let all = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).await;
    assert!(all.topics.len() == 1 && all.topics[0].is_internal);
    assert_eq!(all.topics[0].name.as_deref(), Some("__consumer_offsets"));
    let topic = tramline_wire::messages::metadata_request::MetadataRequestTopic {
        name: Some("__consumer_offsets".into()),
        ..Default::default()
    };
    let named =
        client.call(12, &MetadataRequest { topics: Some(vec![topic]), ..MetadataRequest::default() }).await;
    assert!(named.topics[0].error_code == 0 && named.topics[0].is_internal);
}

#[tokio::test]
async fn a_waiting_join_is_answered_when_the_broker_stops() {
    let stage = Stage::new().await;
    let (mut one, mut two) = (stage.client().await, stage.client().await);
    stable_member(&mut one).await;
    let asked = two.call(9, &join_request(Str::new())).await;
    two.send(9, &join_request(asked.member_id)).await;
    let mut three = stage.client().await;
    let described = async {
        loop {
            let request =
                DescribeGroupsRequest { groups: vec!["g".into()], ..DescribeGroupsRequest::default() };
            if &*three.call(6, &request).await.groups[0].group_state == "PreparingRebalance" {
                return;
            }
        }
    };
    timeout(HANG, described).await.unwrap();
    stage.broker.shutdown().await.unwrap();
    let (_, response) = timeout(HANG, two.receive::<JoinGroupRequest>(9)).await.unwrap();
    let codes = [ErrorCode::CoordinatorNotAvailable, ErrorCode::NotCoordinator];
    assert!(codes.contains(&ErrorCode::from(response.error_code)), "{}", response.error_code);
    assert_eq!(two.frame().await, None);
}

#[tokio::test]
async fn a_running_broker_forgets_offsets_that_are_kept_too_long() {
    let config = BrokerConfig::default()
        .offsets_retention(Duration::ZERO)
        .offsets_retention_check_interval(Duration::from_millis(1));
    let stage = Stage::with(config).await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let answer = client.call(8, &commit_request(None, "t", 0, 7)).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    let forgotten = async {
        while committed(&mut client, 0).await.0 != -1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(HANG, forgotten).await.unwrap();
}
