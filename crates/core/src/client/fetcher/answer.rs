//! What comes back: batches into the buffer, errors into actions.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::batch::{BatchHeader, batches};
use tramline_wire::messages::fetch_response::{
    FetchResponse, FetchableTopicResponse, NodeEndpoint, PartitionData,
};
use tramline_wire::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use super::isolation::Aborted;
use super::partition::{Partition, Phase, Tail};
use super::plan::{Asked, FetchTicket, LookupTicket};
use super::types::{FetchError, FetcherConfig, IsolationLevel, OffsetReset, OffsetSpec, Position};
use super::{Fetcher, FetcherEvent};
use crate::client::error_actions::{Action, Operation, action};
use crate::client::metadata::{ClusterView, Leader, Node};
use crate::time::Instant;

/// An answer with more rows than this that nobody asked for is read no further.
const MOST_STRANGERS: usize = 1000;

impl Fetcher {
    /// Takes the answer to a fetch; `None` when there is none (no connection, a timeout, a broken frame).
    pub fn handle_fetch(&mut self, ticket: FetchTicket, response: Option<FetchResponse>, now: Instant) {
        self.in_flight.remove(&ticket.node);
        self.note_pace(&ticket, response.as_ref(), now);
        let refused = match (&response, self.sessions.get_mut(&ticket.node)) {
            (Some(response), Some(session)) => !session.answered(ticket.incremental, response),
            (None, Some(session)) => {
                session.begin_anew();
                false
            }
            (_, None) => false,
        };
        let response = response.filter(|response| response.error_code == 0);
        let Some(FetchResponse { responses, node_endpoints, .. }) = response else {
            for asked in ticket.asked.iter().filter(|_| !refused) {
                self.failed(&asked.topic_partition, asked.epoch, now);
            }
            return;
        };
        let mut left: Vec<Option<&Asked>> = ticket.asked.iter().map(Some).collect();
        self.take_rows(ticket.node, &mut left, responses, &node_endpoints, now);
        for asked in left.into_iter().flatten() {
            let partition = still(&mut self.partitions, asked);
            if ticket.incremental {
                // A session's answer leaves out what has neither records nor errors.
                if let Some(partition) = partition {
                    partition.served_by(asked);
                }
                continue;
            }
            // A full answer names everything: this broker is asked again, but not at once.
            if let Some(partition) = partition {
                partition.back_off(now, &self.config);
            }
            self.begin_session_anew(ticket.node);
        }
    }

    /// Gives each row to the partition it is about, and leaves those without one in `left`.
    fn take_rows(
        &mut self,
        node: i32,
        left: &mut [Option<&Asked>],
        topics: Vec<FetchableTopicResponse>,
        endpoints: &[NodeEndpoint],
        now: Instant,
    ) {
        let (mut place, mut strangers) = (0, 0);
        let rows = topics.into_iter().flat_map(|topic| {
            let named = (topic.topic, topic.topic_id);
            topic.partitions.into_iter().map(move |data| (named.clone(), data))
        });
        for ((topic, topic_id), data) in rows {
            let is_meant = |asked: &Asked| {
                asked.topic_partition.partition == data.partition_index
                    && if topic.is_empty() {
                        asked.topic_id == topic_id
                    } else {
                        asked.topic_partition.topic == topic
                    }
            };
            // Rows mostly come in the order in which they were asked for.
            let (before, after) = left.split_at(place);
            let found = after.iter().chain(before).position(|asked| asked.is_some_and(is_meant));
            let found = found.map(|steps| (place + steps) % left.len());
            if let Some(asked) = found.and_then(|at| left[at].take()) {
                self.answered(asked, data, endpoints, now);
            } else {
                // Twice in one answer, or never asked for: what the broker holds is not what we think.
                self.begin_session_anew(node);
                strangers += 1;
            }
            place = found.map_or(place, |at| at + 1);
            if strangers > MOST_STRANGERS {
                break;
            }
        }
    }

