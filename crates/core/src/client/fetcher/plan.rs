//! What to ask next: one fetch per leader at a time, lookups of named places, metadata.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::messages::fetch_request::{FetchPartition, FetchRequest};
use tramline_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use tramline_wire::messages::offset_for_leader_epoch_request::OffsetForLeaderEpochRequest;
use tramline_wire::{Str, TopicPartition, Uuid};

use super::Fetcher;
use super::partition::{Partition, Phase};
use super::session::{Opening, Wanted};
use super::types::OffsetSpec;
use super::validate::EpochTicket;
use crate::client::metadata::Leader;
use crate::time::Instant;

/// How long a broker holds back a fetch that leaves out partitions which may want to be asked for at any moment.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Something for the driver to send. Whatever comes of it goes back with its ticket.
#[derive(Debug)]
#[non_exhaustive]
pub enum FetcherRequest {
    /// Send to broker `node`; answer with [`Fetcher::handle_fetch`].
    Fetch {
        /// The leader of every partition in it.
        node: i32,
        /// The request, good for every version the driver may negotiate.
        request: FetchRequest,
        /// What belongs to it.
        ticket: FetchTicket,
    },
    /// Send to broker `node`; answer with [`Fetcher::handle_list_offsets`].
    ListOffsets {
        /// The leader of every partition in it.
        node: i32,
        /// The request.
        request: ListOffsetsRequest,
        /// What belongs to it.
        ticket: LookupTicket,
    },
    /// Send to broker `node`; answer with [`Fetcher::handle_epochs`], or with [`Fetcher::epochs_unsupported`] when the broker
    /// does not speak this.
    Epochs {
        /// The leader of every partition in it.
        node: i32,
        /// The request, good from version 3 on.
        request: OffsetForLeaderEpochRequest,
        /// What belongs to it.
        ticket: EpochTicket,
    },
    /// Learn who leads the partitions of these topics; answer with [`Fetcher::handle_metadata`].
    Metadata {
        /// The topics.
        topics: Vec<Str>,
    },
}

/// What was asked in a fetch: an answer counts only where nothing has changed since.
#[derive(Debug)]
pub struct FetchTicket {
    pub(super) node: i32,
    /// Whether the answer leaves out what has no news.
    pub(super) incremental: bool,
    pub(super) sent: Instant,
    /// How long the broker may hold it back.
    pub(super) wait: Duration,
    pub(super) asked: Vec<Asked>,
}

/// One partition of a fetch.
#[derive(Debug)]
pub(super) struct Asked {
    pub topic_partition: TopicPartition,
    pub topic_id: Uuid,
    pub epoch: u64,
    pub offset: i64,
    pub leader_epoch: i32,
    pub bytes: usize,
}

/// What was asked in a lookup.
#[derive(Debug)]
pub struct LookupTicket {
    /// Each partition, its epoch, and that of its leader.
    pub(super) asked: Vec<(TopicPartition, u64, i32)>,
}

impl Fetcher {
    /// The next thing to send, until `None`. Call again after each `handle_*`, after a change of assignment, position or
    /// pause, and when a caller has found nothing to take.
    pub fn poll_request(&mut self, now: Instant) -> Option<FetcherRequest> {
        self.plan_lookup(now)
            .or_else(|| self.plan_epochs(now))
            .or_else(|| self.plan_fetch(now))
            .or_else(|| self.plan_metadata(now))
    }

    fn plan_lookup(&mut self, now: Instant) -> Option<FetcherRequest> {
        let wanted = |p: &Partition| {
            matches!(p.phase, Phase::Lookup { in_flight: false, .. }) && !p.withheld && !p.is_waiting(now)
        };
        let node = self.partitions.values().find(|p| wanted(p) && p.usable_leader().is_some())?.leader?.node;
        let mut topics: BTreeMap<Str, Vec<ListOffsetsPartition>> = BTreeMap::new();
        let mut asked = Vec::new();
        for partition in self.partitions.values_mut() {
            let Some(leader) = partition.usable_leader().filter(|leader| leader.node == node) else {
                continue;
            };
            if !wanted(partition) {
                continue;
            }
            let Phase::Lookup { spec, in_flight, .. } = &mut partition.phase else { continue };
            *in_flight = true;
            let tp = &partition.topic_partition;
            topics.entry(tp.topic.clone()).or_default().push(lookup(tp.partition, leader, *spec));
            asked.push((tp.clone(), partition.epoch, leader.epoch));
        }
        let topics =
            topics.into_iter().map(|(name, partitions)| ListOffsetsTopic { name, partitions }).collect();
        let isolation_level = self.config.isolation_level.wire_level();
        let request = ListOffsetsRequest { replica_id: -1, isolation_level, topics, ..Default::default() };
        Some(FetcherRequest::ListOffsets { node, request, ticket: LookupTicket { asked } })
    }

