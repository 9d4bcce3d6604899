//! Automatic commits: what counts as done, when it is to be committed, what is tried again.
//!
//! An event machine. With automatic storing, what was handed out counts as done when the program asks for more; without
//! it, what the program stores does. Nothing beyond what was handed out is ever offered for a commit, and nothing of an
//! earlier assignment.

use alloc::collections::BTreeMap;
use core::time::Duration;

use tramline_wire::{Str, TopicPartition};

use super::consumer_commits::{CommitFailure, CommitOffset};
use super::fetcher::Position;
use crate::time::Instant;

/// Why an offset was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreRefusal {
    /// Offsets are stored by themselves.
    Automatic,
    /// Nothing at or behind this offset was handed out under the present assignment.
    BeyondHandedOut {
        /// The offset after everything that was; `None` when nothing was.
        handed_out: Option<i64>,
    },
}

/// The automatic commits of one consumer. See the module.
#[derive(Debug)]
pub struct AutoCommit {
    interval: Duration,
    store: bool,
    /// Not before this.
    next_at: Instant,
    /// Handed out since the program asked last.
    open: BTreeMap<TopicPartition, (i32, Position)>,
    partitions: BTreeMap<TopicPartition, Progress>,
}

/// How far one assigned partition has come.
#[derive(Debug)]
struct Progress {
    generation: i32,
    /// The offset after everything that was handed out.
    handed_out: i64,
    done: Option<CommitOffset>,
    under_way: Option<CommitOffset>,
    committed: Option<CommitOffset>,
}

impl AutoCommit {
    /// Commits that are at least `interval` apart, of what counts as done by itself (`store`) or is stored.
    #[must_use]
    pub fn new(interval: Duration, store: bool, now: Instant) -> Self {
        Self { interval, store, next_at: now + interval, open: BTreeMap::new(), partitions: BTreeMap::new() }
    }

    /// Records up to `position` were handed out.
    pub fn handed_out(&mut self, topic_partition: &TopicPartition, generation: i32, position: Position) {
        let progress = self.progress(topic_partition, generation);
        progress.handed_out = progress.handed_out.max(position.offset);
        if self.store {
            self.open.insert(topic_partition.clone(), (generation, position));
        }
    }

    fn progress(&mut self, topic_partition: &TopicPartition, generation: i32) -> &mut Progress {
        let new = || Progress { generation, handed_out: -1, done: None, under_way: None, committed: None };
        let progress = self.partitions.entry(topic_partition.clone()).or_insert_with(new);
        if progress.generation != generation {
            *progress = new();
        }
        progress
    }

    /// The program asks for more: what it was given counts as done. Whether anything does now that did not before.
    pub fn asked(&mut self) -> bool {
        let any = !self.open.is_empty();
        for (topic_partition, (generation, position)) in core::mem::take(&mut self.open) {
            let progress = self.progress(&topic_partition, generation);
            progress.done = Some(CommitOffset {
                offset: position.offset,
                leader_epoch: position.leader_epoch,
                metadata: Str::new(),
                generation: Some(generation),
            });
        }
        any
    }

    /// The program says that everything before `offset` is done, in a partition assigned under `generation`.
    ///
    /// # Errors
    /// [`StoreRefusal`]; nothing has changed then.
    pub fn store(
        &mut self,
        topic_partition: &TopicPartition,
        generation: i32,
        offset: CommitOffset,
    ) -> Result<(), StoreRefusal> {
        if self.store {
            return Err(StoreRefusal::Automatic);
        }
        let progress = self.progress(topic_partition, generation);
        if offset.offset > progress.handed_out {
            let handed_out = (progress.handed_out >= 0).then_some(progress.handed_out);
            return Err(StoreRefusal::BeyondHandedOut { handed_out });
        }
        progress.done = Some(CommitOffset { generation: Some(generation), ..offset });
        Ok(())
    }

    /// The position was moved by hand: what was handed out last and not asked past does not count.
    pub fn sought(&mut self, topic_partition: &TopicPartition) {
        self.open.remove(topic_partition);
    }

    /// The partition is not ours any more.
    pub fn forget(&mut self, topic_partition: &TopicPartition) {
        self.open.remove(topic_partition);
        self.partitions.remove(topic_partition);
    }

