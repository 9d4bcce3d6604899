//! Parked keys of one lane: how they come to be, and how orders about them are carried out.

use std::future::Future;
use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;
use tramline_core::lanes::{HasKey, JobId};

use super::failures::Stage;
use super::{Engine, Failed, Job, Output, Task};
use crate::decode::Values;
use crate::driver::panic_message;
use crate::error::BoxError;
use crate::ordering::{LaneKey, Ordering};
use crate::parked::{Command, Entry, Order, ParkedError};
use crate::policy::AnyDeadLetters;
use crate::slots::Slots;

/// The writing of a parked key's records elsewhere.
pub(super) struct Burial {
    letters: Arc<dyn AnyDeadLetters>,
    cause: String,
    /// How many records that wait behind are to follow.
    left: usize,
    written: u64,
    reply: oneshot::Sender<Result<u64, ParkedError>>,
}

impl<V: Values> Engine<'_, V> {
    /// The failed job stays, with what is behind it.
    pub(super) fn park(&mut self, id: JobId, mut job: Box<Job<V>>, error: String) {
        self.counts.parked += 1;
        self.dispatcher.park(id);
        self.freed = true;
        self.let_go_of_batches(&mut job);
        let (Some(offset), Some(first)) = (job.offset(), job.records.first()) else {
            return;
        };
        let key = self.values.key(first, self.plan.key_by.as_ref());
        let entry = Entry {
            job: id,
            key: key.unwrap_or_else(|| LaneKey::of(V::record(first))),
            failed: job.tickets.len(),
            behind: self.dispatcher.behind(id),
            since: Instant::now(),
            attempts: job.attempts,
            error,
            busy: false,
            whole_lane: self.plan.ordering == Ordering::Partition,
        };
        self.lane.parked.show(offset, entry);
        self.parked.insert(id, job);
    }

    /// The records of a job that was just parked, and those behind it, are copied where that frees memory. The
    /// lane is told, which counts what is really kept.
    fn let_go_of_batches(&mut self, job: &mut Job<V>) {
        let mut copies = Vec::new();
        if let Some(items) = Arc::get_mut(&mut job.records) {
            for (item, ticket) in items.iter_mut().zip(&mut job.tickets) {
                copies.extend(item.settle_down().map(|bytes| (ticket, bytes)));
            }
        }
        self.lane.note_copies(|note| {
            copies.into_iter().for_each(|(ticket, bytes)| note(ticket, bytes));
            self.dispatcher.take_copied(note);
        });
    }

    /// Lets others see how much is parked by now.
    pub(super) fn show_parked(&mut self) {
        if mem::replace(&mut self.shown_parked, self.dispatcher.parked_records()) != self.shown_parked {
            self.lane.parked.recount(|job| self.dispatcher.behind(job));
        }
    }

    /// Parked keys stay unfinished, and nothing can be done about them any more.
    pub(super) fn give_up_parked(&mut self) {
        let freed = &mut self.freed;
        self.dispatcher.give_up_parked(|_| *freed = true);
        self.parked.clear();
        self.lane.parked.close();
    }

    /// Does what was ordered about parked keys.
    pub(super) fn obey<I, F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>, Span) -> F,
        ended: &mut Vec<(usize, Output)>,
    ) {
        for Order { offset, command, reply } in self.lane.parked.take_orders() {
            let Some(id) = self.parked_at(offset) else {
                // Another order came first.
                let _ = reply.send(Err(ParkedError::NotParked));
                continue;
            };
            let Some(mut job) = self.parked.remove(&id) else {
                let _ = reply.send(Err(ParkedError::Busy));
                continue;
            };
            self.freed = true;
            // Whoever ordered may have stopped waiting for the answer.
            match command {
                Command::Resume => {
                    self.lane.parked.hide(offset);
                    self.dispatcher.unpark(id);
                    self.turned = true;
                    job.tries = 0;
                    self.resting.insert(id, job);
                    let _ = reply.send(Ok(0));
                }
                Command::Skip => {
                    self.lane.parked.hide(offset);
                    self.dispatcher.take_up(id);
                    let records = job.tickets.len() as u64;
                    self.counts.skipped += records;
                    self.complete(id, job);
                    let _ = reply.send(Ok(records));
                }
                Command::DeadLetter { letters, all } => {
                    let left = if all { self.dispatcher.behind(id) } else { 0 };
                    self.dispatcher.take_up(id);
                    let mut cause = String::new();
                    self.lane.parked.with(offset, |entry| {
                        entry.busy = true;
                        cause.clone_from(&entry.error);
                    });
                    let burial = Burial { letters, cause, left, written: 0, reply };
                    self.bury(slots, make, (id, job), Box::new(burial), ended);
                }
            }
        }
    }

    fn parked_at(&self, offset: i64) -> Option<JobId> {
        let mut id = None;
        self.lane.parked.with(offset, |entry| id = Some(entry.job));
        id
    }

    fn bury<I, F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>, Span) -> F,
        (id, mut job): (JobId, Box<Job<V>>),
        burial: Box<Burial>,
        ended: &mut Vec<(usize, Output)>,
    ) {
        let task = Task::Bury(Arc::clone(&burial.letters), self.letters(&job, &burial.cause));
        job.stage = Stage::Ordered(burial);
        self.begin(slots, make, task, (id, job), ended);
    }

    /// The records of an ordered burial were written, or not.
    pub(super) fn after_burial<I, F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>, Span) -> F,
        (id, mut job): (JobId, Box<Job<V>>),
        output: Output,
        ended: &mut Vec<(usize, Output)>,
    ) {
        let Stage::Ordered(mut burial) = mem::replace(&mut job.stage, Stage::Handling) else {
            return;
        };
        let offset = job.offset().unwrap_or_default();
        let error: Option<BoxError> = match output {
            Ok(Ok(())) => None,
            Ok(Err(Failed::Unwritten(error) | Failed::Handler(error) | Failed::Undecodable(error))) => {
                Some(error)
            }
            Err(panic) => Some(format!("panicked: {}", panic_message(panic.as_ref())).into()),
        };
        if let Some(source) = error {
            if self.stopping || self.failed || self.closed {
                self.give_up(id);
            } else {
                self.dispatcher.park(id);
                self.let_go_of_batches(&mut job);
                self.lane.parked.with(offset, |entry| entry.busy = false);
                self.parked.insert(id, job);
            }
            let _ = burial.reply.send(Err(ParkedError::Write { offset, written: burial.written, source }));
            return;
        }
        let records = job.tickets.len();
        self.counts.dead_lettered += records as u64;
        burial.written += records as u64;
        let entry = self.lane.parked.hide(offset);
        if burial.left > 0 && self.take_next(id, &mut job) {
            let cause = mem::take(&mut burial.cause);
            burial.cause = if burial.written == records as u64 {
                format!("it waited behind offset {offset}, which failed with: {cause}")
            } else {
                cause
            };
            burial.left = burial.left.saturating_sub(job.tickets.len());
            self.show_next(id, &job, entry, &burial.cause);
            self.bury(slots, make, (id, job), burial, ended);
        } else {
            self.complete(id, job);
            let _ = burial.reply.send(Ok(burial.written));
        }
    }

    /// Completes the job's records and fills it with the next ones of its key, if there are any.
    fn take_next(&mut self, id: JobId, job: &mut Job<V>) -> bool {
        let mut items = Vec::new();
        let mut tickets = Vec::new();
        let goes_on = self.dispatcher.go_on(id, V::is_alone, |item, ticket| {
            items.push(item);
            tickets.push(ticket);
        });
        if goes_on {
            self.freed = true;
            self.completed.append(&mut job.tickets);
            job.tickets = tickets;
            job.records = Arc::new(items);
            (job.attempts, job.tries) = (0, 0);
        }
        goes_on
    }

    fn show_next(&self, id: JobId, job: &Job<V>, entry: Option<Entry>, cause: &str) {
        if let (Some(offset), Some(mut entry)) = (job.offset(), entry) {
            entry.failed = job.tickets.len();
            entry.behind = self.dispatcher.behind(id);
            entry.attempts = 0;
            cause.clone_into(&mut entry.error);
            self.lane.parked.show(offset, entry);
        }
    }
}
