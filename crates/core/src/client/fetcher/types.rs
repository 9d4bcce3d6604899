//! What goes into and comes out of the fetcher: settings, positions, chunks of records, errors.

use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::batch::BatchError;
use tramline_wire::{ErrorCode, Record, TopicPartition};

use crate::time::Timestamp;

/// What to do when a position is not in the log any more (or not yet), or when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffsetReset {
    /// Report it ([`FetchError::OffsetOutOfRange`], [`FetchError::NoPosition`]) and read nothing more of the partition.
    #[default]
    None,
    /// Go on at the oldest record that is kept.
    Earliest,
    /// Go on at the end: records between the lost position and the end are not read.
    Latest,
}

/// A place in a partition that is named instead of numbered, resolved by the partition's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffsetSpec {
    /// The oldest record that is kept.
    Earliest,
    /// The end of what may be read: the high watermark, or for readers of committed records the last stable offset.
    Latest,
    /// The first record whose timestamp is this or later (milliseconds since 1970); the end when there is none.
    Timestamp(Timestamp),
}

impl OffsetSpec {
    /// The number that stands for this place in a `ListOffsets` request.
    #[must_use]
    pub const fn wire_timestamp(self) -> i64 {
        match self {
            Self::Earliest => -2,
            Self::Latest => -1,
            Self::Timestamp(timestamp) => timestamp,
        }
    }
}

/// What a reader sees of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsolationLevel {
    /// Every record, also those of transactions that are open or were aborted.
    #[default]
    ReadUncommitted,
    /// Records outside of transactions and those of committed ones, up to the oldest transaction that is still open.
    ReadCommitted,
}

impl IsolationLevel {
    /// The number that stands for it in requests.
    #[must_use]
    pub const fn wire_level(self) -> i8 {
        match self {
            Self::ReadUncommitted => 0,
            Self::ReadCommitted => 1,
        }
    }
}

/// Where reading of a partition begins when it is handed to the fetcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At this offset.
    Offset(Position),
    /// At the offset a named place has when the leader is asked.
    Lookup(OffsetSpec),
    /// Not before somebody says where (`Fetcher::position_known`): the committed offset is being asked for.
    Awaiting,
}

/// The next offset to hand out, with the leader epoch of the record before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The next offset.
    pub offset: i64,
    /// The leader epoch of the last record before it; `None` when unknown.
    pub leader_epoch: Option<i32>,
}

impl Position {
    /// The position `offset`, nothing known about its leader epoch.
    #[must_use]
    pub const fn at(offset: i64) -> Self {
        Self { offset, leader_epoch: None }
    }
}

/// Records of one partition, in order, and the offset after everything that was passed on the way.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fetched {
    /// Where the records come from.
    pub topic_partition: TopicPartition,
    /// The group's generation in which the partition was assigned; -1 when positions are self-kept.
    pub generation: i32,
    /// The position before: the first offset that was looked at.
    pub first_offset: i64,
    /// The records, in rising offset order. Empty when only control records or compacted gaps were passed.
    pub records: Vec<Record>,
    /// The offset after the last record, or after the control records and gaps that followed it: the number to commit
    /// once every record is dealt with.
    pub next_offset: i64,
    /// The leader epoch to commit beside `next_offset`; -1 when unknown.
    pub leader_epoch: i32,
}

/// How much to ask for, and how long the broker may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetcherConfig {
    /// Bytes to read ahead of the caller; 0 asks only when the caller has polled an empty buffer.
    pub prefetch_bytes: usize,
    /// The reader's own limit for one record batch; a larger one gives [`FetchError::RecordExceedsMaxBytes`].
    pub max_bytes: usize,
    /// What a response should not exceed (a broker sends one whole batch in any case).
    pub fetch_max_bytes: usize,
    /// What one partition's part of a response should not exceed (a broker sends one whole batch in any case).
    pub partition_max_bytes: usize,
    /// The bytes for which the broker should wait.
    pub min_bytes: usize,
    /// How long the broker may wait for them.
    pub max_wait: Duration,
    /// Most records handed out at once.
    pub max_poll_records: usize,
    /// What to do about a position outside of the log.
    pub offset_reset: OffsetReset,
    /// What is seen of transactions.
    pub isolation_level: IsolationLevel,
    /// Whether to name only what changed since the last fetch to the same broker (fetch sessions), where the broker can.
    pub fetch_sessions: bool,
    /// The first pause before a failed request is repeated; it doubles up to `retry_backoff_max`.
    pub retry_backoff: Duration,
    /// The longest such pause.
    pub retry_backoff_max: Duration,
}