    /// What to commit now, if it is time and there is something new. Told to be under way until
    /// [`answered`](Self::answered).
    pub fn poll_commit(&mut self, now: Instant) -> Option<BTreeMap<TopicPartition, CommitOffset>> {
        if self.next_at > now {
            return None;
        }
        let due = self.take(|_, progress| progress.is_new());
        if due.is_empty() {
            return None;
        }
        self.next_at = now + self.interval;
        Some(due)
    }

    /// What is to be committed before these partitions are given up, also what is under way already.
    pub fn flush(&mut self, of: impl Fn(&TopicPartition) -> bool) -> BTreeMap<TopicPartition, CommitOffset> {
        self.take(|topic_partition, progress| of(topic_partition) && progress.done != progress.committed)
    }

    fn take(
        &mut self,
        wanted: impl Fn(&TopicPartition, &Progress) -> bool,
    ) -> BTreeMap<TopicPartition, CommitOffset> {
        let mut taken = BTreeMap::new();
        for (topic_partition, progress) in &mut self.partitions {
            if let Some(done) = progress.done.clone().filter(|_| wanted(topic_partition, progress)) {
                progress.under_way = Some(done.clone());
                taken.insert(topic_partition.clone(), done);
            }
        }
        taken
    }

    /// The commit of these offsets is over. What failed is offered again after the interval.
    pub fn answered(
        &mut self,
        offsets: &BTreeMap<TopicPartition, CommitOffset>,
        failed: &BTreeMap<TopicPartition, CommitFailure>,
    ) {
        for (topic_partition, offset) in offsets {
            let of_this_assignment =
                |progress: &&mut Progress| Some(progress.generation) == offset.generation;
            let Some(progress) = self.partitions.get_mut(topic_partition).filter(of_this_assignment) else {
                continue;
            };
            if progress.under_way.as_ref() == Some(offset) {
                progress.under_way = None;
            }
            if !failed.contains_key(topic_partition) {
                progress.committed = Some(offset.clone());
            }
        }
    }

    /// When [`AutoCommit::poll_commit`] has something without anything else happening.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.partitions.values().any(Progress::is_new).then_some(self.next_at)
    }
}

impl Progress {
    fn is_new(&self) -> bool {
        self.done.is_some() && self.done != self.committed && self.done != self.under_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    const EVERY: Duration = Duration::from_secs(5);

    fn at(secs: u64) -> Instant {
        Instant::from_start(Duration::from_secs(secs))
    }

    fn tp(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    fn to(offset: i64) -> Position {
        Position { offset, leader_epoch: Some(7) }
    }

    fn stored(offset: i64) -> CommitOffset {
        CommitOffset { offset, leader_epoch: None, metadata: Str::from("m"), generation: None }
    }

    fn plain(offsets: &BTreeMap<TopicPartition, CommitOffset>) -> Vec<(i32, i64)> {
        offsets.iter().map(|(tp, at)| (tp.partition, at.offset)).collect()
    }

    fn due(auto: &mut AutoCommit, now: Instant) -> Option<Vec<(i32, i64)>> {
        let offsets = auto.poll_commit(now)?;
        auto.answered(&offsets, &BTreeMap::new());
        Some(plain(&offsets))
    }

    #[test]
    fn what_was_handed_out_counts_when_more_is_asked_for_and_not_before() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        auto.handed_out(&tp(0), 3, to(10));
        assert_eq!((auto.next_timeout(), due(&mut auto, at(60))), (None, None), "it may be worked on");
        auto.asked();
        auto.handed_out(&tp(0), 3, to(20));
        let offsets = auto.poll_commit(at(60)).unwrap();
        let offset = &offsets[&tp(0)];
        assert_eq!((offset.offset, offset.leader_epoch, offset.generation), (10, Some(7), Some(3)));
    }

    #[test]
    fn commits_are_an_interval_apart_and_name_only_what_is_new() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        auto.handed_out(&tp(0), 1, to(10));
        auto.handed_out(&tp(1), 1, to(5));
        auto.asked();
        assert_eq!(auto.next_timeout(), Some(at(5)));
        assert_eq!(due(&mut auto, at(4)), None);
        assert_eq!(due(&mut auto, at(5)), Some([(0, 10), (1, 5)].to_vec()));
        assert_eq!((auto.next_timeout(), due(&mut auto, at(60))), (None, None), "nothing is committed twice");
        auto.handed_out(&tp(1), 1, to(6));
        auto.asked();
        assert_eq!(due(&mut auto, at(60)), Some([(1, 6)].to_vec()));
        auto.handed_out(&tp(1), 1, to(7));
        auto.asked();
        assert_eq!((due(&mut auto, at(64)), auto.next_timeout()), (None, Some(at(65))));
    }