    fn begin_session_anew(&mut self, node: i32) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.begin_anew();
        }
    }

    fn answered(&mut self, asked: &Asked, data: PartitionData, endpoints: &[NodeEndpoint], now: Instant) {
        let epoch = self.fresh_epoch();
        let served = self.count();
        let config = &self.config;
        let Some(partition) = still(&mut self.partitions, asked) else { return };
        let code = ErrorCode::from(data.error_code);
        match code {
            ErrorCode::None => {
                partition.served_by(asked);
                let committed = config.isolation_level == IsolationLevel::ReadCommitted;
                let stable = committed.then_some(data.last_stable_offset).filter(|&offset| offset >= 0);
                partition.high_watermark = Some(stable.unwrap_or(data.high_watermark));
                let diverging = data.diverging_epoch;
                if diverging.epoch >= 0 && (0..asked.offset).contains(&diverging.end_offset) {
                    let end = Position { offset: diverging.end_offset, leader_epoch: Some(diverging.epoch) };
                    return self.truncated(&asked.topic_partition, end, asked.leader_epoch, now);
                }
                let records = data.records.unwrap_or_default();
                if !records.is_empty() {
                    partition.served = served;
                    let aborted = Aborted::new(config.isolation_level, data.aborted_transactions);
                    store(partition, asked, records, data.high_watermark, aborted, config, now);
                }
                return;
            }
            ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch => partition.validated = None,
            _ => {}
        }
        match action(Operation::Fetch, code) {
            Action::Retry => partition.ask_again(now, config),
            Action::Report => {
                let topic_partition = asked.topic_partition.clone();
                partition.tail = Some(Tail::Error(FetchError::Refused { topic_partition, code }));
            }
            Action::OutOfRange => {
                partition.tail = Some(Tail::OutOfRange);
                partition.settle(config.offset_reset, epoch);
            }
            _ => {
                let (node, epoch) = (data.current_leader.leader_id, data.current_leader.leader_epoch);
                let known = partition.leader.map_or(-1, |leader| leader.epoch);
                if node >= 0 && epoch > known {
                    return self.new_leader(asked, Leader { node, epoch }, endpoints, now);
                }
                partition.leader_stale = true;
                partition.back_off(now, config);
            }
        }
    }

    /// A broker that does not lead the partition says who does.
    fn new_leader(&mut self, asked: &Asked, leader: Leader, endpoints: &[NodeEndpoint], now: Instant) {
        let Some(partition) = still(&mut self.partitions, asked) else { return };
        partition.leader = Some(leader);
        partition.leader_stale = false;
        // The first hint is followed at once; brokers that send each other's way are asked at a decent pace.
        if partition.attempts == 0 {
            partition.attempts = 1;
        } else {
            partition.back_off(now, &self.config);
        }
        let node = endpoints.iter().find(|row| row.node_id == leader.node).map(|row| Node {
            id: row.node_id,
            host: row.host.clone(),
            port: row.port,
            rack: row.rack.clone(),
        });
        let topic_partition = asked.topic_partition.clone();
        self.events.push_back(FetcherEvent::NewLeader { topic_partition, leader, node });
    }

    pub(super) fn failed(&mut self, topic_partition: &TopicPartition, epoch: u64, now: Instant) {
        let Some(partition) = self.partitions.get_mut(topic_partition).filter(|p| p.epoch == epoch) else {
            return;
        };
        if let Phase::Lookup { in_flight, .. } = &mut partition.phase {
            *in_flight = false;
        }
        partition.validating = false;
        partition.leader_stale = true;
        partition.back_off(now, &self.config);
    }

    /// Takes the answer to a lookup; `None` when there is none.
    pub fn handle_list_offsets(
        &mut self,
        ticket: LookupTicket,
        response: Option<ListOffsetsResponse>,
        now: Instant,
    ) {
        let mut answers: BTreeMap<TopicPartition, ListOffsetsPartitionResponse> = BTreeMap::new();
        for topic in response.into_iter().flat_map(|response| response.topics) {
            for answer in topic.partitions {
                let place = TopicPartition { topic: topic.name.clone(), partition: answer.partition_index };
                answers.entry(place).or_insert(answer);
            }
        }
        for (topic_partition, epoch, leader_epoch) in ticket.asked {
            match answers.get(&topic_partition) {
                Some(answer) => self.looked_up(&topic_partition, (epoch, leader_epoch), answer, now),
                None => self.failed(&topic_partition, epoch, now),
            }
        }
    }

    fn looked_up(
        &mut self,
        topic_partition: &TopicPartition,
        (epoch, asked_of): (u64, i32),
        answer: &ListOffsetsPartitionResponse,
        now: Instant,
    ) {
        let Some(partition) = self.partitions.get_mut(topic_partition).filter(|p| p.epoch == epoch) else {
            return;
        };
        let Phase::Lookup { spec, reset, in_flight } = &mut partition.phase else { return };
        *in_flight = false;
        let code = ErrorCode::from(answer.error_code);
        if code != ErrorCode::None {
            match action(Operation::ListOffsets, code) {
                Action::Report => {
                    let topic_partition = topic_partition.clone();
                    partition.stand_at(Position::at(-1));
                    partition.tail = Some(Tail::Error(FetchError::Refused { topic_partition, code }));
                }
                Action::Retry => partition.ask_again(now, &self.config),
                _ => {
                    partition.leader_stale = true;
                    partition.back_off(now, &self.config);
                }
            }
            return;
        }
        if answer.offset < 0 {
            // No record is that late: then the end is the place. An end that has no offset is asked for again.
            if matches!(spec, OffsetSpec::Timestamp(_)) {
                *spec = OffsetSpec::Latest;
            } else {
                partition.back_off(now, &self.config);
            }
            return;
        }
        let reset = *reset;
        let leader_epoch = (answer.leader_epoch >= 0).then_some(answer.leader_epoch);
        partition.retry_at = None;
        partition.attempts = 0;
        partition.stand_at(Position { offset: answer.offset, leader_epoch });
        partition.validated = Some(asked_of);
        if let Some(from) = reset {
            partition.strayed(now, &self.config);
            let topic_partition = topic_partition.clone();
            self.events.push_back(FetcherEvent::Reset { topic_partition, from, to: answer.offset });
        }
    }

    /// Takes what metadata says after it was asked for; `None` when it did not answer. Partitions without a leader in it
    /// are asked about again.
    pub fn handle_metadata(&mut self, view: Option<&ClusterView>, now: Instant) {
        self.metadata_in_flight = false;
        if let Some(view) = view {
            self.metadata_changed(view);
        }
        let wanting = self.partitions.values().any(|p| p.leader_stale && !p.withheld);
        if wanting {
            let factor = 1u32 << self.metadata_attempts.min(10);
            let pause = self.config.retry_backoff.saturating_mul(factor).min(self.config.retry_backoff_max);
            self.metadata_attempts = self.metadata_attempts.saturating_add(1);
            self.metadata_retry_at = Some(now + pause);
        } else {
            self.metadata_attempts = 0;
            self.metadata_retry_at = None;
        }
    }
}

