//! One partition as its users see it: a mailbox for what is to be written, a reader, and the high watermark.
//!
//! The high watermark is a state and never an event: whoever waits looks at it, registers, looks again, and only
//! then sleeps, so no move can be missed. Only the partition's write actor appends, only the committer forces.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tramline_log::{Append, AppendError, Compacted, CompactionJob, CompactionReport, LogConfig, LogReader};
use tramline_wire::{ErrorCode, TopicPartition, Uuid};

use crate::topic_config::Effective;
use crate::write_actor::WriteActor;

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) base_offset: i64,
    /// -1 unless the topic stamps append times.
    pub(crate) log_append_time: i64,
}

/// Why something was not written, or not made durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Refused(#[from] AppendError),
    #[error("offset {0} is not between the log start and the high watermark")]
    OutOfRange(i64),
    #[error("the partition is closed for writing since a storage failure")]
    Storage,
    #[error("the topic was deleted")]
    Deleted,
    #[error("the broker is stopping")]
    Stopping,
}

impl Failure {
    /// What clients are told.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(error) => ErrorCode::from(error.code()),
            Self::OutOfRange(_) => ErrorCode::OffsetOutOfRange,
            Self::Storage => ErrorCode::KafkaStorageError,
            Self::Deleted => ErrorCode::UnknownTopicOrPartition,
            Self::Stopping => ErrorCode::NotLeaderOrFollower,
        }
    }
}

/// Told once, from a writer's or committer's thread; must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<Written, Failure>) + Send>;

/// One thing for the write actor to do.
pub(crate) enum Submission {
    /// Append a batch; `forced` waits for a barrier before it is done.
    Append { batch: Append, forced: bool, done: Done, room: Option<OwnedSemaphorePermit> },
    /// Done when everything below the offset, or all there is, is durable.
    WhenDurable { offset: i64, done: Done },
    /// Do something with the log besides appending, after what was queued before it.
    Change { change: Change, done: Done },
}

/// What the owner of a log does besides appending. Done with the log start in place of a base offset.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Remove what is too old or too much.
    Retain,
    /// Raise the log start; -1 is the high watermark.
    DeleteRecords { before: i64 },
    /// Seal the active segment, so that what is in it can go.
    Seal,
    /// Write down what is durable.
    Checkpoint,
    /// Work with other sizes, times and stamps from here on.
    Configure(LogConfig),
    /// Say what compaction there is to do.
    PlanCompaction(Arc<Mutex<Pass>>),
    /// Put what a pass has written in the place of what was there.
    EndCompaction(Arc<Mutex<Pass>>),
}

/// A pass of compaction on its way between the owner of a log and the thread that does it.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) job: Option<CompactionJob>,
    pub(crate) done: Option<Compacted>,
    pub(crate) report: Option<CompactionReport>,
}

