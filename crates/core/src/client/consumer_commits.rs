//! Commits on their way: in order per partition, repeated while that may help, refused when ownership is gone.
//!
//! One request is under way at a time and carries, for each partition, the newest offset that was asked for. So two
//! commits of one partition are never reordered, and a commit that a later one overtook succeeds with it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::{ErrorCode, Str, TopicPartition};

use crate::client::retry::Backoff;
use crate::time::Instant;

/// One offset to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the record before it.
    pub leader_epoch: Option<i32>,
    /// Text to keep beside it.
    pub metadata: Str,
    /// The generation under which the partition must still be assigned.
    pub generation: Option<i32>,
}

/// Why the offset of one partition was not committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitFailure {
    /// The consumer has no group.
    #[error("the consumer has no group")]
    NoGroup,
    /// The partition is not ours: it never was, it is lost, its revocation was acknowledged, or it was assigned anew
    /// since. Nothing was sent after that.
    #[error("the partition is not owned any more")]
    NotOwned,
    /// There are no negative offsets. Nothing was sent.
    #[error("{0} is not an offset")]
    InvalidOffset(i64),
    /// The coordinator does not know this member or generation: the partitions are lost, or about to be.
    #[error("the group fenced this member: {0}")]
    Fenced(ErrorCode),
    /// The coordinator refused the offset, and asking again would not help.
    #[error("refused with {0}")]
    Refused(ErrorCode),
    /// The last try within the time limit ended like this. The offset may have been committed by a try whose answer was
    /// lost.
    #[error("not committed within {limit:?}: {last}")]
    TimedOut {
        /// The time limit.
        limit: Duration,
        /// How the last try ended.
        last: String,
    },
    /// The consumer was closed before the commit was answered.
    #[error("the consumer is closed")]
    Closed,
}

impl CommitFailure {
    /// Whether the same commit may succeed later.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

/// What became of one partition in one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// It is committed.
    Done,
    /// Try again after a pause.
    Retry(String),
    /// Trying again cannot help.
    Failed(CommitFailure),
}

/// Names one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitId(u64);

#[derive(Debug)]
struct Commit {
    id: CommitId,
    pending: BTreeMap<TopicPartition, CommitOffset>,
    failed: BTreeMap<TopicPartition, CommitFailure>,
    deadline: Instant,
}

/// A finished commit: the partitions that failed, every other one is committed.
pub type CommitOutcome = (CommitId, BTreeMap<TopicPartition, CommitFailure>);

/// The commits of one consumer. See the module.
#[derive(Debug)]
pub struct CommitQueue {
    limit: Duration,
    backoff: Backoff,
    commits: Vec<Commit>,
    /// The partitions of the request under way, each with the newest commit it speaks for.
    in_flight: Option<BTreeMap<TopicPartition, CommitId>>,
    retry_at: Option<Instant>,
    last: String,
    done: VecDeque<CommitOutcome>,
    ids: u64,
    closed: bool,
}

impl CommitQueue {
    /// A queue whose commits are repeated for `limit`, with the pauses of `backoff` between tries.
    #[must_use]
    pub const fn new(limit: Duration, backoff: Backoff) -> Self {
        Self {
            limit,
            backoff,
            commits: Vec::new(),
            in_flight: None,
            retry_at: None,
            last: String::new(),
            done: VecDeque::new(),
            ids: 0,
            closed: false,
        }
    }

    /// Takes a commit. Its outcome comes from [`CommitQueue::poll_done`].
    pub fn push(&mut self, offsets: BTreeMap<TopicPartition, CommitOffset>, now: Instant) -> CommitId {
        self.ids += 1;
        let id = CommitId(self.ids);
        let mut commit = Commit { id, pending: offsets, failed: BTreeMap::new(), deadline: now + self.limit };
        if self.closed {
            commit.fail_all(&CommitFailure::Closed);
        }
        commit.fail_where(|_, wanted| {
            (wanted.offset < 0).then_some(CommitFailure::InvalidOffset(wanted.offset))
        });
        self.commits.push(commit);
        self.finish();
        id
    }

    /// The offsets to send now, if any. `owned` says whether a partition is ours, under a generation if one is given.
    pub fn poll_send(
        &mut self,
        now: Instant,
        owned: impl Fn(&TopicPartition, Option<i32>) -> bool,
    ) -> Option<Vec<(TopicPartition, CommitOffset)>> {
        if self.in_flight.is_some() {
            return None;
        }
        for commit in &mut self.commits {
            commit
                .fail_where(|tp, wanted| (!owned(tp, wanted.generation)).then_some(CommitFailure::NotOwned));
            if commit.deadline <= now {
                commit.fail_all(&CommitFailure::TimedOut { limit: self.limit, last: self.last.clone() });
            }
        }
        self.finish();
        if self.retry_at.is_some_and(|at| at > now) {
            return None;
        }
        let mut newest: BTreeMap<TopicPartition, (CommitId, CommitOffset)> = BTreeMap::new();
        for commit in &self.commits {
            for (tp, wanted) in &commit.pending {
                newest.insert(tp.clone(), (commit.id, wanted.clone()));
            }
        }
        if newest.is_empty() {
            return None;
        }
        self.in_flight = Some(newest.iter().map(|(tp, (id, _))| (tp.clone(), *id)).collect());
        Some(newest.into_iter().map(|(tp, (_, wanted))| (tp, wanted)).collect())
    }

