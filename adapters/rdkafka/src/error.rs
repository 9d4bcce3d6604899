//! What can go wrong: one enum per operation.

use std::time::Duration;

use rdkafka::error::KafkaError;
use tramline_wire::TopicPartition;

/// Why a source could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// librdkafka refused the settings, the subscription or the assignment.
    #[error("librdkafka refused: {0}")]
    Refused(#[from] KafkaError),
    /// `group.id` is not set. librdkafka assigns nothing without it, not even partitions chosen by the program.
    #[error("group.id is not set")]
    NoGroup,
    /// Nothing to read was named.
    #[error("no topics and no partitions to read")]
    NothingToRead,
}

/// Why the source cannot go on. Nothing is lost: what was not processed is not committed. It will not go on with another
/// run either: close it and make a new one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// librdkafka cannot go on, or is not allowed to.
    #[error("librdkafka cannot go on: {0}")]
    Consumer(KafkaError),
    /// One partition cannot be read on.
    #[error("{topic_partition} cannot be read on: {source}")]
    Partition {
        /// The partition.
        topic_partition: TopicPartition,
        /// librdkafka's reason.
        source: KafkaError,
    },
    /// An assignment could not be carried out, or there is no commit to begin at and `auto.offset.reset` is `error`.
    #[error("an assignment was not taken: {0}")]
    Assign(KafkaError),
    /// A record has a header whose name is not UTF-8, which rdkafka cannot read.
    #[error("{topic_partition} offset {offset}: a header's name is not UTF-8")]
    HeaderName {
        /// The partition.
        topic_partition: TopicPartition,
        /// The record.
        offset: i64,
    },
}

/// Why closing was not seen to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// librdkafka goes on closing on a thread of its own; the group may notice by the session timeout only.
    #[error("librdkafka did not close within {0:?}")]
    TimedOut(Duration),
}
