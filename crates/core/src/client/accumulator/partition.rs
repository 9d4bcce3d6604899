//! One partition's batches: waiting, in flight, and the sequence numbers that keep them in order at the broker.
//!
//! Sequences are given when a batch is first sent and kept on every retry. They start again from 0 under a higher epoch
//! in two cases, and only when nothing of this partition is in flight:
//! - *renumber*: the broker sees a gap (or forgot this producer) at the oldest unacknowledged batch. Nothing behind it
//!   can have been written, so everything that waits is numbered anew.
//! - *new epoch wanted*: a batch that was sent was given up, so that its outcome is unknown. What was sent after it is
//!   retried under its old number first, since it may be written too; only then the epoch changes.
//!
//! A broker that has no state of this producer accepts any sequence, so that a second batch could pass a refused first
//! one. Until the first is acknowledged, a partition has one batch in flight.
//!
//! Each partition has its own epoch: an error in one never renumbers what another may have written.

use alloc::collections::VecDeque;

use tramline_wire::TopicPartition;

use super::AccumulatorConfig;
use super::batch::{Batch, ProducerId, Stamp, sequence_after};
use crate::client::retry::Backoff;
use crate::time::Instant;

/// What the machine remembers of a batch that the driver holds.
#[derive(Debug)]
pub(super) struct Flight<C> {
    pub(super) id: u64,
    pub(super) node: i32,
    pub(super) created: Instant,
    pub(super) token: C,
    pub(super) first: u32,
    pub(super) records: u32,
    /// Sent before: until it is answered nothing goes beyond it. The broker remembers five batches, and this one may
    /// be the fifth from the end already.
    pub(super) is_retry: bool,
    /// Its records were told already that their time is over.
    pub(super) expired: bool,
}

#[derive(Debug)]
pub(super) struct Partition<C> {
    pub(super) topic: usize,
    pub(super) topic_partition: TopicPartition,
    pub(super) leader: Option<i32>,
    /// Oldest first. Those with a stamp were sent before.
    pub(super) queue: VecDeque<Batch<C>>,
    /// Oldest first.
    pub(super) flights: VecDeque<Flight<C>>,
    /// Whether it stands in the list of its leader.
    pub(super) listed: bool,
    pub(super) producer: Option<ProducerId>,
    pub(super) next_sequence: i32,
    /// The broker acknowledged something under this producer id: it checks what follows.
    pub(super) established: bool,
    pub(super) renumber: bool,
    pub(super) new_epoch_wanted: bool,
    pub(super) retry_at: Option<Instant>,
    pub(super) backoff: Backoff,
    /// The size of the last full batch, to make room for the next at once.
    pub(super) size_hint: usize,
}

/// When something waiting may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Now.
    Ready,
    /// Not before this.
    At(Instant),
    /// When something else happens.
    Later,
}

/// The last epoch of a producer id.
const LAST_EPOCH: i16 = i16::MAX - 1;

