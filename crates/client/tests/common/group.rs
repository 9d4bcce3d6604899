//! A coordinator of groups, scripted: offsets, and a group of one member.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use tramline_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use tramline_wire::messages::*;
use tramline_wire::{ErrorCode, Str};

use super::{Peer, topic_id};

/// What the peer's coordinator keeps, and the codes it answers the next commits with.
#[derive(Default)]
pub struct Offsets {
    pub committed: BTreeMap<i32, (i64, String)>,
    pub codes: Vec<ErrorCode>,
    /// The codes with which the next questions for offsets are answered: of the whole, and of each partition.
    pub fetch_codes: Vec<(ErrorCode, ErrorCode)>,
    /// The offsets of partition 0 in the order in which they were committed.
    pub history: Vec<i64>,
}

/// Makes the peer the coordinator of every group's offsets.
pub fn coordinate(peer: &Peer) -> Arc<Mutex<Offsets>> {
    let offsets = Arc::new(Mutex::new(Offsets::default()));
    let address = peer.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    peer.answer::<FindCoordinatorRequest>(move |request, _| {
        let row = |key: &Str| Coordinator {
            key: key.clone(),
            node_id: 1,
            host: host.as_str().into(),
            port,
            ..Default::default()
        };
        FindCoordinatorResponse {
            coordinators: request.coordinator_keys.iter().map(row).collect(),
            ..Default::default()
        }
    });
    let kept = offsets.clone();
    peer.answer::<OffsetCommitRequest>(move |request, _| {
        let mut kept = kept.lock().unwrap();
        let code = if kept.codes.is_empty() { ErrorCode::None } else { kept.codes.remove(0) };
        let mut rows = Vec::new();
        for row in &request.topics[0].partitions {
            if code == ErrorCode::None {
                let text = row.committed_metadata.clone().unwrap_or_default().to_string();
                kept.committed.insert(row.partition_index, (row.committed_offset, text));
                if row.partition_index == 0 {
                    kept.history.push(row.committed_offset);
                }
            }
            let partition_index = row.partition_index;
            rows.push(OffsetCommitResponsePartition { partition_index, error_code: code.code() });
        }
        let name = request.topics[0].name.clone();
        let topic = OffsetCommitResponseTopic { name, partitions: rows, ..Default::default() };
        OffsetCommitResponse { topics: vec![topic], ..Default::default() }
    });
    let kept = offsets.clone();
    peer.answer::<OffsetFetchRequest>(move |request, _| {
        let mut kept = kept.lock().unwrap();
        let (whole, each) = match kept.fetch_codes.is_empty() {
            true => (ErrorCode::None, ErrorCode::None),
            false => kept.fetch_codes.remove(0),
        };
        let group = &request.groups[0];
        let topic = &group.topics.as_ref().unwrap()[0];
        let row = |partition_index: &i32| {
            let (offset, text) = kept.committed.get(partition_index).cloned().unwrap_or((-1, String::new()));
            OffsetFetchResponsePartitions {
                partition_index: *partition_index,
                committed_offset: offset,
                error_code: each.code(),
                metadata: Some(text.into()),
                ..Default::default()
            }
        };
        let partitions = topic.partition_indexes.iter().map(row).collect();
        let topics =
            vec![OffsetFetchResponseTopics { name: topic.name.clone(), topic_id: topic_id("t"), partitions }];
        let group =
            OffsetFetchResponseGroup { group_id: group.group_id.clone(), topics, error_code: whole.code() };
        OffsetFetchResponse { groups: vec![group], ..Default::default() }
    });
    offsets
}

/// Lets the peer run a group of one member, which follows and is assigned partition 0 of `topic`.
pub fn one_member(peer: &Peer, topic: &'static str) {
    peer.answer::<JoinGroupRequest>(|request, _| JoinGroupResponse {
        generation_id: 1,
        protocol_name: Some(request.protocols[0].name.clone()),
        leader: "another".into(),
        member_id: "m".into(),
        ..Default::default()
    });
    peer.answer::<SyncGroupRequest>(move |_, _| {
        // Version 0; one topic, one partition; no user data.
        let mut assignment = vec![0, 0, 0, 0, 0, 1, 0, topic.len() as u8];
        assignment.extend(topic.bytes());
        assignment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        SyncGroupResponse { assignment: assignment.into(), ..Default::default() }
    });
    peer.answer::<HeartbeatRequest>(|_, _| HeartbeatResponse::default());
    peer.answer::<LeaveGroupRequest>(|_, _| LeaveGroupResponse::default());
}
