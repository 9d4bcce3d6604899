//! The member's side of a classic group: an event machine.
//!
//! Say what happened through `handle_*`, [`Member::subscribe`], [`Member::revocation_done`] and the like;
//! after each call take what is to be sent from [`Member::poll_request`] and what is to be told from
//! [`Member::poll_event`] until both answer `None`; come back with [`Member::handle_timeout`] when
//! [`Member::next_timeout`] is due. Every request is answered once through [`Member::handle_response`].
//!
//! ```text
//!   Unjoined --(coordinator found)--> [Revoking] --> Joining --> Syncing --> Stable
//!      ^                                  ^                                    |
//!      +------ lost: fenced, expired -----+------- rebalance, change ----------+
//! ```
//!
//! # Revocation is held open
//!
//! [`Event::Revoked`] asks the owner to finish. The partitions stay owned, heartbeats go on and commits are
//! accepted until [`Member::revocation_done`] or the deadline. Only then goes out what gives the partitions
//! up: for an eager member the Join, for a cooperative one the Join that follows the assignment which
//! no longer names them.
//!
//! # Lost is different
//!
//! [`Event::Lost`] comes when the coordinator no longer accepts the generation (22, 25, 82), when it was not
//! heard of for a session timeout, when it did not take us into a rebalance within a rebalance timeout, or
//! when the owner did not poll in time. Nothing may be committed then. Both timeouts are counted from the
//! sending of the request that was answered last, so that the member never believes longer than the
//! coordinator does. While a Join or Sync waits there is nothing to count from; then a pause of the whole
//! process (found by ticks that come late) counts as lost.

mod config;
mod event;
mod join;
mod request;
mod steps;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::{ErrorCode, Str, TopicPartition};

pub use config::MemberConfig;
pub use event::{CommitContext, CommitVerdict, Event, MemberError, RevocationId};
pub use request::{
    CoordinatorNode, Disconnected, MemberRequest, RequestBody, RequestId, ResponseBody, find_coordinator,
    found_coordinator, leave_group,
};

use super::Seeded;
use super::assignor::Assignor;
use crate::client::error_actions::{Action, Operation, action};
use crate::time::Instant;

/// Where the member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Not a member, or between two tries to join.
    Unjoined,
    /// A revocation is held open; the Join waits for it.
    Revoking,
    /// A Join is on its way.
    Joining,
    /// A Sync is on its way, or the leader waits for partition counts.
    Syncing,
    /// A member with an assignment.
    Stable,
    /// Leaving, as asked.
    Leaving,
    /// Left, or failed: nothing is sent until `subscribe`.
    Closed,
}

/// So many Joins in a row go out at once: for a member id, for the rebalance, for the one after a revocation, and again
/// when others came between. A coordinator that sends us round more often is asked with growing pauses.
const JOINS_AT_ONCE: u32 = 6;

/// The code that stands for no answer.
const NO_ANSWER: i16 = ErrorCode::NetworkException.code();

/// The machine's own view of the state; each phase names the request it waits for.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Unjoined,
    Joining(RequestId),
    /// The leader waits for the partition counts of topics it does not know.
    Assigning(BTreeSet<Str>, alloc::vec::Vec<JoinGroupResponseMember>),
    Syncing(RequestId),
    Stable,
    Leaving(RequestId),
    Closed,
}

/// Which membership the coordinator knows us under.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Generation {
    id: i32,
    member_id: Str,
}

impl Generation {
    const NONE: Self = Self { id: -1, member_id: Str::new() };
}

/// A request without an answer so far.
#[derive(Clone, Debug)]
struct InFlight {
    kind: Kind,
    sent: Instant,
    generation: Generation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FindCoordinator,
    Join,
    Sync,
    Heartbeat,
    Leave,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::FindCoordinator => "FindCoordinator",
            Self::Join => "JoinGroup",
            Self::Sync => "SyncGroup",
            Self::Heartbeat => "Heartbeat",
            Self::Leave => "LeaveGroup",
        }
    }
}

/// A revocation that is held open.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: RevocationId,
    deadline: Instant,
}

