//! Automatic commits in the consumer: who hands them out, how they get to the queue, what waits for them.

use std::collections::BTreeMap;

use tramline_core::client::auto_commit::{AutoCommit, StoreRefusal};
use tramline_core::client::consumer_commits::{CommitFailure, CommitId, CommitOffset};
use tramline_core::time::Instant;
use tramline_wire::TopicPartition;

use super::builder::Settings;
use super::error::{CommitError, StoreOffsetError};
use super::offsets::commit_offset;
use super::shared::{Pending, Shared, State};
use super::types::{CommitMode, OffsetAndMetadata};

/// The machine, and the commits that are under way for it.
#[derive(Debug)]
pub(super) struct AutoCommits {
    pub machine: AutoCommit,
    under_way: BTreeMap<CommitId, UnderWay>,
    /// The task knows when the next commit is due.
    armed: bool,
}

#[derive(Debug)]
struct UnderWay {
    offsets: BTreeMap<TopicPartition, CommitOffset>,
    /// The revocation that is acknowledged afterwards.
    then_release: Option<u64>,
}

impl AutoCommits {
    pub(super) fn new(settings: &Settings) -> Option<Self> {
        match settings.commit_mode {
            CommitMode::Manual => None,
            CommitMode::Auto { interval, store } => Some(Self {
                machine: AutoCommit::new(interval, store, Instant::ZERO),
                under_way: BTreeMap::new(),
                armed: false,
            }),
        }
    }
}

impl State {
    /// The program asks for records: those it has count as done. Whether the task must be told.
    pub(super) fn asked_for_more(&mut self) -> bool {
        let Some(auto) = &mut self.auto else { return false };
        let tell = auto.machine.asked() && !auto.armed;
        auto.armed |= tell;
        tell
    }

    /// Records of the partition are on their way to the program.
    pub(super) fn handed_out(&mut self, topic_partition: &TopicPartition) {
        let Some(auto) = &mut self.auto else { return };
        let generation = self.fetcher.owned(topic_partition);
        if let Some((generation, position)) = generation.zip(self.fetcher.position(topic_partition)) {
            auto.machine.handed_out(topic_partition, generation, position);
        }
    }

    /// Forgets a partition with everything buffered and everything that counts as done.
    pub(super) fn give_up(&mut self, topic_partition: &TopicPartition) {
        self.fetcher.unassign(topic_partition);
        if let Some(auto) = &mut self.auto {
            auto.machine.forget(topic_partition);
        }
    }

    /// Queues the commit that is due.
    pub(super) fn queue_due_commits(&mut self, now: Instant) {
        let Some(auto) = &mut self.auto else { return };
        let due = auto.machine.poll_commit(now);
        auto.armed = auto.machine.next_timeout().is_some();
        if let Some(offsets) = due {
            self.queue_automatic(offsets, None, now);
        }
    }

    /// Queues a commit of everything that counts as done.
    pub(super) fn queue_last_commits(&mut self, now: Instant) {
        let offsets = self.auto.as_mut().map(|auto| auto.machine.flush(|_| true)).unwrap_or_default();
        if !offsets.is_empty() {
            self.queue_automatic(offsets, None, now);
        }
    }

    /// Queues the commit that must be answered before these partitions are given up; whether there is one.
    pub(super) fn commits_before_release(&mut self, id: u64, now: Instant) -> bool {
        let Some(partitions) = self.membership.as_ref().and_then(|membership| membership.held(id)) else {
            return false;
        };
        let offsets = self.auto.as_mut().map(|auto| auto.machine.flush(|tp| partitions.contains(tp)));
        let Some(offsets) = offsets.filter(|offsets| !offsets.is_empty()) else { return false };
        self.queue_automatic(offsets, Some(id), now);
        true
    }

    fn queue_automatic(
        &mut self,
        offsets: BTreeMap<TopicPartition, CommitOffset>,
        then_release: Option<u64>,
        now: Instant,
    ) {
        let id = self.commits.queue.push(offsets.clone(), now);
        if let Some(auto) = &mut self.auto {
            auto.under_way.insert(id, UnderWay { offsets, then_release });
        }
    }

    /// When an automatic commit is due.
    pub(super) fn next_automatic_commit(&self) -> Option<Instant> {
        self.auto.as_ref().and_then(|auto| auto.machine.next_timeout())
    }

    /// Tells those whose commit is finished; whether a revocation was acknowledged by that.
    pub(super) fn finish_commits(&mut self, now: Instant) -> bool {
        let mut released = false;
        while let Some((id, failed)) = self.commits.queue.poll_done() {
            let Some(done) = self.auto.as_mut().and_then(|auto| auto.under_way.remove(&id)) else {
                self.commits.reply(id, failed);
                continue;
            };
            if let Some(auto) = &mut self.auto {
                auto.machine.answered(&done.offsets, &failed);
            }
            self.report_failed_commit(failed);
            if let Some(revocation) = done.then_release {
                self.release_now(revocation, now);
                released = true;
            }
        }
        released
    }

    fn report_failed_commit(&mut self, failed: BTreeMap<TopicPartition, CommitFailure>) {
        if failed.is_empty() {
            return;
        }
        let error = CommitError { failed };
        tracing::warn!(%error, "automatic commit failed");
        self.publish(Pending::CommitFailed { error });
    }
}

impl Shared {
    pub(super) fn store_offset(
        &self,
        topic_partition: &TopicPartition,
        offset: OffsetAndMetadata,
    ) -> Result<(), StoreOffsetError> {
        let mut state = self.lock();
        let not_assigned = || StoreOffsetError::NotAssigned(topic_partition.clone());
        let generation = state.fetcher.owned(topic_partition).ok_or_else(not_assigned)?;
        if offset.generation.is_some_and(|under| under != generation) {
            return Err(not_assigned());
        }
        let Some(auto) = &mut state.auto else {
            return Err(StoreOffsetError::NotStored(self.settings.commit_mode));
        };
        let wanted = offset.offset;
        auto.machine.store(topic_partition, generation, commit_offset(offset)).map_err(|why| match why {
            StoreRefusal::BeyondHandedOut { handed_out } => StoreOffsetError::BeyondHandedOut {
                topic_partition: topic_partition.clone(),
                offset: wanted,
                handed_out,
            },
            _ => StoreOffsetError::NotStored(self.settings.commit_mode),
        })?;
        drop(state);
        self.offsets.notify_one();
        Ok(())
    }
}
