//! Lanes as their users hold them, and what a lane's processor and the run's coordinator share.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tramline_core::lanes::{self, Budget, LaneId, LaneNumber, LaneState, Pull, StopReason, Ticket, Work};
use tramline_wire::{Record, TopicPartition};

use crate::driver::LaneFailure;
use crate::error::LaneCommitError;
use crate::metrics::LaneMetrics;
use crate::monitor::Registry;
use crate::parked::ParkedLane;
use crate::source::GroupMetadata;
use crate::stats::Durations;

/// What a lane tells the coordinator.
pub(crate) enum Signal {
    /// A full lane has room again.
    Room(LaneNumber),
    /// The run's bytes have room again.
    BytesRoom,
    /// The lane holds no bytes any more while the run's are used up.
    HoldsNothing(LaneNumber),
    /// A `commit()` call.
    Commit(LaneNumber, oneshot::Sender<Result<(), LaneCommitError>>),
    /// The lane has failed, and handlers that were started have not ended; see [`Cell::failure`].
    Failing(LaneNumber),
}

/// What all lanes of a run share.
pub(crate) struct RunShared {
    pub signals: mpsc::UnboundedSender<Signal>,
    pub bytes: Mutex<Budget>,
    pub registry: Arc<Registry>,
}

/// Locks; a panic elsewhere leaves nothing half-done behind these locks, since every change under one is a
/// single call into a machine.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One lane, shared by its processor and the coordinator.
pub(crate) struct LaneShared {
    pub number: LaneNumber,
    pub id: LaneId,
    pub cell: Mutex<Cell>,
    /// There may be work, or the lane stops.
    pub wake: Notify,
    /// The processor is to hurry.
    pub hurry: CancellationToken,
    pub parked: ParkedLane,
    pub metrics: LaneMetrics,
    pub group: Option<GroupMetadata>,
    pub run: Arc<RunShared>,
}

/// What is behind a lane's lock.
pub(crate) struct Cell {
    pub lane: lanes::Lane<Record>,
    /// The oldest record being worked on, and since when, as far as anyone looked.
    pub working: Option<(i64, Instant)>,
    /// What the dispatcher does about the oldest unfinished record, which was this one when it was noted.
    pub oldest: Option<(i64, Oldest)>,
    /// Its key, as much as is shown. A copy, so that it keeps no batch in memory.
    pub oldest_key: Vec<u8>,
    /// How many keys have unfinished records.
    pub keys: usize,
    pub pauses: u64,
    /// Of the pauses that are over.
    pub paused: Duration,
    pub paused_since: Option<Instant>,
    pub durations: Durations,
    pub stop_asked: Option<Instant>,
    pub abandoned: u64,
    /// Why the source cannot read on, and since when.
    pub fetch_blocked: Option<FetchTrouble>,
    /// The source handed out this offset behind that one.
    pub out_of_order: Option<(i64, i64)>,
    pub counts: Counts,
    /// Why the lane failed, until the coordinator has taken notice.
    pub failure: Option<LaneFailure>,
}

/// Why a partition cannot be read on.
#[derive(Clone, Debug)]
pub(crate) struct FetchTrouble {
    pub offset: Option<i64>,
    pub error: String,
    pub since: Instant,
}

/// What a dispatcher does about the oldest unfinished record.
pub(crate) enum Oldest {
    /// It is with a handler, or waits for one, in key order.
    Keyed {
        is_null: bool,
    },
    Resting {
        until: Instant,
        attempt: u32,
        of: u32,
        error: String,
    },
    Buried {
        error: String,
    },
}

/// What became of records that failed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub retries: u64,
    pub skipped: u64,
    pub dead_lettered: u64,
    pub parked: u64,
}

impl Counts {
    pub(crate) const fn add(&mut self, more: &Self) {
        self.retries += more.retries;
        self.skipped += more.skipped;
        self.dead_lettered += more.dead_lettered;
        self.parked += more.parked;
    }
}

