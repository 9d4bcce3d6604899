//! When to commit, what one request carries, and what a failed commit means.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::TopicPartition;

use super::{Frontier, LaneId, LaneNumber, Progress};
use crate::time::Instant;

/// When the runtime commits completed progress by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitPolicy {
    /// Never: progress is tracked, and only the lane's own commits (or other code of the user) move the
    /// group's offsets.
    UserManaged,
    /// When a partition is revoked, and when the run ends.
    #[default]
    OnRevoke,
    /// As `OnRevoke`, and every so often: a shorter interval means fewer records again after a crash, and
    /// more requests.
    Periodic(Duration),
}

impl CommitPolicy {
    /// Whether the runtime commits by itself at all.
    #[must_use]
    pub const fn is_managed(self) -> bool {
        !matches!(self, Self::UserManaged)
    }
}

/// What kind of failure a commit met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitFailureKind {
    /// It may work a little later: tried again with backoff.
    Retriable,
    /// The member or its generation is not the group's any more. Not tried again: the source is about to
    /// report the loss, and until then further progress is tried once each.
    Fenced,
    /// The group or topic may not be committed by this client: ends the run.
    Unauthorised,
    /// The text beside the offset is longer than the broker takes: tried again at once without, and from then
    /// on no text is sent.
    MetadataTooLarge,
}

/// A commit that failed, in whole or for some partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFailure {
    /// What kind of failure it is.
    pub kind: CommitFailureKind,
    /// The partitions it concerns; empty means all of the request.
    pub partitions: Vec<TopicPartition>,
}

/// Why a commit that a lane asked for was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitRefusal {
    /// The partition is no longer this lane's, or the run is over.
    LaneClosed,
    /// The source has no group, so there is nothing to commit to.
    NoGroup,
    /// It failed in a way that may pass, more often than it is worth retrying.
    Failed,
    /// The member or its generation is not the group's any more.
    Fenced,
    /// The client may not commit here.
    Unauthorised,
}

/// The driver's name for one waiting `commit()` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitToken(pub u64);

/// One request to the group: the frontiers of some partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// Comes back with the result.
    pub id: u64,
    /// What to commit, and for which assignment; never empty, one entry per partition.
    pub offsets: Vec<(LaneId, Progress)>,
}

/// How often a lane's own commit is tried before its caller hears of the failure.
const USER_ATTEMPTS: u32 = 5;
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Account {
    id: LaneId,
    reached: Option<Progress>,
    committed: Option<Progress>,
}

impl Account {
    /// What is not committed: a higher frontier, or more above the same one.
    fn dirty(&self) -> Option<&Progress> {
        self.reached.as_ref().filter(|reached| {
            self.committed.as_ref().is_none_or(|committed| {
                let offset = committed.frontier.offset;
                offset < reached.frontier.offset
                    || (offset == reached.frontier.offset && committed.done != reached.done)
            })
        })
    }

    /// The frontier, when it is above the committed one.
    fn uncommitted(&self) -> Option<Frontier> {
        let committed = self.committed.as_ref().map(|committed| committed.frontier.offset);
        self.dirty().map(|reached| reached.frontier).filter(|frontier| committed < Some(frontier.offset))
    }
}

#[derive(Debug, Default)]
struct Want {
    /// Whether the policy wants it, not only a waiting call.
    managed: bool,
    /// Waiting calls, with the attempts made for each.
    calls: Vec<(CommitToken, u32)>,
}

#[derive(Debug)]
struct InFlight {
    id: u64,
    entries: Vec<(LaneNumber, LaneId, Progress, Want)>,
}

/// Gathers what lanes and policy want committed into one request at a time.
///
/// One at a time is what keeps two commits of a partition in order; wants that come meanwhile are gathered
/// into the next. An account exists from the start of a lane until it is settled, lost or released: what
/// has no account cannot get into a request.
#[derive(Debug, Default)]
pub(super) struct Committer {
    accounts: BTreeMap<LaneNumber, Account>,
    wanted: BTreeMap<LaneNumber, Want>,
    in_flight: Option<InFlight>,
    retry_at: Option<Instant>,
    failures_in_a_row: u32,
    answers: VecDeque<(CommitToken, Result<(), CommitRefusal>)>,
    requests: u64,
    /// The broker takes no text of the length that was sent.
    frontiers_only: bool,
}