/// What a leader assigned by; when it changes the group has to be assigned anew.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leading {
    topics: BTreeSet<Str>,
    /// `None` when it goes on with an assignment that was made before, by counts it does not know.
    counts: Option<BTreeMap<Str, i32>>,
}

/// One member of one group. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    seeded: Seeded,
    subscription: BTreeSet<Str>,
    /// The partition counts last told, and the topics they were told for.
    counts: BTreeMap<Str, i32>,
    counted: BTreeSet<Str>,
    coordinator: Option<CoordinatorNode>,
    phase: Phase,
    generation: Generation,
    assignor: Option<Assignor>,
    leading: Option<Leading>,
    /// A Join is wanted though the membership is valid.
    rejoin: bool,
    /// What has to be given up before the next Join was given up.
    prepared: bool,
    leaving: bool,
    poll_expired: bool,
    owned: BTreeSet<TopicPartition>,
    revoking: BTreeSet<TopicPartition>,
    held: Option<Held>,
    in_flight: BTreeMap<RequestId, InFlight>,
    finding: Option<RequestId>,
    heartbeat: Option<RequestId>,
    /// The next heartbeat.
    heartbeat_at: Instant,
    /// When the coordinator may have given us up. Counted from when the request was sent that it answered
    /// last, so that it is never later than the coordinator's own count.
    session_end: Instant,
    /// When a rebalance may have ended without us: one rebalance timeout after we last knew of none.
    evicted_at: Instant,
    /// While a Join or Sync waits: the next moment at which this machine wants to see that it still runs.
    tick_at: Instant,
    retry_at: Option<Instant>,
    attempts: u32,
    /// Joins since the coordinator last said that it counts us in.
    joins: u32,
    /// The next Join was waited for.
    waited: bool,
    last_id: u64,
    requests: VecDeque<MemberRequest>,
    events: VecDeque<Event>,
}

