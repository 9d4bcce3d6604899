//! How lanes, revocations and the run itself come to their end.

use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::TopicPartition;

use super::{
    Effect, EndCause, LaneEnd, LaneOutcome, LanePhase, OnFailure, Phase, Revocation, RevocationId, Run,
    StopPolicy,
};
use crate::lanes::{LaneNumber, StopReason};
use crate::time::Instant;

/// How long a dropped processor may take to be gone before it counts as one that cannot be dropped.
const DROP_GRACE: Duration = Duration::from_millis(500);
/// How many failures of lanes that were lost before are kept for the end.
const TOLD_FAILURES: usize = 64;
/// The least time a last commit gets after the lanes have used up their stop timeout.
const COMMIT_GRACE: Duration = Duration::from_secs(1);
/// The most that is kept free between a lane's stop and the moment its partition goes, for the last commit.
const RELEASE_MARGIN: Duration = Duration::from_secs(2);

impl<B> Run<B> {
    /// The group takes these partitions away, and waits until [`Effect::ReleaseRevocation`] or `release_by`.
    pub fn handle_revoked(
        &mut self,
        now: Instant,
        id: RevocationId,
        partitions: &[TopicPartition],
        release_by: Option<Instant>,
    ) {
        let mut deadline = now + self.config.stop_timeout;
        if let Some(release_by) = release_by {
            let margin = RELEASE_MARGIN.min((release_by - now) / 4);
            deadline = deadline.min(Instant::from_start(release_by.since_start().saturating_sub(margin)));
        }
        let mut revocation = Revocation { release_by, lanes: Default::default(), commit_asked: false };
        for tp in partitions {
            self.partitions.remove(tp);
            let lanes =
                self.lanes.iter_mut().filter(|(_, lane)| lane.owned && lane.id.topic_partition == *tp);
            for (&number, lane) in lanes {
                // Revoked a second time: the first revocation's hold ends with its own lanes.
                if let Some(before) = lane.revocation.and_then(|before| self.revocations.get_mut(&before)) {
                    before.lanes.remove(&number);
                }
                lane.revocation = Some(id);
                revocation.lanes.insert(number);
                if let LanePhase::Stopping { deadline: sooner, .. } = &mut lane.phase {
                    *sooner = deadline.min(*sooner);
                }
            }
        }
        let lanes: Vec<LaneNumber> = revocation.lanes.iter().copied().collect();
        self.revocations.insert(id, revocation);
        for lane in lanes {
            self.stop_lane(lane, StopReason::Revoke, self.config.stop == StopPolicy::Cancel, deadline);
        }
        self.pump(now);
    }

    /// These partitions are not ours any more, and may be someone else's already.
    pub fn handle_lost(&mut self, now: Instant, partitions: &[TopicPartition]) {
        for tp in partitions {
            self.lose(now, tp);
        }
        self.pump(now);
    }

