//! Join and Sync: from the subscription to the assignment, and the leader's part in it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use tramline_wire::messages::join_group_request::JoinGroupRequestProtocol;
use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use tramline_wire::messages::{JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse};
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::{
    Disconnected, Event, Generation, Kind, Leading, Member, MemberError, NO_ANSWER, Phase, RequestBody,
    ResponseBody, restricted,
};
use crate::client::error_actions::{Action, Operation, action};
use crate::group::assignor::{Assignor, MemberSubscription};
use crate::group::codes;
use crate::group::protocol::{self, CONSUMER, Subscription};
use crate::time::Instant;

impl Member {
    pub(super) fn send_join(&mut self, now: Instant) {
        let subscription = Subscription {
            topics: self.subscription.iter().cloned().collect(),
            user_data: None,
            owned: self.owned.iter().cloned().collect(),
            generation: self.generation.id,
            rack: self.config.rack.clone(),
        };
        let Ok(metadata) = protocol::encode_subscription(&subscription) else {
            return self.fail(MemberError::TooLarge);
        };
        let protocols = self.config.assignors.iter().map(|assignor| JoinGroupRequestProtocol {
            name: Str::from_static(assignor.name()),
            metadata: metadata.clone(),
        });
        let request = JoinGroupRequest {
            group_id: self.config.group_id.clone(),
            session_timeout_ms: millis(self.config.session_timeout),
            rebalance_timeout_ms: millis(self.config.rebalance_timeout),
            member_id: self.generation.member_id.clone(),
            group_instance_id: self.config.instance_id.clone(),
            protocol_type: Str::from_static(CONSUMER),
            protocols: protocols.collect(),
            reason: None,
        };
        self.rejoin = false;
        self.leading = None;
        self.joins = self.joins.saturating_add(1);
        self.waited = false;
        let id = self.send(now, Kind::Join, RequestBody::Join(request));
        self.phase = Phase::Joining(id);
    }

    pub(super) fn on_join(&mut self, now: Instant, response: Result<ResponseBody, Disconnected>) {
        self.phase = Phase::Unjoined;
        let response = match response {
            Ok(ResponseBody::Join(response)) => response,
            Ok(_) => return self.broken(Kind::Join, "another message"),
            Err(Disconnected) => JoinGroupResponse { error_code: NO_ANSWER, ..Default::default() },
        };
        let code = response.error_code;
        if code == codes::NONE {
            return self.joined(now, response);
        }
        match action(Operation::JoinGroup, ErrorCode::from(code)) {
            Action::TakeMemberId => self.generation.member_id = response.member_id.detached(),
            Action::Retry => self.retry_later(now),
            Action::FindCoordinator => self.forget_coordinator(now),
            Action::LoseMember => {
                // At once, unless it was the same the last time.
                let again = self.attempts > 0;
                self.lose(true);
                self.attempts += 1;
                if again {
                    self.retry_later(now);
                }
            }
            _ => self.fail(MemberError::Refused { request: Kind::Join.name(), code }),
        }
    }

    fn joined(&mut self, now: Instant, response: JoinGroupResponse) {
        let name = response.protocol_name.as_deref().unwrap_or_default();
        let offered = Assignor::from_name(name).filter(|chosen| self.config.assignors.contains(chosen));
        let Some(assignor) = offered else {
            return self.broken(Kind::Join, "an assignor that was not offered");
        };
        if response.generation_id < 0 || response.member_id.is_empty() {
            return self.broken(Kind::Join, "a membership that is none");
        }
        // A coordinator that has forgotten generations may have given away in them what we hold, and so may one to which
        // we are another member than before.
        let Generation { id, member_id } = &self.generation;
        if response.generation_id < *id || (*id >= 0 && *member_id != response.member_id) {
            self.lose_partitions();
        }
        self.assignor = Some(assignor);
        self.generation = Generation { id: response.generation_id, member_id: response.member_id.detached() };
        // The coordinator began to count when it sent this answer; a third is left for its way.
        self.session_end = self.session_end.max(now + self.config.session_timeout * 2 / 3);
        let rebalance = self.config.rebalance_timeout;
        let left = rebalance.saturating_sub(self.config.session_timeout / 3).max(rebalance / 2);
        self.evicted_at = self.evicted_at.max(now + left);
        self.heartbeat_at = now + self.config.heartbeat_interval;
        if response.leader != response.member_id {
            return self.send_sync(now, Vec::new());
        }
        let topics: BTreeSet<Str> =
            response.members.iter().flat_map(|member| subscription_of(member).topics).collect();
        if response.skip_assignment {
            self.lead(topics);
            return self.send_sync(now, Vec::new());
        }
        if topics.is_subset(&self.counted) {
            return self.assign(now, topics, &response.members);
        }
        let wanted = topics.union(&self.subscription).cloned().collect();
        self.phase = Phase::Assigning(topics, response.members);
        self.events.push_back(Event::MetadataNeeded { topics: wanted });
    }

