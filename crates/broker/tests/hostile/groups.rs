//! Clients that ask the coordinator for more than their share.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tramline_broker::BrokerConfig;
use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use tramline_wire::messages::{
    DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, OffsetCommitRequest,
    SyncGroupRequest,
};
use tramline_wire::{ErrorCode, Str};

use crate::HANG;
use crate::common::{Client, Stage};

fn join(group: &str, member: &str, metadata: Bytes) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        member_id: member.into(),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata }],
        ..JoinGroupRequest::default()
    }
}

fn commit(group: &str, member: Option<&JoinGroupResponse>, metadata: usize) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: member.map_or(-1, |member| member.generation_id),
        member_id: member.map(|member| member.member_id.clone()).unwrap_or_default(),
        topics: vec![OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![OffsetCommitRequestPartition {
                committed_metadata: Some("x".repeat(metadata).into()),
                ..OffsetCommitRequestPartition::default()
            }],
            ..OffsetCommitRequestTopic::default()
        }],
        ..OffsetCommitRequest::default()
    }
}

async fn committed(client: &mut Client, request: &OffsetCommitRequest) -> ErrorCode {
    let answer = timeout(HANG, client.call(8, request)).await.unwrap();
    ErrorCode::from(answer.topics[0].partitions[0].error_code)
}

async fn joined(client: &mut Client, version: i16, request: &JoinGroupRequest) -> JoinGroupResponse {
    timeout(HANG, client.call(version, request)).await.unwrap()
}

