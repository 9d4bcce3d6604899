//! What a run tells of itself while it goes on: events, counts, metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tramline_core::lanes::{CommitFailure, HeldBack, LaneId};
use tramline_wire::TopicPartition;

use super::{Driver, StartLane};
use crate::lane::{LaneShared, lock};
use crate::monitor::{Absent, LOOK_EVERY};
use crate::source::{CommitError, CommitErrorKind, CommitOffset, Source};

impl<S: Source, L: StartLane> Driver<'_, S, L> {
    /// Looks at the lanes when it is time to.
    pub(super) fn look_at_lanes(&mut self) {
        let now = Instant::now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        self.watch.look(&self.shared.registry.snapshot(now));
        self.publish();
    }

    pub(super) fn publish(&mut self) {
        lock(&self.shared.registry.totals).stale_batches = self.run.stale_batches();
        self.metrics.publish(&self.shared.registry);
    }

    /// The lanes of these partitions, for people.
    pub(super) fn lanes_of(&self, partitions: &[TopicPartition]) -> String {
        let lane = |partition| self.lanes.get(self.current.get(partition)?);
        let names = partitions.iter().map(|partition| match lane(partition) {
            Some(lane) => lane.shared.id.to_string(),
            None => partition.to_string(),
        });
        names.collect::<Vec<_>>().join(", ")
    }

    /// Partitions that are assigned anew or not ours any more have no lane that is missing.
    pub(super) fn forget_absent(&self, partitions: &[TopicPartition]) {
        let mut absent = lock(&self.shared.registry.absent);
        for partition in partitions {
            absent.remove(partition);
        }
    }

    /// Remembers why the partition has no lane, now that its lane has failed.
    pub(super) fn note_absent(&self, lane: &LaneShared, error: Option<String>) {
        let partition = &lane.id.topic_partition;
        let (Some(why), Some(error)) = (self.run.held_back(partition), error) else {
            return;
        };
        let at = match why {
            HeldBack::Restart { at, .. } => self.base.checked_add(at.since_start()),
            _ => None,
        };
        tracing::debug!(lane = %lane.id, ?why, "the partition has no lane");
        let absent = Absent::new(lane, why, at, error);
        lock(&self.shared.registry.absent).insert(partition.clone(), absent);
    }

    /// Once the run stops, no partition waits for another lane.
    pub(super) fn note_stopping(&self) {
        if self.run.is_stopping() {
            lock(&self.shared.registry.absent).values_mut().for_each(Absent::give_up);
        }
    }

    /// A lane of the partition is started; true when that is after a failure.
    pub(super) fn note_started(&self, lane: &LaneId) {
        let absent = lock(&self.shared.registry.absent).remove(&lane.topic_partition);
        if absent.is_some_and(|absent| absent.is_restarting()) {
            self.shared.registry.count(&lane.topic_partition, |stats| stats.restarts += 1);
        }
        tracing::debug!(%lane, "lane starts");
    }

    pub(super) fn handle_commit_result(
        &mut self,
        id: u64,
        offsets: &[CommitOffset],
        result: Result<(), CommitError>,
    ) {
        let registry = Arc::clone(&self.shared.registry);
        let failed = |offset: &CommitOffset| match &result {
            Ok(()) => false,
            Err(error) => error.partitions.is_empty() || error.partitions.contains(&offset.topic_partition),
        };
        for offset in offsets {
            registry.count(&offset.topic_partition, |stats| {
                let which = if failed(offset) { &mut stats.commit_failures } else { &mut stats.commits };
                *which += 1;
            });
        }
        match &result {
            Ok(()) => {
                lock(&registry.totals).commits += 1;
                *lock(&registry.commit_failing) = None;
                tracing::debug!(lanes = %committed(offsets), "committed");
            }
            Err(error) => {
                lock(&registry.totals).commit_failures += 1;
                let mut failing = lock(&registry.commit_failing);
                let failures = failing.as_ref().map_or(0, |failing| failing.0) + 1;
                *failing = Some((failures, error.to_string()));
                drop(failing);
                tracing::warn!(lanes = %committed(offsets), %error, failures, "commit failed");
                if error.kind == CommitErrorKind::Unauthorised {
                    self.commit_error = Some(error.clone());
                }
            }
        }
        let result = result.map_err(|error| CommitFailure { kind: error.kind, partitions: error.partitions });
        self.run.handle_commit_result(self.now(), id, result);
    }

    /// Counts a lane that did not stop in time.
    pub(super) fn note_overrun(&self, lane: &LaneId) {
        lock(&self.shared.registry.totals).deadline_overruns += 1;
        tracing::warn!(%lane, "lane did not stop in time");
    }

    pub(super) fn note_released(&self, held: Duration) {
        lock(&self.shared.registry.totals).revocations_held.note(held, 1);
        self.metrics.released(held);
        tracing::debug!(?held, "revoked partitions are given back");
    }

    /// Moves what the lane has counted to the totals of the run.
    pub(super) fn note_ended(&self, lane: &LaneShared, failed: bool) {
        let now = Instant::now();
        let stopped = {
            let cell = lane.cell();
            cell.lane.stop_reason().zip(cell.stop_asked)
        };
        if let Some((reason, asked)) = stopped {
            self.metrics.stopped(reason, now.saturating_duration_since(asked));
        }
        self.shared.registry.lane_ended(lane, failed, now);
    }
}

fn committed(offsets: &[CommitOffset]) -> String {
    let name = |at: &CommitOffset| {
        format!("{} in generation {} at {}", at.topic_partition, at.generation, at.offset)
    };
    offsets.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl<S, L> Drop for Driver<'_, S, L> {
    /// Also of a run that was dropped: nobody is to see lanes that are no more.
    fn drop(&mut self) {
        for (_, lane) in std::mem::take(&mut self.lanes) {
            let stopped = lane.shared.cell().lane.finish();
            self.shared.give_bytes_back(stopped.freed_bytes);
        }
        self.shared.registry.clear();
        lock(&self.shared.registry.totals).buffered_bytes = lock(&self.shared.bytes).used();
        self.metrics.publish(&self.shared.registry);
    }
}