impl Fetcher {
    /// Takes what is known of the cluster, however it became known.
    pub fn metadata_changed(&mut self, view: &ClusterView) {
        let reset = self.config.offset_reset;
        let mut epoch = self.epochs;
        for partition in self.partitions.values_mut() {
            let Some(topic) = view.topics.get(&partition.topic_partition.topic) else { continue };
            epoch += 1;
            let old_id = partition.topic_id;
            if !topic.id.is_zero() {
                partition.topic_id = topic.id;
                if !old_id.is_zero() && old_id != topic.id {
                    recreated(partition, reset, epoch);
                }
            }
            let row = topic.partition(partition.topic_partition.partition).filter(|row| row.error_code == 0);
            let Some(row) = row else { continue };
            let Some(node) = row.leader else { continue };
            partition.leader = Some(Leader { node, epoch: row.leader_epoch });
            partition.leader_stale = false;
        }
        self.epochs = epoch;
    }
}

/// The partition to which an answer still applies.
fn still<'a>(
    partitions: &'a mut BTreeMap<TopicPartition, Partition>,
    asked: &Asked,
) -> Option<&'a mut Partition> {
    let partition = partitions.get_mut(&asked.topic_partition)?;
    (partition.epoch == asked.epoch && partition.fetch_offset == asked.offset).then_some(partition)
}

