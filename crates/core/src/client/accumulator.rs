//! Records on their way out: batches per partition, what may be sent to whom and when, and what an answer means.
//!
//! `C` is the driver's token for the records of one batch; the machine only hands it back in [`Completion`]s.
//!
//! Drive it so: [`update_topic`](Accumulator::update_topic) when metadata arrives; [`route`](Accumulator::route), take
//! memory from [`budget`](Accumulator::budget), [`append`](Accumulator::append) for each record; per node
//! [`poll_order`](Accumulator::poll_order) until it gives nothing, send what it gave in that order, and bring every
//! batch back through [`handle_answers`](Accumulator::handle_answers); [`handle_timeout`](Accumulator::handle_timeout)
//! when [`next_timeout`](Accumulator::next_timeout) is due. After each of these look at
//! [`poll_completion`](Accumulator::poll_completion), [`poll_wake`](Accumulator::poll_wake) and the budget's grants.
//!
//! A batch leaves when it is full (bytes or records), when the linger since its first record has passed (never
//! restarted by later ones), on flush, close or memory pressure; with linger zero when nothing is in flight to its
//! node. Everything accepted is told its outcome exactly once, at the latest when the delivery timeout passes.

mod answer;
mod batch;
mod budget;
mod config;
mod order;
mod partition;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::partitioner::{RoundRobin, Sticky};
use tramline_wire::{BatchBuilder, Str, TopicPartition};

use super::metadata::TopicView;
use super::retry::Backoff;
use crate::time::{Instant, Timestamp};
use batch::Contents;
use partition::Partition;

pub use answer::{Answer, Completion, Failure, Written};
pub use batch::{Batch, ProducerId};
pub use budget::{Budget, Ticket};
pub use config::{AccumulatorConfig, Acks, Spread};
pub use order::{NextOrder, Order};

/// A record was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The accumulator was closed.
    #[error("the producer is closed")]
    Closed,
    /// The broker refused this producer for good.
    #[error("the broker refused this producer for good with error {0}")]
    Fatal(i16),
    /// The record cannot be put in any request.
    #[error("the record takes {bytes} bytes, at most {max} can be sent")]
    TooLarge {
        /// What it takes.
        bytes: usize,
        /// What is possible.
        max: usize,
    },
}

/// No partition could be picked for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Nothing is known of the topic: metadata is needed first.
    #[error("the partitions of the topic are not known")]
    UnknownTopic,
    /// The topic has no such partition, as far as known.
    #[error("the topic has {count} partitions")]
    UnknownPartition {
        /// How many it has.
        count: i32,
    },
}

/// A partition's place in the machine. Only meaningful to the machine that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(usize);

/// The parts of a record.
#[derive(Debug, Clone, Copy)]
pub struct RecordParts<'a> {
    /// Milliseconds since 1970.
    pub timestamp: Timestamp,
    /// The key, if it has one. An empty key is a key.
    pub key: Option<&'a [u8]>,
    /// The value; none is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Names and values, in order, duplicates kept.
    pub headers: &'a [(Str, Option<Bytes>)],
}

impl RecordParts<'_> {
    /// What the record is charged in the budget: its bytes and what a batch adds to them at most.
    #[must_use]
    pub fn cost(&self) -> usize {
        const OVERHEAD: usize = 24;
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| 10 + name.as_bytes().len() + value.as_ref().map_or(0, Bytes::len));
        OVERHEAD
            + self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + headers.sum::<usize>()
    }
}

/// Where a record went.
#[derive(Debug)]
pub struct Appended<C> {
    /// The token of its batch.
    pub token: C,
    /// Its place under the token.
    pub index: u32,
}

/// Flush is over when every batch older than this is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushMark(u64);

#[derive(Debug)]
struct Topic {
    name: Str,
    partitions: Vec<usize>,
    sticky: Sticky,
    round_robin: RoundRobin,
}

#[derive(Debug, Default)]
struct NodeQueue {
    /// Partitions with something waiting or in flight, the next to look at first.
    active: VecDeque<usize>,
    in_flight: usize,
    /// How many partitions it leads.
    leads: usize,
}