impl LaneShared {
    pub(crate) fn cell(&self) -> MutexGuard<'_, Cell> {
        lock(&self.cell)
    }

    /// Completes a record, if there is one, and asks for work under the same lock.
    pub(crate) fn complete_and_pull(&self, done: Option<Ticket>) -> Work<Record> {
        let (Pull { work, room, freed_bytes, copied_bytes }, held) = {
            let mut cell = self.cell();
            if let Some(ticket) = done {
                cell.lane.complete(ticket);
            }
            let pull = cell.lane.pull();
            if let Work::OutOfOrder { offset, expected } = pull.work {
                cell.out_of_order = Some((offset, expected));
            }
            (pull, cell.lane.held_bytes())
        };
        if room {
            self.signal_room();
        }
        self.settle_bytes(copied_bytes, freed_bytes, held);
        work
    }

    /// Brings the run's bytes in line with the lane's: what copies took, what came free, what it still holds.
    pub(crate) fn settle_bytes(&self, copied: usize, freed: usize, held: usize) {
        if copied > 0 {
            lock(&self.run.bytes).take(copied);
        }
        if freed > 0 && !self.run.give_bytes_back(freed) && held == 0 && lock(&self.run.bytes).is_over() {
            let _ = self.run.signals.send(Signal::HoldsNothing(self.number));
        }
    }

    /// Brings the accounts in line with records that became copies: `copies` tells of each, with the copy's bytes.
    pub(crate) fn note_copies(&self, copies: impl FnOnce(&mut dyn FnMut(&mut Ticket, usize))) {
        let mut copied = 0;
        let (freed, held) = {
            let mut cell = self.cell();
            let lane = &mut cell.lane;
            copies(&mut |ticket, bytes| {
                lane.copied(ticket, bytes);
                copied += bytes;
            });
            (lane.take_freed(), lane.held_bytes())
        };
        self.settle_bytes(copied, freed, held);
    }

    /// Ends the account of a record that left its processor, completed or not.
    fn end_record(&self, end: impl FnOnce(&mut lanes::Lane<Record>)) {
        let (freed, held, held_back) = {
            let mut cell = self.cell();
            let held_back = cell.lane.held_back_by().is_some();
            end(&mut cell.lane);
            let freed = cell.lane.take_freed();
            (freed, cell.lane.held_bytes(), held_back && cell.lane.held_back_by().is_none())
        };
        self.settle_bytes(0, freed, held);
        if held_back {
            self.wake.notify_one();
        }
    }

    /// Whether what still runs was told to hurry, while the partition is ours: an error that a handler answers
    /// with may be nothing but that.
    pub(crate) fn is_cut_short(&self) -> bool {
        let cell = self.cell();
        cell.lane.state() == LaneState::Cancelling
            && matches!(cell.lane.stop_reason(), Some(StopReason::Revoke | StopReason::Shutdown))
    }

    /// Says that the lane has room again.
    pub(crate) fn signal_room(&self) {
        // The coordinator is gone only when the run is over, and then nobody is paused.
        let _ = self.run.signals.send(Signal::Room(self.number));
    }

    /// Notes how long a call of a handler took, and for how many it stands.
    pub(crate) fn note_handled(&self, took: Duration, times: u32) {
        self.cell().durations.note(took, times);
        self.metrics.handled(took, times);
    }

    /// The source was asked to pause the partition, or to go on with it.
    pub(crate) fn set_paused(&self, paused: bool, now: Instant) {
        let mut cell = self.cell();
        if !paused {
            let since = cell.paused_since.take();
            cell.paused += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        } else if cell.paused_since.is_none() {
            cell.pauses += 1;
            cell.paused_since = Some(now);
        }
    }

    /// Notes when a handler was first seen waiting on its record.
    pub(crate) fn note_working(&self, now: Instant) {
        self.cell().note_working(now);
    }
}

