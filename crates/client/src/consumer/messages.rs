//! The offset requests in each version that is spoken, and their answers as plain values.

use std::collections::BTreeMap;

use tramline_core::client::consumer_commits::CommitOffset;
use tramline_core::group::member::CommitContext;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use tramline_wire::messages::{OffsetCommitResponse, OffsetFetchResponse};
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::types::OffsetAndMetadata;

/// Partitions by topic, in order.
fn by_topic<T>(rows: impl IntoIterator<Item = (TopicPartition, T)>) -> BTreeMap<Str, Vec<(i32, T)>> {
    let mut topics: BTreeMap<Str, Vec<(i32, T)>> = BTreeMap::new();
    for (topic_partition, row) in rows {
        topics.entry(topic_partition.topic).or_default().push((topic_partition.partition, row));
    }
    topics
}

/// A commit as `context`; versions from 2 on take it as it is, but for what is too new for `version`.
pub(super) fn offset_commit(
    version: i16,
    context: CommitContext,
    offsets: Vec<(TopicPartition, CommitOffset)>,
) -> OffsetCommitRequest {
    let partition = |(partition_index, offset): (i32, CommitOffset)| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset.offset,
        committed_leader_epoch: offset.leader_epoch.filter(|_| version >= 6).unwrap_or(-1),
        committed_metadata: Some(offset.metadata),
    };
    let topics = by_topic(offsets)
        .into_iter()
        .map(|(name, rows)| OffsetCommitRequestTopic {
            name,
            partitions: rows.into_iter().map(partition).collect(),
            ..Default::default()
        })
        .collect();
    OffsetCommitRequest {
        group_id: context.group_id,
        generation_id_or_member_epoch: context.generation,
        member_id: context.member_id,
        group_instance_id: context.instance_id.filter(|_| version >= 7),
        topics,
        ..Default::default()
    }
}

/// The error code of each partition.
pub(super) fn commit_codes(
    response: OffsetCommitResponse,
) -> impl Iterator<Item = (TopicPartition, ErrorCode)> {
    response.topics.into_iter().flat_map(|topic| {
        topic.partitions.into_iter().map(move |row| {
            let topic_partition =
                TopicPartition { topic: topic.name.clone(), partition: row.partition_index };
            (topic_partition, ErrorCode::from(row.error_code))
        })
    })
}

/// Asks for the group's committed offsets of these partitions.
pub(super) fn offset_fetch(
    version: i16,
    group_id: Str,
    partitions: Vec<TopicPartition>,
) -> OffsetFetchRequest {
    let topics = by_topic(partitions.into_iter().map(|topic_partition| (topic_partition, ())));
    let indexes = |rows: Vec<(i32, ())>| rows.into_iter().map(|(partition, ())| partition).collect();
    let require_stable = version >= 7;
    if version < 8 {
        let topic = |(name, rows)| OffsetFetchRequestTopic { name, partition_indexes: indexes(rows) };
        let topics = Some(topics.into_iter().map(topic).collect());
        return OffsetFetchRequest { group_id, topics, require_stable, ..Default::default() };
    }
    let topic = |(name, rows)| OffsetFetchRequestTopics {
        name,
        partition_indexes: indexes(rows),
        ..Default::default()
    };
    let topics = Some(topics.into_iter().map(topic).collect());
    let group = OffsetFetchRequestGroup { group_id, topics, ..Default::default() };
    OffsetFetchRequest { groups: vec![group], require_stable, ..Default::default() }
}

/// What a group's answer about its offsets comes to: an error of the whole, or one row per partition.
pub(super) type Committed =
    Result<BTreeMap<TopicPartition, Result<Option<OffsetAndMetadata>, ErrorCode>>, ErrorCode>;

/// The committed offsets of this group in an answer of any version. What it says of other groups, or twice, is not believed.
pub(super) fn committed_offsets(group_id: &Str, response: OffsetFetchResponse) -> Committed {
    let mut offsets = BTreeMap::new();
    let mut add = |topic: &Str, partition, code, offset, epoch: i32, metadata: Option<Str>| {
        let topic_partition = TopicPartition { topic: topic.clone(), partition };
        let row = match ErrorCode::from(code) {
            ErrorCode::None if offset < 0 => Ok(None),
            ErrorCode::None => Ok(Some(
                OffsetAndMetadata::new(offset)
                    .leader_epoch(Some(epoch))
                    .metadata(metadata.unwrap_or_default()),
            )),
            code => Err(code),
        };
        offsets.entry(topic_partition).or_insert(row);
    };
    let mut code = response.error_code;
    for topic in response.topics {
        for row in topic.partitions {
            let (offset, epoch) = (row.committed_offset, row.committed_leader_epoch);
            add(&topic.name, row.partition_index, row.error_code, offset, epoch, row.metadata);
        }
    }
    if let Some(group) = response.groups.into_iter().find(|group| group.group_id == *group_id) {
        code = group.error_code;
        for topic in group.topics {
            for row in topic.partitions {
                let (offset, epoch) = (row.committed_offset, row.committed_leader_epoch);
                add(&topic.name, row.partition_index, row.error_code, offset, epoch, row.metadata);
            }
        }
    }
    if code == 0 { Ok(offsets) } else { Err(ErrorCode::from(code)) }
}
