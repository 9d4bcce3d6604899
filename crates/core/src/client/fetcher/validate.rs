//! Whether the log of a new leader still holds what was read from the old one (KIP-320).
//!
//! A leader that was elected without a complete copy lacks records that others have read already, and gives their offsets
//! to new ones: reading on in silence would skip those. So after a change of the leader's epoch the new leader is asked
//! where the epoch of our last record ends in its log. Before our position: the log was cut there.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tramline_wire::messages::OffsetForLeaderEpochResponse;
use tramline_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use tramline_wire::messages::offset_for_leader_epoch_response::EpochEndOffset;
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::partition::{Partition, Phase, Tail};
use super::plan::FetcherRequest;
use super::types::{FetchError, OffsetReset, Position};
use super::{Fetcher, FetcherEvent};
use crate::client::error_actions::{Action, Operation, action};
use crate::time::Instant;

/// What was asked about epochs.
#[derive(Debug)]
pub struct EpochTicket {
    asked: Vec<AskedEpoch>,
}

#[derive(Debug)]
struct AskedEpoch {
    topic_partition: TopicPartition,
    epoch: u64,
    offset: i64,
    leader_epoch: i32,
}

impl Partition {
    /// Whether the leader has to confirm the next offset before records are asked for.
    ///
    /// Not when the offset's epoch is unknown, or the leader's (old brokers); nor when the leader's is the lower one: it
    /// cannot know ours (a cluster that was set back), and an offset outside of its log shows by itself.
    pub(super) fn needs_validation(&self) -> bool {
        let (Some(leader), Some(epoch)) = (self.leader, self.fetch_epoch) else { return false };
        epoch <= leader.epoch && self.validated != Some(leader.epoch)
    }
}

impl Fetcher {
    pub(super) fn plan_epochs(&mut self, now: Instant) -> Option<FetcherRequest> {
        let wanted = |p: &Partition| {
            matches!(p.phase, Phase::Fetching)
                && p.tail.is_none()
                && p.may_hand_out()
                && p.needs_validation()
                && !p.validating
                && !p.is_waiting(now)
        };
        let node = self.partitions.values().find(|p| wanted(p) && p.usable_leader().is_some())?.leader?.node;
        let mut topics: BTreeMap<Str, Vec<OffsetForLeaderPartition>> = BTreeMap::new();
        let mut asked = Vec::new();
        for partition in self.partitions.values_mut() {
            let Some(leader) = partition.usable_leader().filter(|leader| leader.node == node) else {
                continue;
            };
            let Some(leader_epoch) = partition.fetch_epoch.filter(|_| wanted(partition)) else { continue };
            partition.validating = true;
            let topic_partition = partition.topic_partition.clone();
            topics.entry(topic_partition.topic.clone()).or_default().push(OffsetForLeaderPartition {
                partition: topic_partition.partition,
                current_leader_epoch: leader.epoch,
                leader_epoch,
            });
            let (epoch, offset) = (partition.epoch, partition.fetch_offset);
            asked.push(AskedEpoch { topic_partition, epoch, offset, leader_epoch: leader.epoch });
        }
        let topics = topics
            .into_iter()
            .map(|(topic, partitions)| OffsetForLeaderTopic { topic, partitions })
            .collect();
        let request = OffsetForLeaderEpochRequest { replica_id: -1, topics };
        Some(FetcherRequest::Epochs { node, request, ticket: EpochTicket { asked } })
    }

    /// Takes the answer about epochs; `None` when there is none.
    pub fn handle_epochs(
        &mut self,
        ticket: EpochTicket,
        response: Option<OffsetForLeaderEpochResponse>,
        now: Instant,
    ) {
        let topics = response.map(|response| response.topics).unwrap_or_default();
        let mut rows: BTreeMap<TopicPartition, EpochEndOffset> = BTreeMap::new();
        for topic in topics {
            for row in topic.partitions {
                let place = TopicPartition { topic: topic.topic.clone(), partition: row.partition };
                rows.entry(place).or_insert(row);
            }
        }
        for asked in &ticket.asked {
            match rows.get(&asked.topic_partition) {
                Some(row) => self.validated(asked, row, now),
                None => self.failed(&asked.topic_partition, asked.epoch, now),
            }
        }
    }

    /// The broker does not speak of epochs: positions are taken as they are.
    pub fn epochs_unsupported(&mut self, ticket: EpochTicket) {
        for asked in &ticket.asked {
            if let Some(partition) = unchanged(&mut self.partitions, asked) {
                partition.validated = Some(asked.leader_epoch);
            }
        }
    }

    fn validated(&mut self, asked: &AskedEpoch, row: &EpochEndOffset, now: Instant) {
        let config = &self.config;
        let Some(partition) = unchanged(&mut self.partitions, asked) else { return };
        let code = ErrorCode::from(row.error_code);
        if code != ErrorCode::None {
            match action(Operation::ListOffsets, code) {
                Action::Retry => partition.ask_again(now, config),
                Action::Report => {
                    let topic_partition = asked.topic_partition.clone();
                    partition.tail = Some(Tail::Error(FetchError::Refused { topic_partition, code }));
                }
                _ => {
                    partition.leader_stale = true;
                    partition.back_off(now, config);
                }
            }
            return;
        }
        partition.retry_at = None;
        partition.attempts = 0;
        // A leader that keeps no epochs says nothing against the position.
        if row.end_offset < 0 || row.leader_epoch < 0 || row.end_offset >= asked.offset {
            partition.validated = Some(asked.leader_epoch);
            return;
        }
        let end = Position { offset: row.end_offset, leader_epoch: Some(row.leader_epoch) };
        self.truncated(&asked.topic_partition, end, asked.leader_epoch, now);
    }

    /// What was read of the partition and the log of its leader, in office under `leader_epoch`, part at `end`.
    pub(super) fn truncated(
        &mut self,
        topic_partition: &TopicPartition,
        end: Position,
        leader_epoch: i32,
        now: Instant,
    ) {
        let epoch = self.fresh_epoch();
        let Some(partition) = self.partitions.get_mut(topic_partition) else { return };
        let offset = partition.position.offset;
        // Nothing that was handed out is gone, only what was read ahead. What is left of that is asked about once more.
        if end.offset >= offset {
            partition.validated = None;
            partition.cut(end.offset, epoch);
            return partition.strayed(now, &self.config);
        }
        partition.discard(epoch);
        if self.config.offset_reset == OffsetReset::None {
            partition.validated = None;
            partition.tail = Some(Tail::Error(FetchError::Truncated {
                topic_partition: topic_partition.clone(),
                offset,
                diverging_offset: end.offset,
            }));
            return;
        }
        partition.stand_at(end);
        partition.validated = Some(leader_epoch);
        partition.strayed(now, &self.config);
        let topic_partition = topic_partition.clone();
        self.events.push_back(FetcherEvent::Reset { topic_partition, from: Some(offset), to: end.offset });
    }
}

/// The partition, when nothing has changed since it was asked about.
fn unchanged<'a>(
    partitions: &'a mut BTreeMap<TopicPartition, Partition>,
    asked: &AskedEpoch,
) -> Option<&'a mut Partition> {
    let partition = partitions.get_mut(&asked.topic_partition).filter(|p| p.epoch == asked.epoch)?;
    partition.validating = false;
    (partition.fetch_offset == asked.offset).then_some(partition)
}