/// A member alone in its group, with its assignment.
async fn member(client: &mut Client, group: &str) -> JoinGroupResponse {
    let joined = joined(client, 3, &join(group, "", "m".into())).await;
    assert_eq!(joined.error_code, 0);
    let assignment =
        SyncGroupRequestAssignment { member_id: joined.member_id.clone(), assignment: "all".into() };
    let request = SyncGroupRequest {
        group_id: group.into(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: vec![assignment],
        ..SyncGroupRequest::default()
    };
    assert_eq!(timeout(HANG, client.call(3, &request)).await.unwrap().error_code, 0);
    joined
}

async fn beats(client: &mut Client, group: &str, member: &JoinGroupResponse) {
    let request = HeartbeatRequest {
        group_id: group.into(),
        generation_id: member.generation_id,
        member_id: member.member_id.clone(),
        ..HeartbeatRequest::default()
    };
    assert_eq!(timeout(HANG, client.call(3, &request)).await.unwrap().error_code, 0);
}

#[tokio::test]
async fn member_ids_are_given_out_to_no_more_than_may_be_members() {
    let stage = Stage::with(BrokerConfig::new().group_max_size(5)).await;
    let (mut good, mut hostile) = (stage.client().await, stage.client().await);
    let ours = member(&mut good, "ours").await;
    let mut ids = Vec::new();
    for n in 0..20 {
        let answer = joined(&mut hostile, 9, &join("theirs", "", "m".into())).await;
        let expected = if n < 5 { ErrorCode::MemberIdRequired } else { ErrorCode::GroupMaxSizeReached };
        assert_eq!(ErrorCode::from(answer.error_code), expected, "{n}");
        ids.push(answer.member_id);
    }
    // An id that was given out has its place; its join waits for those who have ids.
    hostile.send(9, &join("theirs", &ids[0], "m".into())).await;
    beats(&mut good, "ours", &ours).await;
    let asked = DescribeGroupsRequest { groups: vec!["theirs".into()], ..DescribeGroupsRequest::default() };
    let described = async { while good.call(5, &asked).await.groups[0].members.is_empty() {} };
    timeout(HANG, described).await.expect("a member");
}

#[tokio::test]
async fn members_that_say_too_much_are_put_off_and_those_that_are_there_go_on() {
    let stage = Stage::with(BrokerConfig::new().group_max_bytes(1 << 20)).await;
    let (mut good, mut hostile) = (stage.client().await, stage.client().await);
    good.create_topic("t", 1).await;
    let ours = member(&mut good, "ours").await;
    assert_eq!(committed(&mut good, &commit("ours", Some(&ours), 100)).await, ErrorCode::None);
    let mut put_off = 0;
    for n in 0..20 {
        let metadata = Bytes::from(vec![7; 200_000]);
        let answer = joined(&mut hostile, 3, &join(&format!("theirs {n}"), "", metadata)).await;
        match ErrorCode::from(answer.error_code) {
            ErrorCode::None => assert!(put_off == 0 && n < 5),
            ErrorCode::CoordinatorNotAvailable => put_off += 1,
            other => panic!("{other}"),
        }
    }
    assert!(put_off >= 15);
    let mut refused = 0;
    for n in 0..2000 {
        match committed(&mut hostile, &commit(&format!("{n}"), None, 4000)).await {
            ErrorCode::None => assert_eq!(refused, 0),
            ErrorCode::InvalidCommitOffsetSize => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(refused > 1700, "{refused}");
    beats(&mut good, "ours", &ours).await;
    assert_eq!(committed(&mut good, &commit("ours", Some(&ours), 100)).await, ErrorCode::None);
    let again = joined(&mut good, 3, &join("ours", &ours.member_id, "m".into())).await;
    assert_eq!((again.error_code, again.generation_id), (0, ours.generation_id + 1));
}

#[tokio::test]
async fn names_and_texts_beyond_their_limits_are_refused_one_by_one() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let long = "g".repeat(32_767);
    for (version, member) in [(3, ""), (9, "")] {
        let answer = joined(&mut client, version, &join(&long, member, "m".into())).await;
        assert_eq!(ErrorCode::from(answer.error_code), ErrorCode::InvalidGroupId);
    }
    assert_eq!(committed(&mut client, &commit(&long, None, 1)).await, ErrorCode::InvalidGroupId);
    assert_eq!(committed(&mut client, &commit("g", None, 4096)).await, ErrorCode::None);
    assert_eq!(committed(&mut client, &commit("g", None, 4097)).await, ErrorCode::OffsetMetadataTooLarge);
    // The longest name, with as many rows as a request may have: each would be written with the name.
    let name = "g".repeat(4096);
    let mut request = commit(&name, None, 0);
    let row = request.topics[0].partitions[0].clone();
    request.topics[0].partitions = vec![row; 50_000];
    assert_eq!(committed(&mut client, &request).await, ErrorCode::InvalidCommitOffsetSize);
    let long_instance =
        JoinGroupRequest { group_instance_id: Some("i".repeat(30_000).into()), ..join("h", "", "m".into()) };
    let answer = joined(&mut client, 5, &long_instance).await;
    assert!(answer.error_code == 0 && answer.member_id.len() < 400, "{}", answer.member_id.len());
}

#[tokio::test]
async fn members_with_tens_of_thousands_of_protocols_are_voted_on_all_the_same() {
    const PROTOCOLS: usize = 30_000;
    let stage = Stage::new().await;
    let (mut one, mut two) = (stage.client().await, stage.client().await);
    let with = |prefix: &str, member: &Str| {
        let own = (0..PROTOCOLS).map(|n| format!("{prefix}{n}"));
        let names = own.chain(["common".to_owned()]);
        let protocols =
            names.map(|name| JoinGroupRequestProtocol { name: name.into(), metadata: "m".into() });
        JoinGroupRequest { protocols: protocols.collect(), ..join("g", member, "m".into()) }
    };
    let first = joined(&mut one, 3, &with("a", &Str::new())).await;
    assert_eq!(first.error_code, 0);
    two.send(3, &with("b", &Str::new())).await;
    let asked = DescribeGroupsRequest { groups: vec!["g".into()], ..DescribeGroupsRequest::default() };
    let mut watcher = stage.client().await;
    let begun =
        async { while &*watcher.call(5, &asked).await.groups[0].group_state != "PreparingRebalance" {} };
    timeout(HANG, begun).await.expect("a rebalance");
    let again = joined(&mut one, 3, &with("a", &first.member_id)).await;
    let (_, second) = timeout(HANG, two.receive::<JoinGroupRequest>(3)).await.unwrap();
    assert_eq!((again.generation_id, second.generation_id), (2, 2));
    assert_eq!(again.protocol_name.as_deref(), Some("common"));
}

#[tokio::test]
async fn hundreds_of_joins_that_wait_disturb_no_other_group_and_go_with_their_connections() {
    let stage = Stage::with(BrokerConfig::new().group_initial_rebalance_delay(Duration::from_hours(1))).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut waiting = Vec::new();
    for n in 0..200 {
        let mut client = stage.client().await;
        client.send(3, &join(&format!("g{}", n % 3), "", Bytes::from(vec![7; 1000]))).await;
        waiting.push(client);
        assert_eq!(committed(&mut good, &commit("ours", None, 10)).await, ErrorCode::None);
    }
    let groups: Vec<Str> = vec!["g0".into(), "g1".into(), "g2".into()];
    let asked = DescribeGroupsRequest { groups, ..DescribeGroupsRequest::default() };
    let count = async |client: &mut Client, wanted: usize| {
        let reached = async {
            loop {
                let described = client.call(5, &asked).await.groups;
                if described.iter().map(|group| group.members.len()).sum::<usize>() == wanted {
                    return;
                }
            }
        };
        timeout(HANG, reached).await.unwrap_or_else(|_| panic!("never {wanted} members"));
    };
    count(&mut good, 200).await;
    drop(waiting);
    count(&mut good, 0).await;
    stage.broker.shutdown().await.unwrap();
}
