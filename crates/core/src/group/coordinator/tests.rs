//! Tests of the coordinator, request by request.

mod admin;
mod offsets;
mod rebalance;
mod requests;

use core::time::Duration;
use std::vec::Vec;

use bytes::Bytes;
use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;
use tramline_wire::messages::leave_group_request::MemberIdentity;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use tramline_wire::messages::*;
use tramline_wire::{Str, TopicPartition};

use super::{Config, Response, Token};
use crate::group::testing::{Durability, Node, Request};

const SECOND: Duration = Duration::from_secs(1);

/// A node with one request after another, each with a name for what it expects.
struct Desk {
    node: Node,
}

impl Desk {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        Self { node: Node::new(config, 5) }
    }

    fn pass(&mut self, length: Duration) {
        let until = self.node.now() + length;
        self.node.advance_to(until);
    }

    fn send(&mut self, request: JoinGroupRequest, version: i16) -> Token {
        self.node.handle(version, "c", Request::Join(request))
    }

    fn joined(&mut self, token: Token) -> JoinGroupResponse {
        match self.node.take_reply_to(token) {
            Some(Response::Join(response)) => response,
            other => panic!("expected a Join answer, not {other:?}"),
        }
    }

    fn waits(&mut self, token: Token) {
        assert_eq!(self.node.take_reply_to(token), None);
    }

    /// Asks for an id, which dynamic members need from version 4 on.
    fn id(&mut self) -> Str {
        let token = self.send(join(""), 9);
        let response = self.joined(token);
        assert_eq!(response.error_code, 79);
        response.member_id
    }

    /// Joins with a new id; the Join waits.
    fn new_member(&mut self) -> (Str, Token) {
        let id = self.id();
        let token = self.send(join(&id), 9);
        (id, token)
    }

    fn send_sync(&mut self, id: &str, generation: i32, assignments: &[(&str, &'static str)]) -> Token {
        let assignments = assignments.iter().map(|(id, bytes)| SyncGroupRequestAssignment {
            member_id: (*id).into(),
            assignment: Bytes::from_static(bytes.as_bytes()),
        });
        let request = SyncGroupRequest {
            group_id: "g".into(),
            generation_id: generation,
            member_id: id.into(),
            assignments: assignments.collect(),
            ..Default::default()
        };
        self.node.handle(5, "c", Request::Sync(request))
    }

    fn synced(&mut self, token: Token) -> (i16, Vec<u8>) {
        match self.node.take_reply_to(token) {
            Some(Response::Sync(response)) => (response.error_code, response.assignment.to_vec()),
            other => panic!("expected a Sync answer, not {other:?}"),
        }
    }

    fn sync(&mut self, id: &str, generation: i32) -> i16 {
        let token = self.send_sync(id, generation, &[]);
        self.synced(token).0
    }

    /// A Stable group of one member in generation 1, with the assignment `x`.
    fn stable(&mut self) -> Str {
        let (id, token) = self.new_member();
        assert_eq!(self.joined(token).generation_id, 1);
        let token = self.send_sync(&id, 1, &[(&id, "x")]);
        assert_eq!(self.synced(token), (0, b"x".to_vec()));
        id
    }

    /// A Stable group of two members in generation 2: leader and follower, with assignments `x` and `y`.
    fn stable_two(&mut self) -> (Str, Str) {
        let one = self.stable();
        let (two, waiting) = self.new_member();
        self.waits(waiting);
        assert_eq!(self.beat(&one, 1), 27);
        let token = self.send(join(&one), 9);
        let first = self.joined(token);
        let second = self.joined(waiting);
        assert_eq!((first.generation_id, second.generation_id), (2, 2));
        let leader = first.leader.clone();
        assert_eq!(leader, second.leader);
        let follower = if leader == one { two } else { one };
        let parked = self.send_sync(&follower, 2, &[]);
        self.waits(parked);
        let token = self.send_sync(&leader, 2, &[(&leader, "x"), (&follower, "y")]);
        assert_eq!(self.synced(token), (0, b"x".to_vec()));
        assert_eq!(self.synced(parked), (0, b"y".to_vec()));
        (leader, follower)
    }

    fn beat(&mut self, id: &str, generation: i32) -> i16 {
        let request = HeartbeatRequest {
            group_id: "g".into(),
            generation_id: generation,
            member_id: id.into(),
            ..Default::default()
        };
        let token = self.node.handle(4, "c", Request::Heartbeat(request));
        match self.node.take_reply_to(token) {
            Some(Response::Heartbeat(response)) => response.error_code,
            other => panic!("expected a Heartbeat answer, not {other:?}"),
        }
    }

    fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<i16> {
        let members = members.iter().map(|(id, instance)| MemberIdentity {
            member_id: (*id).into(),
            group_instance_id: instance.map(Str::from),
            ..Default::default()
        });
        let request =
            LeaveGroupRequest { group_id: "g".into(), members: members.collect(), ..Default::default() };
        let token = self.node.handle(5, "c", Request::Leave(request));
        match self.node.take_reply_to(token) {
            Some(Response::Leave(response)) => response.members.iter().map(|row| row.error_code).collect(),
            other => panic!("expected a Leave answer, not {other:?}"),
        }
    }

    fn send_commit(&mut self, id: &str, generation: i32, offset: i64, version: i16) -> Token {
        let request = OffsetCommitRequest {
            group_id: "g".into(),
            generation_id_or_member_epoch: generation,
            member_id: id.into(),
            topics: [commit_row("t", 0, offset, None)].into(),
            ..Default::default()
        };
        self.node.handle(version, "c", Request::OffsetCommit(request))
    }

    fn committed(&mut self, token: Token) -> Vec<i16> {
        match self.node.take_reply_to(token) {
            Some(Response::OffsetCommit(response)) => {
                let rows = response.topics.iter().flat_map(|topic| &topic.partitions);
                rows.map(|row| row.error_code).collect()
            }
            other => panic!("expected a commit's answer, not {other:?}"),
        }
    }

    fn commit(&mut self, id: &str, generation: i32) -> i16 {
        let token = self.send_commit(id, generation, 5, 8);
        self.committed(token)[0]
    }

    fn offset(&mut self) -> i64 {
        self.node.committed("g", &TopicPartition::new("t", 0))
    }

    fn state(&mut self) -> Str {
        self.describe("g", 5).group_state
    }

    fn describe(&mut self, id: &str, version: i16) -> describe_groups_response::DescribedGroup {
        let request = DescribeGroupsRequest { groups: [id.into()].into(), ..Default::default() };
        let token = self.node.handle(version, "c", Request::Describe(request));
        match self.node.take_reply_to(token) {
            Some(Response::DescribeGroups(response)) => response.groups[0].clone(),
            other => panic!("expected a description, not {other:?}"),
        }
    }

    fn delete(&mut self, id: &str) -> Token {
        let request = DeleteGroupsRequest { groups_names: [id.into()].into() };
        self.node.handle(2, "c", Request::Delete(request))
    }

    fn deleted(&mut self, token: Token) -> i16 {
        match self.node.take_reply_to(token) {
            Some(Response::DeleteGroups(response)) => response.results[0].error_code,
            other => panic!("expected a deletion's answer, not {other:?}"),
        }
    }
}

fn join(id: &str) -> JoinGroupRequest {
    join_with(id, &[("range", "m")])
}

fn join_with(id: &str, protocols: &[(&str, &'static str)]) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        member_id: id.into(),
        protocol_type: "consumer".into(),
        protocols: protocols
            .iter()
            .map(|(name, metadata)| JoinGroupRequestProtocol {
                name: (*name).into(),
                metadata: Bytes::from_static(metadata.as_bytes()),
            })
            .collect(),
        ..Default::default()
    }
}

fn join_static(id: &str, instance: &str) -> JoinGroupRequest {
    JoinGroupRequest { group_instance_id: Some(instance.into()), ..join(id) }
}

fn commit_row(topic: &str, partition: i32, offset: i64, metadata: Option<&str>) -> OffsetCommitRequestTopic {
    let row = OffsetCommitRequestPartition {
        partition_index: partition,
        committed_offset: offset,
        committed_metadata: metadata.map(Str::from),
        ..Default::default()
    };
    OffsetCommitRequestTopic { name: topic.into(), partitions: [row].into(), ..Default::default() }
}
