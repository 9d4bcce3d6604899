//! The member of a group, and its commits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tramline_core::client::consumer_commits::{CommitOffset, CommitQueue, CommitResult};
use tramline_core::client::retry::Backoff;
use tramline_core::group::Seeded;
use tramline_core::group::assignor::Assignor;
use tramline_core::group::member::{
    Disconnected, Event, Member, MemberConfig, MemberRequest, MemberState, RequestBody, ResponseBody,
    RevocationId,
};
use tramline_core::group::protocol::encode_assignment;
use tramline_core::time::Instant;
use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::messages::{
    FindCoordinatorResponse, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupResponse,
    SyncGroupResponse,
};
use tramline_wire::{Str, TopicPartition};

use super::{Choices, later};

/// Joins that may go out without a pause or an accepted heartbeat between them, and a little more.
const JOINS_AT_ONCE: u32 = 8;

struct Stand {
    member: Member,
    now: Instant,
    pending: Vec<MemberRequest>,
    /// What is ours by the events.
    owned: BTreeSet<TopicPartition>,
    /// What is being given up, by revocation.
    held: BTreeMap<u64, Vec<TopicPartition>>,
    commits: CommitQueue,
    committing: Option<Vec<TopicPartition>>,
    joins: u32,
    assigned: bool,
    failed: bool,
}

pub(super) fn check(mut choices: Choices<'_>) -> bool {
    let mut config = MemberConfig::new("g");
    let settings = choices.byte();
    config.assignors = match settings % 3 {
        0 => vec![Assignor::CooperativeSticky],
        1 => vec![Assignor::Range],
        _ => vec![Assignor::RoundRobin, Assignor::Range],
    };
    config.instance_id = (settings & 0x80 != 0).then(|| "i".into());
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let mut stand = Stand {
        member: Member::new(config, Seeded::new([7; 16])),
        now: Instant::ZERO,
        pending: Vec::new(),
        owned: BTreeSet::new(),
        held: BTreeMap::new(),
        commits: CommitQueue::new(Duration::from_secs(60), backoff),
        committing: None,
        joins: 0,
        assigned: false,
        failed: false,
    };
    stand.member.subscribe(stand.now, ["t".into()]);
    while !choices.is_over() {
        stand.step(&mut choices);
    }
    stand.recover();
    stand.assigned
}

impl Stand {
    fn step(&mut self, choices: &mut Choices<'_>) {
        self.ask();
        match choices.byte() % 8 {
            0..3 if !self.pending.is_empty() => {
                let at = choices.below(self.pending.len());
                self.answer(at, choices);
            }
            3 if !self.pending.is_empty() => {
                let request = self.pending.remove(choices.below(self.pending.len()));
                self.member.handle_response(self.now, request.id, Err(Disconnected));
            }
            4 => self.tick(choices.wait()),
            5 => {
                let counts = [("t".into(), choices.small(3).clamp(0, 8)), ("u".into(), 2)];
                self.member.handle_metadata(self.now, &BTreeMap::from(counts));
            }
            6 => self.by_the_owner(choices),
            _ => self.commit(choices),
        }
        self.events();
    }

    /// Takes what the member wants to send: never more than one of a kind, nor Joins without end.
    fn ask(&mut self) {
        for round in 0.. {
            let Some(request) = self.member.poll_request() else { break };
            assert!(round < 8, "it never has enough");
            if matches!(request.body, RequestBody::Join(_)) {
                self.joins += 1;
                assert!(self.joins <= JOINS_AT_ONCE, "round in circles without a pause");
            }
            self.pending.push(request);
        }
    }

    fn tick(&mut self, wait: Duration) {
        let before = self.now;
        self.now = later(self.now, self.member.next_timeout()) + wait;
        if self.now.saturating_since(before) >= Duration::from_millis(50) {
            self.joins = 0;
        }
        self.member.handle_timeout(self.now);
    }

    fn events(&mut self) {
        while let Some(event) = self.member.poll_event() {
            match event {
                Event::Assigned { added, .. } => {
                    self.assigned = true;
                    for tp in added {
                        assert!(&*tp.topic == "t" && tp.partition >= 0, "{tp} was never wanted");
                        assert!(self.owned.insert(tp), "it is ours already");
                    }
                }
                Event::Revoked { id, partitions, .. } => {
                    assert!(partitions.iter().all(|tp| self.owned.remove(tp)), "{partitions:?} is not ours");
                    self.held.insert(id.0, partitions);
                }
                Event::Lost { partitions } => {
                    // Those of a revocation that is held are lost too.
                    for tp in &partitions {
                        let held = self.held.values().flatten().any(|other| other == tp);
                        assert!(self.owned.remove(tp) || held, "{tp} is not ours");
                    }
                }
                Event::Failed(_) | Event::Left => self.failed = true,
                _ => {}
            }
        }
        assert!(
            self.owned == *self.member.assignment(),
            "{:?} and {:?}",
            self.owned,
            self.member.assignment()
        );
        let revoking = self.member.revoking();
        // Over without the owner: the deadline passed, or they were lost.
        self.held.retain(|_, held| held.iter().any(|tp| revoking.contains(tp)));
        let held: BTreeSet<_> = self.held.values().flatten().cloned().collect();
        assert!(revoking.is_subset(&held), "{revoking:?} without a word");
    }

    fn by_the_owner(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 4 {
            0 => {
                let Some((id, _)) = self.held.pop_first() else { return };
                self.member.revocation_done(self.now, RevocationId(id));
            }
            1 => self.member.handle_poll_expired(self.now),
            2 => self.member.poll_resumed(self.now),
            _ => self.member.coordinator_lost(self.now),
        }
    }

