//! What the member does next, and the requests and losses that follow from it.

use tramline_wire::messages::{FindCoordinatorResponse, HeartbeatRequest};
use tramline_wire::{ErrorCode, TopicPartition};

use super::request::found_coordinator;
use super::{
    CoordinatorNode, Disconnected, Event, Generation, Held, InFlight, JOINS_AT_ONCE, Kind, Member,
    MemberError, MemberRequest, NO_ANSWER, Phase, RequestBody, RequestId, ResponseBody, RevocationId,
};
use crate::client::error_actions::{Action, Operation, action};
use crate::group::codes;
use crate::time::Instant;

impl Member {
    /// Does what can be done now. Called after everything that happened.
    pub(super) fn advance(&mut self, now: Instant) {
        if self.phase == Phase::Closed {
            return;
        }
        if self.leaving {
            self.advance_leaving(now);
        }
        // Who leaves needs the coordinator as long as the last work may be committed still.
        let idle = self.subscription.is_empty() || self.poll_expired;
        let waits = self.retry_at.is_some_and(|at| at > now);
        if self.phase == Phase::Closed || waits || if self.leaving { self.held.is_none() } else { idle } {
            return;
        }
        self.retry_at = None;
        if self.coordinator.is_none() {
            if self.finding.is_none() {
                self.find_coordinator(now);
            }
            return;
        }
        let wants_to_join = match self.phase {
            Phase::Unjoined => true,
            Phase::Stable => self.rejoin,
            _ => false,
        };
        if !wants_to_join || self.held.is_some() || self.leaving {
            return;
        }
        if self.joins >= JOINS_AT_ONCE && !self.waited {
            return self.retry_later(now);
        }
        if !self.prepared {
            self.prepared = true;
            self.give_up_before_join(now);
        }
        if self.held.is_none() {
            self.send_join(now);
        }
    }

    /// An eager member gives up everything before it joins; a cooperative one what it no longer wants.
    fn give_up_before_join(&mut self, now: Instant) {
        let cooperative = self.config.is_cooperative();
        let unwanted = |of: &TopicPartition| !cooperative || !self.subscription.contains(&of.topic);
        let partitions: alloc::vec::Vec<_> = self.owned.iter().filter(|of| unwanted(of)).cloned().collect();
        if !partitions.is_empty() {
            self.revoke(now, partitions);
        }
    }

    /// Asks the owner to give up partitions, and holds the revocation open.
    pub(super) fn revoke(&mut self, now: Instant, partitions: alloc::vec::Vec<TopicPartition>) {
        for of in &partitions {
            self.owned.remove(of);
        }
        self.revoking.extend(partitions.iter().cloned());
        self.last_id += 1;
        let (id, deadline) = (RevocationId(self.last_id), self.revocation_deadline(now));
        self.held = Some(Held { id, deadline });
        self.events.push_back(Event::Revoked { id, partitions, deadline });
    }

    /// The window from now, but early enough for the Join to arrive before a rebalance that began when we last
    /// knew of none is over.
    fn revocation_deadline(&self, now: Instant) -> Instant {
        let margin = self.config.rebalance_timeout.saturating_sub(self.config.revocation_window());
        let latest = Instant::from_start(self.evicted_at.since_start().saturating_sub(margin));
        (now + self.config.revocation_window()).min(latest).max(now)
    }

    fn advance_leaving(&mut self, now: Instant) {
        if self.held.is_some() || matches!(self.phase, Phase::Leaving(_)) {
            return;
        }
        if !self.owned.is_empty() {
            let partitions = self.owned.iter().cloned().collect();
            self.revoke(now, partitions);
        } else if self.can_send_leave() {
            let id = self.send_leave(now);
            self.phase = Phase::Leaving(id);
        } else {
            self.left();
        }
    }

    pub(super) fn left(&mut self) {
        self.close();
        self.events.push_back(Event::Left);
    }

    fn close(&mut self) {
        self.lose_partitions();
        self.forget_membership();
        self.generation = Generation::NONE;
        self.phase = Phase::Closed;
        self.leaving = false;
        self.retry_at = None;
        self.subscription.clear();
    }

    /// The member can not go on.
    pub(super) fn fail(&mut self, error: MemberError) {
        self.close();
        self.events.push_back(Event::Failed(error));
    }

