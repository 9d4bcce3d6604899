//! JoinGroup (11): who may join, and how.
//!
//! Checks come in Kafka's order: 24 empty group id, 26 session timeout, 25 an id in a group that does not
//! exist, 15 a group that is being deleted, 81 the group is full, 23 protocols; then what the id says.

use alloc::vec;
use alloc::vec::Vec;

use tramline_wire::Str;
use tramline_wire::messages::{JoinGroupRequest, JoinGroupResponse};

use super::config::{Client, Config, MAX_GROUP_ID};
use super::group::{Context, Group, State, join_response};
use super::journal::Then;
use super::member::{Member, millis};
use super::{Coordinator, record};
use crate::group::{Seeded, codes};
use crate::time::{Instant, Timestamp};

impl Coordinator {
    /// JoinGroup (11), versions 0 to 9. The reply comes when the rebalance it takes part in has its members.
    pub fn handle_join(
        &mut self,
        now: Instant,
        wall: Timestamp,
        client: &Client,
        request: &JoinGroupRequest,
    ) {
        self.wall = wall;
        let id = request.group_id.detached();
        let checked = self.check_join(request).and_then(|()| {
            let fits = self.take_room_for_join(now, client, request);
            if fits { Ok(()) } else { Err(codes::COORDINATOR_NOT_AVAILABLE) }
        });
        if let Err(code) = checked {
            // A group that is full has no place for the id either.
            let member_id = match code {
                codes::GROUP_MAX_SIZE_REACHED => Str::new(),
                _ => request.member_id.clone(),
            };
            let response = JoinGroupResponse { error_code: code, member_id, ..Default::default() };
            self.journal.reply(client.token, join_response(client.version, response));
            return;
        }
        self.groups.entry(id.clone()).or_insert_with(|| Group::new(id.clone()));
        self.journal.park(client.token, &id);
        let mut ids = self.ids.clone();
        self.with_group(now, &id, |group, cx| {
            if request.member_id.is_empty() {
                group.join_unnamed(cx, &mut ids, client, request);
            } else if group.pending.contains_key(&request.member_id) {
                let member_id = request.member_id.detached();
                group.add(cx, Member::joining(member_id, true, client, request, cx.config, cx.now));
            } else {
                group.rejoin(cx, client, request);
            }
        });
        self.ids = ids;
    }

    fn check_join(&self, request: &JoinGroupRequest) -> Result<(), i16> {
        if self.loading {
            return Err(codes::COORDINATOR_LOAD_IN_PROGRESS);
        }
        if request.group_id.is_empty() || request.group_id.len() > MAX_GROUP_ID {
            return Err(codes::INVALID_GROUP_ID);
        }
        let session = millis(request.session_timeout_ms);
        let limits = self.config.min_session_timeout..=self.config.max_session_timeout;
        if !limits.contains(&session) {
            return Err(codes::INVALID_SESSION_TIMEOUT);
        }
        let usable = !request.protocol_type.is_empty() && !request.protocols.is_empty();
        match self.groups.get(&request.group_id) {
            None if !request.member_id.is_empty() => Err(codes::UNKNOWN_MEMBER_ID),
            None if !usable => Err(codes::INCONSISTENT_GROUP_PROTOCOL),
            None => Ok(()),
            Some(group) if group.state == State::Dead => Err(codes::COORDINATOR_NOT_AVAILABLE),
            Some(group) if !group.has_room_for(request, &self.config) => Err(codes::GROUP_MAX_SIZE_REACHED),
            Some(group) if !usable || !group.supports(request) => Err(codes::INCONSISTENT_GROUP_PROTOCOL),
            Some(group) => group.check_id(request),
        }
    }
}

impl Group {
    /// Members that are in always have room; while Joins are collected only those who came count.
    fn has_room_for(&self, request: &JoinGroupRequest, config: &Config) -> bool {
        let known = self.members.contains_key(&request.member_id)
            || request.group_instance_id.as_ref().is_some_and(|id| self.static_members.contains_key(id));
        let count = match self.state {
            State::Preparing => self.members.values().filter(|member| member.is_joining()).count(),
            _ => self.members.len(),
        };
        // Ids are given out to as many as may be in at most; each waits for its time to be over.
        let needs_id = request.member_id.is_empty() && request.group_instance_id.is_none();
        let ids_left = !needs_id || self.pending.len() < config.max_group_size;
        known || count < config.max_group_size && ids_left
    }