impl Default for FetcherConfig {
    fn default() -> Self {
        Self {
            prefetch_bytes: 0,
            max_bytes: 50 << 20,
            fetch_max_bytes: 50 << 20,
            partition_max_bytes: 1 << 20,
            min_bytes: 1,
            max_wait: Duration::from_millis(500),
            max_poll_records: 500,
            offset_reset: OffsetReset::None,
            isolation_level: IsolationLevel::ReadUncommitted,
            fetch_sessions: true,
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
        }
    }
}

/// Why a partition cannot be read on at its position. The position has not moved, and nothing more of the partition is
/// asked for until it is sought, resumed or assigned anew.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The position is before the oldest record or after the end, and no reset policy says where to go instead.
    #[error("{topic_partition}: offset {offset} is out of range")]
    OffsetOutOfRange {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position that is not in the log.
        offset: i64,
    },
    /// The log was cut below the position: a leader was elected that lacks records which were handed out already. No
    /// reset policy says where to go instead.
    #[error(
        "{topic_partition}: the log was cut at offset {diverging_offset}, records up to {offset} were read before"
    )]
    Truncated {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position, which has not moved.
        offset: i64,
        /// Where the log parts from what was read: the first offset that may hold another record now.
        diverging_offset: i64,
    },
    /// There is no position to start at (nothing committed), and no reset policy says where to begin.
    #[error("{topic_partition}: no committed offset and no reset policy")]
    NoPosition {
        /// The partition.
        topic_partition: TopicPartition,
    },
    /// The topic was deleted and created again under its name: the position belongs to the old one.
    #[error("{topic_partition}: the topic was created anew, offset {offset} belongs to the old one")]
    TopicRecreated {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position in the topic that is gone.
        offset: i64,
    },
    /// The record batch at the position is larger than this reader accepts.
    #[error(
        "{topic_partition}: the batch at offset {offset} needs {needed_bytes} bytes, the limit is {max_bytes}"
    )]
    RecordExceedsMaxBytes {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position, which has not moved.
        offset: i64,
        /// The limit with which the batch could be read.
        needed_bytes: usize,
        /// The limit in force.
        max_bytes: usize,
    },
    /// The record batch at the position is damaged.
    #[error("{topic_partition}: the batch at offset {offset} is damaged")]
    Corrupt {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position, which has not moved.
        offset: i64,
        /// What is wrong with it.
        source: BatchError,
    },
    /// The broker's answer cannot be what was asked for.
    #[error("{topic_partition}: broken answer at offset {offset}: {what}")]
    BrokenPeer {
        /// The partition.
        topic_partition: TopicPartition,
        /// The position, which has not moved.
        offset: i64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The broker refuses to serve the partition, and asking again would not help.
    #[error("{topic_partition}: refused with {code}")]
    Refused {
        /// The partition.
        topic_partition: TopicPartition,
        /// The broker's reason.
        code: ErrorCode,
    },
}

impl FetchError {
    /// The partition that stands still.
    #[must_use]
    pub const fn topic_partition(&self) -> &TopicPartition {
        match self {
            Self::OffsetOutOfRange { topic_partition, .. }
            | Self::Truncated { topic_partition, .. }
            | Self::NoPosition { topic_partition }
            | Self::TopicRecreated { topic_partition, .. }
            | Self::RecordExceedsMaxBytes { topic_partition, .. }
            | Self::Corrupt { topic_partition, .. }
            | Self::BrokenPeer { topic_partition, .. }
            | Self::Refused { topic_partition, .. } => topic_partition,
        }
    }

    /// The position at which it stands still, where there is one.
    #[must_use]
    pub const fn offset(&self) -> Option<i64> {
        match self {
            Self::OffsetOutOfRange { offset, .. }
            | Self::Truncated { offset, .. }
            | Self::TopicRecreated { offset, .. }
            | Self::RecordExceedsMaxBytes { offset, .. }
            | Self::Corrupt { offset, .. }
            | Self::BrokenPeer { offset, .. } => Some(*offset),
            Self::NoPosition { .. } | Self::Refused { .. } => None,
        }
    }
}