/// The topic is another one under the old name: no offset of the old one means anything.
fn recreated(partition: &mut Partition, reset: OffsetReset, epoch: u64) {
    if !matches!(partition.phase, Phase::Fetching) {
        return;
    }
    let offset = partition.position.offset;
    partition.position.leader_epoch = None;
    partition.discard(epoch);
    // Whoever told of the new topic may not know its leaders yet.
    (partition.leader, partition.leader_stale) = (None, true);
    partition.validated = None;
    match reset {
        OffsetReset::None => {
            let topic_partition = partition.topic_partition.clone();
            partition.tail = Some(Tail::Error(FetchError::TopicRecreated { topic_partition, offset }));
        }
        OffsetReset::Earliest | OffsetReset::Latest => {
            partition.tail = Some(Tail::OutOfRange);
            partition.settle(reset, epoch);
        }
    }
}

/// Puts the batches of an answer into the buffer and decides what its end means.
fn store(
    partition: &mut Partition,
    asked: &Asked,
    records: Bytes,
    high_watermark: i64,
    mut aborted: Aborted,
    config: &FetcherConfig,
    now: Instant,
) {
    let topic_partition = || asked.topic_partition.clone();
    let before = partition.fetch_offset;
    let mut whole = false;
    let mut walk = batches(records);
    for batch in walk.by_ref() {
        let seen = batch.and_then(|(header, bytes)| {
            let hidden = aborted.hides(&asked.topic_partition, &header, &bytes)?;
            Ok((header, bytes, hidden))
        });
        let (header, bytes, hidden) = match seen {
            Ok(seen) => seen,
            Err(source) => {
                let offset = partition.fetch_offset;
                partition.tail = Some(Tail::Error(FetchError::Corrupt {
                    topic_partition: topic_partition(),
                    offset,
                    source,
                }));
                return;
            }
        };
        whole = true;
        if header.last_offset() < partition.fetch_offset {
            continue;
        }
        if let Some(what) = misplaced(&header, partition.fetch_offset, high_watermark) {
            return broken(partition, what);
        }
        if bytes.len() > config.max_bytes && !hidden {
            exceeds(partition, bytes.len(), config);
            return;
        }
        partition.push(header, bytes, hidden);
    }
    if partition.fetch_offset > before {
        partition.ask_bytes = config.partition_max_bytes.min(config.max_bytes);
        return;
    }
    if whole {
        return broken(partition, "records, but none at or after the offset asked for");
    }
    let rest = walk.remainder();
    match rest.needed_bytes {
        // Not even one whole batch: ask for it whole, or say that it is larger than this reader takes.
        Some(needed) if needed > config.max_bytes => exceeds(partition, needed, config),
        // At least twice as much, so that a batch which grows with what is asked for soon is too large.
        Some(needed) if needed > asked.bytes => {
            partition.ask_bytes = needed.max(asked.bytes.saturating_mul(2)).min(config.max_bytes);
        }
        None if asked.bytes < config.max_bytes => {
            partition.ask_bytes = asked.bytes.saturating_mul(2).min(config.max_bytes);
        }
        // Cut shorter than what was asked for: the broker's own limit, or the other partitions' share.
        _ => partition.back_off(now, config),
    }
}

/// What is wrong with the place of a batch that should hold `expected` or follow it.
fn misplaced(header: &BatchHeader, expected: i64, high_watermark: i64) -> Option<&'static str> {
    let leaps = header.base_offset > expected;
    match high_watermark {
        _ if header.base_offset < 0 || header.last_offset() == i64::MAX => Some("records at no offset"),
        // Compaction leaves gaps, but none that reaches past the end: the records in between would be missed in silence.
        0.. if leaps && header.base_offset >= high_watermark => Some("records beyond the end it tells"),
        _ => None,
    }
}

fn broken(partition: &mut Partition, what: &'static str) {
    let (topic_partition, offset) = (partition.topic_partition.clone(), partition.fetch_offset);
    partition.tail = Some(Tail::Error(FetchError::BrokenPeer { topic_partition, offset, what }));
}

fn exceeds(partition: &mut Partition, needed_bytes: usize, config: &FetcherConfig) {
    partition.tail = Some(Tail::Error(FetchError::RecordExceedsMaxBytes {
        topic_partition: partition.topic_partition.clone(),
        offset: partition.fetch_offset,
        needed_bytes,
        max_bytes: config.max_bytes,
    }));
}
