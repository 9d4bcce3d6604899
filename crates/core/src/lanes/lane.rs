//! One partition under one assignment: what is queued, what is being worked on, what may be committed.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use tramline_wire::TopicPartition;

use super::memory::{Memory, Pinned};
use super::offset_tracker::NONE;
use super::{Budget, Frontier, OffsetTracker, Progress, SavedProgress, Ticket};

/// A lane as its users know it: the partition, and the generation of the assignment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    /// The partition whose records the lane carries.
    pub topic_partition: TopicPartition,
    /// The generation in which the partition was assigned.
    pub generation: i32,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in generation {}", self.topic_partition, self.generation)
    }
}

/// A lane as the machines know it: a number that is never used twice in a run, so that a late message
/// about an old lane cannot be taken for one about its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneNumber(pub u64);

/// Why a lane stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The group takes the partition away and waits for us: progress may still be committed.
    Revoke,
    /// The partition is not ours any more: nothing may be committed.
    Lost,
    /// The run ends.
    Shutdown,
    /// The lane's own processor failed.
    Failure,
}

/// Where a lane stands.
///
/// ```text
///   Running <-> Paused --stop--> Draining --hurry--> Cancelling
///      |          |                  |                   |
///      `----------`------ finish ----`-------------------`---> Stopped
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneState {
    /// Takes batches, hands out records.
    Running,
    /// As `Running`, but over its budget: the source is asked for no more.
    Paused,
    /// Takes nothing more, hands out what is queued.
    Draining,
    /// Takes nothing more, hands out nothing more.
    Cancelling,
    /// The processor has ended; whatever it left behind counts no more.
    Stopped,
}

/// What a lane must know of a record.
pub trait HasOffset {
    /// The record's offset in its partition.
    fn offset(&self) -> i64;
    /// The epoch of the leader that wrote it, where it is known.
    fn leader_epoch(&self) -> Option<i32>;

    /// A copy that keeps no other memory in use, with its size in bytes, when that is less than `below`.
    fn copied(&self, below: usize) -> Option<(Self, usize)>
    where
        Self: Sized,
    {
        let _ = below;
        None
    }
}

impl HasOffset for tramline_wire::Record {
    fn offset(&self) -> i64 {
        Self::offset(self)
    }

    fn leader_epoch(&self) -> Option<i32> {
        Self::leader_epoch(self)
    }

    fn copied(&self, below: usize) -> Option<(Self, usize)> {
        if self.payload_len() >= below {
            return None;
        }
        let copy = self.detached();
        let bytes = copy.pinned_bytes();
        Some((copy, bytes))
    }
}

/// A batch of one partition, in offset order, with what the source looked at to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk<R> {
    /// The records; may be empty when everything looked at was a marker, compacted or filtered.
    pub records: Vec<R>,
    /// The first offset looked at.
    pub first_offset: i64,
    /// The offset after the last one looked at.
    pub next_offset: i64,
    /// The leader epoch of the last batch looked at, where it is known.
    pub leader_epoch: Option<i32>,
    /// The memory that stays in use while records are queued or worked on, in the order of the records.
    pub pinned: Vec<Pinned>,
}

#[derive(Debug)]
struct Queued<R> {
    records: vec::IntoIter<R>,
    next_offset: i64,
    leader_epoch: Option<i32>,
    /// What was not handed out of yet.
    pinned: vec::IntoIter<Pinned>,
    /// What the next record shares its memory with, how many records of that are left, and its size.
    piece: u32,
    left: usize,
    piece_bytes: usize,
}

impl<R> Queued<R> {
    /// The memory of the next record.
    fn next_piece(&mut self, memory: &mut Memory) -> u32 {
        while self.left == 0 {
            let Some(next) = self.pinned.next() else {
                return NONE;
            };
            (self.piece, self.left, self.piece_bytes) = (memory.open(next.bytes), next.records, next.bytes);
            if self.left == 0 {
                memory.close(self.piece);
            }
        }
        self.left -= 1;
        self.piece
    }

    /// The record whose memory was asked for has left the queue.
    fn taken(&mut self, memory: &mut Memory) {
        if self.left == 0 {
            memory.close(core::mem::replace(&mut self.piece, NONE));
        }
    }

    /// Forgets the queued records' memory.
    fn give_up(&mut self, memory: &mut Memory) {
        memory.close(core::mem::replace(&mut self.piece, NONE));
        memory.drop_queued(self.pinned.as_slice().iter().map(|pinned| pinned.bytes).sum());
        self.pinned = Vec::new().into_iter();
    }
}

