//! The coordinator of a run: assignments, routing, pauses, commits and stops of all its lanes.
//!
//! It never waits for a handler, a drain or a commit: those are started by an [`Effect`] and come back as a
//! later `handle_*`. What a driver does, in one loop: carry out effects until there are none; wait for
//! whichever comes first of an event of the source, a batch (while [`Run::wants_batches`]), a lane's end, a
//! signal of a lane, a commit's result, the shutdown, [`Run::next_timeout`]; tell the run. Events of the
//! source go before batches. Before `handle_timeout` the driver reports each live lane's frontier with
//! [`Run::handle_progress`].

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::TopicPartition;

use super::commit::{CommitFailure, CommitPolicy, CommitRefusal, CommitRequest, CommitToken, Committer};
use super::{Frontier, Jitter, LaneId, LaneNumber, Progress, StopReason};
use crate::time::Instant;

mod failing;
mod pausing;
mod stopping;

use failing::Failures;
pub use failing::{HeldBack, OnFailure};
use pausing::Blocked;

/// What a stop does with queued records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopPolicy {
    /// They are processed first.
    #[default]
    Drain,
    /// They are dropped, and processors are told to hurry.
    Cancel,
}

/// What a run is to do in its choices.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    /// When to commit.
    pub commit: CommitPolicy,
    /// What revocation and shutdown do with queued records. Loss and failure always cancel.
    pub stop: StopPolicy,
    /// How long lanes have to stop before their processors are dropped.
    pub stop_timeout: Duration,
    /// Whether the source has a group to commit to. Without one progress is only tracked.
    pub has_group: bool,
    /// What the failure of a lane means.
    pub on_failure: OnFailure,
    /// Whether a full lane stops all reading until it has room, instead of pausing its own partition.
    pub await_capacity: bool,
    /// What the jitter of waits depends on.
    pub jitter: u64,
}

/// The driver's name for a revocation that is held open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevocationId(pub u64);

/// What the run must know of a batch.
#[derive(Clone, Debug)]
pub struct BatchInfo {
    /// The partition of all its records.
    pub topic_partition: TopicPartition,
    /// The generation of the assignment under which it was fetched.
    pub generation: i32,
    /// The first offset it covers.
    pub first_offset: i64,
}

/// How a lane's processor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOutcome {
    /// It returned without an error.
    Finished,
    /// It returned an error or panicked.
    Failed,
    /// The source broke its contract towards it, which ends the run whatever a failure means.
    Broken,
    /// It was dropped because [`Effect::AbortLane`] said so.
    Aborted,
    /// It is not waited for any longer, because [`Effect::AbandonLane`] said so.
    Abandoned,
}