    /// Whether the protocols fit those of the other members.
    fn supports(&self, request: &JoinGroupRequest) -> bool {
        if self.members.is_empty() {
            return true;
        }
        let known = self.known_to_all();
        self.protocol_type == request.protocol_type
            && request.protocols.iter().any(|protocol| known.contains(&*protocol.name))
    }

    fn check_id(&self, request: &JoinGroupRequest) -> Result<(), i16> {
        let id = &request.member_id;
        if id.is_empty() {
            Ok(())
        } else if self.pending.contains_key(id) {
            // Ids are given out in advance to dynamic members only.
            request.group_instance_id.as_ref().map_or(Ok(()), |_| Err(codes::INVALID_REQUEST))
        } else {
            self.check_identity(id, request.group_instance_id.as_ref())
        }
    }

    fn join_unnamed(
        &mut self,
        cx: &mut Context<'_>,
        ids: &mut Seeded,
        client: &Client,
        request: &JoinGroupRequest,
    ) {
        let id = ids.member_id(request.group_instance_id.as_ref().unwrap_or(&client.id));
        if let Some(instance) = &request.group_instance_id {
            match self.static_members.get(instance).cloned() {
                Some(old) => self.replace_static(cx, &old, id, client, request),
                // A static member is found again by its instance id, so its member id need not be known.
                None => self.add(cx, Member::joining(id, true, client, request, cx.config, cx.now)),
            }
        } else if client.version >= 4 {
            // The client has to come back with the id: should the answer get lost, no ghost is left behind.
            self.pending.insert(id.clone(), cx.now + millis(request.session_timeout_ms));
            let response = JoinGroupResponse {
                error_code: codes::MEMBER_ID_REQUIRED,
                member_id: id,
                ..Default::default()
            };
            cx.journal.reply(client.token, join_response(client.version, response));
        } else {
            self.add(cx, Member::joining(id, false, client, request, cx.config, cx.now));
        }
    }

    /// A member that is in joins again.
    fn rejoin(&mut self, cx: &mut Context<'_>, client: &Client, request: &JoinGroupRequest) {
        let leads = self.leader.as_ref() == Some(&request.member_id);
        let current = self.current_generation(&request.member_id);
        let Some(member) = self.members.get_mut(&request.member_id) else { return };
        let same = member.matches(&request.protocols);
        let goes_on = match self.state {
            State::Completing => same,
            State::Stable => same && !leads,
            _ => false,
        };
        if goes_on {
            member.refresh(cx.now);
            cx.journal.reply(client.token, join_response(client.version, current));
        } else {
            member.update(client, request);
            member.park_join(cx, client);
            self.rebalance_or_complete(cx);
        }
    }

    /// A static member came back without its id: it gets a new one, and whoever used the old one is fenced.
    fn replace_static(
        &mut self,
        cx: &mut Context<'_>,
        old: &Str,
        id: Str,
        client: &Client,
        request: &JoinGroupRequest,
    ) {
        let Some(mut member) = self.members.remove(old) else { return };
        member.answer_waiting(cx, codes::FENCED_INSTANCE_ID);
        member.id = id.clone();
        member.update(client, request);
        member.refresh(cx.now);
        if let Some(instance) = &member.instance_id {
            self.static_members.insert(instance.clone(), id.clone());
        }
        if self.pending_sync.remove(old) {
            self.pending_sync.insert(id.clone());
        }
        let leader_before = self.leader.clone().unwrap_or_default();
        if leader_before == *old {
            self.leader = Some(id.clone());
        }
        self.members.insert(id.clone(), member);
        if self.state == State::Stable && self.vote() == self.protocol {
            self.keep_assignment(cx, id, leader_before, client);
        } else if let Some(member) = self.members.get_mut(&id) {
            member.park_join(cx, client);
            self.rebalance_or_complete(cx);
        }
    }

    /// The replaced member goes on with the assignment it had, without a rebalance.
    fn keep_assignment(&mut self, cx: &mut Context<'_>, id: Str, leader_before: Str, client: &Client) {
        let mut response = self.current_generation(&id);
        if client.version >= 9 {
            response.skip_assignment = self.leader.as_ref() == Some(&id);
        } else {
            // An older leader would compute a new assignment: it is told that somebody else leads.
            response.leader = leader_before;
            response.members = Vec::new();
        }
        let record = record::group_record(&self.id, Some(&self.value(cx.wall, &[])));
        let then = Then::Replaced { token: client.token, version: client.version, response };
        cx.journal.append(vec![record], Vec::new(), then);
    }
}
