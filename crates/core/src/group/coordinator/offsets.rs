//! OffsetCommit (8) and OffsetFetch (9); what expires and what goes with a topic.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use tramline_wire::messages::offset_commit_request::OffsetCommitRequestPartition;
use tramline_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use tramline_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use tramline_wire::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use tramline_wire::{Str, TopicPartition, Uuid};

use super::Coordinator;
use super::config::{Client, MAX_COMMIT_BYTES, MAX_GROUP_ID};
use super::group::State;
use super::journal::Then;
use super::memory::offset_bytes;
use super::output::{CommittedOffset, Response};
use super::record::{self, Key, OffsetValue};
use crate::group::codes;
use crate::time::{Instant, Timestamp};

impl Coordinator {
    /// OffsetCommit (8), versions 2 to 9 (topics by name; a driver that serves version 10 fills the names in).
    /// `exists` tells whether a partition exists; commits of others are refused with 3, one by one. The reply
    /// comes when the offsets are durable.
    pub fn handle_offset_commit(
        &mut self,
        now: Instant,
        wall: Timestamp,
        client: &Client,
        request: &OffsetCommitRequest,
        mut exists: impl FnMut(&TopicPartition) -> bool,
    ) {
        self.wall = wall;
        let checked =
            self.check_commit(client, request).and_then(|()| self.take_room_for_commit(now, request));
        let group = request.group_id.detached();
        let (mut records, mut commits) = (Vec::new(), Vec::new());
        let mut response = OffsetCommitResponse::default();
        for topic in &request.topics {
            let name = topic.name.detached();
            let mut rows = Vec::new();
            for partition in &topic.partitions {
                let of = TopicPartition { topic: name.clone(), partition: partition.partition_index };
                let refused = checked.and_then(|()| {
                    let length = partition.committed_metadata.as_ref().map_or(0, |text| text.len());
                    if !exists(&of) {
                        Err(codes::UNKNOWN_TOPIC_OR_PARTITION)
                    } else if length > self.config.max_offset_metadata {
                        Err(codes::OFFSET_METADATA_TOO_LARGE)
                    } else {
                        Ok(())
                    }
                });
                if refused.is_ok() {
                    let value = offset_value(partition, request.retention_time_ms, wall);
                    records.push(record::offset_record(&group, &of, Some(&value)));
                    commits.push(CommittedOffset { topic_partition: of, offset: value.offset });
                }
                rows.push(OffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: refused.err().unwrap_or(codes::NONE),
                });
            }
            response.topics.push(OffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: rows,
            });
        }
        let sizes =
            records.iter().map(|record| record.key.len() + record.value.as_ref().map_or(0, Bytes::len));
        if sizes.sum::<usize>() > MAX_COMMIT_BYTES {
            (records, commits) = (Vec::new(), Vec::new());
            let rows = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            rows.for_each(|row| row.error_code = codes::INVALID_COMMIT_OFFSET_SIZE);
        }
        if checked.is_ok() {
            self.with_group(now, &group, |group, cx| {
                if let Some(member) = group.members.get_mut(&request.member_id) {
                    member.refresh(cx.now);
                }
            });
        }
        if records.is_empty() {
            self.journal.reply(client.token, Response::OffsetCommit(response));
        } else {
            self.journal.append(records, commits, Then::Committed { token: client.token, response });
        }
    }

    /// Room for what a commit adds; offsets that take the place of others of their size need none.
    fn take_room_for_commit(&mut self, now: Instant, request: &OffsetCommitRequest) -> Result<(), i16> {
        let mut more = 0;
        for topic in &request.topics {
            for row in &topic.partitions {
                let of = TopicPartition { topic: topic.name.clone(), partition: row.partition_index };
                let before = self.ledger.offset(&request.group_id, &of);
                let before = before.map_or(0, |value| offset_bytes(&of.topic, &value.metadata));
                let metadata = row.committed_metadata.as_deref().unwrap_or_default();
                more += offset_bytes(&of.topic, metadata).saturating_sub(before);
            }
        }
        if more > 0 && !self.ledger.knows(&request.group_id) {
            more += request.group_id.len();
        }
        if self.take_room(now, more) { Ok(()) } else { Err(codes::INVALID_COMMIT_OFFSET_SIZE) }
    }

    fn check_commit(&self, client: &Client, request: &OffsetCommitRequest) -> Result<(), i16> {
        if self.loading {
            return Err(codes::COORDINATOR_LOAD_IN_PROGRESS);
        }
        if request.group_id.len() > MAX_GROUP_ID {
            return Err(codes::INVALID_GROUP_ID);
        }
        let generation = request.generation_id_or_member_epoch;
        let Some(group) = self.groups.get(&request.group_id) else {
            return match generation {
                // A consumer that manages its partitions itself, or an administrator.
                ..0 => Ok(()),
                _ if client.version >= 9 => Err(codes::GROUP_ID_NOT_FOUND),
                _ => Err(codes::ILLEGAL_GENERATION),
            };
        };
        if group.state == State::Dead {
            return Err(codes::COORDINATOR_NOT_AVAILABLE);
        }
        if generation < 0 && group.state == State::Empty {
            return Ok(());
        }
        let instance = request.group_instance_id.as_ref();
        if generation < 0 && request.member_id.is_empty() && instance.is_none() {
            // While members live their offsets are theirs.
            return Err(codes::UNKNOWN_MEMBER_ID);
        }
        group.check_member(&request.member_id, instance, generation)?;
        if group.state == State::Completing { Err(codes::REBALANCE_IN_PROGRESS) } else { Ok(()) }
    }

    /// OffsetFetch (9), versions 1 to 9. Answers at once, with what is durable.
    pub fn handle_offset_fetch(&mut self, client: &Client, request: &OffsetFetchRequest) {
        let mut response = OffsetFetchResponse::default();
        if client.version >= 8 {
            // Each once in each form, here and below: what is asked in a few bytes may be thousands of rows.
            let mut seen = BTreeSet::new();
            let asked =
                request.groups.iter().filter(|asked| seen.insert((&asked.group_id, asked.topics.is_none())));
            response.groups = asked.map(|asked| self.fetch_of(asked)).collect();
        } else {
            let topics = request.topics.as_ref().map(|topics| {
                let pairs = topics.iter().map(|topic| (&topic.name, &topic.partition_indexes[..]));
                pairs.collect::<Vec<_>>()
            });
            if self.loading {
                response.error_code = codes::COORDINATOR_LOAD_IN_PROGRESS;
            }
            let fetched = self.fetch(&request.group_id, topics.as_deref());
            response.topics = fetched
                .into_iter()
                .map(|(name, rows)| OffsetFetchResponseTopic {
                    name,
                    partitions: rows.into_iter().map(|row| self.old_row(row)).collect(),
                })
                .collect();
        }
        self.journal.reply(client.token, Response::OffsetFetch(response));
    }

    fn fetch_of(&self, asked: &OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
        let mut group = OffsetFetchResponseGroup { group_id: asked.group_id.clone(), ..Default::default() };
        if self.loading {
            group.error_code = codes::COORDINATOR_LOAD_IN_PROGRESS;
            return group;
        }
        let topics = asked.topics.as_ref().map(|topics| {
            let pairs = topics.iter().map(|topic| (&topic.name, &topic.partition_indexes[..]));
            pairs.collect::<Vec<_>>()
        });
        let ids: BTreeMap<&Str, Uuid> =
            asked.topics.iter().flatten().map(|topic| (&topic.name, topic.topic_id)).collect();
        let fetched = self.fetch(&asked.group_id, topics.as_deref());
        group.topics = fetched
            .into_iter()
            .map(|(name, rows)| OffsetFetchResponseTopics {
                topic_id: ids.get(&name).copied().unwrap_or_default(),
                name,
                partitions: rows.into_iter().map(new_row).collect(),
            })
            .collect();
        group
    }

    /// The offsets of these partitions, or of all; what was never committed has offset -1.
    fn fetch(&self, group: &Str, topics: Option<&[(&Str, &[i32])]>) -> Vec<(Str, Vec<Row>)> {
        let Some(topics) = topics else {
            let mut all: BTreeMap<Str, Vec<Row>> = BTreeMap::new();
            for (of, value) in self.ledger.offsets_of(group) {
                all.entry(of.topic.clone()).or_default().push(Row::new(of.partition, Some(value)));
            }
            return all.into_iter().collect();
        };
        let mut seen = BTreeSet::new();
        let of_topic = |(name, partitions): &(&Str, &[i32])| {
            let asked =
                partitions.iter().map(|&partition| TopicPartition { topic: (*name).clone(), partition });
            let once = asked.filter(|of| seen.insert(of.clone()));
            let rows = once.map(|of| Row::new(of.partition, self.ledger.offset(group, &of)));
            ((*name).clone(), rows.collect())
        };
        topics.iter().map(of_topic).collect()
    }

    fn old_row(&self, row: Row) -> OffsetFetchResponsePartition {
        let loading = if self.loading { codes::COORDINATOR_LOAD_IN_PROGRESS } else { codes::NONE };
        OffsetFetchResponsePartition {
            partition_index: row.partition,
            committed_offset: row.offset,
            committed_leader_epoch: row.leader_epoch,
            metadata: Some(row.metadata),
            error_code: loading,
        }
    }

    /// A topic was deleted: its offsets go from every group, those whose commit is on its way too.
    pub fn topic_deleted(&mut self, topic: &str) {
        let mut gone: BTreeSet<(Str, TopicPartition)> = BTreeSet::new();
        for (group, offsets) in self.ledger.offsets() {
            let of_topic = offsets.keys().filter(|of| of.topic == topic);
            gone.extend(of_topic.map(|of| (group.clone(), of.clone())));
        }
        for key in self.journal.keys_on_their_way() {
            if let Key::Offset(group, of) = key
                && of.topic == topic
            {
                gone.insert((group, of));
            }
        }
        if !gone.is_empty() {
            let records = gone.iter().map(|(group, of)| record::offset_record(group, of, None)).collect();
            self.journal.append(records, Vec::new(), Then::Nothing);
        }
    }

    /// Removes offsets whose retention is over and groups that are empty of members and offsets. Kafka does
    /// it every ten minutes.
    pub fn expire_offsets(&mut self, wall: Timestamp) {
        self.wall = wall;
        let mut busy: BTreeSet<Str> = BTreeSet::new();
        for key in self.journal.keys_on_their_way() {
            match key {
                Key::Offset(group, _) | Key::Group(group) => busy.insert(group),
                Key::Unknown => false,
            };
        }
        let known = self.ledger.groups().keys().chain(self.ledger.offsets().keys());
        let ids: BTreeSet<Str> = known.filter(|id| !busy.contains(*id)).cloned().collect();
        let (mut records, mut groups) = (Vec::new(), Vec::new());
        for id in ids {
            let state = self.groups.get(&id).map(|group| group.state);
            let expired = self.expired(&id, wall);
            let all = expired.len() == self.ledger.offsets_of(&id).count();
            records.extend(expired.iter().map(|of| record::offset_record(&id, of, None)));
            if all
                && state == Some(State::Empty)
                && self.groups.get(&id).is_some_and(super::group::Group::is_void)
            {
                records.push(record::group_record(&id, None));
                groups.push(id);
            }
        }
        for id in &groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.state = State::Dead;
            }
        }
        if !records.is_empty() {
            self.journal.append(records, Vec::new(), Then::Deleted { groups, reply: None });
        }
    }

    /// The partitions of one group whose offsets have expired.
    fn expired(&self, id: &Str, wall: Timestamp) -> Vec<TopicPartition> {
        let group = self.groups.get(id).filter(|group| !group.protocol_type.is_empty());
        let subscribed = group.and_then(super::group::Group::subscribed_topics);
        let emptied = self.ledger.groups().get(id).map(|value| value.state_timestamp);
        let since = |of: &TopicPartition, value: &OffsetValue| match group.map(|group| group.state) {
            None => Some(value.commit_timestamp),
            Some(State::Empty) => Some(emptied.unwrap_or(-1).max(value.commit_timestamp)),
            Some(State::Stable) => subscribed
                .as_ref()
                .filter(|topics| !topics.contains(&of.topic))
                .map(|_| value.commit_timestamp),
            Some(_) => None,
        };
        let retention = whole_millis(self.config.offsets_retention);
        let over = |of: &TopicPartition, value: &OffsetValue| {
            since(of, value).is_some_and(|since| match value.expire_timestamp {
                Some(at) => wall >= at,
                None => wall.saturating_sub(since) >= retention,
            })
        };
        let all = self.ledger.offsets_of(id);
        all.filter(|(of, value)| over(of, value)).map(|(of, _)| of.clone()).collect()
    }
}

/// One partition of an answer to OffsetFetch, in whatever version.
struct Row {
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: Str,
}

impl Row {
    fn new(partition: i32, value: Option<&OffsetValue>) -> Self {
        Self {
            partition,
            offset: value.map_or(-1, |value| value.offset),
            leader_epoch: value.map_or(-1, |value| value.leader_epoch),
            metadata: value.map(|value| value.metadata.clone()).unwrap_or_default(),
        }
    }
}

fn new_row(row: Row) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: row.partition,
        committed_offset: row.offset,
        committed_leader_epoch: row.leader_epoch,
        metadata: Some(row.metadata),
        error_code: codes::NONE,
    }
}

fn offset_value(partition: &OffsetCommitRequestPartition, retention: i64, wall: Timestamp) -> OffsetValue {
    OffsetValue {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.committed_metadata.as_ref().map(Str::detached).unwrap_or_default(),
        commit_timestamp: wall,
        expire_timestamp: (retention >= 0).then(|| wall.saturating_add(retention)),
    }
}

fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
