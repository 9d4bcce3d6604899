//! What a dispatcher notes of its jobs, for monitors: how long calls took, and why the oldest record waits.

use tokio::time::Instant;

use super::failures::Stage;
use super::{Engine, Job};
use crate::decode::Values;
use crate::lane::Oldest;
use crate::ordering::Ordering;

/// How much of a key is shown.
const SHOWN_KEY: usize = 64;

impl<V: Values> Engine<'_, V> {
    /// A handler was polled for the first time.
    pub(super) fn note_begun(&mut self, job: &mut Job<V>, waits: bool) {
        job.stands_for = 1;
        if !waits {
            if job.begun.is_some() {
                job.stands_for = self.sampler.weight();
            }
        } else if job.begun.is_none() {
            self.sampler.waited();
            job.begun = Some(Instant::now());
        }
    }

    /// A job ended; if that was a handler that is measured, this was how long it took.
    pub(super) fn note_handled(&mut self, job: &mut Job<V>) {
        if let Some(begun) = job.begun.take() {
            let took = begun.elapsed();
            self.lane.metrics.handled(took, job.stands_for);
            self.handled.push((took, job.stands_for));
        }
    }

    /// Tells the lane why its oldest record is not finished, if that is another one than before, or something
    /// happened to it. Called when there is nothing to do but wait.
    pub(super) fn note_oldest(&mut self) {
        let mut cell = self.lane.cell();
        cell.note_working(Instant::now());
        cell.keys = self.dispatcher.keys();
        let oldest = cell.lane.oldest_unfinished();
        if oldest == self.noted && !self.turned {
            return;
        }
        (self.noted, self.turned) = (oldest, false);
        cell.oldest = None;
        let Some(offset) = oldest else {
            return;
        };
        // A batch holds its records together, so that the oldest one of all is the first of its job.
        let is_it = |job: &Job<V>| job.offset() == Some(offset);
        let running = self.running.iter().flatten().find(|(_, job)| is_it(job));
        let resting = || self.resting.iter().find(|(_, job)| is_it(job));
        let found = running.map(|(id, job)| (*id, job)).or_else(|| resting().map(|(id, job)| (*id, job)));
        let Some((id, job)) = found else {
            return;
        };
        let buried = match &job.stage {
            Stage::Burying(error) => Some(error),
            Stage::Handling | Stage::Ordered(_) => None,
        };
        let known = match (&job.rests_for, buried) {
            (Some((until, error)), _) => Some(Oldest::Resting {
                until: *until,
                attempt: job.tries + 1,
                of: self.plan.policy.attempts(),
                error: error.clone(),
            }),
            (None, Some(error)) => Some(Oldest::Buried { error: error.clone() }),
            (None, None) if self.plan.ordering == Ordering::Key => {
                let key = self.dispatcher.key_of(id).flatten();
                cell.oldest_key.clear();
                cell.oldest_key.extend(key.into_iter().flatten().take(SHOWN_KEY));
                Some(Oldest::Keyed { is_null: key.is_none() })
            }
            (None, None) => None,
        };
        cell.oldest = known.map(|known| (offset, known));
    }
}
