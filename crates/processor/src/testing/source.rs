//! One member that reads a memory log.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tramline_wire::TopicPartition;

use super::{Faults, MemoryCommit, MemoryControl, MemoryLog, MemoryOffset};
use crate::source::{
    CommitConfiguration, CommitError, CommitErrorKind, CommitOffset, Committed, FetchBlocked, GroupMetadata,
    RevocationHold, Source, SourceBatch, SourceEvent, SourceEvents,
};

/// What a poll of a memory source fails with: the error a test asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct MemoryError {
    why: String,
    /// The partition that it is about, and where that stands.
    blocked: Option<(TopicPartition, i64)>,
}

impl MemoryError {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), blocked: None }
    }
}

/// A member that reads a [`MemoryLog`]. Commanded through its [`MemoryControl`].
pub struct MemorySource {
    pub(super) member: Arc<Member>,
}

pub(super) struct Member {
    pub log: MemoryLog,
    pub number: u64,
    pub configuration: CommitConfiguration,
    pub state: Mutex<MemberState>,
    /// Polls, commits and events look again.
    pub changed: Notify,
}

#[derive(Default)]
pub(super) struct MemberState {
    pub owned: BTreeMap<TopicPartition, Owned>,
    pub events: VecDeque<SourceEvent>,
    pub has_events: bool,
    pub closed: bool,
    pub max_poll_records: usize,
    pub last_polled: Option<TopicPartition>,
    pub generation: i32,
    pub faults: Faults,
    /// Pauses (true) and resumes in order.
    pub pauses: Vec<(TopicPartition, bool)>,
    pub seeks: Vec<(TopicPartition, i64)>,
    pub revocations: u64,
    pub polls: u64,
}

pub(super) struct Owned {
    pub generation: i32,
    pub position: i64,
    pub paused: bool,
    /// It was told that the partition cannot be read on.
    pub blocked: bool,
    /// What was committed when it was assigned, or since.
    pub committed: Option<MemoryOffset>,
    /// The revocation that is held open for it.
    pub revoking: Option<u64>,
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").field("member", &self.member.number).finish_non_exhaustive()
    }
}

impl MemorySource {
    /// A member of the group `test` that commits only when it is told to.
    #[must_use]
    pub fn new(log: &MemoryLog) -> (Self, MemoryControl) {
        let configuration = CommitConfiguration { group: Some("test".into()), ..Default::default() };
        Self::with_configuration(log, configuration)
    }

    /// A member with these commit settings; without a group its commits are refused.
    #[must_use]
    pub fn with_configuration(log: &MemoryLog, configuration: CommitConfiguration) -> (Self, MemoryControl) {
        let number = {
            let mut state = log.state();
            state.members += 1;
            state.members
        };
        let state = Mutex::new(MemberState { max_poll_records: 500, ..Default::default() });
        let changed = Notify::new();
        let member = Arc::new(Member { log: log.clone(), number, configuration, state, changed });
        (Self { member: Arc::clone(&member) }, MemoryControl { member })
    }
}

impl MemberState {
    /// The error of a partition that cannot be read on, once.
    fn newly_blocked(&mut self) -> Option<MemoryError> {
        let blocked = &self.faults.blocked;
        let (tp, owned) = self.owned.iter_mut().find(|(tp, owned)| {
            !owned.paused && !owned.blocked && owned.revoking.is_none() && blocked.contains_key(*tp)
        })?;
        owned.blocked = true;
        Some(MemoryError { why: blocked[tp].clone(), blocked: Some((tp.clone(), owned.position)) })
    }
}