/// What became of a batch that was offered to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Queued.
    Taken,
    /// Queued, and the lane is full now: pause the partition until [`Pull::room`].
    Full,
    /// The lane takes nothing any more; the batch is dropped and counts as never delivered.
    Refused,
}

/// What a processor is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<R> {
    /// Process this record, then complete the ticket.
    Record(R, Ticket),
    /// Nothing is ready: come back when a batch was offered, a record completed or the lane stopped.
    Wait,
    /// The lane hands out no more records.
    End,
    /// The source handed out an offset that lies behind an earlier one, which breaks its contract.
    OutOfOrder {
        /// The offset that came.
        offset: i64,
        /// The lowest one that could come.
        expected: i64,
    },
}

/// The answer of a lane that was asked for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull<R> {
    /// What to do.
    pub work: Work<R>,
    /// The lane was full and has room again: resume the partition. Said once per pause.
    pub room: bool,
    /// Bytes that are not in use any more since the lane was asked last.
    pub freed_bytes: usize,
    /// Bytes of a copy that was made of the record, to let its batch go.
    pub copied_bytes: usize,
}

/// A record whose batch keeps more memory in use than the lane's mark is copied when it is this many times smaller.
const COPY_RATIO: usize = 16;

/// The choices of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// It is full with this many queued records; at least one batch is taken, however large.
    pub max_buffered: usize,
    /// It has room again at this many.
    pub resume_at: usize,
    /// How many records may be with the processor at once.
    pub at_once: usize,
    /// How many records may be handed out after the oldest unfinished one.
    pub max_ahead: u64,
    /// Records of batches above this many bytes may be copied when they are handed out.
    pub copy_above: usize,
}

impl LaneConfig {
    /// Room again at half of what fills it, and no other limit.
    #[must_use]
    pub const fn new(max_buffered: usize, at_once: usize) -> Self {
        Self {
            max_buffered,
            resume_at: max_buffered / 2,
            at_once,
            max_ahead: u64::MAX,
            copy_above: usize::MAX,
        }
    }
}

/// One partition's ordered work under one assignment.
///
/// Batches are offered whole and records handed out one by one, which is also when they count as delivered:
/// what is only queued needs no bookkeeping. The owner asks [`pull`](Self::pull) for work and reports
/// [`complete`](Self::complete); in between it holds nothing of the lane.
#[derive(Debug)]
pub struct Lane<R> {
    queue: VecDeque<Queued<R>>,
    buffered: Budget,
    tracker: OffsetTracker,
    memory: Memory,
    at_once: usize,
    max_ahead: u64,
    copy_above: usize,
    stopping: Option<(StopReason, bool)>,
    /// The first queued offset that was dropped to stop in a hurry.
    dropped_from: Option<i64>,
    stopped: bool,
    completed: u64,
    already_done: u64,
}

/// What remains of a lane whose processor has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    reason: StopReason,
    frontier: Option<Frontier>,
    progress: Option<Progress>,
    /// Where to read again to get everything that was taken and not completed; none when all was.
    pub rewind_to: Option<i64>,
    /// The bytes of everything the lane still held.
    pub freed_bytes: usize,
}

impl Stopped {
    /// What may still be committed for the lane. A lost partition has no such thing.
    #[must_use]
    pub fn final_commit(&self) -> Option<&Progress> {
        self.progress.as_ref().filter(|_| self.reason != StopReason::Lost)
    }

    /// As [`final_commit`](Self::final_commit), without what is completed above the frontier.
    #[must_use]
    pub fn final_frontier(&self) -> Option<Frontier> {
        self.frontier.filter(|_| self.reason != StopReason::Lost)
    }
}

impl<R: HasOffset> Lane<R> {
    /// A running lane that is full with `max_buffered` queued records (at least one batch is taken, however
    /// large) and has at most `at_once` records out.
    #[must_use]
    pub fn new(max_buffered: usize, at_once: usize) -> Self {
        Self::with_config(LaneConfig::new(max_buffered, at_once))
    }

    /// A running lane.
    #[must_use]
    pub fn with_config(config: LaneConfig) -> Self {
        Self {
            queue: VecDeque::new(),
            buffered: Budget::with_low(config.max_buffered.max(1), config.resume_at),
            tracker: OffsetTracker::new(),
            memory: Memory::new(),
            at_once: config.at_once.max(1),
            max_ahead: config.max_ahead.max(1),
            copy_above: config.copy_above,
            stopping: None,
            dropped_from: None,
            stopped: false,
            completed: 0,
            already_done: 0,
        }
    }