    fn plan_fetch(&mut self, now: Instant) -> Option<FetcherRequest> {
        let handable: usize = self.partitions.values().filter(|p| p.may_hand_out()).map(|p| p.buffered).sum();
        let room = self.config.prefetch_bytes.saturating_sub(handable);
        let starved = self.demand && !self.partitions.values().any(Partition::is_ready);
        if room == 0 && !starved {
            return None;
        }
        let cap = self.config.partition_max_bytes;
        let wanted = |p: &Partition| {
            p.may_hand_out()
                && matches!(p.phase, Phase::Fetching)
                && p.tail.is_none()
                && !p.needs_validation()
                && (p.buffered == 0 || (room > 0 && p.buffered < cap))
                && !p.is_waiting(now)
        };
        let node = self
            .partitions
            .values()
            .filter(|p| wanted(p))
            .filter_map(Partition::usable_leader)
            .map(|leader| leader.node)
            .find(|node| self.may_ask(*node, now))?;
        let mut chosen: Vec<&Partition> = self
            .partitions
            .values()
            .filter(|p| wanted(p) && p.usable_leader().is_some_and(|leader| leader.node == node))
            .collect();
        // Who has waited longest comes first: a response that is full before the end starves nobody.
        chosen.sort_by_key(|p| p.served);
        let (left_out, since) = self.left_out(node, wanted, now);
        let wait = if left_out == 0 {
            self.config.max_wait
        } else {
            now.saturating_since(since).max(SHORTEST_WAIT).min(self.config.max_wait)
        };
        let largest = chosen.iter().map(|p| p.ask_bytes).max().unwrap_or(0);
        let asked = chosen.iter().map(|p| Asked::of(p)).collect();
        let wanted = chosen.iter().map(|p| fetch_row(p)).collect();
        self.forget_strangers();
        let opening = if self.config.fetch_sessions {
            self.sessions.entry(node).or_default().next(wanted)
        } else {
            Opening::without_session(wanted)
        };
        let ticket = FetchTicket { node, incremental: opening.is_incremental(), sent: now, wait, asked };
        let request = self.fetch_request(opening, largest, room, wait);
        self.in_flight.insert(node);
        self.left_out.insert(node, (left_out, since));
        Some(FetcherRequest::Fetch { node, request, ticket })
    }

    /// What is buffered for the partitions of `node` that a fetch leaves out, because they have enough or are paused, and
    /// since when it is unchanged.
    ///
    /// A broker holds a fetch back while nothing arrives for the partitions in it, and there is one fetch at a time. So
    /// a partition at its end would keep its busy neighbours waiting for the whole `max_wait`. The wait is therefore no
    /// longer than nothing has been handed out of the neighbours: a fast caller stalls for a moment only, and with a slow
    /// one the waits grow until they are whole.
    fn left_out(&self, node: i32, wanted: impl Fn(&Partition) -> bool, now: Instant) -> (usize, Instant) {
        let others = self.partitions.values().filter(|p| !p.withheld && !wanted(p));
        let others = others.filter(|p| p.usable_leader().is_some_and(|leader| leader.node == node));
        let bytes = others.map(|p| p.buffered).sum();
        let unchanged = self.left_out.get(&node).filter(|(before, _)| *before == bytes);
        unchanged.copied().unwrap_or((bytes, now))
    }

    fn fetch_request(&self, opening: Opening, largest: usize, room: usize, wait: Duration) -> FetchRequest {
        let config = &self.config;
        let whole = if room == 0 { config.fetch_max_bytes } else { room.min(config.fetch_max_bytes) };
        FetchRequest {
            replica_id: -1,
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: wire_size(config.min_bytes),
            max_bytes: wire_size(whole.max(largest)),
            isolation_level: config.isolation_level.wire_level(),
            session_id: opening.session_id,
            session_epoch: opening.session_epoch,
            topics: opening.topics,
            forgotten_topics_data: opening.forgotten,
            ..Default::default()
        }
    }

    fn plan_metadata(&mut self, now: Instant) -> Option<FetcherRequest> {
        let due = self.metadata_retry_at.is_none_or(|at| at <= now);
        if self.metadata_in_flight || !due {
            return None;
        }
        let mut topics: Vec<Str> = Vec::new();
        for (tp, _) in self.partitions.iter().filter(|(_, p)| p.leader_stale && !p.withheld) {
            if topics.last() != Some(&tp.topic) {
                topics.push(tp.topic.clone());
            }
        }
        if topics.is_empty() {
            return None;
        }
        self.metadata_in_flight = true;
        Some(FetcherRequest::Metadata { topics })
    }
}

impl Asked {
    fn of(partition: &Partition) -> Self {
        Self {
            topic_partition: partition.topic_partition.clone(),
            topic_id: partition.topic_id,
            epoch: partition.epoch,
            offset: partition.fetch_offset,
            leader_epoch: partition.leader.map_or(-1, |leader| leader.epoch),
            bytes: partition.ask_bytes,
        }
    }
}

fn fetch_row(partition: &Partition) -> Wanted {
    let row = FetchPartition {
        partition: partition.topic_partition.partition,
        current_leader_epoch: partition.leader.map_or(-1, |leader| leader.epoch),
        fetch_offset: partition.fetch_offset,
        partition_max_bytes: wire_size(partition.ask_bytes),
        ..Default::default()
    };
    Wanted { topic_partition: partition.topic_partition.clone(), topic_id: partition.topic_id, row }
}

fn lookup(partition_index: i32, leader: Leader, spec: OffsetSpec) -> ListOffsetsPartition {
    ListOffsetsPartition {
        partition_index,
        current_leader_epoch: leader.epoch,
        timestamp: spec.wire_timestamp(),
    }
}

/// A size as the protocol's `i32` fields have it.
fn wire_size(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}