    /// Takes the answer to what [`CommitQueue::poll_send`] gave. Partitions it does not name are tried again.
    pub fn handle_answer(&mut self, results: &BTreeMap<TopicPartition, CommitResult>, now: Instant) {
        let missing = CommitResult::Retry(String::from("the answer does not name the partition"));
        let mut again = None;
        for (tp, newest) in self.in_flight.take().unwrap_or_default() {
            let result = results.get(&tp).unwrap_or(&missing);
            if let CommitResult::Retry(why) = result {
                again = Some(why.clone());
                continue;
            }
            for commit in self.commits.iter_mut().filter(|commit| commit.id <= newest) {
                if commit.pending.remove(&tp).is_some()
                    && let CommitResult::Failed(failure) = result
                {
                    commit.failed.insert(tp.clone(), failure.clone());
                }
            }
        }
        self.back_off(again, now);
        self.finish();
    }

    /// There was no answer to what [`CommitQueue::poll_send`] gave: it is sent again.
    pub fn handle_no_answer(&mut self, why: String, now: Instant) {
        self.in_flight = None;
        self.back_off(Some(why), now);
    }

    fn back_off(&mut self, again: Option<String>, now: Instant) {
        match again {
            Some(why) => {
                self.last = why;
                // Commits of one consumer need no spreading: the middle of the jitter range.
                self.retry_at = Some(now + self.backoff.next_wait(u32::MAX / 2));
            }
            None => {
                self.backoff.reset();
                self.retry_at = None;
            }
        }
    }

    /// The next finished commit.
    pub fn poll_done(&mut self) -> Option<CommitOutcome> {
        self.done.pop_front()
    }

    /// Whether an offset of this partition is waiting to be committed.
    #[must_use]
    pub fn concerns(&self, topic_partition: &TopicPartition) -> bool {
        self.commits.iter().any(|commit| commit.pending.contains_key(topic_partition))
    }

    /// Whether nothing waits to be committed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.commits.is_empty()
    }

    /// Fails everything that waits, and everything that comes later.
    pub fn close(&mut self) {
        self.closed = true;
        self.in_flight = None;
        for commit in &mut self.commits {
            commit.fail_all(&CommitFailure::Closed);
        }
        self.finish();
    }

    /// When [`CommitQueue::poll_send`] has something to do without anything else happening.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.in_flight.is_some() {
            return None;
        }
        let deadline = self.commits.iter().map(|commit| commit.deadline).min();
        let retry = self.retry_at.filter(|_| !self.commits.is_empty());
        deadline.into_iter().chain(retry).min()
    }

    fn finish(&mut self) {
        let (finished, left): (Vec<_>, Vec<_>) =
            self.commits.drain(..).partition(|commit| commit.pending.is_empty());
        self.commits = left;
        self.done.extend(finished.into_iter().map(|commit| (commit.id, commit.failed)));
    }
}

impl Commit {
    fn fail_where(&mut self, why: impl Fn(&TopicPartition, &CommitOffset) -> Option<CommitFailure>) {
        let failed = &mut self.failed;
        self.pending.retain(|tp, wanted| match why(tp, wanted) {
            Some(failure) => {
                failed.insert(tp.clone(), failure);
                false
            }
            None => true,
        });
    }