impl Member {
    /// A member that does nothing until it is subscribed. `seeded` only spreads retries.
    #[must_use]
    pub fn new(config: MemberConfig, seeded: Seeded) -> Self {
        Self {
            config,
            seeded,
            subscription: BTreeSet::new(),
            counts: BTreeMap::new(),
            counted: BTreeSet::new(),
            coordinator: None,
            phase: Phase::Unjoined,
            generation: Generation::NONE,
            assignor: None,
            leading: None,
            rejoin: false,
            prepared: false,
            leaving: false,
            poll_expired: false,
            owned: BTreeSet::new(),
            revoking: BTreeSet::new(),
            held: None,
            in_flight: BTreeMap::new(),
            finding: None,
            heartbeat: None,
            heartbeat_at: Instant::ZERO,
            session_end: Instant::ZERO,
            evicted_at: Instant::ZERO,
            tick_at: Instant::ZERO,
            retry_at: None,
            attempts: 0,
            joins: 0,
            waited: false,
            last_id: 0,
            requests: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The topics wanted from now on, instead of any before. Joins, or rejoins when they changed. Ignored
    /// while the member leaves.
    pub fn subscribe(&mut self, now: Instant, topics: impl IntoIterator<Item = Str>) {
        if self.leaving {
            return;
        }
        let topics: BTreeSet<Str> = topics.into_iter().collect();
        self.rejoin |= topics != self.subscription;
        self.subscription = topics;
        if self.phase == Phase::Closed {
            self.phase = Phase::Unjoined;
        }
        self.advance(now);
    }

    /// The partition counts of topics, as metadata has them; a topic without an entry does not exist. Covers
    /// at least [`topics`](Self::topics). A leader rejoins when counts changed since it assigned.
    pub fn handle_metadata(&mut self, now: Instant, partition_counts: &BTreeMap<Str, i32>) {
        let topics = self.topics();
        let count = |topic: &Str| Some((topic.clone(), *partition_counts.get(topic)?));
        self.counts = topics.iter().filter_map(count).collect();
        self.counted = topics;
        if let Phase::Assigning(topics, members) = self.phase.clone() {
            self.assign(now, topics, &members);
        } else if let Some(leading) = &mut self.leading {
            let counts = restricted(&self.counts, &leading.topics);
            self.rejoin |= leading.counts.as_ref().is_some_and(|before| *before != counts);
            leading.counts = Some(counts);
        }
        self.advance(now);
    }

    /// The topics whose partition counts matter: those of the whole group while this member leads it.
    #[must_use]
    pub fn topics(&self) -> BTreeSet<Str> {
        let mut topics = self.subscription.clone();
        match (&self.phase, &self.leading) {
            (Phase::Assigning(wanted, _), _) => topics.extend(wanted.iter().cloned()),
            (_, Some(leading)) => topics.extend(leading.topics.iter().cloned()),
            _ => {}
        }
        topics
    }

    /// Whether this member assigns the group's partitions: it alone can notice that a topic has grown.
    #[must_use]
    pub const fn is_leader(&self) -> bool {
        self.leading.is_some()
    }

    /// The next request to send.
    pub fn poll_request(&mut self) -> Option<MemberRequest> {
        self.requests.pop_front()
    }

    /// The answer to request `id`, or that there is none. Answers to what is over are ignored.
    pub fn handle_response(
        &mut self,
        now: Instant,
        id: RequestId,
        response: Result<ResponseBody, Disconnected>,
    ) {
        let Some(request) = self.in_flight.remove(&id) else { return };
        self.tick(now);
        match (request.kind, response) {
            (Kind::FindCoordinator, response) if self.finding == Some(id) => {
                self.finding = None;
                self.on_find(now, response);
            }
            (Kind::Join, response) if self.phase == Phase::Joining(id) => self.on_join(now, response),
            (Kind::Sync, response) if self.phase == Phase::Syncing(id) => {
                self.on_sync(now, request.sent, response);
            }
            (Kind::Heartbeat, response) if self.heartbeat == Some(id) => {
                self.heartbeat = None;
                self.on_heartbeat(now, &request, response);
            }
            // Leaving is asked once; whatever came of it, the session timeout does the rest.
            (Kind::Leave, _) if self.phase == Phase::Leaving(id) => self.left(),
            _ => {}
        }
        self.advance(now);
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let held = self.held.map(|held| held.deadline);
        let due = [held, self.session_due(), self.heartbeat_due(), self.tick_due(), self.retry_at];
        due.into_iter().flatten().min()
    }

    /// Does what is due: heartbeats, retries, the end of a held revocation, the end of the session.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tick(now);
        self.retry_at = self.retry_at.filter(|at| *at > now);
        if self.session_due().is_some_and(|at| at <= now) {
            self.coordinator = None;
            self.lose(false);
        }
        if let Some(held) = self.held.filter(|held| held.deadline <= now) {
            self.revocation_done(now, held.id);
        }
        if self.heartbeat_due().is_some_and(|at| at <= now) {
            self.send_heartbeat(now);
        }
        self.advance(now);
    }

    /// The partitions of revocation `id` are given up. Later calls, and calls for a revocation that is over, do nothing.
    pub fn revocation_done(&mut self, now: Instant, id: RevocationId) {
        if self.held.is_some_and(|held| held.id == id) {
            self.held = None;
            self.revoking.clear();
            self.advance(now);
        }
    }

    /// The owner did not poll for too long: leaves the group, loses every partition, and joins again only
    /// after [`poll_resumed`](Self::poll_resumed).
    pub fn handle_poll_expired(&mut self, now: Instant) {
        if self.phase == Phase::Closed || self.leaving || self.poll_expired {
            return;
        }
        self.poll_expired = true;
        if self.can_send_leave() {
            self.send_leave(now);
        }
        self.lose(true);
    }

    /// The owner polls again.
    pub fn poll_resumed(&mut self, now: Instant) {
        self.poll_expired = false;
        self.advance(now);
    }

    /// Gives everything up and leaves (a static member sends no message). Ends with [`Event::Left`].
    pub fn leave(&mut self, now: Instant) {
        if self.phase == Phase::Closed {
            self.events.push_back(Event::Left);
            return;
        }
        if self.leaving {
            return;
        }
        self.leaving = true;
        if self.phase != Phase::Stable || self.generation.id < 0 {
            // In the middle of a rebalance nobody can say what is still ours.
            self.lose_partitions();
        }
        self.advance(now);
    }

    /// What a commit has to carry now; `None` while there is no generation to commit in.
    #[must_use]
    pub fn commit_context(&self) -> Option<CommitContext> {
        (self.generation.id >= 0).then(|| CommitContext {
            group_id: self.config.group_id.clone(),
            member_id: self.generation.member_id.clone(),
            generation: self.generation.id,
            instance_id: self.config.instance_id.clone(),
        })
    }

    /// A commit made with `context` was refused with `code`, wholly or for a partition. Rejoins or looks for
    /// the coordinator when the code says so, and tells what became of the commit. A code that speaks of
    /// another generation than the present one changes nothing.
    pub fn commit_failed(&mut self, now: Instant, context: &CommitContext, code: i16) -> CommitVerdict {
        let same_member = self.generation.id >= 0 && context.member_id == self.generation.member_id;
        let current = same_member && context.generation == self.generation.id && self.phase == Phase::Stable;
        let asked = action(Operation::OffsetCommit, ErrorCode::from(code));
        let verdict = match asked {
            Action::FindCoordinator => {
                self.forget_coordinator(now);
                CommitVerdict::Retry
            }
            Action::Rejoin => {
                self.rejoin |= current;
                CommitVerdict::RetryAfterRebalance
            }
            Action::LoseGeneration | Action::LoseMember if current => {
                self.lose(asked == Action::LoseMember);
                CommitVerdict::Fenced
            }
            // The generation went on while the commit was on its way.
            Action::LoseGeneration | Action::LoseMember if same_member => CommitVerdict::RetryAfterRebalance,
            Action::Fenced | Action::Fatal => {
                if same_member {
                    self.fail(MemberError::Refused { request: "OffsetCommit", code });
                }
                CommitVerdict::without_membership(code)
            }
            _ => CommitVerdict::without_membership(code),
        };
        self.advance(now);
        verdict
    }

    /// A commit or another request of the owner found the coordinator gone (no answer): looks for it again.
    pub fn coordinator_lost(&mut self, now: Instant) {
        self.forget_coordinator(now);
        self.advance(now);
    }

    /// Where the coordinator is, when it is known.
    #[must_use]
    pub fn coordinator(&self) -> Option<&CoordinatorNode> {
        self.coordinator.as_ref()
    }

    /// Where the member stands.
    #[must_use]
    pub fn state(&self) -> MemberState {
        match &self.phase {
            Phase::Closed => MemberState::Closed,
            _ if self.leaving => MemberState::Leaving,
            _ if self.held.is_some() => MemberState::Revoking,
            Phase::Unjoined => MemberState::Unjoined,
            Phase::Joining(_) => MemberState::Joining,
            Phase::Assigning(..) | Phase::Syncing(_) => MemberState::Syncing,
            Phase::Stable => MemberState::Stable,
            Phase::Leaving(_) => MemberState::Leaving,
        }
    }

    /// The generation; -1 without one.
    #[must_use]
    pub fn generation(&self) -> i32 {
        self.generation.id
    }

    /// The member id given by the coordinator; empty without one.
    #[must_use]
    pub fn member_id(&self) -> &Str {
        &self.generation.member_id
    }

    /// What is assigned, without what is being revoked.
    #[must_use]
    pub fn assignment(&self) -> &BTreeSet<TopicPartition> {
        &self.owned
    }

    /// What is being revoked and not yet acknowledged.
    #[must_use]
    pub fn revoking(&self) -> &BTreeSet<TopicPartition> {
        &self.revoking
    }
}

/// The counts of these topics.
fn restricted(counts: &BTreeMap<Str, i32>, topics: &BTreeSet<Str>) -> BTreeMap<Str, i32> {
    topics.iter().filter_map(|topic| Some((topic.clone(), *counts.get(topic)?))).collect()
}
