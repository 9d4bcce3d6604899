//! The member against a coordinator that answers what the test says, on virtual time.

use core::time::Duration;
use std::vec::Vec;

use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::messages::{
    FindCoordinatorResponse, HeartbeatResponse, JoinGroupResponse, SyncGroupResponse,
};

use super::*;
use crate::client::consumer_commits::{CommitFailure, CommitOffset, CommitQueue, CommitResult};
use crate::client::error_actions::walk;
use crate::client::retry::Backoff;
use crate::group::protocol;

/// A member, the last request it sent, and the time.
struct Stand {
    member: Member,
    now: Instant,
}

impl Stand {
    /// A member that was told to subscribe to `t`.
    fn new() -> Self {
        let mut member = Member::new(MemberConfig::new("g"), Seeded::from_number(1));
        member.subscribe(Instant::ZERO, ["t".into()]);
        Self { member, now: Instant::ZERO }
    }

    /// The next request, letting time pass until there is one.
    fn request(&mut self) -> MemberRequest {
        for _ in 0..10 {
            if let Some(request) = self.member.poll_request() {
                return request;
            }
            self.now = self.member.next_timeout().expect("it wants something").max(self.now);
            self.member.handle_timeout(self.now);
        }
        panic!("no request came");
    }

    fn answer(&mut self, id: RequestId, body: ResponseBody) {
        self.member.handle_response(self.now, id, Ok(body));
    }

    fn found(&mut self) {
        let id = self.request().id;
        let node = Coordinator { node_id: 1, host: "h".into(), port: 9092, ..Default::default() };
        let response = FindCoordinatorResponse { coordinators: [node].into(), ..Default::default() };
        self.answer(id, ResponseBody::FindCoordinator(response));
    }

    fn joined(&mut self, generation: i32) {
        let id = self.request().id;
        let response = JoinGroupResponse {
            generation_id: generation,
            protocol_name: Some("cooperative-sticky".into()),
            leader: "other".into(),
            member_id: "m1".into(),
            ..Default::default()
        };
        self.answer(id, ResponseBody::Join(response));
    }

    fn synced(&mut self) {
        let id = self.request().id;
        let assignment = protocol::encode_assignment(&[TopicPartition::new("t", 0)]).unwrap();
        self.answer(id, ResponseBody::Sync(SyncGroupResponse { assignment, ..Default::default() }));
    }

    /// As [`new`](Self::new): member `m1` of generation 1, which owns `t-0`.
    fn stable() -> Self {
        let mut stand = Self::new();
        stand.found();
        stand.joined(1);
        stand.synced();
        assert_eq!(stand.member.state(), MemberState::Stable);
        stand.events();
        stand
    }

