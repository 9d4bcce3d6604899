//! What becomes of jobs that ended: those that failed go where the error policy says.

use std::future::Future;
use std::mem;
use std::sync::Arc;

use tracing::Span;
use tramline_core::lanes::JobId;
use tramline_core::time;

use super::parking::Burial;
use super::{Engine, Failed, Job, Output, Task};
use crate::dead_letter::DeadLetter;
use crate::decode::Values;
use crate::driver::{LaneFailure, panic_message};
use crate::lane::Signal;
use crate::policy::{AnyDeadLetters, Decision};
use crate::slots::Slots;

/// What is being done with a job's records.
pub(super) enum Stage {
    Handling,
    /// They are written elsewhere, since the policy says so; with what the last attempt said.
    Burying(String),
    /// They are written elsewhere because somebody ordered it.
    Ordered(Box<Burial>),
}

enum Verdict {
    Again(time::Instant),
    Skip,
    Bury(Arc<dyn AnyDeadLetters>, String),
    Park(String),
    /// It stays unfinished.
    GiveUp,
    Fail(LaneFailure),
}

impl<V: Values> Engine<'_, V> {
    /// Deals with every job that ended.
    pub(super) fn settle<I, F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>, Span) -> F,
        ended: &mut Vec<(usize, Output)>,
    ) {
        while let Some((at, output)) = ended.pop() {
            let Some((id, mut job)) = self.running.get_mut(at).and_then(Option::take) else {
                continue;
            };
            self.note_handled(&mut job);
            if let Stage::Ordered(_) = job.stage {
                self.after_burial(slots, make, (id, job), output, ended);
                continue;
            }
            let offset = job.offset();
            let failure = match output {
                Ok(Ok(())) => {
                    if let Stage::Burying(_) = job.stage {
                        self.counts.dead_lettered += job.tickets.len() as u64;
                    }
                    self.complete(id, job);
                    continue;
                }
                Ok(Err(Failed::Handler(error))) => LaneFailure::Handler { offset, error },
                Ok(Err(Failed::Undecodable(error))) => LaneFailure::Undecodable { offset, error },
                Ok(Err(Failed::Unwritten(error))) => {
                    LaneFailure::DeadLetter { offset, error, cause: job.cause() }
                }
                Err(panic) => LaneFailure::Panicked(panic_message(panic.as_ref())),
            };
            let text = failure.to_string();
            match self.decide(&job, failure) {
                Verdict::Again(until) => {
                    job.rests_for = Some((self.started + until.since_start(), text));
                    self.turned = true;
                    self.counts.retries += 1;
                    self.dispatcher.rest(id, until);
                    self.resting.insert(id, job);
                }
                Verdict::Skip => {
                    self.counts.skipped += job.tickets.len() as u64;
                    self.complete(id, job);
                }
                Verdict::Bury(letters, cause) => {
                    let all = self.letters(&job, &cause);
                    job.stage = Stage::Burying(cause);
                    self.turned = true;
                    self.begin(slots, make, Task::Bury(letters, all), (id, job), ended);
                }
                Verdict::Park(error) => self.park(id, job, error),
                Verdict::GiveUp => self.give_up(id),
                Verdict::Fail(failure) => {
                    self.give_up(id);
                    self.fail(failure);
                }
            }
        }
    }

    pub(super) fn give_up(&mut self, id: JobId) {
        self.dispatcher.give_up(id);
        self.freed = true;
    }

    /// What becomes of a job that failed.
    fn decide(&mut self, job: &Job<V>, failure: LaneFailure) -> Verdict {
        let (lane, offset) = (&self.lane.id, job.offset());
        if let Stage::Burying(cause) = &job.stage {
            return Verdict::Fail(match failure {
                LaneFailure::DeadLetter { .. } => failure,
                other => {
                    let error = other.to_string().into();
                    LaneFailure::DeadLetter { offset, error, cause: cause.clone() }
                }
            });
        }
        let text = failure.to_string();
        let attempts = job.attempts;
        if self.failed {
            tracing::warn!(%lane, offset, attempts, error = text, "a handler failed beside the first one");
            return Verdict::GiveUp;
        }
        if matches!(failure, LaneFailure::Handler { .. }) && self.lane.is_cut_short() {
            tracing::warn!(%lane, offset, error = text, "given up, since the lane stops at once");
            return Verdict::GiveUp;
        }
        let pointless = matches!(failure, LaneFailure::Undecodable { .. });
        let (random, full) = (self.jitter.draw(), self.dispatcher.parking_is_full());
        match self.plan.policy.decide(job.tries, random, pointless, full) {
            Decision::Again(_) | Decision::Park if self.stopping => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; left to the next owner");
                Verdict::GiveUp
            }
            Decision::Again(wait) => {
                tracing::debug!(%lane, offset, attempts, error = text, ?wait, "failed; will be tried again");
                Verdict::Again(self.now() + wait)
            }
            Decision::Skip => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; skipped");
                Verdict::Skip
            }
            Decision::Bury(letters) => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; becomes a dead letter");
                Verdict::Bury(letters, text)
            }
            Decision::Park => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; its key is parked");
                Verdict::Park(text)
            }
            Decision::Fail => Verdict::Fail(failure),
        }
    }

    pub(super) fn letters(&self, job: &Job<V>, cause: &str) -> Vec<DeadLetter> {
        let letter = |item| DeadLetter {
            record: V::record(item).clone(),
            lane: self.lane.id.clone(),
            attempts: job.attempts,
            cause: cause.to_owned(),
        };
        job.records.iter().map(letter).collect()
    }

    /// The lane has failed: nothing more is begun, and what runs is told to hurry.
    fn fail(&mut self, failure: LaneFailure) {
        self.begin_nothing_more();
        if mem::replace(&mut self.failed, true) {
            tracing::warn!(lane = %self.lane.id, error = %failure, "a handler failed beside the first one");
            return;
        }
        self.lane.cell().failure = Some(failure);
        // The coordinator is gone only when the run is over.
        let _ = self.lane.run.signals.send(Signal::Failing(self.lane.number));
        self.lane.hurry.cancel();
    }
}

impl<V: Values> Job<V> {
    /// Why its records are written elsewhere.
    fn cause(&self) -> String {
        match &self.stage {
            Stage::Burying(cause) => cause.clone(),
            Stage::Handling | Stage::Ordered(_) => String::new(),
        }
    }
}