impl<C> Partition<C> {
    pub(super) fn new(topic: usize, topic_partition: TopicPartition, backoff: Backoff) -> Self {
        Self {
            topic,
            topic_partition,
            leader: None,
            queue: VecDeque::new(),
            flights: VecDeque::new(),
            listed: false,
            producer: None,
            next_sequence: 0,
            established: false,
            renumber: false,
            new_epoch_wanted: false,
            retry_at: None,
            backoff,
            size_hint: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty()
    }

    /// Whether the oldest waiting batch may be sent to `node`. `hurry`: without waiting for more records.
    pub(super) fn readiness(
        &self,
        config: &AccumulatorConfig,
        node: i32,
        now: Instant,
        node_is_idle: bool,
        hurry: bool,
    ) -> Readiness {
        let Some(front) = self.queue.front() else { return Readiness::Later };
        if self.renumber || !self.may_join_flights(config, front, node) {
            return Readiness::Later;
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Readiness::At(at);
        }
        if hurry || front.closed || front.attempts > 0 || self.queue.len() > 1 {
            return Readiness::Ready;
        }
        if config.linger.is_zero() {
            return if node_is_idle { Readiness::Ready } else { Readiness::Later };
        }
        let until = front.created + config.linger;
        if until <= now { Readiness::Ready } else { Readiness::At(until) }
    }

    /// Whether the broker is sure to see `front` in its order although others are in flight.
    fn may_join_flights(&self, config: &AccumulatorConfig, front: &Batch<C>, node: i32) -> bool {
        if front.stamp.is_none() && self.new_epoch_wanted {
            return false;
        }
        let Some(oldest) = self.flights.front() else { return true };
        // Two leaders at once see the batches in an order nobody knows.
        if self.flights.iter().any(|flight| flight.node != node || flight.is_retry) {
            return false;
        }
        if front.stamp.is_some() {
            // A retry goes alone, and only when nothing older is still unanswered.
            return front.id < oldest.id;
        }
        let pipelines =
            (config.idempotent && self.established) || (!config.acks.is_answered() && front.attempts == 0);
        pipelines && self.flights.len() < config.max_in_flight
    }

    /// Takes the oldest batch for sending.
    pub(super) fn take(
        &mut self,
        node: i32,
        idempotent: bool,
        producer: Option<ProducerId>,
    ) -> Option<Batch<C>>
    where
        C: Clone,
    {
        if idempotent && self.producer.is_none() {
            self.producer = Some(producer?);
            self.next_sequence = 0;
        }
        let mut batch = self.queue.pop_front()?;
        if idempotent && batch.stamp.is_none() {
            batch.stamp = self.producer.map(|producer| Stamp { producer, sequence: self.next_sequence });
            self.next_sequence = sequence_after(self.next_sequence, batch.records);
        }
        batch.closed = true;
        batch.attempts = batch.attempts.saturating_add(1);
        self.retry_at = None;
        let flight = Flight {
            id: batch.id,
            node,
            created: batch.created,
            token: batch.token.clone(),
            first: batch.first,
            records: batch.records,
            is_retry: batch.attempts > 1,
            expired: false,
        };
        let place = self.flights.partition_point(|other| other.id < batch.id);
        self.flights.insert(place, flight);
        Some(batch)
    }

    pub(super) fn land(&mut self, id: u64) -> Option<Flight<C>> {
        let place = self.flights.iter().position(|flight| flight.id == id)?;
        self.flights.remove(place)
    }

    /// Puts a batch back in its place, before everything younger.
    pub(super) fn requeue(&mut self, batch: Batch<C>) {
        let place = self.queue.partition_point(|other| other.id < batch.id);
        self.queue.insert(place, batch);
    }

    /// Whether nothing older than batch `id` is unanswered.
    pub(super) fn is_oldest(&self, id: u64) -> bool {
        self.flights.front().is_none_or(|flight| flight.id > id)
            && self.queue.front().is_none_or(|batch| batch.id > id || batch.stamp.is_none())
    }

    /// Called after every answer and expiry: changes the epoch once that is safe. True when a fresh id is needed.
    pub(super) fn settle_epoch(&mut self) -> bool {
        if !self.flights.is_empty() {
            return false;
        }
        if self.renumber {
            for batch in &mut self.queue {
                batch.stamp = None;
            }
        } else if !self.new_epoch_wanted || self.queue.iter().any(|batch| batch.stamp.is_some()) {
            return false;
        }
        self.renumber = false;
        self.new_epoch_wanted = false;
        self.next_sequence = 0;
        match &mut self.producer {
            Some(producer) if producer.epoch < LAST_EPOCH => {
                producer.epoch += 1;
                false
            }
            spent => {
                self.established = false;
                spent.take().is_some()
            }
        }
    }

    /// A batch was refused for good: its numbers are free again, or the broker will see a gap.
    pub(super) fn give_up_sequence(&mut self, batch: &Batch<C>) {
        let Some(stamp) = batch.stamp.filter(|stamp| Some(stamp.producer) == self.producer) else { return };
        let last_given = self.next_sequence == sequence_after(stamp.sequence, batch.records);
        let alone = self.flights.is_empty() && self.queue.iter().all(|other| other.stamp.is_none());
        // After several attempts an earlier one may have been written: those numbers must not be used again.
        if last_given && alone && batch.attempts == 1 {
            self.next_sequence = stamp.sequence;
        } else {
            self.new_epoch_wanted = true;
        }
    }
}