/// The end of a lane's processor.
#[derive(Clone, Debug)]
pub struct LaneEnd {
    /// How it ended.
    pub outcome: LaneOutcome,
    /// What may still be committed, from [`Stopped::final_commit`](super::Stopped::final_commit).
    pub progress: Option<Progress>,
    /// Where to read again, from [`Stopped::rewind_to`](super::Stopped::rewind_to).
    pub rewind_to: Option<i64>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndCause {
    /// It was asked to.
    Shutdown,
    /// The source has no more to give.
    SourceClosed,
    /// The source failed.
    SourceFailed,
    /// The source handed out a batch of an assignment it had not announced.
    SourceBroken,
    /// A processor failed, or was broken by its source.
    LaneFailed(LaneNumber),
    /// A processor returned although its partition was still assigned.
    LaneEndedEarly(LaneNumber),
    /// Processors did not stop in time.
    StopTimeout,
    /// The group refuses this client's commits.
    CommitRefused,
}

impl EndCause {
    const fn is_failure(self) -> bool {
        !matches!(self, Self::Shutdown | Self::SourceClosed)
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// The first failure, or why it was stopped when there was none.
    pub cause: EndCause,
    /// Further failures, in order; among them those of lanes that had been lost before, which end no run.
    pub also: Vec<EndCause>,
    /// The lanes that did not stop in time.
    pub timed_out: Vec<LaneNumber>,
    /// Those among them whose processor could not even be dropped.
    pub still_running: Vec<LaneNumber>,
    /// Progress that could not be committed and will be redelivered.
    pub uncommitted: Vec<(TopicPartition, Frontier)>,
    /// Batches of an assignment that had gone, dropped.
    pub stale_batches: u64,
}

/// Something for the driver to do.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<B> {
    /// Start a processor for a fresh lane.
    StartLane {
        /// Its number.
        lane: LaneNumber,
        /// What it is called.
        id: LaneId,
    },
    /// Offer the batch to the lane; report [`Run::handle_lane_full`] when that fills it.
    Deliver {
        /// The lane.
        lane: LaneNumber,
        /// The batch, as it came.
        batch: B,
    },
    /// Tell the lane to stop.
    StopLane {
        /// The lane.
        lane: LaneNumber,
        /// Why.
        reason: StopReason,
        /// Whether to drop what is queued and tell the processor to hurry.
        hurry: bool,
    },
    /// Drop the lane's processor at its next await; its end is reported as for any lane.
    AbortLane {
        /// The lane.
        lane: LaneNumber,
    },
    /// The processor cannot be dropped: finish the lane under it and report the end as
    /// [`LaneOutcome::Abandoned`].
    AbandonLane {
        /// The lane.
        lane: LaneNumber,
    },
    /// Ask the source for no more of the partition.
    Pause(TopicPartition),
    /// Ask it for more again.
    Resume(TopicPartition),
    /// Send a commit and report [`Run::handle_commit_result`].
    Commit(CommitRequest),
    /// Answer a `commit()` call.
    CommitDone {
        /// Which call.
        token: CommitToken,
        /// The answer.
        answer: Result<(), CommitRefusal>,
    },
    /// Let the group have the partitions of the revocation.
    ReleaseRevocation(RevocationId),
    /// Make the source read on from here, so that records that were taken and not completed come again.
    Seek {
        /// The partition.
        topic_partition: TopicPartition,
        /// The offset.
        offset: i64,
    },
    /// The run is over; nothing follows.
    End(RunEnd),
}

/// A lane as its run sees it.
#[derive(Debug)]
struct LaneEntry {
    id: LaneId,
    phase: LanePhase,
    revocation: Option<RevocationId>,
    /// False once the partition was lost or its revocation released.
    owned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LanePhase {
    Running,
    Stopping {
        deadline: Instant,
        aborted: bool,
    },
    /// The processor has ended; only a last commit keeps the entry.
    Ended,
}

/// An assigned partition.
#[derive(Debug)]
struct Partition<B> {
    generation: i32,
    lane: Option<LaneNumber>,
    /// Batches, with the first offset of each, that wait for an older lane of the partition to end.
    parked: VecDeque<(i64, B)>,
    full: bool,
    over_bytes: bool,
    blocked: Blocked,
    paused: bool,
    /// Where to read again when the run ends.
    rewind_to: Option<i64>,
    failures: Failures,
}

impl<B> Partition<B> {
    fn rewind(&mut self, offset: i64) {
        self.rewind_to = Some(self.rewind_to.map_or(offset, |known| known.min(offset)));
    }
}

#[derive(Debug)]
struct Revocation {
    release_by: Option<Instant>,
    lanes: BTreeSet<LaneNumber>,
    commit_asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Stopping { deadline: Instant, commit_by: Option<Instant> },
    Ended,
}

/// The coordinator of a run. `B` is a batch, which passes through unseen.
#[derive(Debug)]
pub struct Run<B> {
    config: RunConfig,
    phase: Phase,
    partitions: BTreeMap<TopicPartition, Partition<B>>,
    lanes: BTreeMap<LaneNumber, LaneEntry>,
    revocations: BTreeMap<RevocationId, Revocation>,
    committer: Committer,
    next_commit: Option<Instant>,
    next_lane: u64,
    newest_generation: Option<i32>,
    end: RunEnd,
    jitter: Jitter,
    effects: VecDeque<Effect<B>>,
}

impl<B> Run<B> {
    /// A run that has no partition yet.
    #[must_use]
    pub fn new(config: RunConfig, now: Instant) -> Self {
        let next_commit = match config.commit {
            CommitPolicy::Periodic(interval) if config.has_group => Some(now + interval),
            _ => None,
        };
        Self {
            config,
            phase: Phase::Running,
            partitions: BTreeMap::new(),
            lanes: BTreeMap::new(),
            revocations: BTreeMap::new(),
            committer: Committer::default(),
            next_commit,
            next_lane: 0,
            newest_generation: None,
            end: RunEnd {
                cause: EndCause::Shutdown,
                also: Vec::new(),
                timed_out: Vec::new(),
                still_running: Vec::new(),
                uncommitted: Vec::new(),
                stale_batches: 0,
            },
            jitter: Jitter::new(config.jitter),
            effects: VecDeque::new(),
        }
    }

