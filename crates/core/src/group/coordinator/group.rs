//! One group: its members, its state, and how a rebalance begins and ends.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;
use tramline_wire::Str;
use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::messages::{JoinGroupResponse, SyncGroupResponse};

use super::config::Config;
use super::journal::{Journal, Then};
use super::member::{Member, Parked};
use super::output::Response;
use super::record::{self, GroupValue};
use crate::group::codes;
use crate::group::protocol::decode_subscription;
use crate::time::{Instant, Timestamp};

/// Where a group stands.
///
/// ```text
///   Empty --> PreparingRebalance --> CompletingRebalance --> Stable
///     ^         |      ^   ^                  |                |
///     +---------+      |   +------------------+                |
///                      +---------------------------------------+
///   Empty --> Dead: its deletion is on its way to the log
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Empty,
    Preparing,
    Completing,
    Stable,
    Dead,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Preparing => "PreparingRebalance",
            Self::Completing => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// What every step of a group needs.
pub(super) struct Context<'a> {
    pub now: Instant,
    pub wall: Timestamp,
    pub config: &'a Config,
    pub journal: &'a mut Journal,
}

/// When the phase that collects Joins ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinPhase {
    deadline: Instant,
    /// For the first join of an empty group: until when the phase may be prolonged, and whether somebody came
    /// since it was last.
    initial: Option<(Instant, bool)>,
}

/// One group. Only its last Stable or Empty form is durable; this is the living one.
#[derive(Debug)]
pub(super) struct Group {
    pub id: Str,
    pub state: State,
    pub generation: i32,
    pub protocol_type: Str,
    pub protocol: Option<Str>,
    pub leader: Option<Str>,
    pub members: BTreeMap<Str, Member>,
    /// Instance id to member id.
    pub static_members: BTreeMap<Str, Str>,
    /// Ids given out with MEMBER_ID_REQUIRED, and until when they may be used.
    pub pending: BTreeMap<Str, Instant>,
    pub pending_sync: BTreeSet<Str>,
    pub sync_deadline: Option<Instant>,
    pub join_phase: Option<JoinPhase>,
    /// The assignments of this generation are on their way to the log.
    pub storing: Option<Vec<(Str, Bytes)>>,
}

impl Group {
    pub(super) fn new(id: Str) -> Self {
        Self {
            id,
            state: State::Empty,
            generation: 0,
            protocol_type: Str::new(),
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_sync: BTreeSet::new(),
            sync_deadline: None,
            join_phase: None,
            storing: None,
        }
    }

    /// The group as it was stored; each member has a full session from `now` on.
    pub(super) fn restored(id: Str, value: &GroupValue, now: Instant) -> Self {
        let mut group = Self::new(id);
        group.generation = value.generation;
        group.protocol_type = value.protocol_type.clone();
        group.protocol = value.protocol.clone();
        group.leader = value.leader.clone();
        for stored in &value.members {
            let protocol = value.protocol.clone().unwrap_or_default();
            let member = Member::restored(stored, &value.protocol_type, protocol, now);
            if let Some(instance) = &member.instance_id {
                group.static_members.insert(instance.clone(), member.id.clone());
            }
            group.members.insert(member.id.clone(), member);
        }
        group.state = if group.members.is_empty() { State::Empty } else { State::Stable };
        group
    }