impl Committer {
    pub(super) fn open(&mut self, lane: LaneNumber, id: LaneId) {
        self.accounts.insert(lane, Account { id, reached: None, committed: None });
    }

    /// Forgets the lane: nothing of it gets into a later request.
    pub(super) fn close(&mut self, lane: LaneNumber) {
        self.accounts.remove(&lane);
        if let Some(want) = self.wanted.remove(&lane) {
            self.refuse(want, CommitRefusal::LaneClosed);
        }
    }

    /// Gives what is known of a lane to its successor under the same assignment.
    pub(super) fn carry_over(&mut self, from: LaneNumber, to: LaneNumber) {
        if let Some(account) = self.accounts.remove(&from) {
            self.accounts.insert(to, account);
        }
        if let Some(want) = self.wanted.remove(&from) {
            let wanted = self.wanted.entry(to).or_default();
            wanted.managed |= want.managed;
            wanted.calls.extend(want.calls);
        }
        let in_flight = self.in_flight.iter_mut().flat_map(|request| &mut request.entries);
        for entry in in_flight.filter(|entry| entry.0 == from) {
            entry.0 = to;
        }
    }

    pub(super) fn progress(&mut self, lane: LaneNumber, mut reached: Progress) {
        if let Some(account) = self.accounts.get_mut(&lane)
            && account.reached.as_ref().is_none_or(|known| known.frontier.offset <= reached.frontier.offset)
        {
            if self.frontiers_only {
                reached.done.clear();
            }
            account.reached = Some(reached);
        }
    }

    /// The frontier that is not committed, if there is one.
    pub(super) fn uncommitted(&self, lane: LaneNumber) -> Option<Frontier> {
        self.accounts.get(&lane).and_then(Account::uncommitted)
    }

    /// Whether a commit would tell the group anything new.
    pub(super) fn is_dirty(&self, lane: LaneNumber) -> bool {
        self.accounts.get(&lane).is_some_and(|account| account.dirty().is_some())
    }

    pub(super) fn want_managed(&mut self, lane: LaneNumber) {
        if self.is_dirty(lane) {
            self.wanted.entry(lane).or_default().managed = true;
        }
    }

    pub(super) fn want_all_managed(&mut self) {
        for (&lane, account) in &self.accounts {
            if account.dirty().is_some() {
                self.wanted.entry(lane).or_default().managed = true;
            }
        }
    }

    pub(super) fn want_for(&mut self, lane: LaneNumber, token: CommitToken) {
        self.wanted.entry(lane).or_default().calls.push((token, 0));
    }

    pub(super) fn answer(&mut self, token: CommitToken, answer: Result<(), CommitRefusal>) {
        self.answers.push_back((token, answer));
    }

    pub(super) fn poll_answer(&mut self) -> Option<(CommitToken, Result<(), CommitRefusal>)> {
        self.answers.pop_front()
    }

    /// Whether nothing of the lane is wanted or under way any more.
    pub(super) fn is_settled(&self, lane: LaneNumber) -> bool {
        !self.wanted.contains_key(&lane)
            && self
                .in_flight
                .as_ref()
                .is_none_or(|request| request.entries.iter().all(|entry| entry.0 != lane))
    }

    /// The failures since the last commit that worked.
    pub(super) const fn failures_in_a_row(&self) -> u32 {
        self.failures_in_a_row
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        if self.in_flight.is_some() { None } else { self.retry_at }
    }

    /// The next request, when none is under way and no backoff runs.
    pub(super) fn poll_request(&mut self, now: Instant) -> Option<CommitRequest> {
        if self.in_flight.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        let mut entries = Vec::new();
        for (lane, want) in core::mem::take(&mut self.wanted) {
            match self.accounts.get(&lane) {
                None => self.refuse(want, CommitRefusal::LaneClosed),
                Some(account) => match account.dirty() {
                    None => self.answers.extend(want.calls.iter().map(|&(token, _)| (token, Ok(())))),
                    Some(reached) => entries.push((lane, account.id.clone(), reached.clone(), want)),
                },
            }
        }
        if entries.is_empty() {
            return None;
        }
        self.requests += 1;
        let id = self.requests;
        let offsets = entries.iter().map(|entry| (entry.1.clone(), entry.2.clone())).collect();
        self.in_flight = Some(InFlight { id, entries });
        Some(CommitRequest { id, offsets })
    }