    /// What to do next; none when there is nothing until the next `handle_*`.
    pub fn poll_effect(&mut self) -> Option<Effect<B>> {
        self.effects.pop_front()
    }

    /// How many batches of an assignment that had gone were dropped so far.
    #[must_use]
    pub const fn stale_batches(&self) -> u64 {
        self.end.stale_batches
    }

    /// Whether the run was asked to end, or failed: no lane is started any more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.phase != Phase::Running
    }

    /// How many commits failed since the last one that worked.
    #[must_use]
    pub fn commit_failures_in_a_row(&self) -> u32 {
        self.committer.failures_in_a_row()
    }

    /// The source owns these partitions from now on.
    pub fn handle_assigned(&mut self, now: Instant, generation: i32, partitions: Vec<TopicPartition>) {
        self.newest_generation = self.newest_generation.max(Some(generation));
        if self.phase == Phase::Ended {
            return;
        }
        for tp in partitions {
            if let Some(known) = self.partitions.get(&tp) {
                if known.generation == generation {
                    continue;
                }
                // Assigned anew without a word about the old assignment: whatever the old lane did since
                // then is not covered by any ownership.
                self.lose(now, &tp);
            }
            let partition = Partition {
                generation,
                lane: None,
                parked: VecDeque::new(),
                full: false,
                over_bytes: false,
                blocked: Blocked::default(),
                paused: false,
                rewind_to: None,
                failures: Failures::default(),
            };
            self.partitions.insert(tp.clone(), partition);
            self.start_lane(&tp);
        }
        self.pump(now);
    }

    /// Starts the partition's lane, unless an older lane of it is still alive.
    fn start_lane(&mut self, tp: &TopicPartition) {
        let predecessor_lives =
            self.lanes.values().any(|lane| lane.phase != LanePhase::Ended && lane.id.topic_partition == *tp);
        let Some(partition) = self.partitions.get_mut(tp) else {
            return;
        };
        if predecessor_lives
            || partition.lane.is_some()
            || partition.failures.hold_back()
            || self.phase != Phase::Running
        {
            return;
        }
        self.next_lane += 1;
        let lane = LaneNumber(self.next_lane);
        let id = LaneId { topic_partition: tp.clone(), generation: partition.generation };
        partition.lane = Some(lane);
        self.effects.push_back(Effect::StartLane { lane, id: id.clone() });
        self.effects.extend(partition.parked.drain(..).map(|(_, batch)| Effect::Deliver { lane, batch }));
        self.committer.open(lane, id.clone());
        let entry = LaneEntry { id, phase: LanePhase::Running, revocation: None, owned: true };
        self.lanes.insert(lane, entry);
        self.set_pause(tp);
    }

