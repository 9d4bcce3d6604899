//! What a test does to a member, and what it asks about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tramline_wire::TopicPartition;

use super::source::{Member, Owned, Token};
use crate::source::{CommitErrorKind, SourceEvent};

/// Commands a [`MemorySource`](super::MemorySource), also while a run owns it. Cheap to clone.
#[derive(Clone)]
pub struct MemoryControl {
    pub(super) member: Arc<Member>,
}

impl fmt::Debug for MemoryControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryControl").field("member", &self.member.number).finish_non_exhaustive()
    }
}

/// A revocation under way, from [`MemoryControl::revoke`].
pub struct Revoking {
    member: Arc<Member>,
    id: u64,
    deadline: Option<Instant>,
}

impl fmt::Debug for Revoking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revoking").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Revoking {
    /// Whether the partitions are free.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.member.state().owned.values().all(|owned| owned.revoking != Some(self.id))
    }

    /// Waits until the partitions are free: given up, lost, or taken at the deadline. Returns whether they were
    /// given up before the deadline.
    pub async fn released(&self) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.member.changed.notified());
            changed.as_mut().enable();
            if self.is_released() {
                return true;
            }
            match self.deadline {
                None => changed.await,
                Some(deadline) => {
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        self.member.release(self.id);
                        return false;
                    }
                }
            }
        }
    }
}

impl MemoryControl {
    /// Assigns partitions in a new generation, from their committed offsets (0 without). Returns the generation.
    pub fn assign(&self, partitions: &[TopicPartition]) -> i32 {
        let (generation, starts) = {
            let mut log = self.member.log.state();
            log.generation += 1;
            let starts: Vec<_> = partitions.iter().map(|tp| log.committed.get(tp).cloned()).collect();
            (log.generation, starts)
        };
        let mut state = self.member.state();
        state.generation = generation;
        for (tp, committed) in partitions.iter().zip(starts) {
            let position = committed.as_ref().map_or(0, |committed| committed.offset);
            let owned =
                Owned { generation, position, paused: false, blocked: false, committed, revoking: None };
            state.owned.insert(tp.clone(), owned);
        }
        if state.has_events {
            state.events.push_back(SourceEvent::Assigned { generation, partitions: partitions.to_vec() });
        }
        drop(state);
        self.member.changed.notify_waiters();
        generation
    }

    /// Takes partitions away and waits for as long as the run holds them.
    pub fn revoke(&self, partitions: &[TopicPartition]) -> Revoking {
        self.revoke_until(partitions, None)
    }

    /// Takes partitions away; after `within` they are gone in any case (as soon as anyone waits for
    /// [`Revoking::released`]).
    pub fn revoke_within(&self, partitions: &[TopicPartition], within: Duration) -> Revoking {
        self.revoke_until(partitions, Some(Instant::now() + within))
    }

    fn revoke_until(&self, partitions: &[TopicPartition], deadline: Option<Instant>) -> Revoking {
        let mut state = self.member.state();
        state.revocations += 1;
        let id = state.revocations;
        for tp in partitions {
            if let Some(owned) = state.owned.get_mut(tp) {
                owned.revoking = Some(id);
            }
        }
        let hold = Token { member: Arc::clone(&self.member), id }.hold();
        let partitions = partitions.to_vec();
        let nobody_holds = !state.has_events;
        if nobody_holds {
            drop(state);
            drop(hold);
        } else {
            state.events.push_back(SourceEvent::Revoked { partitions, deadline, hold });
            drop(state);
        }
        self.member.changed.notify_waiters();
        Revoking { member: Arc::clone(&self.member), id, deadline }
    }

    /// Loses partitions at once: commits for them are refused from here on.
    pub fn lose(&self, partitions: &[TopicPartition]) {
        let mut state = self.member.state();
        for tp in partitions {
            state.owned.remove(tp);
        }
        if state.has_events {
            state.events.push_back(SourceEvent::Lost { partitions: partitions.to_vec() });
        }
        drop(state);
        self.member.changed.notify_waiters();
    }

    /// Closes the source: it gives no more batches.
    pub fn close(&self) {
        self.member.state().closed = true;
        self.member.changed.notify_waiters();
    }

    /// How many offsets one poll may cover.
    pub fn max_poll_records(&self, records: usize) {
        self.member.state().max_poll_records = records.max(1);
    }

    /// Makes the next commits fail, one for each kind.
    pub fn fail_commits(&self, kinds: &[CommitErrorKind]) {
        self.member.state().faults.commits.extend_from_slice(kinds);
    }

    /// Makes the part of every commit that concerns this partition fail as fenced.
    pub fn fail_commits_of(&self, partition: Option<TopicPartition>) {
        self.member.state().faults.commit_failing_partition = partition;
    }

    /// Makes commits hang until they are let go.
    pub fn stall_commits(&self, stalled: bool) {
        self.member.state().faults.commits_stalled = stalled;
        self.member.changed.notify_waiters();
    }

    /// Makes every commit take this long.
    pub fn commit_latency(&self, latency: Duration) {
        self.member.state().faults.commit_latency = latency;
    }

    /// Makes the next poll fail.
    pub fn fail_poll(&self, message: &str) {
        self.member.state().faults.poll = Some(message.to_owned());
        self.member.changed.notify_waiters();
    }

    /// Makes polls fail for this partition alone, for as long as there is a reason; others go on. As with a
    /// consumer, the failure is told once, and again when the partition is resumed.
    pub fn block_fetches(&self, partition: &TopicPartition, why: Option<&str>) {
        let mut state = self.member.state();
        match why {
            Some(why) => state.faults.blocked.insert(partition.clone(), why.to_owned()),
            None => state.faults.blocked.remove(partition),
        };
        drop(state);
        self.member.changed.notify_waiters();
    }

    /// The next offset the source would hand out.
    #[must_use]
    pub fn position(&self, partition: &TopicPartition) -> Option<i64> {
        self.member.state().owned.get(partition).map(|owned| owned.position)
    }

    /// Pauses or resumes a partition as the user of the source, which is not counted as the run's doing.
    pub fn set_paused(&self, partition: &TopicPartition, paused: bool) {
        if let Some(owned) = self.member.state().owned.get_mut(partition) {
            owned.paused = paused;
        }
        self.member.changed.notify_waiters();
    }

    /// The partitions that are paused.
    #[must_use]
    pub fn paused(&self) -> Vec<TopicPartition> {
        let state = self.member.state();
        state.owned.iter().filter(|(_, owned)| owned.paused).map(|(tp, _)| tp.clone()).collect()
    }

    /// Every pause (true) and resume (false) the run asked for, in order.
    #[must_use]
    pub fn pauses(&self) -> Vec<(TopicPartition, bool)> {
        self.member.state().pauses.clone()
    }

    /// Every seek the run asked for, in order.
    #[must_use]
    pub fn seeks(&self) -> Vec<(TopicPartition, i64)> {
        self.member.state().seeks.clone()
    }

    /// How many batches were handed out.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.member.state().polls
    }
}