    /// The membership is over as far as the coordinator is concerned, or may be.
    pub(super) fn lose(&mut self, member_id_too: bool) {
        self.lose_partitions();
        self.forget_membership();
        self.generation.id = Generation::NONE.id;
        if member_id_too {
            self.generation.member_id = Generation::NONE.member_id;
        }
    }

    fn forget_membership(&mut self) {
        self.phase = Phase::Unjoined;
        self.heartbeat = None;
        self.leading = None;
        self.assignor = None;
        self.rejoin = false;
        self.prepared = false;
    }

    pub(super) fn lose_partitions(&mut self) {
        self.held = None;
        let mut partitions = core::mem::take(&mut self.owned);
        partitions.append(&mut self.revoking);
        if !partitions.is_empty() {
            self.events.push_back(Event::Lost { partitions: partitions.into_iter().collect() });
        }
    }

    /// Looks for the coordinator again, after a wait.
    pub(super) fn forget_coordinator(&mut self, now: Instant) {
        if self.coordinator.take().is_some() {
            self.retry_later(now);
        }
    }

    pub(super) fn retry_later(&mut self, now: Instant) {
        let factor = 1 << self.attempts.min(16);
        let wait = self.config.retry_backoff.saturating_mul(factor).min(self.config.retry_backoff_max);
        self.attempts += 1;
        self.waited = true;
        self.retry_at = Some(now + self.seeded.jittered(wait));
    }

    /// When the session ends for want of an answer. While a Join or Sync waits at the coordinator it counts
    /// the member as alive.
    pub(super) fn session_due(&self) -> Option<Instant> {
        let counts = match self.phase {
            Phase::Unjoined | Phase::Assigning(..) | Phase::Stable => self.generation.id >= 0,
            _ => false,
        };
        counts.then_some(self.session_end.min(self.evicted_at))
    }

    /// The next tick, while there is something that a pause of the process would make doubtful.
    pub(super) fn tick_due(&self) -> Option<Instant> {
        let doubtful = match self.phase {
            Phase::Joining(_) => !self.owned.is_empty(),
            Phase::Syncing(_) => true,
            _ => false,
        };
        doubtful.then_some(self.tick_at)
    }