    /// The source read a batch.
    pub fn handle_batch(&mut self, now: Instant, info: &BatchInfo, batch: B) {
        let unannounced = self.newest_generation.is_none_or(|newest| newest < info.generation);
        let Some(partition) = self.partitions.get_mut(&info.topic_partition) else {
            self.end.stale_batches += 1;
            if unannounced && self.phase == Phase::Running {
                self.begin_stop(now, EndCause::SourceBroken);
                self.pump(now);
            }
            return;
        };
        if partition.generation != info.generation {
            self.end.stale_batches += 1;
            return;
        }
        partition.blocked = Blocked::default();
        if self.phase != Phase::Running || partition.failures.halted {
            partition.rewind(info.first_offset);
            return;
        }
        match partition.lane {
            Some(lane) => self.effects.push_back(Effect::Deliver { lane, batch }),
            None => partition.parked.push_back((info.first_offset, batch)),
        }
        self.set_pause(&info.topic_partition);
    }

    /// What may be committed for the lane, as far as it got.
    pub fn handle_progress(&mut self, lane: LaneNumber, progress: Progress) {
        self.committer.progress(lane, progress);
    }

    /// A lane asks for a commit of its own progress.
    pub fn handle_commit_requested(
        &mut self,
        now: Instant,
        lane: LaneNumber,
        token: CommitToken,
        progress: Option<Progress>,
    ) {
        let open = self.lanes.get(&lane).is_some_and(|entry| entry.owned && entry.phase != LanePhase::Ended);
        if self.phase == Phase::Ended || !open {
            self.committer.answer(token, Err(CommitRefusal::LaneClosed));
        } else if !self.config.has_group {
            self.committer.answer(token, Err(CommitRefusal::NoGroup));
        } else {
            if let Some(progress) = progress {
                self.committer.progress(lane, progress);
            }
            if self.committer.is_dirty(lane) {
                self.committer.want_for(lane, token);
            } else {
                self.committer.answer(token, Ok(()));
            }
        }
        self.pump(now);
    }

    /// A commit came back.
    pub fn handle_commit_result(&mut self, now: Instant, id: u64, result: Result<(), CommitFailure>) {
        if self.committer.handle_result(now, id, result) {
            self.begin_stop(now, EndCause::CommitRefused);
        }
        self.pump(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.phase == Phase::Ended {
            return None;
        }
        let lanes = self.lanes.values().filter_map(|entry| match entry.phase {
            LanePhase::Stopping { deadline, .. } => Some(deadline),
            _ => None,
        });
        let commit_by = match self.phase {
            Phase::Stopping { commit_by, .. } => commit_by,
            _ => None,
        };
        let restarts = (self.phase == Phase::Running).then(|| {
            self.partitions.values().flat_map(|partition| {
                [partition.failures.restart.map(|(at, _)| at), partition.blocked.until].into_iter().flatten()
            })
        });
        lanes
            .chain(self.revocations.values().filter_map(|revocation| revocation.release_by))
            .chain(restarts.into_iter().flatten())
            .chain(self.next_commit)
            .chain(commit_by)
            .chain(self.committer.next_timeout())
            .min()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase == Phase::Ended {
            return;
        }
        if let (Some(due), CommitPolicy::Periodic(interval)) = (self.next_commit, self.config.commit)
            && due <= now
        {
            self.next_commit = (self.phase == Phase::Running).then(|| now + interval);
            self.committer.want_all_managed();
        }
        self.stop_deadlines(now);
        self.release_deadlines(now);
        self.restart_lanes(now);
        self.retry_fetches(now);
        self.pump(now);
    }

    /// Turns what has become possible into effects. Called at the end of every event.
    fn pump(&mut self, now: Instant) {
        if self.phase == Phase::Ended {
            return;
        }
        self.ask_for_final_commits();
        if let Some(request) = self.committer.poll_request(now) {
            self.effects.push_back(Effect::Commit(request));
        }
        while let Some((token, answer)) = self.committer.poll_answer() {
            self.effects.push_back(Effect::CommitDone { token, answer });
        }
        self.settle_lanes();
        self.release_settled();
        self.end_if_done(now);
    }
}

#[cfg(test)]
mod tests;
