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
//! heard of for a session timeout, or when the owner did not poll in time. Nothing may be committed then.

mod config;
mod event;
mod request;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use tramline_wire::{Str, TopicPartition};

pub use config::MemberConfig;
pub use event::{CommitContext, CommitVerdict, Event, MemberError, RevocationId};
pub use request::{
    CoordinatorNode, Disconnected, MemberRequest, RequestBody, RequestId, ResponseBody, Versions,
};

use super::Seeded;
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

/// One member of one group. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    seeded: Seeded,
    requests: VecDeque<MemberRequest>,
    events: VecDeque<Event>,
}

impl Member {
    /// A member that does nothing until it is subscribed. `seeded` only spreads retries.
    #[must_use]
    pub fn new(config: MemberConfig, seeded: Seeded) -> Self {
        Self { config, seeded, requests: VecDeque::new(), events: VecDeque::new() }
    }

    /// The API versions to make requests for, when they differ from the default.
    pub fn set_versions(&mut self, versions: Versions) {
        todo!()
    }

    /// The topics wanted from now on, instead of any before. Joins, or rejoins when they changed.
    pub fn subscribe(&mut self, now: Instant, topics: impl IntoIterator<Item = Str>) {
        todo!()
    }

    /// The partition counts of topics, as metadata has them; a topic without an entry does not exist. Covers
    /// at least [`topics`](Self::topics). A leader rejoins when counts changed since it assigned.
    pub fn handle_metadata(&mut self, now: Instant, partition_counts: &BTreeMap<Str, i32>) {
        todo!()
    }

    /// The topics whose partition counts matter: those of the whole group while this member leads it.
    #[must_use]
    pub fn topics(&self) -> BTreeSet<Str> {
        todo!()
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
        todo!()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Does what is due: heartbeats, retries, the end of a held revocation, the end of the session.
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!()
    }

    /// The partitions of revocation `id` are given up. Later calls, and calls for a revocation that is over, do nothing.
    pub fn revocation_done(&mut self, now: Instant, id: RevocationId) {
        todo!()
    }

    /// The owner did not poll for too long: leaves the group, loses every partition, and joins again only
    /// after [`poll_resumed`](Self::poll_resumed).
    pub fn handle_poll_expired(&mut self, now: Instant) {
        todo!()
    }

    /// The owner polls again.
    pub fn poll_resumed(&mut self, now: Instant) {
        todo!()
    }

    /// Gives everything up and leaves (a static member leaves no message). Ends with [`Event::Left`].
    pub fn leave(&mut self, now: Instant) {
        todo!()
    }

    /// What a commit has to carry now; `None` while there is no generation to commit in.
    #[must_use]
    pub fn commit_context(&self) -> Option<CommitContext> {
        todo!()
    }

    /// A commit made with `context` was refused with `code`, wholly or for a partition. Rejoins or looks for
    /// the coordinator when the code says so, and tells what became of the commit. Codes of another generation change nothing.
    pub fn commit_failed(&mut self, now: Instant, context: &CommitContext, code: i16) -> CommitVerdict {
        todo!()
    }

    /// A commit or another request of the owner found the coordinator gone (no answer): looks for it again.
    pub fn coordinator_lost(&mut self, now: Instant) {
        todo!()
    }

    /// Where the coordinator is, when it is known.
    #[must_use]
    pub fn coordinator(&self) -> Option<&CoordinatorNode> {
        todo!()
    }

    /// Where the member stands.
    #[must_use]
    pub fn state(&self) -> MemberState {
        todo!()
    }

    /// The generation; -1 without one.
    #[must_use]
    pub fn generation(&self) -> i32 {
        todo!()
    }

    /// The member id given by the coordinator; empty without one.
    #[must_use]
    pub fn member_id(&self) -> &Str {
        todo!()
    }

    /// What is assigned, without what is being revoked.
    #[must_use]
    pub fn assignment(&self) -> &BTreeSet<TopicPartition> {
        todo!()
    }

    /// What is being revoked and not yet acknowledged.
    #[must_use]
    pub fn revoking(&self) -> &BTreeSet<TopicPartition> {
        todo!()
    }
}