    /// Takes what an earlier lane of the partition had completed: those records are passed over. To be called
    /// before the first batch, which must begin at the offset the progress was saved for. False, and without
    /// effect, when it does not.
    pub fn resume(&mut self, saved: SavedProgress, first_offset: i64) -> bool {
        let fits = saved.base == first_offset;
        if fits {
            self.tracker.begin(first_offset);
            self.tracker.resume(saved);
        }
        fits
    }

    /// Queues a batch, unless the lane is stopping.
    pub fn offer(&mut self, chunk: Chunk<R>) -> Offer {
        if self.stopping.is_some() || self.stopped {
            return Offer::Refused;
        }
        let count = chunk.records.len();
        // A batch that covers nothing is no progress: a lane that only ever saw the position it started
        // from must not commit it.
        if count == 0 && chunk.next_offset <= chunk.first_offset {
            return Offer::Taken;
        }
        self.tracker.begin(chunk.first_offset);
        self.memory.queue(chunk.pinned.iter().map(|pinned| pinned.bytes).sum());
        self.queue.push_back(Queued {
            records: chunk.records.into_iter(),
            next_offset: chunk.next_offset,
            leader_epoch: chunk.leader_epoch,
            pinned: chunk.pinned.into_iter(),
            piece: NONE,
            left: 0,
            piece_bytes: 0,
        });
        if self.buffered.take(count) { Offer::Full } else { Offer::Taken }
    }

    /// The next piece of ready work.
    pub fn pull(&mut self) -> Pull<R> {
        let mut pull = Pull { work: Work::Wait, room: false, freed_bytes: 0, copied_bytes: 0 };
        if self.stopped || matches!(self.stopping, Some((_, true))) {
            pull.work = Work::End;
        } else {
            self.pull_into(&mut pull);
        }
        pull.freed_bytes = self.memory.take_freed();
        pull
    }

    fn pull_into(&mut self, pull: &mut Pull<R>) {
        while let Some(chunk) = self.queue.front_mut() {
            if let Some(next) = chunk.records.as_slice().first() {
                let (offset, leader_epoch) = (next.offset(), next.leader_epoch().or(chunk.leader_epoch));
                if let Some(expected) = self.tracker.next_offset().filter(|&expected| offset < expected) {
                    pull.work = Work::OutOfOrder { offset, expected };
                    return;
                }
                let is_done = self.tracker.is_done(offset, leader_epoch);
                if !is_done
                    && (self.tracker.unfinished() >= self.at_once || self.tracker.ahead() >= self.max_ahead)
                {
                    return;
                }
                let piece = chunk.next_piece(&mut self.memory);
                let record = chunk.records.next();
                pull.room |= self.buffered.give_back(1);
                if is_done {
                    self.tracker.traverse(offset.saturating_add(1), leader_epoch);
                    self.already_done += 1;
                } else if let Some(record) = record {
                    let ticket = self.tracker.deliver(offset, leader_epoch);
                    // One after the other, only the last record of a batch can keep it longer than the queue does.
                    let may_copy =
                        chunk.piece_bytes > self.copy_above && (self.at_once > 1 || chunk.left == 0);
                    pull.work = hand_out(
                        record,
                        ticket,
                        piece,
                        may_copy.then_some(chunk.piece_bytes),
                        &mut self.memory,
                        &mut pull.copied_bytes,
                    );
                }
                chunk.taken(&mut self.memory);
            }
            let Some(chunk) = self.queue.front().filter(|chunk| chunk.records.as_slice().is_empty()) else {
                if matches!(pull.work, Work::Record(..)) {
                    return;
                }
                continue;
            };
            self.tracker.traverse(chunk.next_offset, chunk.leader_epoch);
            if let Some(mut chunk) = self.queue.pop_front() {
                chunk.give_up(&mut self.memory);
            }
            if matches!(pull.work, Work::Record(..)) {
                return;
            }
        }
        if self.stopping.is_some() {
            pull.work = Work::End;
        }
    }

    /// Notes that a record is completed. False, and without effect, when it was completed before or the
    /// processor of this lane has ended.
    pub fn complete(&mut self, ticket: Ticket) -> bool {
        let counts = !self.stopped && self.tracker.complete(ticket);
        if counts {
            self.completed += 1;
            self.memory.give_back(ticket.memory);
        }
        counts
    }