impl Member {
    pub(super) fn state(&self) -> MutexGuard<'_, MemberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for a batch, fairly over the partitions.
    fn try_poll(&self) -> Result<Option<Option<SourceBatch>>, MemoryError> {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(message) = state.faults.poll.take() {
            return Err(MemoryError::new(message));
        }
        if state.closed {
            return Ok(Some(None));
        }
        if let Some(error) = state.newly_blocked() {
            return Err(error);
        }
        let log = self.log.state();
        let after = state.last_polled.clone();
        let mut ready = state.owned.iter_mut().filter(|(tp, owned)| {
            !owned.paused
                && !owned.blocked
                && owned.revoking.is_none()
                && log
                    .partitions
                    .get(*tp)
                    .is_some_and(|log| log.items.last().is_some_and(|last| last.offset >= owned.position))
        });
        let first = ready.next();
        let next = match (&after, first) {
            (Some(after), Some(first)) if first.0 <= after => {
                // The first one after the last polled, else the first of all.
                ready.find(|(tp, _)| *tp > after).or(Some(first))
            }
            (_, first) => first,
        };
        let Some((tp, owned)) = next else {
            return Ok(None);
        };
        let Some(partition) = log.partitions.get(tp) else {
            return Ok(None);
        };
        let from = partition.items.partition_point(|item| item.offset < owned.position);
        let epoch = partition.items[from].leader_epoch;
        let items: Vec<_> = partition.items[from..]
            .iter()
            .take_while(|item| item.leader_epoch == epoch)
            .take(state.max_poll_records)
            .collect();
        let first_offset = owned.position;
        owned.position = items.last().map_or(owned.position, |item| item.offset + 1);
        let batch = SourceBatch {
            topic_partition: tp.clone(),
            generation: owned.generation,
            records: items.iter().filter_map(|item| item.record.clone()).collect(),
            first_offset,
            next_offset: owned.position,
            leader_epoch: epoch,
        };
        state.last_polled = Some(batch.topic_partition.clone());
        state.polls += 1;
        Ok(Some(Some(batch)))
    }

    /// Lets a revocation's partitions go.
    pub(super) fn release(&self, id: u64) {
        self.state().owned.retain(|_, owned| owned.revoking != Some(id));
        self.changed.notify_waiters();
    }

    fn answer(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        let (fault, failing_partition) = {
            let mut state = self.state();
            let faults = &mut state.faults;
            let fault = if faults.commits.is_empty() { None } else { Some(faults.commits.remove(0)) };
            (fault, faults.commit_failing_partition.clone())
        };
        let not_ours = |state: &MemberState, offset: &CommitOffset| {
            state.owned.get(&offset.topic_partition).is_none_or(|owned| owned.generation != offset.generation)
        };
        let (kind, failed): (_, Vec<TopicPartition>) = if self.configuration.group.is_none() {
            (Some(CommitErrorKind::Unauthorised), Vec::new())
        } else if let Some(kind) = fault {
            (Some(kind), Vec::new())
        } else {
            let state = self.state();
            let refused = offsets.iter().filter(|offset| not_ours(&state, offset));
            let failed: Vec<_> = refused.map(|offset| offset.topic_partition.clone()).collect();
            if failed.is_empty() {
                let failing = offsets.iter().map(|offset| &offset.topic_partition);
                let failing: Vec<_> =
                    failing.filter(|&tp| failing_partition.as_ref() == Some(tp)).cloned().collect();
                ((!failing.is_empty()).then_some(CommitErrorKind::Fenced), failing)
            } else {
                (Some(CommitErrorKind::Fenced), failed)
            }
        };
        let mut log = self.log.state();
        let mut known = Vec::new();
        for offset in &offsets {
            if kind.is_none() || (!failed.is_empty() && !failed.contains(&offset.topic_partition)) {
                let value = MemoryOffset {
                    offset: offset.offset,
                    leader_epoch: offset.leader_epoch,
                    metadata: offset.metadata.clone(),
                };
                log.committed.insert(offset.topic_partition.clone(), value.clone());
                known.push((offset.topic_partition.clone(), value));
            }
        }
        let commit = MemoryCommit { member: self.number, offsets, failure: kind, at: Instant::now() };
        log.commits.push(commit);
        drop(log);
        let mut state = self.state();
        for (tp, value) in known {
            if let Some(owned) = state.owned.get_mut(&tp) {
                owned.committed = Some(value);
            }
        }
        drop(state);
        match kind {
            None => Ok(()),
            Some(kind) => {
                let reason = MemoryError::new(format!("commit refused: {kind:?}"));
                Err(CommitError { partitions: failed, ..CommitError::new(kind, reason) })
            }
        }
    }
}

impl Source for MemorySource {
    type Error = MemoryError;
    type Events = MemoryEvents;