    fn lead(&mut self, topics: BTreeSet<Str>) {
        let counts = topics.is_subset(&self.counted).then(|| restricted(&self.counts, &topics));
        self.leading = Some(Leading { topics, counts });
    }

    /// The leader's work.
    pub(super) fn assign(
        &mut self,
        now: Instant,
        topics: BTreeSet<Str>,
        members: &[JoinGroupResponseMember],
    ) {
        let Some(assignor) = self.assignor else { return };
        let subscriptions: Vec<MemberSubscription> = members.iter().map(subscription_of).collect();
        let assignment = assignor.assign(&subscriptions, &restricted(&self.counts, &topics));
        self.lead(topics);
        let mut assignments = Vec::new();
        for (member_id, partitions) in assignment {
            let Ok(assignment) = protocol::encode_assignment(&partitions) else {
                return self.fail(MemberError::TooLarge);
            };
            assignments.push(SyncGroupRequestAssignment { member_id, assignment });
        }
        self.send_sync(now, assignments);
    }

    fn send_sync(&mut self, now: Instant, assignments: Vec<SyncGroupRequestAssignment>) {
        let request = SyncGroupRequest {
            group_id: self.config.group_id.clone(),
            generation_id: self.generation.id,
            member_id: self.generation.member_id.clone(),
            group_instance_id: self.config.instance_id.clone(),
            protocol_type: Some(Str::from_static(CONSUMER)),
            protocol_name: self.assignor.map(|assignor| Str::from_static(assignor.name())),
            assignments,
        };
        let id = self.send(now, Kind::Sync, RequestBody::Sync(request));
        self.phase = Phase::Syncing(id);
    }

    pub(super) fn on_sync(
        &mut self,
        now: Instant,
        sent: Instant,
        response: Result<ResponseBody, Disconnected>,
    ) {
        self.phase = Phase::Unjoined;
        let response = match response {
            Ok(ResponseBody::Sync(response)) => response,
            Ok(_) => return self.broken(Kind::Sync, "another message"),
            Err(Disconnected) => SyncGroupResponse { error_code: NO_ANSWER, ..Default::default() },
        };
        let code = response.error_code;
        if code == codes::NONE {
            return self.synced(now, sent, &response);
        }
        match action(Operation::SyncGroup, ErrorCode::from(code)) {
            // The generation is valid still; the next Join begins the next one.
            Action::Rejoin => {}
            Action::Retry => self.retry_later(now),
            Action::FindCoordinator => self.forget_coordinator(now),
            Action::LoseGeneration => self.lose(false),
            Action::LoseMember => self.lose(true),
            _ => self.fail(MemberError::Refused { request: Kind::Sync.name(), code }),
        }
    }

    fn synced(&mut self, now: Instant, sent: Instant, response: &SyncGroupResponse) {
        let Ok(assigned) = protocol::decode_assignment(&response.assignment) else {
            return self.broken(Kind::Sync, "an assignment that can not be read");
        };
        self.phase = Phase::Stable;
        self.prepared = false;
        // The coordinator began to count when it answered, not before the request was sent. When the answer
        // took long the first heartbeat goes out at once and settles it.
        let session = self.config.session_timeout;
        self.session_end = self.session_end.max(sent + session).max(now + session / 2);
        let rebalance = self.config.rebalance_timeout;
        self.evicted_at = self.evicted_at.max(sent + rebalance).max(now + rebalance / 2);
        let slow = now.saturating_since(sent) > self.config.heartbeat_interval;
        self.heartbeat_at = if slow { now } else { now + self.config.heartbeat_interval };
        let assigned: BTreeSet<TopicPartition> = assigned.into_iter().collect();
        if assigned.iter().any(|of| of.partition < 0) {
            return self.broken(Kind::Sync, "a partition that is none");
        }
        if assigned.iter().any(|of| !self.subscription.contains(&of.topic)) {
            // The subscription changed since the Join: this assignment is of no use.
            self.rejoin = true;
            return;
        }
        let added = assigned.difference(&self.owned).cloned().collect();
        let revoked: Vec<_> = self.owned.difference(&assigned).cloned().collect();
        self.owned = assigned;
        if !revoked.is_empty() {
            self.revoke(now, revoked);
            self.rejoin = true;
        }
        self.events.push_back(Event::Assigned { generation: self.generation.id, added });
    }
}

/// What a member asks for. One whose metadata can not be read asks for nothing: it must not stop the others.
fn subscription_of(member: &JoinGroupResponseMember) -> MemberSubscription {
    let read = protocol::decode_subscription(&member.metadata).unwrap_or_default();
    MemberSubscription {
        member_id: member.member_id.clone(),
        instance_id: member.group_instance_id.clone(),
        topics: read.topics,
        owned: read.owned,
        generation: read.generation,
    }
}

fn millis(duration: core::time::Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