/// Batch ids leave room for the halves of split batches between neighbours: one id per record.
const ID_STEP: u64 = 1 << 24;

/// See the [module](self).
#[derive(Debug)]
pub struct Accumulator<C> {
    config: AccumulatorConfig,
    seed: u64,
    names: BTreeMap<Str, usize>,
    topics: Vec<Topic>,
    partitions: Vec<Partition<C>>,
    nodes: BTreeMap<i32, NodeQueue>,
    /// Partitions with something waiting whose leader is not known.
    leaderless: VecDeque<usize>,
    producer: Option<ProducerId>,
    budget: Budget,
    /// Batches that are not told yet, oldest first, and their partitions.
    untold: BTreeMap<u64, usize>,
    untold_records: usize,
    next_id: u64,
    completions: VecDeque<Completion<C>>,
    wakes: BTreeSet<i32>,
    stale: BTreeSet<Str>,
    closing: bool,
    fatal: Option<i16>,
}

impl<C: Clone> Accumulator<C> {
    /// An empty accumulator. `seed` is a random number: producers should not all start at the same partition.
    #[must_use]
    pub fn new(config: AccumulatorConfig, seed: u64) -> Self {
        let budget = Budget::new(config.buffer_bytes, config.buffer_records);
        Self {
            config,
            seed,
            names: BTreeMap::new(),
            topics: Vec::new(),
            partitions: Vec::new(),
            nodes: BTreeMap::new(),
            leaderless: VecDeque::new(),
            producer: None,
            budget,
            untold: BTreeMap::new(),
            untold_records: 0,
            next_id: 0,
            completions: VecDeque::new(),
            wakes: BTreeSet::new(),
            stale: BTreeSet::new(),
            closing: false,
            fatal: None,
        }
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &AccumulatorConfig {
        &self.config
    }

    /// The memory records occupy.
    pub const fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Takes over what metadata says of a topic: partitions added, leaders moved. Partitions are never forgotten.
    pub fn update_topic(&mut self, name: &Str, view: &TopicView) {
        let Some(last) = view.partitions.last() else { return };
        let topic = self.topic_index(name);
        for number in self.topics[topic].partitions.len()..=usize::try_from(last.partition).unwrap_or(0) {
            let (first, longest) = self.config.retry_backoff;
            // The loop counts up to an i32 that is not negative.
            let partition = TopicPartition::new(name.clone(), i32::try_from(number).unwrap_or(i32::MAX));
            self.topics[topic].partitions.push(self.partitions.len());
            self.partitions.push(Partition::new(topic, partition, Backoff::new(first, longest)));
        }
        for row in &view.partitions {
            let place = usize::try_from(row.partition).unwrap_or(usize::MAX);
            if let Some(slot) = self.topics[topic].partitions.get(place).copied() {
                self.set_leader(slot, row.leader);
            }
        }
    }

    fn topic_index(&mut self, name: &Str) -> usize {
        if let Some(topic) = self.names.get(name) {
            return *topic;
        }
        let topic = self.topics.len();
        // Kept for as long as the producer lives: it must not keep a whole metadata answer alive.
        let name = name.detached();
        self.names.insert(name.clone(), topic);
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let sticky = Sticky::new(self.seed);
        self.topics.push(Topic { name, partitions: Vec::new(), sticky, round_robin: RoundRobin::new() });
        topic
    }

    fn set_leader(&mut self, slot: usize, leader: Option<i32>) {
        if self.partitions[slot].leader == leader && (leader.is_none() || self.partitions[slot].listed) {
            return;
        }
        self.unlist(slot);
        let before = core::mem::replace(&mut self.partitions[slot].leader, leader);
        if let Some(node) = leader {
            let partition = &mut self.partitions[slot];
            if before.is_some() && before != leader && partition.backoff.attempts() <= 1 {
                // What the old leader refused need not wait before it goes to the new one, unless leaders send it from
                // one to the next.
                partition.retry_at = None;
            }
            self.nodes.entry(node).or_default().leads += 1;
        }
        if let Some((node, queue)) = before.and_then(|node| Some((node, self.nodes.get_mut(&node)?))) {
            queue.leads -= 1;
            if queue.leads == 0 {
                // Its driver may have nothing left to do.
                self.wakes.insert(node);
            }
        }
        self.list(slot);
    }

    fn unlist(&mut self, slot: usize) {
        let partition = &mut self.partitions[slot];
        if core::mem::take(&mut partition.listed) {
            let list = match partition.leader {
                Some(node) => self.nodes.get_mut(&node).map(|node| &mut node.active),
                None => Some(&mut self.leaderless),
            };
            if let Some(list) = list {
                list.retain(|other| *other != slot);
            }
        }
    }

    /// Puts a partition with work on the list of its leader, and has the leader looked at.
    fn list(&mut self, slot: usize) {
        if self.partitions[slot].is_idle() {
            return;
        }
        self.enlist(slot);
        if let Some(node) = self.partitions[slot].leader {
            self.wakes.insert(node);
        }
    }

    fn enlist(&mut self, slot: usize) {
        let partition = &mut self.partitions[slot];
        if !core::mem::replace(&mut partition.listed, true) {
            match partition.leader {
                Some(node) => self.nodes.entry(node).or_default().active.push_back(slot),
                None => self.leaderless.push_back(slot),
            }
        }
    }

    /// The nodes that lead any partition seen so far.
    pub fn nodes(&self) -> impl Iterator<Item = i32> + '_ {
        self.nodes.keys().copied()
    }