/// Each holder is done with it before the next one is told.
pub(crate) fn lock_pass(pass: &Mutex<Pass>) -> MutexGuard<'_, Pass> {
    pass.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Submission {
    pub(crate) fn fail(self, failure: Failure) {
        match self {
            Self::Append { done, .. } | Self::WhenDurable { done, .. } | Self::Change { done, .. } => {
                done(Err(failure));
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) queue: VecDeque<Submission>,
    /// The partition is in its writer's queue, or being written.
    pub(crate) scheduled: bool,
}

pub(crate) struct Partition {
    pub(crate) id: TopicPartition,
    pub(crate) topic_id: Uuid,
    settings: RwLock<Effective>,
    pub(crate) reader: Arc<LogReader>,
    mailbox: Mutex<Mailbox>,
    room: Arc<Semaphore>,
    room_bytes: usize,
    actor: Mutex<WriteActor>,
    high_watermark: AtomicI64,
    fenced: AtomicBool,
    deleted: AtomicBool,
    watchers: Mutex<HashMap<u64, Arc<Notify>>>,
    next_watcher: AtomicU64,
    last_checkpoint: AtomicI64,
    durable: AtomicI64,
    written_down: AtomicI64,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Partition {
    pub(crate) fn new(
        id: TopicPartition,
        topic_id: Uuid,
        settings: Effective,
        actor: WriteActor,
        room_bytes: usize,
    ) -> Self {
        let room_bytes = room_bytes.clamp(1, u32::MAX as usize);
        Self {
            id,
            topic_id,
            settings: RwLock::new(settings),
            reader: actor.reader(),
            mailbox: Mutex::default(),
            room: Arc::new(Semaphore::new(room_bytes)),
            room_bytes,
            high_watermark: AtomicI64::new(actor.high_watermark()),
            // As opening a log leaves it.
            durable: AtomicI64::new(actor.high_watermark()),
            written_down: AtomicI64::new(actor.high_watermark()),
            actor: Mutex::new(actor),
            fenced: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
            watchers: Mutex::default(),
            next_watcher: AtomicU64::new(0),
            last_checkpoint: AtomicI64::new(0),
        }
    }

    /// Consumers see offsets below this.
    pub(crate) fn high_watermark(&self) -> i64 {
        self.high_watermark.load(Ordering::Acquire)
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// Publishes a new high watermark and wakes who waits for it. Called before the acks it makes true.
    pub(crate) fn publish(&self, high_watermark: i64) {
        if self.high_watermark.swap(high_watermark, Ordering::AcqRel) != high_watermark {
            self.wake();
        }
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Effective {
        *self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings that requests are checked with; the log's own go to the write actor.
    pub(crate) fn set_settings(&self, settings: Effective) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Notes how far the log is durable, and how far a start would know it.
    pub(crate) fn note_durable(&self, durable: i64, written_down: i64) {
        self.durable.store(durable, Ordering::Relaxed);
        self.written_down.store(written_down, Ordering::Relaxed);
    }

    /// Everything below this is durable; a glance that may be a moment old.
    pub(crate) fn durable(&self) -> i64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// Everything below this is known to be durable to the next start; a glance that may be a moment old.
    pub(crate) fn written_down(&self) -> i64 {
        self.written_down.load(Ordering::Relaxed)
    }

    /// Wall-clock milliseconds of the last checkpoint; 0 before the first.
    pub(crate) fn last_checkpoint(&self) -> i64 {
        self.last_checkpoint.load(Ordering::Relaxed)
    }

    pub(crate) fn set_last_checkpoint(&self, now: i64) {
        self.last_checkpoint.store(now, Ordering::Relaxed);
    }

    /// Whether a storage failure has closed the partition for writing.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Returns whether this is news.
    pub(crate) fn set_fenced(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    /// From here on writes fail and waiting fetches learn of it.
    pub(crate) fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes everyone who waits look again: also when the log start has moved.
    pub(crate) fn wake(&self) {
        for watcher in self.watchers.lock().unwrap_or_else(PoisonError::into_inner).values() {
            watcher.notify_one();
        }
    }

    /// Wakes `notify` at every change of the high watermark, and at deletion, until the guard is dropped.
    pub(crate) fn watch(self: &Arc<Self>, notify: Arc<Notify>) -> Watch {
        let key = self.next_watcher.fetch_add(1, Ordering::Relaxed);
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).insert(key, notify);
        Watch { partition: Arc::clone(self), key }
    }

    /// Waits for room in the mailbox. A batch larger than the mailbox takes all of it.
    pub(crate) async fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.min(self.room_bytes)).unwrap_or(u32::MAX);
        // The semaphore is never closed; without a permit the batch is simply not counted.
        Arc::clone(&self.room).acquire_many_owned(permits).await.ok()
    }

    pub(crate) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May wait for a write of this partition: never on a runtime's worker.
    pub(crate) fn actor(&self) -> MutexGuard<'_, WriteActor> {
        self.actor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a [`Partition::watch`].
pub(crate) struct Watch {
    partition: Arc<Partition>,
    key: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.partition.watchers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
