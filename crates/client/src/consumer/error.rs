//! What can go wrong with a consumer: one enum per operation.

use std::collections::BTreeMap;
use std::time::Duration;

use tramline_core::client::consumer_commits::CommitFailure;
use tramline_core::client::fetcher::FetchError;
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::types::CommitMode;
use crate::error::CallError;

/// Why a consumer could not be built.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildConsumerError {
    /// Neither `assign` nor `subscribe` was called, or both were.
    #[error("a consumer needs either assigned partitions or subscribed topics")]
    NothingToRead,
    /// Topics were subscribed to without a group, or something else that needs a group.
    #[error("{0} needs a group")]
    NeedsGroup(&'static str),
    /// A setting is outside of its range.
    #[error("{setting}: {why}")]
    InvalidSetting {
        /// The setter's name.
        setting: &'static str,
        /// What is wrong with its value.
        why: &'static str,
    },
    /// No broker of the cluster could be asked within the connect timeout.
    #[error("the cluster cannot be asked: {0}")]
    Unreachable(#[from] CallError),
    /// A topic that was to be read whole does not exist.
    #[error("there is no topic {0}")]
    UnknownTopic(Str),
}

/// Why no record could be handed out. Nothing was lost: positions stay where they are.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// One partition stands still; the others go on. It is reported once, or again and again when nothing else is left
    /// to read. `seek` moves the partition, `resume` tries again at the same position.
    #[error(transparent)]
    Partition(#[from] FetchError),
    /// The group does not accept this consumer and will not (authorization, an unknown assignor, a fenced instance id).
    #[error("group {group}: {reason}")]
    Group {
        /// The group.
        group: Str,
        /// The coordinator's reason.
        reason: String,
    },
    /// `close` was called.
    #[error("the consumer is closed")]
    Closed,
}

impl ConsumeError {
    /// The partition that stands still, when it is about one partition.
    #[must_use]
    pub const fn topic_partition(&self) -> Option<&TopicPartition> {
        match self {
            Self::Partition(error) => Some(error.topic_partition()),
            Self::Group { .. } | Self::Closed => None,
        }
    }
}

/// Why the position of a partition could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeekError {
    /// The partition is not assigned to this consumer.
    #[error("{0} is not assigned")]
    NotAssigned(TopicPartition),
    /// There are no negative offsets.
    #[error("{offset} is not an offset")]
    Negative {
        /// What was asked for.
        offset: i64,
    },
}

/// Why an offset was not stored for the next automatic commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOffsetError {
    /// The consumer commits nothing by itself, or decides by itself what is done.
    #[error("offsets are stored by the program only with CommitMode::Auto and store: false, not with {0:?}")]
    NotStored(CommitMode),
    /// The partition is not assigned to this consumer, or not under the generation the offset names.
    #[error("{0} is not assigned")]
    NotAssigned(TopicPartition),
    /// Nothing up to this offset was handed out yet.
    #[error("{topic_partition}: {offset} is beyond what was handed out ({handed_out:?})")]
    BeyondHandedOut {
        /// The partition.
        topic_partition: TopicPartition,
        /// What was to be stored.
        offset: i64,
        /// The offset after everything that was handed out; `None` when nothing was.
        handed_out: Option<i64>,
    },
}

/// Which partitions of a commit failed, and why. Partitions that are not listed are committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of the partitions were not committed, first: {}", failed.len(), first(failed))]
pub struct CommitError {
    /// The failed partitions.
    pub failed: BTreeMap<TopicPartition, CommitFailure>,
}

fn first(failed: &BTreeMap<TopicPartition, CommitFailure>) -> String {
    failed.iter().next().map_or_else(String::new, |(tp, why)| format!("{tp}: {why}"))
}

impl CommitError {
    /// Whether every failed partition may be tried again.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        self.failed.values().all(CommitFailure::is_retriable)
    }

    /// Whether the group does not accept commits of this member any more for one of the partitions.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.failed.values().any(|why| matches!(why, CommitFailure::Fenced(_) | CommitFailure::NotOwned))
    }
}

/// Why offsets could not be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffsetsError {
    /// Committed offsets belong to a group, and the consumer has none.
    #[error("the consumer has no group")]
    NoGroup,
    /// A broker refused, and asking again would not help.
    #[error("{topic_partition}: refused with {code}")]
    Refused {
        /// The partition it is about.
        topic_partition: TopicPartition,
        /// The broker's reason.
        code: ErrorCode,
    },
    /// The group's coordinator refused, and asking again would not help.
    #[error("the group's offsets were refused with {0}")]
    GroupRefused(ErrorCode),
    /// No answer within the time limit.
    #[error("no answer within {limit:?}: {last}")]
    TimedOut {
        /// The time limit.
        limit: Duration,
        /// How the last try ended.
        last: String,
    },
    /// The consumer is closed.
    #[error("the consumer is closed")]
    Closed,
}

impl OffsetsError {
    /// Whether the same question may be answered later.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}