impl Cell {
    pub(crate) fn new(lane: lanes::Lane<Record>) -> Self {
        Self {
            lane,
            working: None,
            oldest: None,
            oldest_key: Vec::new(),
            keys: 0,
            pauses: 0,
            paused: Duration::ZERO,
            paused_since: None,
            durations: Durations::default(),
            stop_asked: None,
            abandoned: 0,
            fetch_blocked: None,
            out_of_order: None,
            counts: Counts::default(),
            failure: None,
        }
    }

    pub(crate) fn note_working(&mut self, now: Instant) {
        self.working = match (self.lane.oldest_unfinished(), self.working) {
            (None, _) => None,
            (Some(offset), Some(known)) if known.0 == offset => Some(known),
            (Some(offset), _) => Some((offset, now)),
        };
    }
}

impl RunShared {
    /// True when there is room for more now, and was not before.
    pub(crate) fn give_bytes_back(&self, bytes: usize) -> bool {
        let room = bytes > 0 && lock(&self.bytes).give_back(bytes);
        if room {
            // As above: no coordinator, nobody paused.
            let _ = self.signals.send(Signal::BytesRoom);
        }
        room
    }
}

/// A handle on one lane: one partition under one assignment. Owned, and cheap to clone.
///
/// Kept longer than the lane lives it does no harm: its commits are refused then.
#[derive(Clone)]
pub struct Lane {
    pub(crate) shared: Arc<LaneShared>,
    attempt: u32,
}

impl Lane {
    pub(crate) const fn new(shared: Arc<LaneShared>) -> Self {
        Self { shared, attempt: 1 }
    }

    /// The handle for a handler that is called the so-many-th time with the same records.
    pub(crate) fn at_attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// Which attempt at its record, or batch, this is for the handler that was given this handle, counted from 1.
    ///
    /// It is more than 1 after [`Retry`](crate::Retry) waited, and after a [parked key](crate::ParkedKeys) was
    /// resumed. The lane counts: whoever has the partition next, and a lane that is restarted, begin at 1 again.
    /// For a processor of a whole lane it is always 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The partition whose records the lane carries.
    #[must_use]
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.shared.id.topic_partition
    }

    /// The generation in which the partition was assigned.
    #[must_use]
    pub fn generation(&self) -> i32 {
        self.shared.id.generation
    }

    /// Partition and generation together.
    #[must_use]
    pub fn id(&self) -> &LaneId {
        &self.shared.id
    }

    /// The highest record offset that was completed in this lane. It may lie above the frontier.
    #[must_use]
    pub fn last_processed(&self) -> Option<i64> {
        self.shared.cell().lane.last_processed()
    }

    /// The offset that may be committed: everything of this lane below it is completed. None until the lane
    /// made progress.
    #[must_use]
    pub fn frontier(&self) -> Option<i64> {
        self.shared.cell().lane.frontier().map(|frontier| frontier.offset)
    }

    /// How many records wait in the lane's queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.cell().lane.queued()
    }

    /// Waits until the lane's work is to be given up soon: it was cancelled, the partition was lost, or the
    /// time to drain is over. A draining lane is not hurried. A handler that then returns an error has given its
    /// record up: it stays unfinished and comes again. Cancel-safe.
    pub async fn stopping(&self) {
        self.shared.hurry.cancelled().await;
    }

    /// Whether [`stopping`](Self::stopping) is over.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.hurry.is_cancelled()
    }

    /// Why the lane stops, once it was told to, drained or not.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.shared.cell().lane.stop_reason()
    }

    /// Who the source was in its group when the lane was started; `None` without a group.
    #[must_use]
    pub fn group_metadata(&self) -> Option<&GroupMetadata> {
        self.shared.group.as_ref()
    }

    /// A token that grows with every new owner of the partition and with every record: a store that refuses
    /// writes with an older token than the newest it has seen cannot be written to by a former owner.
    #[must_use]
    pub fn fencing_token(&self, record: &Record) -> FencingToken {
        FencingToken {
            group: self.shared.group.as_ref().map(|group| group.group_id.to_string()),
            topic_partition: self.shared.id.topic_partition.clone(),
            generation: self.shared.id.generation,
            offset: record.offset(),
        }
    }

    /// Commits this lane's frontier, as of now, under every commit policy. With nothing new to commit it
    /// returns at once.
    ///
    /// The record being handled is not completed yet, and therefore not part of it. Works while the lane is
    /// full or draining. Cancel-safe: the commit may happen all the same.
    ///
    /// # Errors
    /// [`LaneCommitError`]; the run goes on, and the progress stays to be committed.
    pub async fn commit(&self) -> Result<(), LaneCommitError> {
        let (reply, answer) = oneshot::channel();
        if self.shared.run.signals.send(Signal::Commit(self.shared.number, reply)).is_err() {
            return Err(LaneCommitError::LaneClosed);
        }
        answer.await.unwrap_or(Err(LaneCommitError::LaneClosed))
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lane").field(&self.shared.id).finish()
    }
}