    /// Takes the result of a request. True when the failure must end the run.
    pub(super) fn handle_result(&mut self, now: Instant, id: u64, result: Result<(), CommitFailure>) -> bool {
        let Some(request) = self.in_flight.take_if(|request| request.id == id) else {
            return false;
        };
        let mut retry = false;
        let mut fatal = false;
        let too_large = CommitFailureKind::MetadataTooLarge;
        let first_too_large =
            !self.frontiers_only && result.as_ref().is_err_and(|failure| failure.kind == too_large);
        if first_too_large {
            self.send_frontiers_only();
        }
        for (lane, id, reached, want) in request.entries {
            let failure = result.as_ref().err().filter(|failure| {
                failure.partitions.is_empty() || failure.partitions.contains(&id.topic_partition)
            });
            match failure.map(|failure| failure.kind) {
                None => self.committed(lane, reached, want),
                Some(CommitFailureKind::MetadataTooLarge) if first_too_large => {
                    self.try_again(lane, want);
                }
                Some(CommitFailureKind::MetadataTooLarge) => self.refuse(want, CommitRefusal::Failed),
                Some(CommitFailureKind::Retriable) => retry |= self.try_again(lane, want),
                Some(CommitFailureKind::Fenced) => self.refuse(want, CommitRefusal::Fenced),
                Some(CommitFailureKind::Unauthorised) => {
                    fatal = true;
                    self.refuse(want, CommitRefusal::Unauthorised);
                }
            }
        }
        if result.is_ok() {
            self.failures_in_a_row = 0;
        } else {
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        }
        if retry {
            let doubled = RETRY_BASE.saturating_mul(1 << (self.failures_in_a_row - 1).min(16));
            self.retry_at = Some(now + doubled.min(RETRY_MAX));
        }
        fatal
    }

    fn send_frontiers_only(&mut self) {
        self.frontiers_only = true;
        for reached in self.accounts.values_mut().filter_map(|account| account.reached.as_mut()) {
            reached.done.clear();
        }
    }

    fn committed(&mut self, lane: LaneNumber, reached: Progress, want: Want) {
        if let Some(account) = self.accounts.get_mut(&lane)
            && account
                .committed
                .as_ref()
                .is_none_or(|committed| committed.frontier.offset <= reached.frontier.offset)
        {
            account.committed = Some(reached);
        }
        self.answers.extend(want.calls.into_iter().map(|(token, _)| (token, Ok(()))));
    }

    /// Puts what is worth another attempt back. True when anything was.
    fn try_again(&mut self, lane: LaneNumber, want: Want) -> bool {
        if !self.accounts.contains_key(&lane) {
            self.refuse(want, CommitRefusal::LaneClosed);
            return false;
        }
        let mut again = Want { managed: want.managed, calls: Vec::new() };
        for (token, attempts) in want.calls {
            if attempts + 1 < USER_ATTEMPTS {
                again.calls.push((token, attempts + 1));
            } else {
                self.answers.push_back((token, Err(CommitRefusal::Failed)));
            }
        }
        if !again.managed && again.calls.is_empty() {
            return false;
        }
        let wanted = self.wanted.entry(lane).or_default();
        wanted.managed |= again.managed;
        wanted.calls.extend(again.calls);
        true
    }

    fn refuse(&mut self, want: Want, refusal: CommitRefusal) {
        self.answers.extend(want.calls.into_iter().map(|(token, _)| (token, Err(refusal))));
    }

    /// Gives up: refuses every waiting call and forgets every account.
    pub(super) fn abandon(&mut self) {
        self.accounts.clear();
        for want in core::mem::take(&mut self.wanted).into_values() {
            self.refuse(want, CommitRefusal::LaneClosed);
        }
        if let Some(request) = self.in_flight.take() {
            for (_, _, _, want) in request.entries {
                self.refuse(want, CommitRefusal::LaneClosed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
