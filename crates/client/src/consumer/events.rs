//! What happens to a consumer's partitions: assigned, revoked (held until released), lost.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use tramline_wire::TopicPartition;

use super::error::CommitError;
use super::shared::Shared;

/// A change of what the consumer owns, in the order in which the changes happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// These partitions are ours now, beside those we had. Their records may be handed out from here on.
    Assigned {
        /// The group's generation that gave them to us; -1 when positions are self-kept.
        generation: i32,
        /// The new partitions.
        partitions: Vec<TopicPartition>,
    },
    /// These partitions are to be given up. No record of them is handed out any more, but they are ours, and their offsets
    /// can be committed, until the [`Revocation`] is dropped or its deadline passes.
    Revoked(Revocation),
    /// These partitions are gone already: the group threw us out or we lost contact for too long. Somebody else may be
    /// working on them, and commits for them are refused.
    Lost {
        /// The group's generation in which they were ours.
        generation: i32,
        /// The partitions.
        partitions: Vec<TopicPartition>,
    },
    /// The position of a partition was not in the log any more, and the reset policy moved it. Moved back, the offsets from
    /// there on are those of other records: the log was cut, or the topic was deleted and made again.
    PositionReset {
        /// The group's generation in which the partition is ours; -1 when positions are self-kept.
        generation: i32,
        /// The partition.
        topic_partition: TopicPartition,
        /// The position that could not be read; `None` when there was none.
        from: Option<i64>,
        /// Where reading goes on.
        to: i64,
    },
    /// An automatic commit failed. What is still ours is committed again after the interval.
    CommitFailed {
        /// The partitions, and why.
        error: CommitError,
    },
}

/// Partitions that are to be given up. Dropping it (or [`Revocation::acknowledge`]) tells the group that they are free;
/// until then, or until the deadline, they are still ours, while heartbeats and all other partitions go on.
#[must_use = "dropping a revocation gives the partitions up at once"]
pub struct Revocation {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) generation: i32,
    pub(super) partitions: Vec<TopicPartition>,
    pub(super) deadline: Instant,
}

impl Revocation {
    /// The partitions to give up.
    #[must_use]
    pub fn partitions(&self) -> &[TopicPartition] {
        &self.partitions
    }

    /// The group's generation in which they were ours when they were taken away.
    #[must_use]
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// When ownership is given up in any case: the rebalance timeout minus a margin, counted from the revocation.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Gives the partitions up. The same as dropping it, with a name.
    pub fn acknowledge(self) {
        drop(self);
    }
}

impl Drop for Revocation {
    fn drop(&mut self) {
        self.shared.release(self.id);
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation")
            .field("generation", &self.generation)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

/// The stream of [`Event`]s of a consumer. While one exists, revocations are held until their token is dropped; without
/// one, the consumer gives revoked partitions up by itself, at once.
///
/// The first handle is told what is assigned already. Dropping the last one gives up every revocation it has not
/// delivered. Several handles share one queue: each event goes to whoever asks first.
pub struct Events {
    pub(super) shared: Arc<Shared>,
}

impl Events {
    /// The next event; `None` once the consumer is closed and everything was delivered.
    ///
    /// Cancel-safe: an event is taken out of the queue only when this returns it.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.shared.poll_event(cx)).await
    }

    /// The next event if one is waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.shared.take_event()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.events_dropped();
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}
