//! SyncGroup (14), Heartbeat (12) and LeaveGroup (13).
//!
//! Checks of Sync and Heartbeat come in Kafka's order: 15 the group is being deleted, 25 or 82 the member, 22
//! the generation; for Sync then 23 the protocol.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::Str;
use tramline_wire::messages::leave_group_request::MemberIdentity;
use tramline_wire::messages::leave_group_response::MemberResponse;
use tramline_wire::messages::{
    HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest,
    SyncGroupResponse,
};

use super::config::Client;
use super::group::{Context, Group, State};
use super::journal::Then;
use super::output::Response;
use super::{Coordinator, record};
use crate::group::codes;
use crate::time::{Instant, Timestamp};

impl Coordinator {
    /// SyncGroup (14), versions 0 to 5. The reply comes when the leader's assignments are durable.
    pub fn handle_sync(
        &mut self,
        now: Instant,
        wall: Timestamp,
        client: &Client,
        request: &SyncGroupRequest,
    ) {
        self.wall = wall;
        let checked = if self.loading {
            Err(codes::COORDINATOR_LOAD_IN_PROGRESS)
        } else if request.group_id.is_empty() {
            Err(codes::INVALID_GROUP_ID)
        } else {
            let group = self.groups.get(&request.group_id).ok_or(codes::UNKNOWN_MEMBER_ID);
            group.and_then(|group| group.check_sync(request))
        };
        let given = request.assignments.iter().map(|given| given.assignment.len()).sum();
        let checked = checked.and_then(|()| {
            if self.take_room(now, given) { Ok(()) } else { Err(codes::COORDINATOR_NOT_AVAILABLE) }
        });
        if let Err(error_code) = checked {
            let response = SyncGroupResponse { error_code, ..Default::default() };
            self.journal.reply(client.token, Response::Sync(response));
            return;
        }
        self.journal.park(client.token, &request.group_id.detached());
        self.with_group(now, &request.group_id, |group, cx| group.sync(cx, client, request));
    }

    /// Heartbeat (12), versions 0 to 4.
    pub fn handle_heartbeat(&mut self, now: Instant, client: &Client, request: &HeartbeatRequest) {
        let error_code = if self.loading {
            // The member is as alive as it was; it will be told when the group is known again.
            codes::NONE
        } else if request.group_id.is_empty() {
            codes::INVALID_GROUP_ID
        } else {
            self.with_group(now, &request.group_id, |group, cx| group.heartbeat(cx, request))
                .unwrap_or(codes::UNKNOWN_MEMBER_ID)
        };
        let response = HeartbeatResponse { error_code, ..Default::default() };
        self.journal.reply(client.token, Response::Heartbeat(response));
    }

    /// LeaveGroup (13), versions 0 to 5. One rebalance for all who leave.
    pub fn handle_leave(
        &mut self,
        now: Instant,
        wall: Timestamp,
        client: &Client,
        request: &LeaveGroupRequest,
    ) {
        self.wall = wall;
        let leaving = if client.version >= 3 {
            request.members.clone()
        } else {
            vec![MemberIdentity { member_id: request.member_id.clone(), ..Default::default() }]
        };
        let mut response = LeaveGroupResponse::default();
        let codes = if self.loading {
            Err(codes::COORDINATOR_LOAD_IN_PROGRESS)
        } else if request.group_id.is_empty() {
            Err(codes::INVALID_GROUP_ID)
        } else {
            self.with_group(now, &request.group_id, |group, cx| group.leave(cx, &leaving))
                .unwrap_or_else(|| Ok(vec![codes::UNKNOWN_MEMBER_ID; leaving.len()]))
        };
        match codes {
            Err(code) => response.error_code = code,
            Ok(codes) if client.version < 3 => {
                response.error_code = codes.first().copied().unwrap_or(codes::NONE);
            }
            Ok(codes) => {
                let rows = leaving.into_iter().zip(codes).map(|(member, error_code)| MemberResponse {
                    member_id: member.member_id,
                    group_instance_id: member.group_instance_id,
                    error_code,
                });
                response.members = rows.collect();
            }
        }
        self.journal.reply(client.token, Response::Leave(response));
    }
}

