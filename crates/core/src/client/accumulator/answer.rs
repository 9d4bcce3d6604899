//! What became of a request: done, again, in halves, under a new epoch, or over.

use alloc::vec::Vec;

use tramline_wire::{BatchBuilder, ErrorCode, Str};

use super::{Accumulator, Batch};
use crate::client::error_actions::{Action, Operation, action};
use crate::time::{Instant, Timestamp};

/// What the driver learnt about one batch of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The broker has it.
    Written {
        /// The offset of the first record.
        base_offset: i64,
        /// The time the broker gave the records, -1 when their own was kept.
        append_time: Timestamp,
    },
    /// The bytes went to the socket and no answer is expected.
    Unanswered,
    /// The broker refused it with this error.
    Refused {
        /// The error code.
        code: i16,
        /// What the broker said about it.
        message: Option<Str>,
    },
    /// The connection was lost before the answer: it may be written.
    Lost,
    /// It never left.
    NotSent,
}

/// What an acknowledged record got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The offset of the first record of the completion, when it is known.
    pub base_offset: Option<i64>,
    /// The time the broker gave the records, when it did.
    pub append_time: Option<Timestamp>,
}

/// Why records were not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The broker refused the batch. It is not written.
    Refused {
        /// The error code.
        code: i16,
        /// What the broker said about it.
        message: Option<Str>,
    },
    /// The delivery timeout passed.
    TimedOut {
        /// Whether it was ever sent, so that it may be written although nobody told us.
        possibly_written: bool,
        /// What the broker refused it with last.
        last_error: Option<i16>,
    },
    /// The producer ended without waiting.
    Abandoned {
        /// Whether it was ever sent.
        possibly_written: bool,
    },
    /// The kept bytes of the batch were damaged in memory.
    Damaged,
}

/// The outcome of some records of a batch: those from `first` on, `count` of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion<C> {
    /// The driver's token.
    pub token: C,
    /// The place of the first record under the token.
    pub first: u32,
    /// How many records.
    pub count: u32,
    /// What became of them.
    pub outcome: Result<Written, Failure>,
}

/// The code that stands for no answer.
const NO_ANSWER: i16 = ErrorCode::NetworkException.code();

impl<C: Clone> Accumulator<C> {
    /// A request to `node` ended; every batch of it comes back with what became of it.
    pub fn handle_answers(
        &mut self,
        node: i32,
        answers: impl IntoIterator<Item = (Batch<C>, Answer)>,
        now: Instant,
        jitter: u32,
    ) {
        for (batch, answer) in answers {
            self.handle_answer(batch, answer, now, jitter);
        }
        if let Some(queue) = self.nodes.get_mut(&node) {
            queue.in_flight = queue.in_flight.saturating_sub(1);
        }
        self.wakes.insert(node);
    }

    fn handle_answer(&mut self, mut batch: Batch<C>, answer: Answer, now: Instant, jitter: u32) {
        let slot = batch.partition;
        let flight = self.partitions[slot].land(batch.id);
        if flight.is_none_or(|flight| flight.expired) {
            self.budget.give_back(batch.cost, batch.records as usize);
        } else {
            match answer {
                Answer::Written { base_offset, append_time } => {
                    self.partitions[slot].backoff.reset();
                    self.partitions[slot].established = true;
                    let base_offset = (base_offset >= 0).then_some(base_offset);
                    let append_time = (append_time >= 0).then_some(append_time);
                    self.finish(batch, Ok(Written { base_offset, append_time }));
                }
                Answer::Unanswered => {
                    self.finish(batch, Ok(Written { base_offset: None, append_time: None }));
                }
                Answer::Lost => self.handle_refusal(batch, NO_ANSWER, None, now, jitter),
                Answer::NotSent => {
                    batch.attempts = batch.attempts.saturating_sub(1);
                    self.handle_refusal(batch, NO_ANSWER, None, now, jitter);
                }
                Answer::Refused { code, message } => {
                    batch.last_error = Some(code);
                    self.handle_refusal(batch, code, message, now, jitter);
                }
            }
        }
        self.settle(slot);
    }

    fn handle_refusal(
        &mut self,
        batch: Batch<C>,
        code: i16,
        message: Option<Str>,
        now: Instant,
        jitter: u32,
    ) {
        let slot = batch.partition;
        // An error of an earlier epoch says nothing about the present one.
        let current = batch.stamp.is_some_and(|stamp| Some(stamp.producer) == self.partitions[slot].producer);
        match action(Operation::Produce, ErrorCode::from(code)) {
            Action::AlreadyWritten => {
                self.finish(batch, Ok(Written { base_offset: None, append_time: None }));
            }
            Action::Retry => self.retry(batch, false, now, jitter),
            Action::Refresh => self.retry(batch, true, now, jitter),
            Action::OutOfOrder if batch.stamp.is_some() => {
                let oldest = self.partitions[slot].is_oldest(batch.id);
                self.partitions[slot].renumber |= oldest && current;
                self.partitions[slot].requeue(batch);
            }
            Action::NewEpoch if batch.stamp.is_some() => {
                self.partitions[slot].renumber |= current;
                self.partitions[slot].requeue(batch);
            }
            Action::Split => self.split(batch, code, message),
            Action::Fatal => {
                self.finish(batch, Err(Failure::Refused { code, message }));
                self.fail(code);
            }
            // Told, or about sequences that this producer does not use; no other action stands in the column.
            _ => {
                self.partitions[slot].give_up_sequence(&batch);
                self.finish(batch, Err(Failure::Refused { code, message }));
            }
        }
    }