    async fn poll(&self) -> Result<Option<SourceBatch>, MemoryError> {
        loop {
            let mut changed = std::pin::pin!(self.member.changed.notified());
            let mut appended = std::pin::pin!(self.member.log.0.appended.notified());
            changed.as_mut().enable();
            appended.as_mut().enable();
            if let Some(batch) = self.member.try_poll()? {
                return Ok(batch);
            }
            tokio::select! {
                () = changed => {}
                () = appended => {}
            }
        }
    }

    fn pause(&self, topic_partition: &TopicPartition) {
        let mut state = self.member.state();
        if let Some(owned) = state.owned.get_mut(topic_partition) {
            owned.paused = true;
        }
        state.pauses.push((topic_partition.clone(), true));
    }

    fn resume(&self, topic_partition: &TopicPartition) {
        let mut state = self.member.state();
        if let Some(owned) = state.owned.get_mut(topic_partition) {
            owned.paused = false;
            owned.blocked = false;
        }
        state.pauses.push((topic_partition.clone(), false));
        drop(state);
        self.member.changed.notify_waiters();
    }

    fn seek(&self, topic_partition: &TopicPartition, offset: i64) {
        let mut state = self.member.state();
        if let Some(owned) = state.owned.get_mut(topic_partition) {
            owned.position = offset;
        }
        state.seeks.push((topic_partition.clone(), offset));
        drop(state);
        self.member.changed.notify_waiters();
    }

    fn paused(&self) -> Vec<TopicPartition> {
        let state = self.member.state();
        state.owned.iter().filter(|(_, owned)| owned.paused).map(|(tp, _)| tp.clone()).collect()
    }

    fn committed(&self, topic_partition: &TopicPartition) -> Option<Committed> {
        let known = self.member.state().owned.get(topic_partition)?.committed.clone()?;
        let log_end = Some(self.member.log.end(topic_partition));
        Some(Committed::new(known.offset, known.metadata).log_end(log_end))
    }

    fn fetch_blocked(error: &MemoryError) -> Option<FetchBlocked> {
        let (tp, offset) = error.blocked.as_ref()?;
        Some(FetchBlocked::new(tp.clone(), Some(*offset)))
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        loop {
            let mut changed = std::pin::pin!(self.member.changed.notified());
            changed.as_mut().enable();
            if !self.member.state().faults.commits_stalled {
                break;
            }
            changed.await;
        }
        let latency = self.member.state().faults.commit_latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        self.member.answer(offsets)
    }

    fn events(&self) -> MemoryEvents {
        let mut state = self.member.state();
        state.has_events = true;
        let mut assigned: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        for (tp, owned) in &state.owned {
            assigned.entry(owned.generation).or_default().push(tp.clone());
        }
        let known = assigned
            .into_iter()
            .map(|(generation, partitions)| SourceEvent::Assigned { generation, partitions });
        state.events = known.collect();
        MemoryEvents { member: Arc::clone(&self.member) }
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        Some(self.member.configuration.clone())
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        self.member.configuration.group.clone().map(|group_id| GroupMetadata {
            group_id,
            generation: self.member.state().generation,
            member_id: format!("member-{}", self.member.number).into(),
            instance_id: None,
        })
    }
}

/// The assignment changes of a [`MemorySource`]. While it exists, revocations are held open.
pub struct MemoryEvents {
    member: Arc<Member>,
}

impl fmt::Debug for MemoryEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryEvents").finish_non_exhaustive()
    }
}

impl SourceEvents for MemoryEvents {
    async fn next(&mut self) -> Option<SourceEvent> {
        let member = Arc::clone(&self.member);
        loop {
            let mut changed = std::pin::pin!(member.changed.notified());
            changed.as_mut().enable();
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            changed.await;
        }
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        self.member.state().events.pop_front()
    }
}

impl Drop for MemoryEvents {
    fn drop(&mut self) {
        let undelivered = {
            let mut state = self.member.state();
            state.has_events = false;
            std::mem::take(&mut state.events)
        };
        // Dropped without the lock: a hold that goes takes it.
        drop(undelivered);
    }
}

/// Releases its revocation when it is dropped.
pub(super) struct Token {
    pub member: Arc<Member>,
    pub id: u64,
}

impl Token {
    pub(super) fn hold(self) -> RevocationHold {
        RevocationHold::new(self)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.member.release(self.id);
    }
}