    /// Forgets a node that leads nothing and has nothing under way. Whether it did: then the node's driver may end, and is
    /// woken no more before the node leads again. Brokers could name new leaders without end.
    pub fn forget_node(&mut self, node: i32) -> bool {
        let is_over = |queue: &NodeQueue| queue.leads == 0 && queue.in_flight == 0 && queue.active.is_empty();
        if !self.nodes.get(&node).is_none_or(is_over) {
            return false;
        }
        self.nodes.remove(&node);
        self.wakes.remove(&node);
        true
    }

    /// Whether metadata is needed to go on: a leader is missing or was proven wrong.
    #[must_use]
    pub fn wants_metadata(&self) -> bool {
        !self.stale.is_empty() || !self.leaderless.is_empty()
    }

    /// The topics whose metadata is needed. Call it when asking for metadata; give them back with
    /// [`mark_stale`](Self::mark_stale) when that fails.
    pub fn take_stale(&mut self) -> BTreeSet<Str> {
        let mut names = core::mem::take(&mut self.stale);
        let partitions = &mut self.partitions;
        self.leaderless.retain(|slot| {
            let partition = &mut partitions[*slot];
            partition.listed = !partition.is_idle();
            partition.listed
        });
        let waiting = self.leaderless.iter().map(|slot| self.partitions[*slot].topic);
        names.extend(waiting.map(|topic| self.topics[topic].name.clone()));
        names
    }

    /// Metadata of these topics is still needed.
    pub fn mark_stale(&mut self, topics: impl IntoIterator<Item = Str>) {
        self.stale.extend(topics);
    }

    /// No connection to this node could be made: perhaps others lead its partitions by now.
    pub fn node_unreachable(&mut self, node: i32) {
        let Some(queue) = self.nodes.get(&node) else { return };
        let topics = queue.active.iter().map(|slot| &self.partitions[*slot]).filter(|p| !p.queue.is_empty());
        self.stale.extend(topics.map(|p| self.topics[p.topic].name.clone()));
    }

    /// Whether anything waits to be sent to this node, now or later.
    #[must_use]
    pub fn has_work(&self, node: i32) -> bool {
        let waits = |slot: &usize| !self.partitions[*slot].queue.is_empty();
        !self.wants_producer_id() && self.nodes.get(&node).is_some_and(|queue| queue.active.iter().any(waits))
    }