/// Says who works on which record, in an order a store can check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    /// The group; none for a source without.
    pub group: Option<String>,
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The generation of the assignment.
    pub generation: i32,
    /// The record's offset.
    pub offset: i64,
}

/// The records of one lane, for a long-lived processor. Dereferences to [`Lane`].
pub struct LaneStream {
    lane: Lane,
}

impl LaneStream {
    pub(crate) fn new(lane: Arc<LaneShared>) -> Self {
        Self { lane: Lane::new(lane) }
    }

    /// The next record in offset order; `None` when the lane ends: drained after a revocation or a shutdown,
    /// or cut short ([`Lane::is_stopping`]). Return from the processor then.
    ///
    /// Cancel-safe: a record leaves the queue only when this returns it.
    pub async fn next(&mut self) -> Option<Delivered> {
        loop {
            match self.lane.shared.complete_and_pull(None) {
                Work::Record(record, ticket) => {
                    let lane = Some(Arc::clone(&self.lane.shared));
                    return Some(Delivered { record, ticket, lane });
                }
                Work::End | Work::OutOfOrder { .. } => return None,
                Work::Wait => self.lane.shared.wake.notified().await,
            }
        }
    }

    /// The lane's handle, to keep or pass on.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.lane
    }
}

impl Deref for LaneStream {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl fmt::Debug for LaneStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LaneStream").field(&self.lane.shared.id).finish()
    }
}

/// A record that was handed to a processor. Dereferences to [`Record`].
///
/// Say [`done`](Self::done) when it is processed; in any order, from any task. A record that is dropped
/// instead counts as not processed: nothing at or above it is committed while this lane lives.
///
/// Only a lane makes one, and `done` takes it, so that a record is completed at most once, in the lane that handed
/// it out. A record that a program made itself has no `done`:
///
/// ```compile_fail,E0599
/// # use tramline_wire::{Record, TopicPartition};
/// Record::from_parts(TopicPartition::new("t", 0), 7, -1, None, None, Vec::new()).done();
/// ```
#[must_use = "a record that is dropped without done() is never committed"]
pub struct Delivered {
    record: Record,
    ticket: Ticket,
    lane: Option<Arc<LaneShared>>,
}

impl Delivered {
    /// The record, which may be kept longer than this.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The record is processed: its offset may be committed once those before it are processed too. What was
    /// done for it must be durable. Without effect when the lane's processor has ended.
    pub fn done(mut self) {
        if let Some(lane) = self.lane.take() {
            lane.end_record(|lane| {
                lane.complete(self.ticket);
            });
        }
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lane.cell().abandoned += 1;
            lane.end_record(|lane| lane.give_up(self.ticket));
        }
    }
}

impl Deref for Delivered {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delivered").field(&self.record).finish()
    }
}