    fn fail_all(&mut self, failure: &CommitFailure) {
        self.fail_where(|_, _| Some(failure.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn at(ms: u64) -> Instant {
        Instant::from_start(Duration::from_millis(ms))
    }

    fn tp(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    fn offset(offset: i64) -> CommitOffset {
        CommitOffset { offset, leader_epoch: None, metadata: Str::new(), generation: None }
    }

    fn offsets(of: &[(i32, i64)]) -> BTreeMap<TopicPartition, CommitOffset> {
        of.iter().map(|&(partition, o)| (tp(partition), offset(o))).collect()
    }

    fn queue() -> CommitQueue {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        CommitQueue::new(Duration::from_secs(10), backoff)
    }

    fn sent(queue: &mut CommitQueue, now: Instant) -> Option<Vec<(i32, i64)>> {
        let sent = queue.poll_send(now, |_, _| true)?;
        Some(sent.into_iter().map(|(tp, o)| (tp.partition, o.offset)).collect())
    }

    fn all(result: &CommitResult, partitions: &[i32]) -> BTreeMap<TopicPartition, CommitResult> {
        partitions.iter().map(|&p| (tp(p), result.clone())).collect()
    }

    #[test]
    fn two_commits_of_a_partition_are_never_under_way_together_and_the_later_one_wins() {
        let mut queue = queue();
        let first = queue.push(offsets(&[(0, 5)]), at(0));
        assert_eq!(sent(&mut queue, at(0)), Some(vec![(0, 5)]));
        let second = queue.push(offsets(&[(0, 7)]), at(0));
        let third = queue.push(offsets(&[(0, 6), (1, 1)]), at(0));
        assert_eq!(sent(&mut queue, at(0)), None, "one request at a time");
        queue.handle_answer(&all(&CommitResult::Done, &[0]), at(1));
        assert_eq!(queue.poll_done(), Some((first, BTreeMap::new())));
        assert_eq!(queue.poll_done(), None);
        assert_eq!(sent(&mut queue, at(1)), Some(vec![(0, 6), (1, 1)]), "the offset asked for last");
        queue.handle_answer(&all(&CommitResult::Done, &[0, 1]), at(2));
        assert_eq!(queue.poll_done(), Some((second, BTreeMap::new())));
        assert_eq!(queue.poll_done(), Some((third, BTreeMap::new())));
        assert!(queue.is_idle());
    }

    #[test]
    fn a_retriable_refusal_is_repeated_with_pauses_until_the_limit() {
        let mut queue = queue();
        let id = queue.push(offsets(&[(0, 5), (1, 6)]), at(0));
        assert_eq!(sent(&mut queue, at(0)), Some(vec![(0, 5), (1, 6)]));
        let mut answer = all(&CommitResult::Done, &[1]);
        answer.insert(tp(0), CommitResult::Retry("rebalance".into()));
        queue.handle_answer(&answer, at(0));
        assert_eq!(sent(&mut queue, at(0)), None, "after a pause only");
        let again = queue.next_timeout().unwrap();
        assert!(again > at(50) && again < at(200), "{again:?}");
        assert_eq!(sent(&mut queue, again), Some(vec![(0, 5)]), "what is committed is not sent again");
        queue.handle_no_answer("connection lost".into(), again);
        assert_eq!(sent(&mut queue, at(10_000)), None);
        let (done, failed) = queue.poll_done().unwrap();
        assert_eq!(done, id);
        let why = &failed[&tp(0)];
        assert!(matches!(why, CommitFailure::TimedOut { last, .. } if last == "connection lost"), "{why:?}");
        assert!(why.is_retriable());
        assert_eq!(failed.len(), 1);
    }

    #[test]
    fn ownership_is_asked_for_at_every_try() {
        let mut queue = queue();
        let id = queue.push(offsets(&[(0, 5)]), at(0));
        assert!(sent(&mut queue, at(0)).is_some());
        queue.handle_no_answer("lost".into(), at(0));
        assert_eq!(queue.poll_send(at(500), |_, _| false), None);
        assert_eq!(queue.poll_done(), Some((id, [(tp(0), CommitFailure::NotOwned)].into())));
    }

    #[test]
    fn a_commit_for_an_earlier_assignment_is_refused_without_asking() {
        let mut queue = queue();
        let mut old = offsets(&[(0, 5), (1, 5)]);
        old.get_mut(&tp(0)).unwrap().generation = Some(3);
        queue.push(old, at(0));
        let sent = queue.poll_send(at(0), |_, generation| generation.is_none_or(|g| g == 4)).unwrap();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].0, tp(1));
        queue.handle_answer(&all(&CommitResult::Done, &[1]), at(0));
        assert_eq!(queue.poll_done().unwrap().1, [(tp(0), CommitFailure::NotOwned)].into());
    }

    #[test]
    fn b094_a_negative_offset_is_refused_and_the_rest_of_the_commit_goes_on() {
        let mut queue = queue();
        queue.push(offsets(&[(0, -1), (1, 5)]), at(0));
        assert_eq!(sent(&mut queue, at(0)), Some(vec![(1, 5)]));
        queue.handle_answer(
            &all(&CommitResult::Failed(CommitFailure::Refused(ErrorCode::from(12))), &[1]),
            at(0),
        );
        let failed = queue.poll_done().unwrap().1;
        assert_eq!(failed[&tp(0)], CommitFailure::InvalidOffset(-1));
        assert_eq!(failed[&tp(1)], CommitFailure::Refused(ErrorCode::from(12)));
    }

    #[test]
    fn closing_fails_what_waits_and_what_comes_later() {
        let mut queue = queue();
        let first = queue.push(offsets(&[(0, 1)]), at(0));
        assert!(sent(&mut queue, at(0)).is_some());
        queue.close();
        assert_eq!(queue.poll_done(), Some((first, [(tp(0), CommitFailure::Closed)].into())));
        let second = queue.push(offsets(&[(0, 2)]), at(0));
        assert_eq!(queue.poll_done(), Some((second, [(tp(0), CommitFailure::Closed)].into())));
        queue.handle_answer(&all(&CommitResult::Done, &[0]), at(1));
        assert_eq!(queue.poll_done(), None, "a late answer is nobody's");
    }
}