    /// Every topic that was produced to.
    pub fn topics(&self) -> impl Iterator<Item = &Str> {
        self.topics.iter().map(|topic| &topic.name)
    }

    /// Picks the partition of a record: the one asked for, else by `key`, else spread.
    ///
    /// # Errors
    /// When the topic or the partition is not known: metadata may tell.
    pub fn route(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        key: Option<&[u8]>,
    ) -> Result<Slot, RouteError> {
        let topic = self.names.get(topic).copied().ok_or(RouteError::UnknownTopic)?;
        let topic = &mut self.topics[topic];
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        let number = match (partition, key) {
            (Some(number), _) => Some(number),
            (None, Some(key)) => self.config.partitioner.partition(key, count),
            (None, None) => match self.config.spread {
                Spread::Sticky => topic.sticky.partition(count),
                Spread::RoundRobin => topic.round_robin.next_partition(count),
            },
        };
        let number = number.ok_or(RouteError::UnknownTopic)?;
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        topic.partitions.get(place).map(|slot| Slot(*slot)).ok_or(RouteError::UnknownPartition { count })
    }

    /// The partition behind a slot.
    #[must_use]
    pub fn topic_partition(&self, slot: Slot) -> &TopicPartition {
        &self.partitions[slot.0].topic_partition
    }

    /// Accepts a record whose [cost](RecordParts::cost) was taken from the budget. `token` makes the token of a new
    /// batch.
    ///
    /// # Errors
    /// The record was not accepted, and its memory was given back.
    pub fn append(
        &mut self,
        slot: Slot,
        record: RecordParts<'_>,
        now: Instant,
        token: impl FnOnce(&TopicPartition) -> C,
    ) -> Result<Appended<C>, AppendError> {
        let cost = record.cost();
        let appended = self.try_append(slot, record, cost, now, token);
        if appended.is_err() {
            self.budget.give_back(cost, 1);
        }
        appended
    }

    fn refuse(&self, bytes: usize) -> Result<(), AppendError> {
        let max = self.config.max_request_bytes;
        match self.fatal {
            Some(code) => Err(AppendError::Fatal(code)),
            None if self.closing => Err(AppendError::Closed),
            None if bytes > max => Err(AppendError::TooLarge { bytes, max }),
            None => Ok(()),
        }
    }

    fn try_append(
        &mut self,
        slot: Slot,
        record: RecordParts<'_>,
        cost: usize,
        now: Instant,
        token: impl FnOnce(&TopicPartition) -> C,
    ) -> Result<Appended<C>, AppendError> {
        let RecordParts { timestamp, key, value, headers } = record;
        self.refuse(cost)?;
        let mut closed = false;
        let partition = &mut self.partitions[slot.0];
        if let Some(open) = partition.queue.back_mut().filter(|batch| !batch.closed)
            && let Contents::Building(builder) = &open.contents
            && builder.would_exceed(self.config.batch_bytes, timestamp, key, value, headers)
        {
            open.closed = true;
            closed = true;
        }
        let fresh = partition.queue.back().is_none_or(|batch| batch.closed);
        if fresh {
            let builder = BatchBuilder::with_capacity(self.config.compression, partition.size_hint);
            let token = token(&partition.topic_partition);
            self.open(slot.0, builder, now, token);
        }
        let partition = &mut self.partitions[slot.0];
        let (bytes_limit, records_limit) = (self.config.batch_bytes, self.config.batch_records);
        let too_large = AppendError::TooLarge { bytes: cost, max: self.config.max_request_bytes };
        // A batch that is open was opened above or found open: it exists and takes records.
        let Some(batch) = partition.queue.back_mut() else { return Err(too_large) };
        let Contents::Building(builder) = &mut batch.contents else { return Err(too_large) };
        if builder.append(timestamp, key, value, headers).is_err() {
            return Err(too_large);
        }
        let index = batch.records;
        batch.records += 1;
        batch.cost += cost;
        let size = builder.size_bytes();
        if size >= bytes_limit || batch.records >= records_limit {
            batch.closed = true;
            closed = true;
            partition.size_hint = size;
        }
        let token = batch.token.clone();
        self.untold_records += 1;
        if closed {
            self.batch_closed(slot.0);
        }
        if fresh || closed {
            self.wake_after_append(slot.0, closed);
        }
        Ok(Appended { token, index })
    }

