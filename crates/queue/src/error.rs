//! What can go wrong with a queue: one enum per operation.

use tramline_client::producer::ProducerStartError;
use tramline_client::{
    AdminError, BuildConsumerError, ConsumeError, DeliveryError, OffsetsError, Refusal, SeekError, SendError,
};
use tramline_core::claims::SnapshotError;
use tramline_wire::Str;

/// A queue could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The cluster did not say what there is.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// No producer came up.
    #[error(transparent)]
    Producer(#[from] ProducerStartError),
    /// A topic could not be created.
    #[error("topic {topic} cannot be created: {refusal}")]
    Create {
        /// The topic.
        topic: Str,
        /// Why.
        refusal: Refusal,
    },
    /// A topic has not as many partitions as the tasks, so shards have no meaning.
    #[error("topic {topic} has {partitions} partitions, the tasks have {shards}")]
    Partitions {
        /// The topic.
        topic: Str,
        /// How many it has.
        partitions: usize,
        /// How many it must have.
        shards: usize,
    },
    /// A topic has a setting under which the queue does not work.
    #[error("topic {topic} has {setting}={value}; the queue needs {needed}")]
    Setting {
        /// The topic.
        topic: Str,
        /// Kafka's name of the setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        needed: &'static str,
    },
    /// There is no queue of that name, and none was to be made.
    #[error("there is no queue {0}")]
    Missing(String),
    /// The name is empty.
    #[error("a queue needs a name")]
    NoName,
}

/// A task was not added, or is not known to be.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// It was not accepted; nothing is written.
    #[error(transparent)]
    NotAccepted(#[from] SendError),
    /// It was accepted and is not known to be written.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// The broker did not tell the offset, which names the task: a fault of the broker.
    #[error("the broker acknowledged the task without its offset")]
    NoOffset,
}

impl PublishError {
    /// Whether publishing the task again can succeed without any other change. When it is possibly written, only a
    /// [unique](crate::NewTask::unique) task is not there twice afterwards.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::NotAccepted(error) => error.is_retriable(),
            Self::Delivery(error) => error.is_retriable(),
            Self::NoOffset => false,
        }
    }
}

/// The log of a queue could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The cluster did not say what there is.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// No consumer came up.
    #[error(transparent)]
    Build(#[from] BuildConsumerError),
    /// A partition cannot be read.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The ends could not be asked for.
    #[error(transparent)]
    Offsets(#[from] OffsetsError),
    /// A position could not be set: our own bug.
    #[error(transparent)]
    Seek(#[from] SeekError),
    /// The newest snapshot of a shard cannot be restored, and the claims before it are gone.
    #[error("shard {shard}: {source}")]
    Snapshot {
        /// The shard.
        shard: i32,
        /// Why.
        source: SnapshotError,
    },
    /// The claims begin behind offset 0, and no snapshot says what came before.
    #[error(
        "shard {shard}: the claims begin at offset {start}, and there is no snapshot of what came before"
    )]
    NoSnapshot {
        /// The shard.
        shard: i32,
        /// The first offset there is.
        start: i64,
    },
    /// A claim names a task that is not there: something else writes to the claims, or the tasks were made anew.
    #[error("shard {shard}: the claims name task {task}, which is not there")]
    UnknownTask {
        /// The shard.
        shard: i32,
        /// The task.
        task: i64,
    },
}

impl ReadError {
    /// Whether reading again can succeed without any other change.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Admin(error) => error.is_retriable(),
            Self::Build(BuildConsumerError::Unreachable(_)) => true,
            Self::Offsets(error) => error.is_retriable(),
            _ => false,
        }
    }
}

/// A setting of a worker that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerConfigError {
    /// A setting is outside of its range.
    #[error("{setting}: {why}")]
    InvalidSetting {
        /// The setter's name.
        setting: &'static str,
        /// What is wrong with its value.
        why: &'static str,
    },
    /// A shard was named that the queue does not have.
    #[error("there is no shard {0}")]
    UnknownShard(i32),
}

/// A worker ended because it could not go on. What it held comes free when its leases run out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The queue's log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The queue's log cannot be written.
    #[error("claims cannot be written: {0}")]
    Write(#[from] SendError),
}

/// A worker is not healthy.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealthError {
    /// Nobody says where the claims end.
    #[error("the brokers do not answer: {0}")]
    Unreachable(AdminError),
    /// The brokers did not answer in time.
    #[error("the brokers do not answer")]
    NoAnswer,
    /// The replay of a shard stands still.
    #[error("the replay of shard {shard} stands at {position}, its claims end at {end}")]
    Stalled {
        /// The shard.
        shard: i32,
        /// The next offset it would fold.
        position: i64,
        /// Where the claims ended when the question was asked.
        end: i64,
    },
    /// The worker does not run.
    #[error("the worker does not run")]
    NotRunning,
}
