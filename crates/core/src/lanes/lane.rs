//! One partition under one assignment: what is queued, what is being worked on, what may be committed.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use tramline_wire::TopicPartition;

use super::{Budget, Frontier, OffsetTracker, Ticket};

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
}

impl HasOffset for tramline_wire::Record {
    fn offset(&self) -> i64 {
        Self::offset(self)
    }

    fn leader_epoch(&self) -> Option<i32> {
        Self::leader_epoch(self)
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
    /// The memory that stays in use while any of the records is queued, in bytes.
    pub bytes: usize,
}

#[derive(Debug)]
struct Queued<R> {
    records: vec::IntoIter<R>,
    next_offset: i64,
    leader_epoch: Option<i32>,
    bytes: usize,
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
    /// Bytes of batches of which nothing is queued any more.
    pub freed_bytes: usize,
}

/// How many records of the lane may be with the processor at once.
///
/// This is the dispatcher of partition order: the next record in line is ready while fewer than `at_once`
/// are out.
#[derive(Clone, Copy, Debug)]
struct InOrder {
    at_once: usize,
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
    order: InOrder,
    stopping: Option<(StopReason, bool)>,
    /// The first queued offset that was dropped to stop in a hurry.
    dropped_from: Option<i64>,
    stopped: bool,
    completed: u64,
}

/// What remains of a lane whose processor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    reason: StopReason,
    frontier: Option<Frontier>,
    /// Where to read again to get everything that was taken and not completed; none when all was.
    pub rewind_to: Option<i64>,
    /// The bytes of the batches that were still queued.
    pub freed_bytes: usize,
}

impl Stopped {
    /// What may still be committed for the lane. A lost partition has no such thing.
    #[must_use]
    pub fn final_commit(&self) -> Option<Frontier> {
        match self.reason {
            StopReason::Lost => None,
            StopReason::Revoke | StopReason::Shutdown | StopReason::Failure => self.frontier,
        }
    }
}

impl<R: HasOffset> Lane<R> {
    /// A running lane that is full with `max_buffered` queued records (at least one batch is taken, however
    /// large) and has at most `at_once` records out.
    #[must_use]
    pub fn new(max_buffered: usize, at_once: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            buffered: Budget::new(max_buffered.max(1)),
            tracker: OffsetTracker::new(),
            order: InOrder { at_once: at_once.max(1) },
            stopping: None,
            dropped_from: None,
            stopped: false,
            completed: 0,
        }
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
        self.queue.push_back(Queued {
            records: chunk.records.into_iter(),
            next_offset: chunk.next_offset,
            leader_epoch: chunk.leader_epoch,
            bytes: chunk.bytes,
        });
        if self.buffered.take(count) { Offer::Full } else { Offer::Taken }
    }

    /// The next piece of ready work.
    pub fn pull(&mut self) -> Pull<R> {
        let mut pull = Pull { work: Work::Wait, room: false, freed_bytes: 0 };
        if self.stopped || matches!(self.stopping, Some((_, true))) {
            pull.work = Work::End;
            return pull;
        }
        while let Some(chunk) = self.queue.front_mut() {
            if let Some(offset) = chunk.records.as_slice().first().map(HasOffset::offset) {
                if self.tracker.unfinished() >= self.order.at_once {
                    return pull;
                }
                if let Some(expected) = self.tracker.next_offset().filter(|&expected| offset < expected) {
                    pull.work = Work::OutOfOrder { offset, expected };
                    return pull;
                }
                if let Some(record) = chunk.records.next() {
                    let ticket = self.tracker.deliver(offset, record.leader_epoch().or(chunk.leader_epoch));
                    pull.room |= self.buffered.give_back(1);
                    pull.work = Work::Record(record, ticket);
                }
            }
            let Some(chunk) = self.queue.front().filter(|chunk| chunk.records.as_slice().is_empty()) else {
                return pull;
            };
            self.tracker.traverse(chunk.next_offset, chunk.leader_epoch);
            pull.freed_bytes += chunk.bytes;
            self.queue.pop_front();
            if matches!(pull.work, Work::Record(..)) {
                return pull;
            }
        }
        if self.stopping.is_some() {
            pull.work = Work::End;
        }
        pull
    }

    /// Notes that a record is completed. False, and without effect, when it was completed before or the
    /// processor of this lane has ended.
    pub fn complete(&mut self, ticket: Ticket) -> bool {
        let counts = !self.stopped && self.tracker.complete(ticket);
        self.completed += u64::from(counts);
        counts
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
        self.queue.drain(..).map(|chunk| chunk.bytes).sum()
    }

    /// The processor has ended: later completions count no more.
    pub fn finish(&mut self) -> Stopped {
        let freed_bytes = self.drop_queue();
        self.stopped = true;
        let reason = self.stopping.map_or(StopReason::Failure, |(reason, _)| reason);
        let rewind_to = self.tracker.oldest_unfinished().or(self.dropped_from);
        Stopped { reason, frontier: self.tracker.frontier(), rewind_to, freed_bytes }
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

    /// The highest completed record offset; it may lie above the frontier.
    #[must_use]
    pub const fn last_processed(&self) -> Option<i64> {
        self.tracker.last_processed()
    }

    /// How many records wait in the queue.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.buffered.used()
    }

    /// How many records are out and not completed.
    #[must_use]
    pub const fn unfinished(&self) -> usize {
        self.tracker.unfinished()
    }

    /// The oldest record that is out and not completed.
    #[must_use]
    pub fn oldest_unfinished(&self) -> Option<i64> {
        self.tracker.oldest_unfinished()
    }

    /// How many records were handed out.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.tracker.delivered()
    }

    /// How many records were completed.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed
    }
}

#[cfg(test)]
mod tests;
