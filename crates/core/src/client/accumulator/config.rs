//! Settings of the accumulator.

use core::time::Duration;

use tramline_wire::{Compression, Partitioner};

/// What an acknowledgement by the broker means, and so what a record's completion means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Acks {
    /// Nothing: the broker answers nothing. A record completes when its bytes went to the socket, without an offset.
    /// The broker may drop it without a word.
    None,
    /// The record is in the leader's log. It survives a kill of the broker's process.
    Written,
    /// The record is durable: forced to disk on our broker, on every in-sync replica on a Kafka cluster.
    #[default]
    Forced,
}

impl Acks {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Written => 1,
            Self::Forced => -1,
        }
    }

    /// Whether the broker answers at all.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// How records without a key are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Spread {
    /// One partition until its batch is closed, then another at random: fuller batches, even over time.
    #[default]
    Sticky,
    /// One partition after the other, from 0.
    RoundRobin,
}

/// The settings of an [`Accumulator`](super::Accumulator). Sizes are bytes before compression.
#[derive(Debug, Clone)]
pub struct AccumulatorConfig {
    /// What is waited for.
    pub acks: Acks,
    /// Whether batches carry sequences, so that a retry is never stored twice.
    pub idempotent: bool,
    /// A batch is full at this size. A larger record gets a batch of its own.
    pub batch_bytes: usize,
    /// A batch is full at this many records.
    pub batch_records: u32,
    /// How long a batch waits for more records, counted from its first.
    pub linger: Duration,
    /// How long after it was accepted a record is told at the latest how it ended.
    pub delivery_timeout: Duration,
    /// Requests unanswered per node at once. More than 5 would exceed what a broker remembers of a producer.
    pub max_in_flight: usize,
    /// A request takes no further batch beyond this size.
    pub max_request_bytes: usize,
    /// Bytes of records accepted and not yet answered, at once.
    pub buffer_bytes: usize,
    /// Records accepted and not yet answered, at once.
    pub buffer_records: usize,
    /// How batches are compressed.
    pub compression: Compression,
    /// How a key picks its partition.
    pub partitioner: Partitioner,
    /// How records without a key are spread.
    pub spread: Spread,
    /// The first and the longest wait before a batch is tried again.
    pub retry_backoff: (Duration, Duration),
}

impl Default for AccumulatorConfig {
    fn default() -> Self {
        Self {
            acks: Acks::Forced,
            idempotent: true,
            batch_bytes: 128 << 10,
            batch_records: 10_000,
            linger: Duration::ZERO,
            delivery_timeout: Duration::from_secs(120),
            max_in_flight: 5,
            max_request_bytes: 1 << 20,
            buffer_bytes: 32 << 20,
            buffer_records: 1_000_000,
            compression: Compression::None,
            partitioner: Partitioner::default(),
            spread: Spread::Sticky,
            retry_backoff: (Duration::from_millis(100), Duration::from_secs(1)),
        }
    }
}