    /// Commits what is ours, or takes an answer to that.
    fn commit(&mut self, choices: &mut Choices<'_>) {
        let Some(context) = self.member.commit_context() else { return };
        if let Some(asked) = self.committing.take() {
            let mut results = BTreeMap::new();
            for tp in asked {
                let code = choices.code();
                if choices.one_in(8) {
                    continue;
                }
                let result = if code == 0 {
                    CommitResult::Done
                } else {
                    self.member.commit_failed(self.now, &context, code);
                    CommitResult::Retry("again".into())
                };
                results.insert(tp, result);
            }
            self.commits.handle_answer(&results, self.now);
        }
        let offset = CommitOffset {
            offset: choices.number(5),
            leader_epoch: None,
            metadata: Str::default(),
            generation: None,
        };
        self.commits.push(self.owned.iter().map(|tp| (tp.clone(), offset.clone())).collect(), self.now);
        let sent = self.commits.poll_send(self.now, |tp, _| self.owned.contains(tp));
        self.committing = sent.map(|rows| rows.into_iter().map(|(tp, _)| tp).collect());
        while self.commits.poll_done().is_some() {}
    }

    fn answer(&mut self, at: usize, choices: &mut Choices<'_>) {
        let request = self.pending.remove(at);
        let body = match &request.body {
            RequestBody::FindCoordinator(group) => {
                let row = Coordinator {
                    key: if choices.one_in(16) { "h".into() } else { group.clone() },
                    node_id: choices.small(1),
                    host: "h".into(),
                    port: choices.small(9092),
                    error_code: choices.code(),
                    ..Default::default()
                };
                let mut coordinators = vec![row];
                choices.disorder(&mut coordinators);
                ResponseBody::FindCoordinator(FindCoordinatorResponse { coordinators, ..Default::default() })
            }
            RequestBody::Join(join) => ResponseBody::Join(joined(join, choices)),
            RequestBody::Sync(_) => {
                let partition = choices.small(0);
                let mut partitions = vec![TopicPartition { topic: choices.topic(), partition }];
                choices.disorder(&mut partitions);
                let mut assignment = encode_assignment(&partitions).expect("a small assignment");
                if choices.one_in(32) {
                    assignment.truncate(choices.below(assignment.len()));
                }
                let error_code = choices.code();
                ResponseBody::Sync(SyncGroupResponse { error_code, assignment, ..Default::default() })
            }
            RequestBody::Heartbeat(_) => {
                let error_code = choices.code();
                if error_code == 0 || error_code == 27 {
                    self.joins = 0;
                }
                ResponseBody::Heartbeat(HeartbeatResponse { error_code, ..Default::default() })
            }
            RequestBody::Leave(..) => ResponseBody::Leave(LeaveGroupResponse::default()),
        };
        // An answer of another kind, now and then.
        let body = if choices.one_in(64) { ResponseBody::Leave(LeaveGroupResponse::default()) } else { body };
        self.member.handle_response(self.now, request.id, Ok(body));
    }

    /// From here on the coordinator is honest: the member, unless it was refused for good, gets its partition.
    fn recover(&mut self) {
        self.member.poll_resumed(self.now);
        let mut honest = Choices(&[]);
        for _ in 0..2_000 {
            let is_home = self.owned.iter().eq([&TopicPartition::new("t", 0)]);
            if self.failed || (self.member.state() == MemberState::Stable && is_home) {
                return;
            }
            self.ask();
            while let Some(request) = self.pending.first() {
                if matches!(request.body, RequestBody::Heartbeat(_)) {
                    // Whatever it was told it owns, a rebalance puts it right.
                    let rebalance = HeartbeatResponse { error_code: 27, ..Default::default() };
                    self.joins = 0;
                    let id = self.pending.remove(0).id;
                    self.member.handle_response(self.now, id, Ok(ResponseBody::Heartbeat(rebalance)));
                } else {
                    self.answer(0, &mut honest);
                }
                self.events();
                self.ask();
            }
            while let Some((id, _)) = self.held.pop_first() {
                self.member.revocation_done(self.now, RevocationId(id));
            }
            let counts = BTreeMap::from([("t".into(), 3), ("u".into(), 2)]);
            self.member.handle_metadata(self.now, &counts);
            self.tick(Duration::ZERO);
            self.events();
        }
        panic!("it does not come home: {:?}", self.member);
    }
}

fn joined(join: &JoinGroupRequest, choices: &mut Choices<'_>) -> JoinGroupResponse {
    let member_id = match choices.byte() {
        0xff => Str::default(),
        0xfe => "other".into(),
        _ => Str::from_static("m"),
    };
    let leads = choices.one_in(4);
    let mut members = Vec::new();
    if leads {
        for name in ["m", "n"] {
            let mut metadata = join.protocols[0].metadata.clone();
            if choices.one_in(8) {
                metadata = Bytes::from_static(b"\0\x01\0\0\0\x02\0\x01u\0\0\xff\xff\xff\xff\0\0\0\0");
            }
            if choices.one_in(16) {
                metadata.truncate(choices.below(metadata.len() + 1));
            }
            members.push(JoinGroupResponseMember { member_id: name.into(), metadata, ..Default::default() });
        }
        choices.disorder(&mut members);
    }
    let protocol = &join.protocols[choices.below(join.protocols.len())];
    JoinGroupResponse {
        throttle_time_ms: choices.small(0),
        error_code: choices.code(),
        generation_id: choices.small(7),
        protocol_name: (!choices.one_in(64)).then(|| protocol.name.clone()),
        leader: if leads { member_id.clone() } else { "another".into() },
        skip_assignment: choices.one_in(32),
        member_id,
        members,
        ..Default::default()
    }
}
