//! The member against a coordinator that answers what the test says, on virtual time.

use core::time::Duration;
use std::vec::Vec;

use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::{
    FindCoordinatorResponse, HeartbeatResponse, JoinGroupResponse, SyncGroupResponse,
};

use super::*;
use crate::client::error_actions::walk;
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