    /// Notices that the process stood still while a Join or Sync waited. The answer may be old then, and the
    /// coordinator may have given the partitions away since. An old Join answer is found out by the Sync that
    /// follows, and brings back what is still ours; an old Sync answer must not be believed at all.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.tick_due().is_some_and(|at| now > at + self.config.session_timeout / 3) {
            match self.phase {
                Phase::Syncing(_) => self.lose(false),
                _ => self.lose_partitions(),
            }
        }
        self.tick_at = self.tick_at.max(now + self.config.heartbeat_interval);
    }

    /// When the next heartbeat goes out. None goes out behind a Join or Sync: it would wait for their answers.
    pub(super) fn heartbeat_due(&self) -> Option<Instant> {
        let beats = matches!(self.phase, Phase::Stable | Phase::Assigning(..)) && self.generation.id >= 0;
        (beats && self.heartbeat.is_none() && self.coordinator.is_some()).then_some(self.heartbeat_at)
    }

    pub(super) fn can_send_leave(&self) -> bool {
        let dynamic = self.config.instance_id.is_none();
        dynamic && !self.generation.member_id.is_empty() && self.coordinator.is_some()
    }

    pub(super) fn send_leave(&mut self, now: Instant) -> RequestId {
        let member_id = self.generation.member_id.clone();
        let group = self.config.group_id.clone();
        self.send(now, Kind::Leave, RequestBody::Leave(group, member_id))
    }

    pub(super) fn send_heartbeat(&mut self, now: Instant) {
        let request = HeartbeatRequest {
            group_id: self.config.group_id.clone(),
            generation_id: self.generation.id,
            member_id: self.generation.member_id.clone(),
            group_instance_id: self.config.instance_id.clone(),
        };
        self.heartbeat_at = now + self.config.heartbeat_interval;
        self.heartbeat = Some(self.send(now, Kind::Heartbeat, RequestBody::Heartbeat(request)));
    }

    fn find_coordinator(&mut self, now: Instant) {
        let group = self.config.group_id.clone();
        self.finding = Some(self.send(now, Kind::FindCoordinator, RequestBody::FindCoordinator(group)));
    }

    pub(super) fn send(&mut self, now: Instant, kind: Kind, body: RequestBody) -> RequestId {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let timeout = match kind {
            // These wait at the coordinator for the slowest member.
            Kind::Join | Kind::Sync => {
                let slowest = self.config.rebalance_timeout + core::time::Duration::from_secs(5);
                self.config.request_timeout.max(slowest)
            }
            // An answer that comes after the session is over is of no use.
            Kind::Heartbeat => self.config.request_timeout.min(self.config.session_timeout),
            _ => self.config.request_timeout,
        };
        self.tick_at = now + self.config.heartbeat_interval;
        let waiting = self.in_flight.values().any(|other| matches!(other.kind, Kind::Join | Kind::Sync));
        self.in_flight.insert(id, InFlight { kind, sent: now, generation: self.generation.clone() });
        self.requests.push_back(MemberRequest {
            id,
            to: if kind == Kind::FindCoordinator { None } else { self.coordinator.clone() },
            timeout,
            overtakes: kind == Kind::Leave && waiting,
            body,
        });
        id
    }

    pub(super) fn on_find(&mut self, now: Instant, response: Result<ResponseBody, Disconnected>) {
        let response = match response {
            Ok(ResponseBody::FindCoordinator(response)) => response,
            Ok(_) => return self.broken(Kind::FindCoordinator, "another message"),
            Err(Disconnected) => FindCoordinatorResponse { error_code: NO_ANSWER, ..Default::default() },
        };
        let found = found_coordinator(&self.config.group_id, response);
        let (code, node_id, host, port) = (found.error_code, found.node_id, found.host, found.port);
        if code == codes::NONE {
            // A node or a port that is none: another broker, or the same one later, may know better.
            let (0.., Ok(port)) = (node_id, u16::try_from(port)) else { return self.retry_later(now) };
            self.coordinator = Some(CoordinatorNode { node_id, host, port });
            // A member shows at once that it is alive.
            self.heartbeat_at = self.heartbeat_at.min(now);
            if self.heartbeat_due().is_some() {
                self.send_heartbeat(now);
            }
            return;
        }
        match action(Operation::FindCoordinator, ErrorCode::from(code)) {
            Action::Fatal => self.fail(MemberError::Refused { request: Kind::FindCoordinator.name(), code }),
            _ => self.retry_later(now),
        }
    }

    pub(super) fn broken(&mut self, kind: Kind, detail: &'static str) {
        self.fail(MemberError::BrokenPeer { request: kind.name(), detail });
    }

    /// Counts only while the membership it was sent in is the present one and no rebalance is under way.
    pub(super) fn on_heartbeat(
        &mut self,
        now: Instant,
        request: &InFlight,
        response: Result<ResponseBody, Disconnected>,
    ) {
        if request.generation != self.generation
            || !matches!(self.phase, Phase::Stable | Phase::Assigning(..))
        {
            return;
        }
        let code = match response {
            Ok(ResponseBody::Heartbeat(response)) => response.error_code,
            Ok(_) => return self.broken(Kind::Heartbeat, "another message"),
            Err(Disconnected) => NO_ANSWER,
        };
        if code == codes::NONE {
            self.known_alive(request.sent);
            self.evicted_at = self.evicted_at.max(request.sent + self.config.rebalance_timeout);
            return;
        }
        match action(Operation::Heartbeat, ErrorCode::from(code)) {
            Action::Rejoin => {
                self.known_alive(request.sent);
                if self.phase == Phase::Stable {
                    self.rejoin = true;
                    let latest = self.revocation_deadline(now);
                    if let Some(held) = &mut self.held {
                        // The others wait for us from now on.
                        held.deadline = held.deadline.min(latest);
                    }
                }
            }
            Action::Retry => {}
            Action::FindCoordinator => self.forget_coordinator(now),
            Action::LoseGeneration => self.lose(false),
            Action::LoseMember => self.lose(true),
            _ => self.fail(MemberError::Refused { request: Kind::Heartbeat.name(), code }),
        }
    }

    /// The coordinator counts the member as alive since it got what was sent at `sent`.
    fn known_alive(&mut self, sent: Instant) {
        self.attempts = 0;
        self.joins = 0;
        self.session_end = self.session_end.max(sent + self.config.session_timeout);
    }
}