    /// Has the leader looked at, now that a batch began or was closed, if that can change anything.
    fn wake_after_append(&mut self, slot: usize, closed: bool) {
        let Some(node) = self.partitions[slot].leader else { return };
        let idle = self.nodes.get(&node).is_some_and(|queue| queue.in_flight == 0);
        // With linger the timer must be set; without, a busy node looks again when it is answered.
        if closed || idle || !self.config.linger.is_zero() {
            self.wakes.insert(node);
        }
    }

    fn batch_closed(&mut self, slot: usize) {
        let partition = &self.partitions[slot];
        let number = partition.topic_partition.partition;
        let topic = &mut self.topics[partition.topic];
        topic.sticky.batch_closed(number, i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX));
    }

    fn open(&mut self, slot: usize, builder: BatchBuilder, now: Instant, token: C) {
        let id = self.next_id;
        self.next_id += ID_STEP;
        let partition = &mut self.partitions[slot];
        partition.queue.push_back(Batch {
            id,
            partition: slot,
            topic_partition: partition.topic_partition.clone(),
            contents: Contents::Building(builder),
            records: 0,
            cost: 0,
            created: now,
            stamp: None,
            attempts: 0,
            last_error: None,
            token,
            first: 0,
            closed: false,
            solo: false,
        });
        self.untold.insert(id, slot);
        self.enlist(slot);
    }

    /// Accepts a whole batch as one request of its own, behind what the partition already holds. It waits for no
    /// linger and is never split. The budget is charged even when it is used up, since the records exist already.
    ///
    /// # Errors
    /// The batch was not accepted.
    pub fn append_batch(
        &mut self,
        slot: Slot,
        builder: BatchBuilder,
        now: Instant,
        token: C,
    ) -> Result<(), AppendError> {
        let bytes = builder.size_bytes();
        self.refuse(bytes)?;
        let records = u32::try_from(builder.len()).unwrap_or(u32::MAX);
        if let Some(open) = self.partitions[slot.0].queue.back_mut() {
            open.closed = true;
        }
        self.open(slot.0, builder, now, token);
        if let Some(batch) = self.partitions[slot.0].queue.back_mut() {
            batch.records = records;
            batch.cost = bytes;
            batch.closed = true;
            batch.solo = true;
        }
        self.untold_records += records as usize;
        self.budget.force_take(bytes, records as usize);
        self.list(slot.0);
        Ok(())
    }

    /// Everything accepted so far leaves without waiting for more. Wait until [`is_flushed`](Self::is_flushed).
    pub fn begin_flush(&mut self) -> FlushMark {
        for slot in 0..self.partitions.len() {
            if let Some(open) = self.partitions[slot].queue.back_mut() {
                open.closed = true;
                self.list(slot);
            }
        }
        FlushMark(self.next_id)
    }

    /// Whether everything accepted before the mark was told.
    #[must_use]
    pub fn is_flushed(&self, mark: FlushMark) -> bool {
        self.untold.first_key_value().is_none_or(|(id, _)| *id >= mark.0)
    }

    /// Accepts nothing more and flushes what there is.
    pub fn close(&mut self) -> FlushMark {
        self.closing = true;
        self.begin_flush()
    }

    /// How many records were accepted and are not told yet.
    #[must_use]
    pub const fn untold_records(&self) -> usize {
        self.untold_records
    }

    /// Somebody queued for memory: batches leave without waiting for more.
    pub fn wake_all(&mut self) {
        self.wakes.extend(self.nodes.keys().copied());
    }

    /// The next node that may have something to send.
    pub fn poll_wake(&mut self) -> Option<i32> {
        self.wakes.pop_first()
    }
}