    pub(super) fn lose(&mut self, now: Instant, tp: &TopicPartition) {
        self.partitions.remove(tp);
        let lanes: Vec<LaneNumber> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.owned && lane.id.topic_partition == *tp)
            .map(|(&number, _)| number)
            .collect();
        let deadline = now + self.config.stop_timeout;
        for lane in lanes {
            self.disown(lane);
            self.stop_lane(lane, StopReason::Lost, true, deadline);
        }
    }

    /// From here on nothing of the lane is committed.
    fn disown(&mut self, lane: LaneNumber) {
        self.committer.close(lane);
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.owned = false;
            if let Some(revocation) = entry.revocation.take().and_then(|id| self.revocations.get_mut(&id)) {
                revocation.lanes.remove(&lane);
            }
        }
    }

    /// Stops a running lane by the deadline; a stopping one only learns of a worse reason or of haste.
    pub(super) fn stop_lane(&mut self, lane: LaneNumber, reason: StopReason, hurry: bool, deadline: Instant) {
        let Some(entry) = self.lanes.get_mut(&lane) else {
            return;
        };
        match entry.phase {
            LanePhase::Ended => {}
            LanePhase::Running => {
                entry.phase = LanePhase::Stopping { deadline, aborted: false };
                self.effects.push_back(Effect::StopLane { lane, reason, hurry });
            }
            LanePhase::Stopping { .. } => {
                if hurry {
                    self.effects.push_back(Effect::StopLane { lane, reason, hurry });
                }
            }
        }
    }

    /// The run is asked to end.
    pub fn handle_shutdown(&mut self, now: Instant) {
        self.begin_stop(now, EndCause::Shutdown);
        self.pump(now);
    }

    /// The source has no more to give.
    pub fn handle_source_closed(&mut self, now: Instant) {
        self.begin_stop(now, EndCause::SourceClosed);
        self.pump(now);
    }

    /// The source failed for good.
    pub fn handle_source_failed(&mut self, now: Instant) {
        self.begin_stop(now, EndCause::SourceFailed);
        self.pump(now);
    }

    /// Stops every lane under one deadline. The first failure is the cause of the end, and comes before any
    /// wish to stop.
    pub(super) fn begin_stop(&mut self, now: Instant, cause: EndCause) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.phase != Phase::Running {
            if !self.end.cause.is_failure() && cause.is_failure() {
                self.end.cause = cause;
            } else if cause.is_failure() && self.end.cause != cause && !self.end.also.contains(&cause) {
                self.end.also.push(cause);
            }
            return;
        }
        self.end.cause = cause;
        let deadline = now + self.config.stop_timeout;
        self.phase = Phase::Stopping { deadline, commit_by: None };
        self.next_commit = None;
        let lanes: Vec<LaneNumber> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.stop_lane(lane, StopReason::Shutdown, self.config.stop == StopPolicy::Cancel, deadline);
        }
    }

    /// The lane's processor has ended.
    pub fn handle_lane_ended(&mut self, now: Instant, lane: LaneNumber, end: LaneEnd) {
        let Some(entry) = self.lanes.get_mut(&lane).filter(|entry| entry.phase != LanePhase::Ended) else {
            return;
        };
        let before = entry.phase;
        entry.phase = LanePhase::Ended;
        let tp = entry.id.topic_partition.clone();
        let frontier = end.progress.as_ref().map(|progress| progress.frontier);
        if let Some(progress) = end.progress {
            self.committer.progress(lane, progress);
        }
        if let Some(partition) = self.partitions.get_mut(&tp).filter(|partition| partition.lane == Some(lane))
            && let Some(offset) = end.rewind_to
        {
            partition.rewind(offset);
        }
        let owned = entry.owned;
        match (end.outcome, before) {
            // Somebody else's by now, who may have made it fail (a store that refuses the former owner, say):
            // told at the end, but no reason to stop the partitions that are ours.
            (LaneOutcome::Failed, _) if !owned => {
                if self.config.on_failure == OnFailure::StopRun && self.end.also.len() < TOLD_FAILURES {
                    self.end.also.push(EndCause::LaneFailed(lane));
                }
            }
            (LaneOutcome::Failed, _) => self.lane_failed(now, lane, &tp, frontier),
            (LaneOutcome::Broken, _) => self.begin_stop(now, EndCause::LaneFailed(lane)),
            (LaneOutcome::Abandoned, _) => self.end.still_running.push(lane),
            (LaneOutcome::Finished, LanePhase::Running) => {
                self.begin_stop(now, EndCause::LaneEndedEarly(lane));
            }
            (LaneOutcome::Finished | LaneOutcome::Aborted, _) => {}
        }
        self.start_lane(&tp);
        self.pump(now);
    }

    /// Drops the processors of lanes that did not stop in time, which ends the run under every policy: one
    /// processor per partition cannot be promised any more.
    pub(super) fn stop_deadlines(&mut self, now: Instant) {
        let due: Vec<(LaneNumber, bool)> = self
            .lanes
            .iter()
            .filter_map(|(&number, entry)| match entry.phase {
                LanePhase::Stopping { deadline, aborted } if deadline <= now => Some((number, aborted)),
                _ => None,
            })
            .collect();
        for (lane, aborted) in due {
            let next = if aborted { Instant::from_start(Duration::MAX) } else { now + DROP_GRACE };
            if let Some(entry) = self.lanes.get_mut(&lane) {
                entry.phase = LanePhase::Stopping { deadline: next, aborted: true };
            }
            if aborted {
                self.effects.push_back(Effect::AbandonLane { lane });
            } else {
                self.end.timed_out.push(lane);
                self.effects.push_back(Effect::StopLane { lane, reason: StopReason::Shutdown, hurry: true });
                self.effects.push_back(Effect::AbortLane { lane });
                self.begin_stop(now, EndCause::StopTimeout);
            }
        }
    }

    /// Gives partitions back whose time has come, ready or not.
    pub(super) fn release_deadlines(&mut self, now: Instant) {
        let due: Vec<RevocationId> = self
            .revocations
            .iter()
            .filter(|(_, revocation)| revocation.release_by.is_some_and(|at| at <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            if let Some(revocation) = self.revocations.remove(&id) {
                for lane in revocation.lanes {
                    self.note_uncommitted(lane);
                    self.disown(lane);
                }
                self.effects.push_back(Effect::ReleaseRevocation(id));
            }
        }
    }

    /// Asks for the one commit that ends a revocation or the run, once its last lane has ended.
    pub(super) fn ask_for_final_commits(&mut self) {
        if !self.config.has_group
            || !self.config.commit.is_managed()
            || self.end.cause == EndCause::CommitRefused
        {
            return;
        }
        let ended =
            |lane: &LaneNumber| self.lanes.get(lane).is_none_or(|entry| entry.phase == LanePhase::Ended);
        for revocation in self.revocations.values_mut() {
            if !revocation.commit_asked && revocation.lanes.iter().all(ended) {
                revocation.commit_asked = true;
                for &lane in &revocation.lanes {
                    self.committer.want_managed(lane);
                }
            }
        }
        if matches!(self.phase, Phase::Stopping { commit_by: None, .. }) && self.lanes.keys().all(ended) {
            for &lane in self.lanes.keys() {
                self.committer.want_managed(lane);
            }
        }
    }

    fn note_uncommitted(&mut self, lane: LaneNumber) {
        if let (Some(frontier), Some(entry)) = (self.committer.uncommitted(lane), self.lanes.get(&lane))
            && self.config.has_group
            && self.config.commit.is_managed()
        {
            self.end.uncommitted.push((entry.id.topic_partition.clone(), frontier));
        }
    }

    /// Forgets ended lanes for which nothing is to be committed any more.
    pub(super) fn settle_lanes(&mut self) {
        // While the run goes on, a lane that failed keeps its account: its progress is still to be committed.
        let all_ended =
            self.phase != Phase::Running && self.lanes.values().all(|entry| entry.phase == LanePhase::Ended);
        let settled: Vec<LaneNumber> = self
            .lanes
            .iter()
            .filter(|&(&number, entry)| {
                let commit_asked = match entry.revocation.and_then(|id| self.revocations.get(&id)) {
                    Some(revocation) => {
                        revocation.commit_asked
                            || !self.config.commit.is_managed()
                            || !self.config.has_group
                            || self.end.cause == EndCause::CommitRefused
                    }
                    None => !entry.owned || all_ended,
                };
                entry.phase == LanePhase::Ended && commit_asked && self.committer.is_settled(number)
            })
            .map(|(&number, _)| number)
            .collect();
        for lane in settled {
            self.note_uncommitted(lane);
            self.disown(lane);
            self.lanes.remove(&lane);
        }
    }

    pub(super) fn release_settled(&mut self) {
        self.revocations.retain(|&id, revocation| {
            let held = !revocation.lanes.is_empty();
            if !held {
                self.effects.push_back(Effect::ReleaseRevocation(id));
            }
            held
        });
    }

    /// Ends the run when nothing is left to wait for, or the time for the last commit is over.
    pub(super) fn end_if_done(&mut self, now: Instant) {
        let Phase::Stopping { deadline, commit_by } = self.phase else {
            return;
        };
        if self.lanes.values().any(|entry| entry.phase != LanePhase::Ended) {
            return;
        }
        if !self.lanes.is_empty() {
            let grace = now + COMMIT_GRACE.min(self.config.stop_timeout);
            let by = commit_by.unwrap_or_else(|| deadline.max(grace));
            self.phase = Phase::Stopping { deadline, commit_by: Some(by) };
            if now < by {
                return;
            }
        }
        let lanes: Vec<LaneNumber> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.note_uncommitted(lane);
        }
        self.committer.abandon();
        while let Some((token, answer)) = self.committer.poll_answer() {
            self.effects.push_back(Effect::CommitDone { token, answer });
        }
        for id in core::mem::take(&mut self.revocations).into_keys() {
            self.effects.push_back(Effect::ReleaseRevocation(id));
        }
        for (topic_partition, mut partition) in core::mem::take(&mut self.partitions) {
            if let Some(&(offset, _)) = partition.parked.front() {
                partition.rewind(offset);
            }
            if let Some(offset) = partition.rewind_to {
                self.effects.push_back(Effect::Seek { topic_partition: topic_partition.clone(), offset });
            }
            if partition.paused {
                self.effects.push_back(Effect::Resume(topic_partition));
            }
        }
        self.phase = Phase::Ended;
        self.effects.push_back(Effect::End(self.end.clone()));
    }
}
