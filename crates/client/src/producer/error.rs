//! Why a producer does not start, does not accept a record, or did not deliver everything.

use tramline_core::client::accumulator::AppendError;
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::config::ProducerConfigError;
use super::delivery::DeliveryError;
use super::record::ProducerRecord;
use crate::error::CallError;

/// No producer came up.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerStartError {
    /// A setting cannot be.
    #[error(transparent)]
    Config(#[from] ProducerConfigError),
    /// No broker answered within the connect timeout.
    #[error("the cluster was not reached: {0}")]
    Cluster(#[from] CallError),
}

/// A record was not accepted. Nothing of it was or will be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The topic did not appear in time, see
    /// [`topic_metadata_propagation`](super::ProducerConfig::topic_metadata_propagation).
    #[error("topic {topic} is not known to the cluster{}", code.map(|c| format!(": {c}")).unwrap_or_default())]
    UnknownTopic {
        /// The topic.
        topic: Str,
        /// What the cluster says about it, if it says anything.
        code: Option<ErrorCode>,
    },
    /// The partition did not appear in time, see
    /// [`topic_metadata_propagation`](super::ProducerConfig::topic_metadata_propagation).
    #[error("there is no partition {partition}, the topic has {count}")]
    UnknownPartition {
        /// What was asked for.
        partition: TopicPartition,
        /// How many partitions the topic has.
        count: i32,
    },
    /// The cluster refuses the topic: its name is invalid, or it is not ours to write to.
    #[error("topic {topic} is refused: {code}")]
    TopicRefused {
        /// The topic.
        topic: Str,
        /// Why.
        code: ErrorCode,
    },
    /// The record fits in no request.
    #[error("the record takes {bytes} bytes, at most {max} can be sent")]
    RecordTooLarge {
        /// What it takes.
        bytes: usize,
        /// What is possible.
        max: usize,
    },
    /// The broker refused this producer for good.
    #[error("the broker refused this producer for good: {0}")]
    Fatal(ErrorCode),
    /// The producer was closed.
    #[error("the producer is closed")]
    Closed,
}

impl SendError {
    /// Whether sending the same record later can succeed without any other change.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::UnknownTopic { .. } | Self::UnknownPartition { .. })
    }
}

impl From<AppendError> for SendError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Fatal(code) => Self::Fatal(ErrorCode::from(code)),
            AppendError::TooLarge { bytes, max } => Self::RecordTooLarge { bytes, max },
            _ => Self::Closed,
        }
    }
}

impl From<SendError> for DeliveryError {
    fn from(error: SendError) -> Self {
        Self::NotAccepted(Box::new(error))
    }
}

/// Why a record was not accepted at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendReason {
    /// The memory for unacknowledged records is used up.
    #[error("the producer's memory is full")]
    Full,
    /// The partitions of the topic are not known yet; they were asked for.
    #[error("the partitions of the topic are not known yet")]
    PartitionsUnknown,
    /// Waiting would not help.
    #[error(transparent)]
    Refused(SendError),
}

/// A record that was not accepted, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct TrySendError {
    /// The record, as it was given.
    pub record: ProducerRecord,
    /// Why it was not accepted.
    pub reason: TrySendReason,
}

/// Records that were accepted and did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failed} records were not delivered; the first: {first}")]
pub struct FlushError {
    /// How many records failed since the last flush.
    pub failed: usize,
    /// How the first of them did.
    pub first: DeliveryError,
}