    fn retry(&mut self, batch: Batch<C>, refresh: bool, now: Instant, jitter: u32) {
        let partition = &mut self.partitions[batch.partition];
        if refresh {
            self.stale.insert(self.topics[partition.topic].name.clone());
        }
        // Several batches of a partition fail together; they wait once.
        if partition.retry_at.is_none_or(|at| at <= now) {
            partition.retry_at = Some(now + partition.backoff.next_wait(jitter));
        }
        partition.requeue(batch);
    }

    fn split(&mut self, batch: Batch<C>, code: i16, message: Option<Str>) {
        let compression = self.config.compression;
        let slot = batch.partition;
        match batch.split(|| BatchBuilder::new(compression)) {
            Some((low, high)) => {
                // Halves of what was refused are what fits; later batches should not need the same lesson.
                self.untold.insert(high.id, slot);
                self.partitions[slot].requeue(low);
                self.partitions[slot].requeue(high);
            }
            None => {
                self.partitions[slot].give_up_sequence(&batch);
                self.finish(batch, Err(Failure::Refused { code, message }));
            }
        }
    }

    /// A batch that cannot be sent: its bytes do not encode.
    pub fn handle_damaged(&mut self, batch: Batch<C>) {
        let slot = batch.partition;
        if self.partitions[slot].land(batch.id).is_none_or(|flight| flight.expired) {
            self.budget.give_back(batch.cost, batch.records as usize);
        } else {
            self.partitions[slot].give_up_sequence(&batch);
            self.finish(batch, Err(Failure::Damaged));
        }
        self.settle(slot);
    }

    fn finish(&mut self, batch: Batch<C>, outcome: Result<Written, Failure>) {
        self.budget.give_back(batch.cost, batch.records as usize);
        self.tell(batch.id, batch.token, batch.first, batch.records, outcome);
    }

    fn tell(&mut self, id: u64, token: C, first: u32, count: u32, outcome: Result<Written, Failure>) {
        self.untold.remove(&id);
        self.untold_records = self.untold_records.saturating_sub(count as usize);
        self.completions.push_back(Completion { token, first, count, outcome });
    }

    /// The partition changed: perhaps its epoch may, and its leader should be looked at.
    fn settle(&mut self, slot: usize) {
        if self.partitions[slot].settle_epoch() {
            self.producer = None;
        }
        self.list(slot);
    }

    /// The next outcome to tell.
    pub fn poll_completion(&mut self) -> Option<Completion<C>> {
        self.completions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do: the delivery timeout of the oldest batch.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let (id, slot) = self.untold.first_key_value()?;
        let partition = &self.partitions[*slot];
        let flying = partition.flights.iter().find(|flight| flight.id == *id).map(|flight| flight.created);
        let waiting = || partition.queue.iter().find(|batch| batch.id == *id).map(|batch| batch.created);
        flying.or_else(waiting).map(|created| created + self.config.delivery_timeout)
    }

    /// Tells the records whose delivery timeout passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.next_timeout().is_some_and(|at| at <= now)
            && let Some((id, slot)) = self.untold.first_key_value().map(|(id, slot)| (*id, *slot))
        {
            let timed_out = |possibly_written, last_error| Failure::TimedOut { possibly_written, last_error };
            self.give_up(id, slot, &timed_out);
            self.settle(slot);
        }
    }

    /// Ends one batch wherever it is.
    fn give_up(&mut self, id: u64, slot: usize, failure: &dyn Fn(bool, Option<i16>) -> Failure) {
        let partition = &mut self.partitions[slot];
        if let Some(flight) = partition.flights.iter_mut().find(|flight| flight.id == id) {
            flight.expired = true;
            let (token, first, records) = (flight.token.clone(), flight.first, flight.records);
            partition.new_epoch_wanted |= self.config.idempotent;
            self.tell(id, token, first, records, Err(failure(true, None)));
        } else if let Some(place) = partition.queue.iter().position(|batch| batch.id == id)
            && let Some(batch) = partition.queue.remove(place)
        {
            let sent = batch.attempts > 0;
            partition.new_epoch_wanted |= batch.stamp.is_some();
            let last_error = batch.last_error;
            self.finish(batch, Err(failure(sent, last_error)));
        } else {
            self.untold.remove(&id);
        }
    }

    fn give_up_waiting(&mut self, failure: &dyn Fn(bool) -> Failure) {
        let untold: Vec<(u64, usize)> = self.untold.iter().map(|(id, slot)| (*id, *slot)).collect();
        for (id, slot) in untold {
            self.give_up(id, slot, &|sent, _| failure(sent));
        }
    }

    /// The broker refused this producer for good: everything waiting is told so, and nothing more is accepted.
    pub fn fail(&mut self, code: i16) {
        self.fatal = Some(code);
        self.give_up_waiting(&|_| Failure::Refused { code, message: None });
    }

    /// Accepts nothing more and tells everything that is not told: the driver ends now.
    pub fn abandon(&mut self) {
        self.closing = true;
        self.give_up_waiting(&|possibly_written| Failure::Abandoned { possibly_written });
    }
}