    #[test]
    fn a_failed_commit_is_offered_again_after_the_interval_and_one_under_way_is_not() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        auto.handed_out(&tp(0), 1, to(10));
        auto.handed_out(&tp(1), 1, to(5));
        auto.asked();
        let offsets = auto.poll_commit(at(5)).unwrap();
        assert_eq!(auto.poll_commit(at(50)), None, "it is under way");
        let why = CommitFailure::TimedOut { limit: EVERY, last: String::new() };
        auto.answered(&offsets, &[(tp(0), why)].into());
        assert_eq!(due(&mut auto, at(50)), Some([(0, 10)].to_vec()));
    }

    #[test]
    fn a_flush_names_the_partitions_to_give_up_also_those_under_way() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        for partition in 0..3 {
            auto.handed_out(&tp(partition), 1, to(10));
        }
        auto.asked();
        auto.handed_out(&tp(0), 1, to(11));
        assert!(auto.poll_commit(at(5)).is_some());
        let flushed = auto.flush(|tp| tp.partition < 2);
        assert_eq!(plain(&flushed), [(0, 10), (1, 10)], "not what is still worked on");
        auto.answered(&flushed, &BTreeMap::new());
        assert!(auto.flush(|tp| tp.partition < 2).is_empty());
    }

    #[test]
    fn what_is_stored_is_committed_but_nothing_beyond_what_was_handed_out() {
        let mut auto = AutoCommit::new(EVERY, false, at(0));
        assert_eq!(auto.store(&tp(0), 1, stored(1)), Err(StoreRefusal::BeyondHandedOut { handed_out: None }));
        auto.handed_out(&tp(0), 1, to(10));
        auto.asked();
        assert_eq!(due(&mut auto, at(60)), None, "nothing was stored");
        let beyond = StoreRefusal::BeyondHandedOut { handed_out: Some(10) };
        assert_eq!(auto.store(&tp(0), 1, stored(11)), Err(beyond));
        auto.store(&tp(0), 1, stored(4)).unwrap();
        let offset = auto.poll_commit(at(60)).unwrap().remove(&tp(0)).unwrap();
        assert_eq!((offset.offset, offset.metadata.as_str(), offset.generation), (4, "m", Some(1)));
        let mut automatic = AutoCommit::new(EVERY, true, at(0));
        assert_eq!(automatic.store(&tp(0), 1, stored(0)), Err(StoreRefusal::Automatic));
    }

    #[test]
    fn an_assignment_that_ended_leaves_nothing_behind() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        auto.handed_out(&tp(0), 1, to(10));
        auto.asked();
        let old = auto.poll_commit(at(5)).unwrap();
        auto.handed_out(&tp(0), 1, to(12));
        auto.forget(&tp(0));
        auto.asked();
        assert_eq!(due(&mut auto, at(60)), None);
        auto.handed_out(&tp(0), 2, to(3));
        auto.answered(&old, &BTreeMap::new());
        auto.asked();
        assert_eq!(due(&mut auto, at(60)), Some([(0, 3)].to_vec()), "an old answer says nothing about it");
        // Assigned anew without having been told of the end.
        auto.handed_out(&tp(0), 2, to(9));
        auto.handed_out(&tp(0), 4, to(2));
        auto.asked();
        let offset = auto.poll_commit(at(90)).unwrap().remove(&tp(0)).unwrap();
        assert_eq!((offset.offset, offset.generation), (2, Some(4)));
    }

    #[test]
    fn b197_a_seek_takes_back_what_nobody_asked_past() {
        let mut auto = AutoCommit::new(EVERY, true, at(0));
        auto.handed_out(&tp(0), 1, to(10));
        auto.asked();
        auto.handed_out(&tp(0), 1, to(20));
        auto.sought(&tp(0));
        auto.asked();
        assert_eq!(due(&mut auto, at(60)), Some([(0, 10)].to_vec()));
    }
}
