//! The fetcher: positions, what to ask next, what is buffered, what may be handed out.
//!
//! An event machine. The driver calls [`Fetcher::poll_request`] until it answers `None`, sends what it got, gives every
//! outcome back with its ticket (`handle_*`), and comes back when [`Fetcher::next_timeout`] is due. The caller takes
//! records ([`Fetcher::take_batch`], [`Fetcher::take_record`]), which never waits.
//!
//! What holds in every state:
//! - A position moves only when something is handed out or passed over for good (control records, compacted gaps).
//! - A position whose leader epoch is known is asked for only when the leader in office has confirmed it; where the log
//!   was cut below it the reset policy decides.
//! - One fetch per leader is under way at a time; the answer counts for a partition only if it was neither sought,
//!   reassigned nor emptied since.
//! - A paused or withheld partition hands out nothing, from the call on; what it has buffered is kept.
//! - Errors come out in the order of the offsets: everything before the damage is handed out first.

mod answer;
mod isolation;
mod pace;
mod partition;
mod plan;
mod session;
mod take;
#[cfg(test)]
mod tests;
mod types;
mod validate;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use tramline_wire::TopicPartition;

pub use plan::{FetchTicket, FetcherRequest, LookupTicket};
pub use types::{
    FetchError, Fetched, FetcherConfig, IsolationLevel, OffsetReset, OffsetSpec, Position, Start,
};
pub use validate::EpochTicket;

use crate::client::metadata::{Leader, Node};
use crate::time::Instant;
use pace::Hasty;
use partition::{Partition, Phase, Tail};
use session::Session;

/// Something the caller may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetcherEvent {
    /// A position that could not be read, or below which the log was cut, was moved by the reset policy.
    Reset {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position that was lost; `None` when there was none.
        from: Option<i64>,
        /// Where reading goes on.
        to: i64,
    },
    /// A broker said, with an error, who leads a partition. The fetcher goes by it already; whoever keeps the view of the
    /// cluster should too, before the next request is sent.
    NewLeader {
        /// The partition.
        topic_partition: TopicPartition,
        /// Its leader, under a newer epoch than the one known.
        leader: Leader,
        /// Where that broker is reached, if told.
        node: Option<Node>,
    },
}

/// The fetching side of a consumer. See the module for how to drive it.
#[derive(Debug)]
pub struct Fetcher {
    config: FetcherConfig,
    partitions: BTreeMap<TopicPartition, Partition>,
    /// Brokers with a fetch under way.
    in_flight: BTreeSet<i32>,
    /// What each broker remembers of our last fetch.
    sessions: BTreeMap<i32, Session>,
    /// Bytes buffered for what the last fetch to each broker left out, and since when they are the same.
    left_out: BTreeMap<i32, (usize, Instant)>,
    /// Brokers that answer sooner than they were told to wait, and with nothing.
    hasty: BTreeMap<i32, Hasty>,
    /// A caller has polled an empty buffer and nothing was handed out since.
    demand: bool,
    /// See [`Fetcher::take_news`].
    news: bool,
    /// Who had its turn last.
    turn: Option<TopicPartition>,
    events: VecDeque<FetcherEvent>,
    epochs: u64,
    answers: u64,
    metadata_in_flight: bool,
    metadata_retry_at: Option<Instant>,
    metadata_attempts: u32,
}

impl Fetcher {
    /// A fetcher without partitions.
    #[must_use]
    pub fn new(config: FetcherConfig) -> Self {
        Self {
            config,
            partitions: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            sessions: BTreeMap::new(),
            left_out: BTreeMap::new(),
            hasty: BTreeMap::new(),
            demand: false,
            news: false,
            turn: None,
            events: VecDeque::new(),
            epochs: 0,
            answers: 0,
            metadata_in_flight: false,
            metadata_retry_at: None,
            metadata_attempts: 0,
        }
    }

    fn fresh_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    fn count(&mut self) -> u64 {
        self.answers += 1;
        self.answers
    }

    /// Takes a partition under `generation`. One that is assigned already starts anew: nothing of the earlier assignment
    /// is handed out.
    pub fn assign(&mut self, topic_partition: TopicPartition, generation: i32, start: Start) {
        let epoch = self.fresh_epoch();
        let mut partition = Partition::new(topic_partition.clone(), generation, epoch, &self.config);
        begin(&mut partition, start);
        self.partitions.insert(topic_partition, partition);
    }

    /// Forgets a partition with everything buffered.
    pub fn unassign(&mut self, topic_partition: &TopicPartition) {
        self.partitions.remove(topic_partition);
    }

    /// Hands out no more of a partition whose revocation was announced, and drops what is buffered. The position stays
    /// readable until it is unassigned.
    pub fn withhold(&mut self, topic_partition: &TopicPartition) {
        let epoch = self.fresh_epoch();
        if let Some(partition) = self.partitions.get_mut(topic_partition) {
            partition.withheld = true;
            let position = partition.position;
            partition.discard(epoch);
            partition.position = position;
        }
    }

    /// Tells where an [`Start::Awaiting`] partition starts. Ignored when the partition has been reassigned under another
    /// generation, or sought meanwhile.
    pub fn position_known(&mut self, topic_partition: &TopicPartition, generation: i32, position: Position) {
        if let Some(partition) = self.awaiting(topic_partition, generation) {
            partition.stand_at(position);
        }
    }

