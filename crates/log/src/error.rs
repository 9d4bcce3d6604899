//! What can go wrong, one enum per operation.

use std::io;
use std::path::PathBuf;

use tramline_wire::BatchError;

/// Why an operation on a log failed as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The storage refused a call. The log is fenced: its state on disk is unknown until it is opened again.
    #[error("storage failed at {action} {}: {source}", path.display())]
    Storage {
        /// What was being done.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the file system answered.
        source: io::Error,
    },
    /// An earlier write or barrier failed; nothing is appended until the log is opened again. Reads go on.
    #[error("the log is fenced since a storage call failed; open it again")]
    Fenced,
    /// A leader epoch below one that was used before: the owner's bug.
    #[error("leader epoch {epoch} is below {latest}, which this log has already seen")]
    StaleEpoch {
        /// The epoch given.
        epoch: i32,
        /// The latest epoch of the log.
        latest: i32,
    },
    /// An offset outside the log was named.
    #[error("offset {offset} is outside {start}..={end}")]
    OutOfRange {
        /// The offset named.
        offset: i64,
        /// The log start.
        start: i64,
        /// The log end.
        end: i64,
    },
    /// A setting that cannot work.
    #[error("{0}")]
    Config(&'static str),
}

impl LogError {
    /// Kafka's code for the clients: 56 `KAFKA_STORAGE_ERROR`, 1 `OFFSET_OUT_OF_RANGE`, -1 for a bug of our own.
    #[must_use]
    pub fn code(&self) -> i16 {
        match self {
            Self::Storage { .. } | Self::Fenced => 56,
            Self::OutOfRange { .. } => 1,
            Self::StaleEpoch { .. } | Self::Config(_) => -1,
        }
    }

    /// Whether the same call may succeed later on this handle: never; a fenced log must be opened again.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        false
    }
}

/// Why one batch was not appended. The log is unharmed and the other members of the group are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The bytes are not one sound batch.
    #[error("not a sound record batch: {0}")]
    Corrupt(#[from] BatchError),
    /// A field has a value that a producer may not send.
    #[error("invalid record batch: {0}")]
    Invalid(&'static str),
    /// The batch does not fit an empty segment.
    #[error("a batch of {bytes} bytes does not fit a segment of {segment_bytes}")]
    LargerThanSegment {
        /// The batch.
        bytes: usize,
        /// The segment.
        segment_bytes: u32,
    },
    /// The sequence is not the one that follows the producer's last batch.
    #[error("producer {producer_id} epoch {epoch}: sequence {sequence} where {expected} was expected")]
    OutOfOrderSequence {
        /// The producer.
        producer_id: i64,
        /// The epoch of the batch.
        epoch: i16,
        /// The base sequence of the batch.
        sequence: i32,
        /// What would have been taken.
        expected: i32,
    },
    /// The producer has been replaced by one of a newer epoch.
    #[error("producer {producer_id}: epoch {epoch} is over, the latest is {latest}")]
    StaleProducerEpoch {
        /// The producer.
        producer_id: i64,
        /// The epoch of the batch.
        epoch: i16,
        /// The epoch known.
        latest: i16,
    },
}

impl AppendError {
    /// Kafka's error code: 2, 87, 18, 45 or 47.
    #[must_use]
    pub fn code(&self) -> i16 {
        match self {
            Self::Corrupt(BatchError::WrongMagic { .. }) | Self::Invalid(_) => 87,
            Self::Corrupt(_) => 2,
            Self::LargerThanSegment { .. } => 18,
            Self::OutOfOrderSequence { .. } => 45,
            Self::StaleProducerEpoch { .. } => 47,
        }
    }

    /// Whether the same bytes may be taken later: only a sequence gap can close.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::OutOfOrderSequence { .. })
    }
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is below the log start or above the log end.
    #[error("offset {offset} is outside {start}..={end}")]
    OutOfRange {
        /// The offset asked for.
        offset: i64,
        /// The log start.
        start: i64,
        /// The log end.
        end: i64,
    },
    /// The batches here are damaged on disk; the log goes on at `next`.
    #[error("offsets {from}..{next} are damaged on disk")]
    Damaged {
        /// The first offset that is lost.
        from: i64,
        /// The first offset after the damage.
        next: i64,
    },
    /// The storage refused a read.
    #[error("reading the log: {0}")]
    Storage(#[from] io::Error),
}

/// Stored bytes that are not what they were when they were checked.
pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ReadError {
    ReadError::Storage(io::Error::new(io::ErrorKind::InvalidData, error))
}

impl ReadError {
    /// Kafka's code for a fetch: 1 `OFFSET_OUT_OF_RANGE` or 56 `KAFKA_STORAGE_ERROR`.
    #[must_use]
    pub fn code(&self) -> i16 {
        match self {
            Self::OutOfRange { .. } => 1,
            Self::Damaged { .. } | Self::Storage(_) => 56,
        }
    }

    /// Whether the same read may succeed later: a storage error may pass, damage and range do not by themselves.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Storage(_))
    }
}

/// Why a barrier was not reached. The log of the ticket is fenced from this moment on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The storage failed at it. It is never tried again: a second barrier may claim success for bytes that are lost.
    #[error("the barrier of {} failed: {source}", path.display())]
    Storage {
        /// The file or directory.
        path: PathBuf,
        /// What the file system answered.
        source: io::Error,
    },
    /// An earlier write or barrier of the same log has failed, so this one proves nothing.
    #[error("the log is fenced since a storage call failed; open it again")]
    Fenced,
}

impl SyncError {
    /// Kafka's code: 56 `KAFKA_STORAGE_ERROR`.
    #[must_use]
    pub fn code(&self) -> i16 {
        56
    }
}