    /// Notes that a record was dropped and will not be completed: it keeps no memory in use any more.
    pub fn give_up(&mut self, ticket: Ticket) {
        if !self.stopped {
            self.memory.give_back(ticket.memory);
        }
    }

    /// A record that was handed out is a copy now, and keeps these bytes in use instead of what it was read from.
    pub fn copied(&mut self, ticket: &mut Ticket, bytes: usize) {
        if !self.stopped {
            self.memory.give_back(ticket.memory);
            ticket.memory = self.memory.copied(bytes);
        }
    }

    /// Stops the lane: nothing more is taken; with `hurry` nothing more is handed out either. A lane that
    /// stops already can be hurried, and a loss takes the place of any other reason. Returns the bytes of
    /// batches that were dropped.
    pub fn stop(&mut self, reason: StopReason, hurry: bool) -> usize {
        let (reason, hurry) = match self.stopping {
            Some((_, before)) if reason == StopReason::Lost => (StopReason::Lost, before || hurry),
            Some((first, before)) => (first, before || hurry),
            None => (reason, hurry),
        };
        self.stopping = Some((reason, hurry));
        if hurry { self.drop_queue() } else { 0 }
    }

    fn drop_queue(&mut self) -> usize {
        let first =
            self.queue.iter().find_map(|chunk| chunk.records.as_slice().first()).map(HasOffset::offset);
        self.dropped_from = self.dropped_from.or(first);
        self.buffered.give_back(self.buffered.used());
        for mut chunk in self.queue.drain(..) {
            chunk.give_up(&mut self.memory);
        }
        self.memory.take_freed()
    }

    /// The processor has ended: later completions count no more.
    pub fn finish(&mut self) -> Stopped {
        let dropped = self.drop_queue();
        self.memory.drop_all();
        self.stopped = true;
        let reason = self.stopping.map_or(StopReason::Failure, |(reason, _)| reason);
        let unfinished = self.tracker.oldest_unfinished().or(self.dropped_from);
        Stopped {
            reason,
            frontier: self.tracker.frontier(),
            progress: self.tracker.progress(),
            rewind_to: unfinished.map(|offset| self.tracker.resume_at(offset)),
            freed_bytes: dropped + self.memory.take_freed(),
        }
    }

    /// Where the lane stands.
    #[must_use]
    pub const fn state(&self) -> LaneState {
        match (self.stopped, self.stopping) {
            (true, _) => LaneState::Stopped,
            (false, Some((_, true))) => LaneState::Cancelling,
            (false, Some((_, false))) => LaneState::Draining,
            (false, None) if self.buffered.is_over() => LaneState::Paused,
            (false, None) => LaneState::Running,
        }
    }

    /// Why the lane stops, once it does.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stopping.map(|(reason, _)| reason)
    }

    /// The offset that may be committed; none until the lane has made progress.
    #[must_use]
    pub fn frontier(&self) -> Option<Frontier> {
        self.tracker.frontier()
    }

    /// The frontier with everything that is completed above it.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.tracker.progress()
    }

    /// How many records an earlier lane had completed, and this one passed over.
    #[must_use]
    pub const fn already_done(&self) -> u64 {
        self.already_done
    }

    /// The memory that queued records and those with the processor keep in use, in bytes.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.memory.held()
    }

    /// What came free since the lane was asked last, in bytes.
    pub const fn take_freed(&mut self) -> usize {
        self.memory.take_freed()
    }

    /// How many records were handed out after the oldest unfinished one.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        self.tracker.ahead()
    }
}

/// Hands a record out: itself, or a small copy when it is taken from a batch of `large` bytes.
fn hand_out<R: HasOffset>(
    record: R,
    mut ticket: Ticket,
    piece: u32,
    large: Option<usize>,
    memory: &mut Memory,
    copied_bytes: &mut usize,
) -> Work<R> {
    match large.and_then(|bytes| record.copied(bytes / COPY_RATIO)) {
        Some((copy, bytes)) => {
            *copied_bytes = bytes;
            ticket.memory = memory.copied(bytes);
            Work::Record(copy, ticket)
        }
        None => {
            ticket.memory = piece;
            if piece != NONE {
                memory.hand_out(piece);
            }
            Work::Record(record, ticket)
        }
    }
}

mod figures;
#[cfg(test)]
mod tests;