    /// Tells that an [`Start::Awaiting`] partition has no committed offset: the reset policy decides.
    pub fn no_position(&mut self, topic_partition: &TopicPartition, generation: i32) {
        let spec = match self.config.offset_reset {
            OffsetReset::Earliest => Some(OffsetSpec::Earliest),
            OffsetReset::Latest => Some(OffsetSpec::Latest),
            OffsetReset::None => None,
        };
        let Some(partition) = self.awaiting(topic_partition, generation) else { return };
        match spec {
            Some(spec) => partition.phase = Phase::Lookup { spec, reset: None, in_flight: false },
            None => {
                let topic_partition = topic_partition.clone();
                partition.stand_at(Position::at(-1));
                partition.tail = Some(Tail::Error(FetchError::NoPosition { topic_partition }));
            }
        }
    }

    fn awaiting(&mut self, topic_partition: &TopicPartition, generation: i32) -> Option<&mut Partition> {
        let partition = self.partitions.get_mut(topic_partition)?;
        (matches!(partition.phase, Phase::Awaiting) && partition.generation == generation)
            .then_some(partition)
    }

    /// The partitions that wait to be told where to start.
    pub fn awaiting_position(&self) -> impl Iterator<Item = (&TopicPartition, i32)> {
        let awaiting = |p: &&Partition| matches!(p.phase, Phase::Awaiting) && !p.withheld;
        self.partitions.values().filter(awaiting).map(|p| (&p.topic_partition, p.generation))
    }

    /// Moves a partition. Everything buffered or under way for it is dropped; a pause stays in force.
    /// `false` when the partition is not assigned or its revocation was announced.
    pub fn seek(&mut self, topic_partition: &TopicPartition, to: Start) -> bool {
        let epoch = self.fresh_epoch();
        let Some(partition) = self.partitions.get_mut(topic_partition).filter(|p| !p.withheld) else {
            return false;
        };
        partition.discard(epoch);
        begin(partition, to);
        true
    }

    /// Hands out no further record of the partition until it is resumed.
    pub fn pause(&mut self, topic_partition: &TopicPartition) {
        if let Some(partition) = self.partitions.get_mut(topic_partition) {
            partition.paused = true;
        }
    }

    /// Goes on where a pause stopped; a partition that stands still after an error tries again.
    pub fn resume(&mut self, topic_partition: &TopicPartition) {
        let epoch = self.fresh_epoch();
        let Some(partition) = self.partitions.get_mut(topic_partition) else { return };
        partition.paused = false;
        if let Phase::Stopped(_) = partition.phase {
            partition.discard(epoch);
            partition.phase = if partition.position.offset < 0 { Phase::Awaiting } else { Phase::Fetching };
        }
    }

    /// The position of a partition, once it is known.
    #[must_use]
    pub fn position(&self, topic_partition: &TopicPartition) -> Option<Position> {
        self.partitions.get(topic_partition).and_then(Partition::position)
    }

    /// Says why an [`Start::Awaiting`] partition cannot start.
    pub fn fail(&mut self, topic_partition: &TopicPartition, generation: i32, error: FetchError) {
        if let Some(partition) = self.awaiting(topic_partition, generation) {
            partition.stand_at(Position::at(-1));
            partition.tail = Some(Tail::Error(error));
        }
    }

    /// The generation under which a partition is ours, also while its revocation is held open.
    #[must_use]
    pub fn owned(&self, topic_partition: &TopicPartition) -> Option<i32> {
        self.partitions.get(topic_partition).map(|p| p.generation)
    }

    /// The partitions that may be handed out, sorted, with their generations.
    pub fn assignment(&self) -> impl Iterator<Item = (&TopicPartition, i32)> {
        self.partitions.values().filter(|p| !p.withheld).map(|p| (&p.topic_partition, p.generation))
    }

    /// The paused partitions, sorted.
    pub fn paused(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.values().filter(|p| p.paused && !p.withheld).map(|p| &p.topic_partition)
    }

    /// The end of the partition as the last answer had it.
    #[must_use]
    pub fn high_watermark(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.partitions.get(topic_partition)?.high_watermark
    }

    /// Bytes buffered and not handed out, over all partitions.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.partitions.values().map(|p| p.buffered).sum()
    }

    /// What happened that nobody asked for.
    pub fn poll_event(&mut self) -> Option<FetcherEvent> {
        self.events.pop_front()
    }

    /// When [`Fetcher::poll_request`] may have something again without anything else happening.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let waiting = self.partitions.values().filter(|p| p.may_hand_out()).filter_map(|p| p.retry_at);
        let metadata = self.metadata_retry_at.filter(|_| !self.metadata_in_flight);
        let hasty = self.hasty.values().filter_map(|hasty| hasty.not_before);
        waiting.chain(metadata).chain(hasty).min()
    }

    /// Lets pauses that are over go by, so that [`Fetcher::next_timeout`] names the next one.
    pub fn handle_timeout(&mut self, now: Instant) {
        for partition in self.partitions.values_mut() {
            partition.retry_at = partition.retry_at.filter(|&at| at > now);
        }
        self.metadata_retry_at = self.metadata_retry_at.filter(|&at| at > now);
        for hasty in self.hasty.values_mut() {
            hasty.not_before = hasty.not_before.filter(|&at| at > now);
        }
    }

    /// The topics of all partitions, sorted: what metadata should keep up to date.
    #[must_use]
    pub fn topics(&self) -> Vec<tramline_wire::Str> {
        let mut topics: Vec<_> = self.partitions.keys().map(|tp| tp.topic.clone()).collect();
        topics.dedup();
        topics
    }
}

fn begin(partition: &mut Partition, start: Start) {
    match start {
        Start::Offset(position) => partition.stand_at(position),
        Start::Lookup(spec) => partition.phase = Phase::Lookup { spec, reset: None, in_flight: false },
        Start::Awaiting => partition.phase = Phase::Awaiting,
    }
}
