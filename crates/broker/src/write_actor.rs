//! The one owner of a partition's log: decides what a group of submissions comes to, and who waits for which barrier.
//!
//! A group is what is queued when the actor is free. It is written with one vectored write; then the high watermark
//! is published; then the acks go out that wait for no barrier. The others wait, in order, for the committer.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tramline_log::{Append, AppendOutcome, DurabilityGate, Forced, Log, LogReader, SyncTicket};

use crate::partition::{Change, Done, Failure, Submission, Written, lock_pass};

/// What is owed to someone once everything below `next` is durable.
struct Waiting {
    next: i64,
    written: Written,
    done: Done,
}

/// Answers to give once no lock is held.
#[derive(Default)]
pub(crate) struct Answers(Vec<(Done, Result<Written, Failure>)>);

impl Answers {
    fn push(&mut self, done: Done, result: Result<Written, Failure>) {
        self.0.push((done, result));
    }

    pub(crate) fn give(self) {
        for (done, result) in self.0 {
            done(result);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Appends of a group that no change stands between.
#[derive(Default)]
struct Queued {
    batches: Vec<Append>,
    members: Vec<(bool, Done, usize)>,
    room: Vec<OwnedSemaphorePermit>,
}

/// Whether the committer knows of this partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Barrier {
    Idle,
    /// In the committer's queue, or being forced: it will look again before it lets go.
    Asked,
}

/// What a group came to.
#[derive(Default)]
pub(crate) struct GroupResult {
    pub(crate) answers: Answers,
    pub(crate) appended: usize,
    pub(crate) appended_bytes: usize,
    pub(crate) refused: usize,
    pub(crate) failed: Option<String>,
    /// The committer must be told, once.
    pub(crate) ask_committer: bool,
}

pub(crate) struct WriteActor {
    /// `None` once the log was closed or deleted.
    log: Option<Log>,
    reader: Arc<LogReader>,
    gate: DurabilityGate,
    waiting: VecDeque<Waiting>,
    barrier: Barrier,
    deleted: bool,
}

impl WriteActor {
    pub(crate) fn new(log: Log) -> Self {
        let reader = log.reader();
        let gate = DurabilityGate::new(reader.log_end());
        Self {
            log: Some(log),
            reader,
            gate,
            waiting: VecDeque::new(),
            barrier: Barrier::Idle,
            deleted: false,
        }
    }

    pub(crate) fn reader(&self) -> Arc<LogReader> {
        Arc::clone(&self.reader)
    }

    pub(crate) fn high_watermark(&self) -> i64 {
        self.gate.high_watermark()
    }

    /// Appends a group and settles its members.
    pub(crate) fn write_group(&mut self, group: Vec<Submission>, epoch: i32, now: i64) -> GroupResult {
        let mut result = GroupResult::default();
        if let Some(failure) = self.closed() {
            result.refused = group.len();
            for submission in group {
                match submission {
                    Submission::Append { done, .. }
                    | Submission::WhenDurable { done, .. }
                    | Submission::Change { done, .. } => result.answers.push(done, Err(failure.clone())),
                }
            }
            return result;
        }
        let mut queued = Queued::default();
        let mut barriers = Vec::new();
        for submission in group {
            match submission {
                Submission::Append { batch, forced, done, room } => {
                    queued.members.push((forced, done, batch.bytes().len()));
                    queued.batches.push(batch);
                    queued.room.extend(room);
                }
                Submission::WhenDurable { offset, done } => barriers.push((offset, done)),
                Submission::Change { change, done } => {
                    self.append(std::mem::take(&mut queued), epoch, now, &mut result);
                    self.change(&change, done, now, &mut result);
                }
            }
        }
        self.append(queued, epoch, now, &mut result);
        for (offset, done) in barriers {
            let next = offset.min(self.reader.log_end());
            self.settle(next, true, Written { base_offset: next, log_append_time: -1 }, done, &mut result);
        }
        if !self.waiting.is_empty() && self.barrier == Barrier::Idle {
            self.barrier = Barrier::Asked;
            result.ask_committer = true;
        }
        result
    }

    /// Does what is not an append. A storage failure closes the partition like one of an append.
    fn change(&mut self, change: &Change, done: Done, now: i64, result: &mut GroupResult) {
        if let Some(failure) = self.closed() {
            result.answers.push(done, Err(failure));
            return;
        }
        let high_watermark = self.gate.high_watermark();
        if let Change::DeleteRecords { before } = change
            && !(-1..=high_watermark).contains(before)
        {
            result.answers.push(done, Err(Failure::OutOfRange(*before)));
            return;
        }
        let Some(log) = &mut self.log else {
            result.answers.push(done, Err(Failure::Storage));
            return;
        };
        let changed = match change {
            Change::Retain => {
                log.expire_producers(now);
                log.enforce_retention(now).map(drop)
            }
            Change::DeleteRecords { before: -1 } => log.delete_records(high_watermark).map(drop),
            Change::DeleteRecords { before } => log.delete_records(*before).map(drop),
            Change::Seal => log.seal_active(),
            Change::Checkpoint => log.checkpoint(),
            Change::Configure(config) => log.set_config(config.clone()),
            Change::PlanCompaction(pass) => {
                lock_pass(pass).job = log.plan_compaction(now);
                Ok(())
            }
            Change::EndCompaction(pass) => {
                let done = lock_pass(pass).done.take();
                done.map_or(Ok(()), |done| {
                    log.compacted(done).map(|report| lock_pass(pass).report = Some(report))
                })
            }
        };
        match changed {
            Ok(()) => {
                // A change may have forced the log itself.
                let durable = log.barriered_up_to();
                self.barriered(durable, &mut result.answers);
                let written = Written { base_offset: self.reader.log_start(), log_append_time: -1 };
                result.answers.push(done, Ok(written));
            }
            Err(error) => {
                result.failed = Some(error.to_string());
                result.answers.push(done, Err(Failure::Storage));
                self.fence(&mut result.answers);
            }
        }
    }

    fn append(&mut self, queued: Queued, epoch: i32, now: i64, result: &mut GroupResult) {
        // The room is given back when this is over.
        let Queued { batches, members, room: _room } = queued;
        if batches.is_empty() {
            return;
        }
        if let Some(failure) = self.closed() {
            // A change in the same group has failed.
            result.refused += members.len();
            for (_, done, _) in members {
                result.answers.push(done, Err(failure.clone()));
            }
            return;
        }
        let outcomes = match &mut self.log {
            Some(log) => log.append_group(batches, epoch, now).map_err(|error| error.to_string()),
            None => Err("the log is closed".to_owned()),
        };
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(reason) => {
                result.failed = Some(reason);
                result.refused += members.len();
                for (_, done, _) in members {
                    result.answers.push(done, Err(Failure::Storage));
                }
                self.fence(&mut result.answers);
                return;
            }
        };
        debug_assert_eq!(outcomes.len(), members.len(), "one outcome per member");
        for (outcome, (forced, done, bytes)) in outcomes.into_iter().zip(members) {
            match outcome {
                AppendOutcome::Appended { base_offset, last_offset, log_append_time } => {
                    result.appended += 1;
                    result.appended_bytes += bytes;
                    self.gate.appended(base_offset, last_offset + 1, forced);
                    let written = Written { base_offset, log_append_time: log_append_time.unwrap_or(-1) };
                    self.settle(last_offset + 1, forced, written, done, result);
                }
                // The retry waits for the barrier of the batch it repeats, which may never have been asked for.
                AppendOutcome::Duplicate { base_offset, last_offset, .. } => {
                    let written = Written { base_offset, log_append_time: -1 };
                    self.settle(last_offset + 1, forced, written, done, result);
                }
                AppendOutcome::Refused(error) => {
                    result.refused += 1;
                    result.answers.push(done, Err(Failure::Refused(error)));
                }
            }
        }
    }

    fn settle(&mut self, next: i64, forced: bool, written: Written, done: Done, result: &mut GroupResult) {
        if self.closed().is_some() {
            result.answers.push(done, Err(Failure::Storage));
        } else if !forced || self.gate.is_durable(next) {
            result.answers.push(done, Ok(written));
        } else {
            self.waiting.push_back(Waiting { next, written, done });
        }
    }

    /// What must be forced now. `None` with answers when there is nothing to force for those who wait.
    pub(crate) fn begin_barrier(&mut self) -> (Option<SyncTicket>, Answers) {
        let mut answers = Answers::default();
        if self.closed().is_some() {
            self.fail_waiting(&mut answers);
            return (None, answers);
        }
        let ticket = self.log.as_mut().and_then(Log::take_sync);
        if ticket.is_none() {
            if self.log.as_ref().is_some_and(|log| !log.is_fenced()) {
                // Nothing was written since the last barrier; one ticket is out at a time, and it is ours.
                self.barriered(self.reader.log_end(), &mut answers);
            } else {
                self.fence(&mut answers);
            }
        }
        (ticket, answers)
    }

    /// The barrier is done: who it covers is owed an answer. An error has fenced the partition.
    pub(crate) fn end_barrier(&mut self, forced: Forced) -> (Answers, Result<(), String>) {
        let mut answers = Answers::default();
        if self.closed().is_some() {
            self.fail_waiting(&mut answers);
            return (answers, Ok(()));
        }
        let synced = match &mut self.log {
            Some(log) => log.synced(forced).map_err(|error| error.to_string()),
            None => Err("the log is closed".to_owned()),
        };
        match synced {
            Ok(up_to) => {
                self.barriered(up_to, &mut answers);
                (answers, Ok(()))
            }
            Err(reason) => {
                self.fence(&mut answers);
                (answers, Err(reason))
            }
        }
    }

    /// The barrier failed; it is never tried again.
    pub(crate) fn barrier_failed(&mut self) -> Answers {
        let mut answers = Answers::default();
        self.fence(&mut answers);
        answers
    }

    /// The committer lets go of the partition, unless someone waits again.
    pub(crate) fn release(&mut self) -> bool {
        if self.waiting.is_empty() {
            self.barrier = Barrier::Idle;
            return true;
        }
        false
    }

    fn barriered(&mut self, up_to: i64, answers: &mut Answers) {
        self.gate.barriered(up_to);
        while self.waiting.front().is_some_and(|waiting| waiting.next <= up_to) {
            let Some(Waiting { written, done, .. }) = self.waiting.pop_front() else { return };
            answers.push(done, Ok(written));
        }
    }

    fn closed(&self) -> Option<Failure> {
        if self.deleted {
            Some(Failure::Deleted)
        } else if self.gate.is_fenced() {
            Some(Failure::Storage)
        } else {
            None
        }
    }

    /// Nothing is written any more; everyone waiting is told.
    pub(crate) fn fence(&mut self, answers: &mut Answers) {
        self.gate.fence();
        if let Some(log) = &mut self.log {
            log.fence();
        }
        self.fail_waiting(answers);
    }

    fn fail_waiting(&mut self, answers: &mut Answers) {
        let failure = self.closed().unwrap_or(Failure::Storage);
        for Waiting { done, .. } in self.waiting.drain(..) {
            answers.push(done, Err(failure.clone()));
        }
    }

    /// How far the log is durable, and how far a start would know it.
    pub(crate) fn durable(&self) -> (i64, i64) {
        let log = self.log.as_ref();
        log.map_or((i64::MAX, i64::MAX), |log| (log.barriered_up_to(), log.checkpointed_up_to()))
    }

    /// Whether nothing is written any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed().is_some()
    }

    pub(crate) fn log(&mut self) -> Option<&mut Log> {
        self.log.as_mut()
    }

    /// Takes the log out to close it; nothing is written any more.
    pub(crate) fn take_log(&mut self) -> (Option<Log>, Answers) {
        let mut answers = Answers::default();
        self.gate.fence();
        self.fail_waiting(&mut answers);
        (self.log.take(), answers)
    }

    /// Takes the log out to remove it: everyone waiting is told that the topic is gone.
    pub(crate) fn delete(&mut self) -> (Option<Log>, Answers) {
        self.deleted = true;
        self.take_log()
    }
}
