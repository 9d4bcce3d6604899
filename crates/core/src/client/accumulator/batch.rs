//! A batch on its way: what it holds, whom to tell, and which sequence it was given.

use bytes::Bytes;
use tramline_wire::batch::with_producer;
use tramline_wire::{BatchBuilder, BatchError, RecordBatch, TopicPartition};

use crate::time::Instant;

/// Sequence numbers run from 0 to `i32::MAX` and start again.
pub(super) const fn sequence_after(sequence: i32, records: u32) -> i32 {
    sequence.wrapping_add(records.cast_signed()) & i32::MAX
}

/// Who produces, for the broker to recognise a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerId {
    /// The id the broker gave.
    pub id: i64,
    /// The epoch under it.
    pub epoch: i16,
}

/// The sequence a batch was given when it was first sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) producer: ProducerId,
    pub(super) sequence: i32,
}

#[derive(Debug)]
pub(super) enum Contents {
    /// Records go in.
    Building(BatchBuilder),
    /// The bytes as sent, and the stamp in them. They are kept: a retry is the same bytes.
    Built(Bytes, Option<Stamp>),
}

/// One batch of one partition. The driver holds it while it is in flight and gives it back with the answer.
#[derive(Debug)]
pub struct Batch<C> {
    /// Ascending in the order of the records of a partition; halves of a split batch stay between their neighbours.
    pub(super) id: u64,
    pub(super) partition: usize,
    pub(super) topic_partition: TopicPartition,
    pub(super) contents: Contents,
    pub(super) records: u32,
    /// What its records were charged in the budget.
    pub(super) cost: usize,
    pub(super) created: Instant,
    pub(super) stamp: Option<Stamp>,
    pub(super) attempts: u32,
    pub(super) last_error: Option<i16>,
    pub(super) token: C,
    /// The place of its first record under the token.
    pub(super) first: u32,
    /// Nothing more goes in.
    pub(super) closed: bool,
    /// A request of its own, never split.
    pub(super) solo: bool,
}

impl<C> Batch<C> {
    /// The partition the records go to.
    #[must_use]
    pub const fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// How many records it holds.
    #[must_use]
    pub const fn records(&self) -> u32 {
        self.records
    }

    /// An upper bound of its bytes on the wire, as far as known before compression.
    pub(super) fn size(&self) -> usize {
        match &self.contents {
            Contents::Building(builder) => builder.size_bytes(),
            Contents::Built(bytes, _) => bytes.len(),
        }
    }

    /// The bytes to send, compressed on the first call and the same on every later one until the sequence changes.
    ///
    /// # Errors
    /// When the kept bytes were damaged in memory.
    pub fn encode(&mut self) -> Result<Bytes, BatchError> {
        let stamp = self.stamp;
        let (id, epoch, sequence) =
            stamp.map_or((-1, -1, -1), |s| (s.producer.id, s.producer.epoch, s.sequence));
        let bytes = match &mut self.contents {
            Contents::Building(builder) => builder.producer(id, epoch, sequence).build(),
            Contents::Built(bytes, stamped) if *stamped == stamp => return Ok(bytes.clone()),
            Contents::Built(bytes, _) => with_producer(core::mem::take(bytes), id, epoch, sequence)?,
        };
        self.contents = Contents::Built(bytes.clone(), stamp);
        Ok(bytes)
    }
}

impl<C: Clone> Batch<C> {
    /// Two batches with the same records, in order; `None` when there is nothing to divide.
    pub(super) fn split(&self, builder: impl Fn() -> BatchBuilder) -> Option<(Self, Self)> {
        let Contents::Built(bytes, _) = &self.contents else { return None };
        if self.records < 2 || self.solo {
            return None;
        }
        let decoded = RecordBatch::decode(self.topic_partition.clone(), bytes.clone()).ok()?;
        let half = self.records / 2;
        let (mut low, mut high) = (builder(), builder());
        let (mut low_bytes, mut count) = (0usize, 0u32);
        for record in &decoded {
            let into = if count < half { &mut low } else { &mut high };
            let grown = into.append_record(&record).ok()?;
            low_bytes += if count < half { grown } else { 0 };
            count += 1;
        }
        if count != self.records {
            return None;
        }
        let low_cost = low_bytes.min(self.cost);
        let part = |contents, offset: u32, records, cost| Self {
            id: self.id + u64::from(offset),
            partition: self.partition,
            topic_partition: self.topic_partition.clone(),
            contents: Contents::Building(contents),
            records,
            cost,
            created: self.created,
            stamp: self.stamp.map(|s| Stamp { sequence: sequence_after(s.sequence, offset), ..s }),
            attempts: self.attempts,
            last_error: self.last_error,
            token: self.token.clone(),
            first: self.first + offset,
            closed: true,
            solo: false,
        };
        Some((part(low, 0, half, low_cost), part(high, half, self.records - half, self.cost - low_cost)))
    }
}