    /// When this group has to be looked at again.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let sessions = self.members.values().filter_map(Member::expires);
        let pending = self.pending.values().copied();
        let phase = self.join_phase.map(|phase| phase.deadline);
        sessions.chain(pending).chain(phase).chain(self.sync_deadline).min()
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let before = self.pending.len();
        self.pending.retain(|_, deadline| *deadline > now);
        let expired: Vec<Str> = self
            .members
            .values()
            .filter(|member| member.expires().is_some_and(|at| at <= now))
            .map(|member| member.id.clone())
            .collect();
        for id in &expired {
            self.remove(cx, id, codes::UNKNOWN_MEMBER_ID);
        }
        if before > self.pending.len() || !expired.is_empty() {
            self.members_left(cx, !expired.is_empty());
        }
        if self.sync_deadline.is_some_and(|at| at <= now) {
            self.sync_deadline = None;
            let missing = core::mem::take(&mut self.pending_sync);
            for id in &missing {
                self.remove(cx, id, codes::UNKNOWN_MEMBER_ID);
            }
            if !missing.is_empty() {
                self.members_left(cx, true);
            }
        }
        if let Some(phase) = self.join_phase
            && phase.deadline <= now
        {
            match phase.initial {
                Some((until, true)) if phase.deadline < until => {
                    let deadline = (now + cx.config.initial_rebalance_delay).min(until);
                    self.join_phase = Some(JoinPhase { deadline, initial: Some((until, false)) });
                }
                _ => self.complete_join(cx),
            }
        }
    }

    /// What follows when members, or ids given out, are gone: a rebalance, or the end of one.
    pub(super) fn members_left(&mut self, cx: &mut Context<'_>, members: bool) {
        match self.state {
            State::Stable | State::Completing if members => self.prepare_rebalance(cx),
            State::Preparing => self.complete_join_if_all_are_here(cx),
            _ => {}
        }
    }

    /// Takes a member out; whatever it waits for is answered with `code`.
    pub(super) fn remove(&mut self, cx: &mut Context<'_>, id: &Str, code: i16) {
        let Some(mut member) = self.members.remove(id) else { return };
        if let Some(instance) = &member.instance_id
            && self.static_members.get(instance) == Some(id)
        {
            self.static_members.remove(instance);
        }
        self.pending_sync.remove(id);
        if self.leader.as_ref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
        member.answer_waiting(cx, code);
    }

    /// Adds a member that waits for the end of the join phase.
    pub(super) fn add(&mut self, cx: &mut Context<'_>, member: Member) {
        if self.members.is_empty() {
            self.protocol_type = member.protocol_type.clone();
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.pending.remove(&member.id);
        if let Some(instance) = &member.instance_id {
            self.static_members.insert(instance.clone(), member.id.clone());
        }
        if let Some(JoinPhase { initial: Some((_, came)), .. }) = &mut self.join_phase {
            *came = true;
        }
        self.members.insert(member.id.clone(), member);
        self.rebalance_or_complete(cx);
    }

    /// After a Join was parked.
    pub(super) fn rebalance_or_complete(&mut self, cx: &mut Context<'_>) {
        if self.state == State::Preparing {
            self.complete_join_if_all_are_here(cx);
        } else {
            self.prepare_rebalance(cx);
        }
    }

    /// Begins to collect Joins.
    pub(super) fn prepare_rebalance(&mut self, cx: &mut Context<'_>) {
        if self.state == State::Completing {
            self.fail_syncs(cx, codes::REBALANCE_IN_PROGRESS);
        }
        self.storing = None;
        self.sync_deadline = None;
        self.pending_sync.clear();
        let first = self.state == State::Empty;
        self.state = State::Preparing;
        let longest = self.longest_rebalance_timeout();
        if first {
            let delay = cx.config.initial_rebalance_delay;
            let until = cx.now + longest.max(delay);
            self.join_phase = Some(JoinPhase { deadline: cx.now + delay, initial: Some((until, false)) });
            if delay.is_zero() {
                self.complete_join(cx);
            }
        } else {
            self.join_phase = Some(JoinPhase { deadline: cx.now + longest, initial: None });
            self.complete_join_if_all_are_here(cx);
        }
    }

    fn longest_rebalance_timeout(&self) -> Duration {
        self.members.values().map(|member| member.rebalance_timeout).max().unwrap_or_default()
    }

    /// Clears the assignments and answers everybody who waits in a Sync.
    pub(super) fn fail_syncs(&mut self, cx: &mut Context<'_>, code: i16) {
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
            member.answer_sync(cx, SyncGroupResponse { error_code: code, ..Default::default() });
        }
    }

    fn complete_join_if_all_are_here(&mut self, cx: &mut Context<'_>) {
        let waits_for_others = self.join_phase.is_some_and(|phase| phase.initial.is_some());
        let all_here = self.pending.is_empty() && self.members.values().all(Member::is_joining);
        if !waits_for_others && all_here {
            self.complete_join(cx);
        }
    }

    /// Ends the join phase: the next generation begins with those who are here.
    fn complete_join(&mut self, cx: &mut Context<'_>) {
        let gone =
            self.members.values().filter(|member| !member.is_joining() && member.instance_id.is_none());
        let gone: Vec<Str> = gone.map(|member| member.id.clone()).collect();
        for id in &gone {
            self.remove(cx, id, codes::UNKNOWN_MEMBER_ID);
        }
        if self.members.is_empty() {
            self.become_empty(cx);
            return;
        }
        let leader_is_here =
            self.leader.as_ref().is_some_and(|id| self.members.get(id).is_some_and(Member::is_joining));
        if !leader_is_here {
            match self.members.values().find(|member| member.is_joining()) {
                Some(member) => self.leader = Some(member.id.clone()),
                None => {
                    // Only static members, and none came back yet.
                    let deadline = cx.now + self.longest_rebalance_timeout();
                    self.join_phase = Some(JoinPhase { deadline, initial: None });
                    return;
                }
            }
        }
        self.join_phase = None;
        self.generation = next_generation(self.generation);
        self.protocol = self.vote();
        self.state = State::Completing;
        self.pending_sync = self.members.keys().cloned().collect();
        self.sync_deadline = Some(cx.now + self.longest_rebalance_timeout());
        let ids: Vec<Str> = self.members.keys().cloned().collect();
        for id in ids {
            let response = self.current_generation(&id);
            if let Some(member) = self.members.get_mut(&id) {
                member.is_new = false;
                member.assignment = Bytes::new();
                member.refresh(cx.now);
                member.answer_join(cx, response);
            }
        }
    }

    fn become_empty(&mut self, cx: &mut Context<'_>) {
        self.join_phase = None;
        self.sync_deadline = None;
        self.pending_sync.clear();
        self.state = State::Empty;
        self.generation = next_generation(self.generation);
        self.protocol = None;
        self.leader = None;
        let record = record::group_record(&self.id, Some(&self.value(cx.wall, &[])));
        cx.journal.append(vec![record], Vec::new(), Then::Nothing);
    }

    /// The protocols that every member knows. In one pass over what they say, of which a member may say much.
    pub(super) fn known_to_all(&self) -> BTreeSet<&str> {
        let mut members = self.members.values();
        let mut known = members.next().map(Member::protocol_names).unwrap_or_default();
        for member in members {
            let names = member.protocol_names();
            known.retain(|name| names.contains(name));
        }
        known
    }

    /// The protocol of the next generation: each member votes for the first of its own that all know.
    pub(super) fn vote(&self) -> Option<Str> {
        let known = self.known_to_all();
        let mut votes: BTreeMap<&Str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let mut names = member.protocols.iter().map(|(name, _)| name);
            if let Some(name) = names.find(|name| known.contains(&***name)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(name, _)| name.clone())
    }

    /// The answer to a Join of a member of the current generation.
    pub(super) fn current_generation(&self, id: &Str) -> JoinGroupResponse {
        let mut response = JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: Some(self.protocol_type.clone()),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: id.clone(),
            ..Default::default()
        };
        if self.leader.as_ref() == Some(id) {
            response.members = self
                .members
                .values()
                .map(|member| JoinGroupResponseMember {
                    member_id: member.id.clone(),
                    group_instance_id: member.instance_id.clone(),
                    metadata: self.chosen_metadata(member),
                })
                .collect();
        }
        response
    }

    /// The metadata of the chosen protocol.
    pub(super) fn chosen_metadata(&self, member: &Member) -> Bytes {
        self.protocol.as_ref().and_then(|name| member.metadata(name)).unwrap_or_default()
    }

    /// What is stored of this group. `assignments` replace what members have.
    pub(super) fn value(&self, wall: Timestamp, assignments: &[(Str, Bytes)]) -> GroupValue {
        let assigned: BTreeMap<&Str, &Bytes> = assignments.iter().map(|(id, bytes)| (id, bytes)).collect();
        let members = self.members.values().map(|member| {
            let assignment = assigned.get(&member.id).map_or(&member.assignment, |bytes| *bytes).clone();
            member.value(self.chosen_metadata(member), assignment)
        });
        GroupValue {
            protocol_type: self.protocol_type.clone(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_timestamp: wall,
            members: members.collect(),
        }
    }

    /// The topics somebody subscribes to; `None` when that can not be told.
    pub(super) fn subscribed_topics(&self) -> Option<BTreeSet<Str>> {
        if self.protocol_type != crate::group::protocol::CONSUMER {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            topics.extend(decode_subscription(&self.chosen_metadata(member)).ok()?.topics);
        }
        Some(topics)
    }

    /// Whether nothing of this group is worth keeping outside the log.
    pub(super) fn is_void(&self) -> bool {
        self.state == State::Empty && self.members.is_empty() && self.pending.is_empty()
    }

    /// Finds who sent a request: 25, 82 or 22 when it is not a member of this generation.
    pub(super) fn check_member(&self, id: &Str, instance: Option<&Str>, generation: i32) -> Result<(), i16> {
        self.check_identity(id, instance)?;
        if generation == self.generation { Ok(()) } else { Err(codes::ILLEGAL_GENERATION) }
    }

    /// As [`check_member`](Self::check_member), without a generation.
    pub(super) fn check_identity(&self, id: &Str, instance: Option<&Str>) -> Result<(), i16> {
        if self.state == State::Dead {
            return Err(codes::COORDINATOR_NOT_AVAILABLE);
        }
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(codes::UNKNOWN_MEMBER_ID),
                Some(known) if known != id => return Err(codes::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(codes::UNKNOWN_MEMBER_ID) }
    }

    /// Drops the reply that waits under this token.
    pub(super) fn connection_closed(&mut self, cx: &mut Context<'_>, token: super::config::Token) {
        let holds = |parked: &Parked| parked.holds(token);
        let waiting = self.members.values().find(|member| {
            member.joining.as_ref().is_some_and(holds) || member.syncing.as_ref().is_some_and(holds)
        });
        let Some(id) = waiting.map(|member| member.id.clone()) else { return };
        let Some(member) = self.members.get_mut(&id) else { return };
        member.drop_reply(token);
        if member.is_new && !member.id_is_known {
            // Nobody was ever told this id, so nobody can come back with it.
            self.remove(cx, &id, codes::UNKNOWN_MEMBER_ID);
            self.members_left(cx, true);
        }
    }

    /// Everybody who waits is told to find the coordinator again.
    pub(super) fn answer_everybody(&mut self, cx: &mut Context<'_>, code: i16) {
        for member in self.members.values_mut() {
            member.answer_waiting(cx, code);
        }
    }
}

/// One more; never negative, which would mean "no generation".
fn next_generation(generation: i32) -> i32 {
    generation.checked_add(1).unwrap_or(1)
}

/// Wraps a Join answer for its version.
pub(super) fn join_response(version: i16, mut response: JoinGroupResponse) -> Response {
    if version < 7 {
        response.protocol_type = None;
        response.protocol_name = Some(response.protocol_name.unwrap_or_default());
    } else if response.error_code != codes::NONE {
        response.protocol_name = None;
    }
    Response::Join(response)
}