impl Group {
    fn check_sync(&self, request: &SyncGroupRequest) -> Result<(), i16> {
        let instance = request.group_instance_id.as_ref();
        self.check_member(&request.member_id, instance, request.generation_id)?;
        let other_type = request.protocol_type.as_ref().is_some_and(|name| *name != self.protocol_type);
        let other_name =
            request.protocol_name.as_ref().is_some_and(|name| Some(name) != self.protocol.as_ref());
        // While Joins are collected the answer is 27 whatever the protocol was.
        if self.state != State::Preparing && (other_type || other_name) {
            return Err(codes::INCONSISTENT_GROUP_PROTOCOL);
        }
        match self.state {
            State::Empty => Err(codes::UNKNOWN_MEMBER_ID),
            State::Preparing => Err(codes::REBALANCE_IN_PROGRESS),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, cx: &mut Context<'_>, client: &Client, request: &SyncGroupRequest) {
        self.pending_sync.remove(&request.member_id);
        if self.pending_sync.is_empty() {
            self.sync_deadline = None;
        }
        let Some(member) = self.members.get_mut(&request.member_id) else { return };
        member.refresh(cx.now);
        member.park_sync(cx, client);
        if self.state == State::Stable {
            let response = self.stored_assignment(&request.member_id);
            if let Some(member) = self.members.get_mut(&request.member_id) {
                member.answer_sync(cx, response);
            }
        } else if self.leader.as_ref() == Some(&request.member_id) && self.storing.is_none() {
            // The first of several for one member counts.
            let given: BTreeMap<&Str, &Bytes> =
                request.assignments.iter().rev().map(|given| (&given.member_id, &given.assignment)).collect();
            let assignments: Vec<(Str, Bytes)> = self
                .members
                .keys()
                .map(|id| {
                    let bytes = given.get(id).map(|bytes| Bytes::copy_from_slice(bytes));
                    (id.clone(), bytes.unwrap_or_default())
                })
                .collect();
            let record = record::group_record(&self.id, Some(&self.value(cx.wall, &assignments)));
            self.storing = Some(assignments);
            let then = Then::Assigned { group: self.id.clone(), generation: self.generation };
            cx.journal.append(vec![record], Vec::new(), then);
        }
    }

    fn stored_assignment(&self, id: &Str) -> SyncGroupResponse {
        SyncGroupResponse {
            protocol_type: Some(self.protocol_type.clone()),
            protocol_name: self.protocol.clone(),
            assignment: self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default(),
            ..Default::default()
        }
    }

    /// The assignments of `generation` are durable. They mean nothing when a rebalance has begun since.
    pub(super) fn assigned(&mut self, cx: &mut Context<'_>, generation: i32) {
        if self.state != State::Completing || self.generation != generation {
            return;
        }
        let Some(assignments) = self.storing.take() else { return };
        self.state = State::Stable;
        for (id, bytes) in assignments {
            if let Some(member) = self.members.get_mut(&id) {
                member.assignment = bytes;
                member.refresh(cx.now);
            }
        }
        let ids: Vec<Str> = self.members.keys().cloned().collect();
        for id in ids {
            let response = self.stored_assignment(&id);
            if let Some(member) = self.members.get_mut(&id) {
                member.answer_sync(cx, response);
            }
        }
    }

    /// The assignments of `generation` could not be stored: everybody has to join again.
    pub(super) fn not_assigned(&mut self, cx: &mut Context<'_>, generation: i32, code: i16) {
        if self.state == State::Completing && self.generation == generation && self.storing.is_some() {
            self.fail_syncs(cx, code);
            self.prepare_rebalance(cx);
        }
    }

    fn heartbeat(&mut self, cx: &mut Context<'_>, request: &HeartbeatRequest) -> i16 {
        let instance = request.group_instance_id.as_ref();
        if let Err(code) = self.check_member(&request.member_id, instance, request.generation_id) {
            return code;
        }
        if let Some(member) = self.members.get_mut(&request.member_id) {
            member.refresh(cx.now);
        }
        if self.state == State::Preparing { codes::REBALANCE_IN_PROGRESS } else { codes::NONE }
    }

    fn leave(&mut self, cx: &mut Context<'_>, leaving: &[MemberIdentity]) -> Result<Vec<i16>, i16> {
        if self.state == State::Dead {
            return Err(codes::COORDINATOR_NOT_AVAILABLE);
        }
        let (mut left, mut changed) = (false, false);
        let mut codes = Vec::new();
        for identity in leaving {
            let named = match &identity.group_instance_id {
                // By instance id alone: how an administrator removes a static member.
                Some(instance) if identity.member_id.is_empty() => {
                    self.static_members.get(instance).cloned().ok_or(codes::UNKNOWN_MEMBER_ID)
                }
                instance => Ok(identity.member_id.clone()).and_then(|id| {
                    if instance.is_none() && self.pending.remove(&id).is_some() {
                        changed = true;
                        return Err(codes::NONE);
                    }
                    self.check_identity(&id, instance.as_ref()).map(|()| id)
                }),
            };
            codes.push(match named {
                Ok(id) => {
                    self.remove(cx, &id, codes::UNKNOWN_MEMBER_ID);
                    left = true;
                    codes::NONE
                }
                Err(code) => code,
            });
        }
        if left || changed {
            self.members_left(cx, left);
        }
        Ok(codes)
    }
}