    /// As [`stable`](Self::stable), with the Join of the next rebalance to be sent.
    fn rejoining() -> Self {
        let mut stand = Self::stable();
        let id = stand.request().id;
        stand.answer(id, ResponseBody::Heartbeat(HeartbeatResponse { error_code: 27, ..Default::default() }));
        stand
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.member.poll_event()).collect()
    }

    /// What was done after `m1` of generation 1 was answered with an error just now. `code` is the one it should tell.
    fn seen(&mut self, code: ErrorCode) -> Action {
        let events = self.events();
        if let Some(Event::Failed(error)) = events.last() {
            assert!(
                matches!(error, MemberError::Refused { code: told, .. } if *told == code.code()),
                "{error}"
            );
            assert_eq!(self.member.state(), MemberState::Closed);
            assert!(self.member.poll_request().is_none() && self.member.next_timeout().is_none());
            return Action::Fatal;
        }
        let lost = matches!(&events[..], [Event::Lost { partitions }] if partitions.len() == 1);
        assert!(lost || events.is_empty(), "{events:?}");
        let answered = self.now;
        let request = self.request();
        let at_once = self.now == answered;
        match request.body {
            RequestBody::FindCoordinator(_) => {
                assert!(!lost && !at_once, "after the backoff, and nothing is lost by it");
                Action::FindCoordinator
            }
            RequestBody::Heartbeat(_) => {
                assert!(!lost && !at_once);
                Action::Retry
            }
            RequestBody::Join(join) => match (&*join.member_id, lost) {
                ("m1", false) if at_once => Action::Rejoin,
                ("m1", false) => Action::Retry,
                ("m1", true) => Action::LoseGeneration,
                ("m2", false) if at_once => Action::TakeMemberId,
                ("", true) if at_once => Action::LoseMember,
                other => panic!("a Join as {other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_code_of_a_heartbeat_does_what_the_table_says() {
    walk::check(
        &[
            (Action::Retry, &[14]),
            (Action::FindCoordinator, &[15, 16, 13]),
            (Action::Rejoin, &[27]),
            (Action::LoseGeneration, &[22, 110]),
            (Action::LoseMember, &[25]),
        ],
        Action::Fatal,
        |code| {
            let mut stand = Stand::stable();
            let id = stand.request().id;
            let response = HeartbeatResponse { error_code: code.code(), ..Default::default() };
            stand.answer(id, ResponseBody::Heartbeat(response));
            stand.seen(code)
        },
    );
}

#[test]
fn every_code_of_a_join_does_what_the_table_says() {
    walk::check(
        &[
            (Action::Retry, &[14, 27]),
            (Action::FindCoordinator, &[15, 16, 13]),
            (Action::LoseMember, &[25]),
            (Action::TakeMemberId, &[79]),
        ],
        Action::Fatal,
        |code| {
            let mut stand = Stand::rejoining();
            let id = stand.request().id;
            let response =
                JoinGroupResponse { error_code: code.code(), member_id: "m2".into(), ..Default::default() };
            stand.answer(id, ResponseBody::Join(response));
            stand.seen(code)
        },
    );
}

#[test]
fn every_code_of_a_sync_does_what_the_table_says() {
    walk::check(
        &[
            (Action::Retry, &[14]),
            (Action::FindCoordinator, &[15, 16, 13]),
            (Action::Rejoin, &[27]),
            (Action::LoseGeneration, &[22]),
            (Action::LoseMember, &[25]),
        ],
        Action::Fatal,
        |code| {
            let mut stand = Stand::rejoining();
            stand.joined(2);
            let id = stand.request().id;
            let response = SyncGroupResponse { error_code: code.code(), ..Default::default() };
            stand.answer(id, ResponseBody::Sync(response));
            stand.seen(code)
        },
    );
}

#[test]
fn every_code_of_the_search_for_a_coordinator_does_what_the_table_says() {
    walk::check(&[(Action::Fatal, &[24, 30, 31, 35])], Action::Retry, |code| {
        let mut stand = Stand::new();
        let id = stand.request().id;
        let row = Coordinator { error_code: code.code(), ..Default::default() };
        let response = FindCoordinatorResponse { coordinators: [row].into(), ..Default::default() };
        stand.answer(id, ResponseBody::FindCoordinator(response));
        match stand.seen(code) {
            // It asks the same again.
            Action::FindCoordinator => Action::Retry,
            other => other,
        }
    });
}

#[test]
fn every_code_of_a_commit_does_what_the_table_says() {
    walk::check(
        &[
            (Action::Retry, &[3, 14]),
            (Action::FindCoordinator, &[7, 13, 15, 16]),
            (Action::Rejoin, &[27]),
            (Action::LoseGeneration, &[22]),
            (Action::LoseMember, &[25]),
            (Action::Fenced, &[82]),
            (Action::Fatal, &[23, 24, 26, 81]),
        ],
        Action::Report,
        |code| {
            let mut stand = Stand::stable();
            let context = stand.member.commit_context().unwrap();
            let verdict = stand.member.commit_failed(stand.now, &context, code.code());
            match (verdict, stand.seen(code)) {
                // The member just goes on, with its next heartbeat.
                (CommitVerdict::Retry, Action::Retry) => Action::Retry,
                (CommitVerdict::Refused, Action::Retry) => Action::Report,
                (CommitVerdict::Retry, Action::FindCoordinator) => Action::FindCoordinator,
                (CommitVerdict::RetryAfterRebalance, Action::Rejoin) => Action::Rejoin,
                (CommitVerdict::Fenced, Action::Fatal) => Action::Fenced,
                (CommitVerdict::Fenced, lost) => lost,
                (CommitVerdict::Refused, Action::Fatal) => Action::Fatal,
                other => panic!("{code}: {other:?}"),
            }
        },
    );
}

#[test]
fn every_code_of_a_commit_without_a_member_is_repeated_refused_or_fenced() {
    for code in walk::every_code() {
        let expected = match code.code() {
            3 | 7 | 13 | 14 | 15 | 16 => CommitVerdict::Retry,
            27 => CommitVerdict::RetryAfterRebalance,
            22 | 25 | 82 => CommitVerdict::Fenced,
            _ => CommitVerdict::Refused,
        };
        assert_eq!(CommitVerdict::without_membership(code.code()), expected, "{code}");
    }
}

#[test]
fn no_answer_is_what_the_row_that_stands_for_it_says() {
    let no_answer = ErrorCode::NetworkException;
    let mut stand = Stand::new();
    let id = stand.request().id;
    stand.member.handle_response(stand.now, id, Err(Disconnected));
    assert_eq!(stand.seen(no_answer), Action::FindCoordinator, "it asks another node");
    let joins = [Stand::rejoining(), Stand::stable()].map(|mut stand| {
        let id = stand.request().id;
        stand.member.handle_response(stand.now, id, Err(Disconnected));
        stand.seen(no_answer)
    });
    assert_eq!(joins, [Action::FindCoordinator; 2], "a Join, a heartbeat");
    let mut stand = Stand::rejoining();
    stand.joined(2);
    let id = stand.request().id;
    stand.member.handle_response(stand.now, id, Err(Disconnected));
    assert_eq!(stand.seen(no_answer), Action::FindCoordinator, "a Sync");
}

#[test]
fn a_member_that_is_unknown_again_at_its_next_join_waits_before_the_third() {
    let mut stand = Stand::rejoining();
    for waits in [false, true] {
        let id = stand.request().id;
        let before = stand.now;
        stand.answer(id, ResponseBody::Join(JoinGroupResponse { error_code: 25, ..Default::default() }));
        let next = stand.member.next_timeout().filter(|_| stand.member.requests.is_empty());
        assert_eq!(next.is_some_and(|at| at > before + Duration::from_millis(50)), waits);
    }
}

fn offset(of: i64) -> CommitOffset {
    CommitOffset { offset: of, leader_epoch: None, metadata: Str::new(), generation: None }
}

#[test]
fn b065_a_commit_during_a_rebalance_keeps_the_member_and_is_made_again_for_what_is_still_owned() {
    let mut stand = Stand::stable();
    let partitions = [TopicPartition::new("t", 0), TopicPartition::new("t", 1)];
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let mut queue = CommitQueue::new(Duration::from_secs(60), backoff);
    let commit = queue.push(partitions.iter().map(|of| (of.clone(), offset(5))).collect(), stand.now);
    queue.poll_send(stand.now, |_, _| true).unwrap();
    let context = stand.member.commit_context().unwrap();
    let verdict = stand.member.commit_failed(stand.now, &context, 27);
    assert_eq!(verdict, CommitVerdict::RetryAfterRebalance);
    let again = CommitResult::Retry("a rebalance".into());
    queue.handle_answer(&partitions.iter().map(|of| (of.clone(), again.clone())).collect(), stand.now);
    let join = stand.request();
    let RequestBody::Join(request) = &join.body else { panic!("{join:?}") };
    assert_eq!(request.member_id, "m1", "the member id is kept");
    stand.member.requests.push_front(join);
    stand.joined(2);
    stand.synced();
    assert_eq!(stand.member.commit_context().map(|context| context.generation), Some(2));
    let owned = |of: &TopicPartition, _| stand.member.assignment().contains(of);
    let sent = queue.poll_send(stand.now + Duration::from_secs(2), owned).unwrap();
    assert_eq!(sent, [(partitions[0].clone(), offset(5))], "the other one is not owned any more");
    queue.handle_answer(&[(partitions[0].clone(), CommitResult::Done)].into(), stand.now);
    let failed = [(partitions[1].clone(), CommitFailure::NotOwned)].into();
    assert_eq!(queue.poll_done(), Some((commit, failed)));
}

#[test]
fn b068_a_heartbeat_of_the_generation_before_that_fails_late_changes_nothing() {
    for late in [Err(Disconnected), Ok(25), Ok(22), Ok(82)] {
        let mut stand = Stand::stable();
        let old = stand.request().id;
        let context = stand.member.commit_context().unwrap();
        stand.member.commit_failed(stand.now, &context, 27);
        stand.joined(2);
        stand.synced();
        stand.events();
        let late = late.map(|error_code| {
            ResponseBody::Heartbeat(HeartbeatResponse { error_code, ..Default::default() })
        });
        stand.member.handle_response(stand.now, old, late);
        assert_eq!(stand.events(), []);
        assert!(stand.member.coordinator().is_some() && stand.member.poll_request().is_none());
        assert_eq!((stand.member.state(), stand.member.generation()), (MemberState::Stable, 2));
    }
}

/// A leader of a group in which another member says what this is.
fn assigned_beside(metadata: bytes::Bytes) -> (Stand, Vec<(Str, Vec<TopicPartition>)>) {
    let mut stand = Stand::new();
    stand.found();
    let join = stand.request();
    let RequestBody::Join(request) = &join.body else { panic!("{join:?}") };
    let member = |member_id: &str, metadata| JoinGroupResponseMember {
        member_id: member_id.into(),
        metadata,
        ..Default::default()
    };
    let response = JoinGroupResponse {
        generation_id: 1,
        protocol_name: Some("cooperative-sticky".into()),
        leader: "m1".into(),
        member_id: "m1".into(),
        members: [member("m1", request.protocols[0].metadata.clone()), member("m2", metadata)].into(),
        ..Default::default()
    };
    stand.answer(join.id, ResponseBody::Join(response));
    stand.member.handle_metadata(stand.now, &[("t".into(), 2)].into());
    let sync = stand.request();
    let RequestBody::Sync(request) = sync.body else { panic!("{sync:?}") };
    let decoded = |row: &tramline_wire::messages::sync_group_request::SyncGroupRequestAssignment| {
        (row.member_id.clone(), protocol::decode_assignment(&row.assignment).unwrap())
    };
    (stand, request.assignments.iter().map(decoded).collect())
}

#[test]
fn b070_a_member_whose_words_cannot_be_read_gets_nothing_and_stops_nobody() {
    for metadata in [&b""[..], &[0, 9, 255, 255, 255, 255], &[0; 3], &[0xff; 40]] {
        let (_, assignments) = assigned_beside(bytes::Bytes::from_static(metadata));
        let partitions = [0, 1].map(|partition| TopicPartition::new("t", partition)).to_vec();
        assert_eq!(assignments, [("m1".into(), partitions), ("m2".into(), Vec::new())]);
    }
}

#[test]
fn b076_a_rebalance_waits_for_the_rebalance_timeout_and_a_revocation_is_held_no_longer() {
    let mut config = MemberConfig::new("g");
    config.rebalance_timeout = Duration::from_secs(10);
    config.session_timeout = Duration::from_secs(6);
    config.assignors = [Assignor::Range].into();
    let mut member = Member::new(config, Seeded::from_number(1));
    member.subscribe(Instant::ZERO, ["t".into()]);
    let mut stand = Stand { member, now: Instant::ZERO };
    stand.found();
    let join = stand.request();
    let RequestBody::Join(request) = &join.body else { panic!("{join:?}") };
    assert_eq!(request.rebalance_timeout_ms, 10_000);
    let response = JoinGroupResponse {
        generation_id: 1,
        protocol_name: Some("range".into()),
        leader: "other".into(),
        member_id: "m1".into(),
        ..Default::default()
    };
    stand.answer(join.id, ResponseBody::Join(response));
    stand.synced();
    stand.events();
    let id = stand.request().id;
    let began = stand.now;
    stand.answer(id, ResponseBody::Heartbeat(HeartbeatResponse { error_code: 27, ..Default::default() }));
    let events = stand.events();
    let [Event::Revoked { deadline, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(*deadline > began && *deadline < began + Duration::from_secs(10), "{deadline:?}");
}

#[test]
fn b199_an_assignment_cut_short_ends_the_member_and_never_means_fewer_partitions() {
    let whole = protocol::encode_assignment(&[0, 1, 2].map(|of| TopicPartition::new("t", of))).unwrap();
    for length in 1..whole.len() {
        let mut stand = Stand::new();
        stand.found();
        stand.joined(1);
        let id = stand.request().id;
        let assignment = whole.slice(..length);
        stand.answer(id, ResponseBody::Sync(SyncGroupResponse { assignment, ..Default::default() }));
        if let Ok(read) = protocol::decode_assignment(&whole.slice(..length)) {
            assert_eq!(read.len(), 3, "only what comes after the partitions may be missing");
            continue;
        }
        let events = stand.events();
        assert!(
            matches!(&events[..], [Event::Failed(MemberError::BrokenPeer { .. })]),
            "{length}: {events:?}"
        );
        assert!(stand.member.assignment().is_empty());
    }
}
