//! What becomes of a partition whose lane failed.

use alloc::vec::Vec;

use tramline_wire::TopicPartition;

use super::{Effect, EndCause, Phase, Run};
use crate::lanes::{Backoff, Frontier, LaneNumber, StopReason};
use crate::time::Instant;

/// What the failure of a lane means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The run stops.
    #[default]
    StopRun,
    /// What is completed is committed and the partition is paused while it stays assigned.
    StopPartition,
    /// The partition is read again from the lane's frontier, by a new lane, after a wait that grows until the
    /// frontier moves.
    RestartLane(Backoff),
}

/// Why an assigned partition has no lane although none of its lanes is still ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBack {
    /// It is not processed any more under its present assignment.
    Stopped,
    /// A new lane is started at this time.
    Restart {
        /// When.
        at: Instant,
        /// How many lanes failed in a row without progress in between.
        failures: u32,
    },
}

/// How a partition's lanes have failed under its present assignment.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Not to be processed any more.
    pub halted: bool,
    /// When a new lane is started, and which one it follows.
    pub restart: Option<(Instant, LaneNumber)>,
    in_a_row: u32,
    frontier: Option<i64>,
}

impl Failures {
    /// Whether the partition has no lane, and is to have none for now.
    pub(super) const fn hold_back(&self) -> bool {
        self.halted || self.restart.is_some()
    }
}

impl<B> Run<B> {
    /// Why an assigned partition has no lane because of a failure; none when that is not so.
    #[must_use]
    pub fn held_back(&self, partition: &TopicPartition) -> Option<HeldBack> {
        let failures = &self.partitions.get(partition)?.failures;
        match failures.restart {
            Some(_) if self.is_stopping() => Some(HeldBack::Stopped),
            Some((at, _)) => Some(HeldBack::Restart { at, failures: failures.in_a_row }),
            None => failures.halted.then_some(HeldBack::Stopped),
        }
    }

    /// The lane has failed, but work of it that was started has not ended yet: it takes nothing more, and has
    /// the stop timeout. Its end is reported as for any lane.
    pub fn handle_lane_failing(&mut self, now: Instant, lane: LaneNumber) {
        self.stop_lane(lane, StopReason::Failure, true, now + self.config.stop_timeout);
        let owned = self.lanes.get(&lane).is_some_and(|entry| entry.owned);
        if self.config.on_failure == OnFailure::StopRun && owned {
            self.begin_stop(now, EndCause::LaneFailed(lane));
        }
        self.pump(now);
    }

    /// The lane failed and has ended. Only a partition that it still had is concerned.
    pub(super) fn lane_failed(
        &mut self,
        now: Instant,
        lane: LaneNumber,
        tp: &TopicPartition,
        frontier: Option<Frontier>,
    ) {
        if self.config.on_failure == OnFailure::StopRun {
            self.begin_stop(now, EndCause::LaneFailed(lane));
            return;
        }
        let random = self.jitter.draw();
        let Some(partition) = self.partitions.get_mut(tp).filter(|partition| partition.lane == Some(lane))
        else {
            return;
        };
        if self.phase != Phase::Running {
            return;
        }
        partition.full = false;
        partition.over_bytes = false;
        match self.config.on_failure {
            OnFailure::RestartLane(backoff) => {
                let failures = &mut partition.failures;
                let frontier = frontier.map(|frontier| frontier.offset);
                failures.in_a_row = if failures.frontier < frontier { 1 } else { failures.in_a_row + 1 };
                failures.frontier = failures.frontier.max(frontier);
                failures.restart = Some((now + backoff.delay(failures.in_a_row, random), lane));
                partition.lane = None;
                if let Some(offset) = partition.rewind_to.take() {
                    self.effects.push_back(Effect::Seek { topic_partition: tp.clone(), offset });
                }
            }
            OnFailure::StopPartition | OnFailure::StopRun => {
                partition.failures.halted = true;
                if self.config.has_group && self.config.commit.is_managed() {
                    self.committer.want_managed(lane);
                }
            }
        }
        self.set_pause(tp);
    }

    /// Starts the lanes whose wait is over.
    pub(super) fn restart_lanes(&mut self, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        let due: Vec<TopicPartition> = self
            .partitions
            .iter()
            .filter(|(_, partition)| partition.failures.restart.is_some_and(|(at, _)| at <= now))
            .map(|(tp, _)| tp.clone())
            .collect();
        for tp in due {
            let Some(partition) = self.partitions.get_mut(&tp) else {
                continue;
            };
            let Some((_, before)) = partition.failures.restart.take() else {
                continue;
            };
            self.start_lane(&tp);
            if let Some(lane) = self.partitions.get(&tp).and_then(|partition| partition.lane) {
                self.committer.carry_over(before, lane);
                self.lanes.remove(&before);
            }
        }
    }
}
