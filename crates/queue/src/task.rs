//! What a handler is given, and what it answers.

use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tramline_core::claims::worker::Held;
use tramline_wire::Record;

/// A task in the hands of a handler.
#[derive(Clone, Debug)]
pub struct Task {
    pub(crate) held: Held,
    pub(crate) record: Record,
    pub(crate) lost: CancellationToken,
}

impl Task {
    /// What was published.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.record.value().unwrap_or_default()
    }

    /// What was published, shared instead of borrowed.
    #[must_use]
    pub fn payload_bytes(&self) -> Bytes {
        self.record.value_bytes().unwrap_or_default()
    }

    /// The key under which tasks keep their order, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.record.key()
    }

    /// The value of the last header `name`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.record.header(name).flatten()
    }

    /// The shard: the partition of the tasks topic.
    #[must_use]
    pub const fn shard(&self) -> i32 {
        self.held.shard
    }

    /// The task's name within its shard: the offset of its record.
    #[must_use]
    pub const fn id(&self) -> i64 {
        self.held.task
    }

    /// The fencing token: it grows with every holder of this task. A store that remembers the largest token it has seen
    /// for the task, and refuses smaller ones, cannot be written to by a worker that has lost it.
    #[must_use]
    pub const fn token(&self) -> i64 {
        self.held.token
    }

    /// The attempt this is, from 1. Only attempts that were begun count.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.held.attempt
    }

    /// How often the task is begun before it is dead.
    #[must_use]
    pub const fn max_attempts(&self) -> u32 {
        self.held.max_attempts
    }

    /// Why earlier attempts ended, the newest last; at most five.
    #[must_use]
    pub fn causes(&self) -> &[String] {
        &self.held.causes
    }

    /// Becomes cancelled when the lease is lost, a moment before the handler's future is dropped: for what runs outside
    /// of that future, such as a thread.
    #[must_use]
    pub const fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// How a handler ended. A panic counts as [`Outcome::retry`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The task is done.
    Done,
    /// The task is done; this goes to the queue's results first, under the task's id.
    DoneWith(Bytes),
    /// The task is to be tried again, unless this was its last attempt: then it is dead.
    Retry {
        /// How long to wait; the worker's backoff when it is not said.
        after: Option<Duration>,
        /// Why, in words.
        cause: String,
    },
    /// Trying again is of no use: the task is dead.
    Failed {
        /// Why, in words.
        cause: String,
    },
}

impl Outcome {
    /// Try again after the worker's backoff.
    #[must_use]
    pub fn retry(cause: impl std::fmt::Display) -> Self {
        Self::Retry { after: None, cause: cause.to_string() }
    }

    /// Trying again is of no use.
    #[must_use]
    pub fn failed(cause: impl std::fmt::Display) -> Self {
        Self::Failed { cause: cause.to_string() }
    }
}
