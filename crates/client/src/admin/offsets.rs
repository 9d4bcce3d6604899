//! Offsets: the ends of partitions, and what groups have committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tramline_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use tramline_wire::messages::{
    ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse,
};
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::{Admin, AdminError, Refusal, topics};
use crate::cluster::Target;
use crate::consumer::{OffsetAndMetadata, StartOffset};

impl Admin {
    /// Where each partition of a topic begins, ends, or reaches a time, by partition. A time that no record reaches gives
    /// the end.
    ///
    /// # Errors
    /// [`AdminError`]; an offset that one partition's leader refuses is an error of the whole.
    pub async fn list_offsets(
        &self,
        topic: impl Into<Str>,
        at: StartOffset,
    ) -> Result<BTreeMap<i32, i64>, AdminError> {
        let topic = topic.into();
        let timestamp = match at {
            StartOffset::Earliest => -2,
            StartOffset::Latest => -1,
            StartOffset::Timestamp(time) => time.max(0),
            StartOffset::At(offset) => {
                let description = self.describe_topic(topic).await?;
                return Ok(description.partitions.iter().map(|row| (row.partition, offset)).collect());
            }
            StartOffset::Committed => {
                return Err(AdminError::Missing("a group's offsets, which group_offsets knows".into()));
            }
        };
        let mut found = self.offsets_at(&topic, timestamp).await?;
        let has_none = |offset: &i64| *offset < 0;
        if timestamp >= 0 && found.values().any(has_none) {
            let ends = self.offsets_at(&topic, -1).await?;
            for (partition, offset) in found.iter_mut().filter(|(_, offset)| has_none(offset)) {
                *offset = ends.get(partition).copied().unwrap_or(-1);
            }
        }
        match found.iter().find(|(_, offset)| has_none(offset)) {
            Some((partition, _)) => Err(AdminError::Missing(format!("{topic}-{partition}"))),
            None => Ok(found),
        }
    }

    async fn offsets_at(&self, topic: &Str, timestamp: i64) -> Result<BTreeMap<i32, i64>, AdminError> {
        let description = topics::describe(self.cluster().await?, topic).await?;
        let mut by_leader: BTreeMap<i32, Vec<ListOffsetsPartition>> = BTreeMap::new();
        for row in &description.partitions {
            let Some(leader) = row.leader else {
                return Err(AdminError::Refused(Refusal::new(ErrorCode::from(5), None)));
            };
            by_leader.entry(leader).or_default().push(ListOffsetsPartition {
                partition_index: row.partition,
                current_leader_epoch: -1,
                timestamp,
            });
        }
        let mut found = BTreeMap::new();
        for (leader, partitions) in by_leader {
            let topics = vec![ListOffsetsTopic { name: topic.clone(), partitions }];
            let request = ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
            let answer = self.ask(&Target::NodeControl(leader), request, |_| 0).await?;
            let about_it = answer.topics.iter().filter(|row| row.name == *topic);
            for row in about_it.flat_map(|topic| &topic.partitions) {
                found.entry(row.partition_index).or_insert((row.error_code, row.offset));
            }
        }
        let asked: Vec<i32> = description.partitions.iter().map(|row| row.partition).collect();
        let found = topics::all_told(&asked, found, |partition| format!("{topic}-{partition}"))?;
        let offset = |(partition, (code, offset))| Refusal::check(code, None).map(|()| (partition, offset));
        found.into_iter().map(offset).collect::<Result<_, _>>().map_err(AdminError::Refused)
    }

    /// Everything a group has committed.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn group_offsets(
        &self,
        group: impl Into<Str>,
    ) -> Result<BTreeMap<TopicPartition, OffsetAndMetadata>, AdminError> {
        let group = group.into();
        let name = group.clone();
        let by_group = Arc::new(AtomicBool::new(false));
        let spoken = Arc::clone(&by_group);
        let by_version = move |version: i16| {
            spoken.store(version >= 8, Ordering::Relaxed);
            if version < 8 {
                return OffsetFetchRequest { group_id: name.clone(), topics: None, ..Default::default() };
            }
            let all = OffsetFetchRequestGroup { group_id: name.clone(), topics: None, ..Default::default() };
            OffsetFetchRequest { groups: vec![all], ..Default::default() }
        };
        let target = Target::Coordinator(group.clone());
        let code = |answer: &OffsetFetchResponse| fetch_code(answer, &group);
        let answer = self.ask_with(&target, by_version, code).await?;
        Refusal::check(code(&answer), None).map_err(AdminError::Refused)?;
        let old = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(move |row| {
                (
                    &topic.name,
                    row.partition_index,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    &row.metadata,
                )
            })
        });
        let about_it = answer.groups.iter().find(|row| row.group_id == group);
        if about_it.is_none() && by_group.load(Ordering::Relaxed) {
            return Err(AdminError::Missing(group.to_string()));
        }
        let new = about_it.iter().flat_map(|group| &group.topics).flat_map(|topic| {
            topic.partitions.iter().map(move |row| {
                (
                    &topic.name,
                    row.partition_index,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    &row.metadata,
                )
            })
        });
        let mut offsets = BTreeMap::new();
        for (topic, partition, offset, epoch, metadata) in old.chain(new).filter(|row| row.2 >= 0) {
            let committed = OffsetAndMetadata::new(offset)
                .leader_epoch(Some(epoch))
                .metadata(metadata.clone().unwrap_or_default());
            offsets.insert(TopicPartition::new(topic.clone(), partition), committed);
        }
        Ok(offsets)
    }

    /// Sets what a group has committed, as if nobody were reading. Partitions not named keep their offsets.
    ///
    /// # Errors
    /// [`AdminError::Refused`] with `UNKNOWN_MEMBER_ID` while members live; an offset that is refused is an error of the
    /// whole, while others may have been set.
    pub async fn set_group_offsets(
        &self,
        group: impl Into<Str>,
        offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndMetadata)>,
    ) -> Result<(), AdminError> {
        let group = group.into();
        let mut topics: BTreeMap<Str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        let mut unnamed = BTreeSet::new();
        for (place, offset) in offsets {
            unnamed.insert(place.clone());
            topics.entry(place.topic).or_default().push(OffsetCommitRequestPartition {
                partition_index: place.partition,
                committed_offset: offset.offset,
                committed_leader_epoch: offset.leader_epoch.unwrap_or(-1),
                committed_metadata: Some(offset.metadata),
            });
        }
        let topics = topics
            .into_iter()
            .map(|(name, partitions)| OffsetCommitRequestTopic { name, partitions, ..Default::default() })
            .collect();
        let request = OffsetCommitRequest {
            group_id: group.clone(),
            generation_id_or_member_epoch: -1,
            topics,
            ..Default::default()
        };
        let answer = self
            .ask_coordinator(&group, request, |answer| {
                topics::only(
                    answer.topics.iter().flat_map(|topic| &topic.partitions).map(|row| row.error_code),
                )
            })
            .await?;
        for topic in &answer.topics {
            for row in &topic.partitions {
                if unnamed.remove(&TopicPartition::new(topic.name.clone(), row.partition_index)) {
                    Refusal::check(row.error_code, None).map_err(AdminError::Refused)?;
                }
            }
        }
        match unnamed.pop_first() {
            Some(place) => Err(AdminError::Missing(place.to_string())),
            None => Ok(()),
        }
    }
}

fn fetch_code(answer: &OffsetFetchResponse, group: &Str) -> i16 {
    let about_it = answer.groups.iter().find(|row| row.group_id == *group);
    about_it.map_or(answer.error_code, |row| row.error_code)
}
