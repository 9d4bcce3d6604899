//! What gets into a request, and what a failure leads to.

use super::*;

const LANE: LaneNumber = LaneNumber(1);
const OTHER: LaneNumber = LaneNumber(2);

fn at(millis: u64) -> Instant {
    Instant::from_start(Duration::from_millis(millis))
}

fn committer() -> Committer {
    let mut committer = Committer::default();
    for (lane, partition) in [(LANE, 0), (OTHER, 1)] {
        committer.open(lane, LaneId { topic_partition: TopicPartition::new("t", partition), generation: 1 });
    }
    committer
}

fn reach(committer: &mut Committer, lane: LaneNumber, offset: i64) {
    committer.progress(lane, Frontier { offset, leader_epoch: None }.into());
}

fn offsets(request: &CommitRequest) -> Vec<i64> {
    request.offsets.iter().map(|(_, progress)| progress.frontier.offset).collect()
}

fn failure(kind: CommitFailureKind) -> Result<(), CommitFailure> {
    Err(CommitFailure { kind, partitions: Vec::new() })
}

#[test]
fn t124_without_progress_there_is_no_request() {
    let mut committer = committer();
    committer.want_all_managed();
    assert_eq!(committer.poll_request(at(0)), None);
}

#[test]
fn t125_an_unchanged_frontier_is_not_committed_again_but_a_failed_one_is() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_all_managed();
    let request = committer.poll_request(at(0)).unwrap();
    assert_eq!(offsets(&request), [5]);
    committer.handle_result(at(1), request.id, failure(CommitFailureKind::Retriable));
    assert_eq!(committer.poll_request(at(50)), None, "backoff");
    let again = committer.poll_request(at(101)).unwrap();
    assert_eq!(offsets(&again), [5]);
    committer.handle_result(at(102), again.id, Ok(()));
    committer.want_all_managed();
    assert_eq!(committer.poll_request(at(10_000)), None);
}

#[test]
fn t130_one_request_carries_every_lane() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    reach(&mut committer, OTHER, 7);
    committer.want_all_managed();
    assert_eq!(offsets(&committer.poll_request(at(0)).unwrap()), [5, 7]);
}

#[test]
fn wants_that_come_during_a_request_make_the_next_one() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_for(LANE, CommitToken(1));
    let first = committer.poll_request(at(0)).unwrap();
    reach(&mut committer, LANE, 6);
    committer.want_for(LANE, CommitToken(2));
    committer.want_for(LANE, CommitToken(3));
    assert_eq!(committer.poll_request(at(0)), None);
    committer.handle_result(at(1), first.id, Ok(()));
    assert_eq!(committer.poll_answer(), Some((CommitToken(1), Ok(()))));
    let second = committer.poll_request(at(1)).unwrap();
    assert_eq!(offsets(&second), [6]);
    committer.handle_result(at(2), second.id, Ok(()));
    assert_eq!(committer.poll_answer(), Some((CommitToken(2), Ok(()))));
    assert_eq!(committer.poll_answer(), Some((CommitToken(3), Ok(()))));
}

#[test]
fn t127_the_partitions_that_did_not_fail_are_committed() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    reach(&mut committer, OTHER, 7);
    committer.want_all_managed();
    let request = committer.poll_request(at(0)).unwrap();
    let failure =
        CommitFailure { kind: CommitFailureKind::Fenced, partitions: [TopicPartition::new("t", 0)].into() };
    assert!(!committer.handle_result(at(1), request.id, Err(failure)));
    assert!(committer.is_settled(LANE) && committer.is_settled(OTHER));
    assert_eq!(committer.uncommitted(OTHER), None);
    assert_eq!(committer.uncommitted(LANE).unwrap().offset, 5);
}

#[test]
fn t135_a_closed_lane_gets_into_no_request_and_its_callers_hear_of_it() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_for(LANE, CommitToken(1));
    committer.close(LANE);
    assert_eq!(committer.poll_request(at(0)), None);
    assert_eq!(committer.poll_answer(), Some((CommitToken(1), Err(CommitRefusal::LaneClosed))));
}

#[test]
fn a_failing_commit_of_a_closed_lane_is_not_tried_again() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_all_managed();
    let request = committer.poll_request(at(0)).unwrap();
    committer.close(LANE);
    committer.handle_result(at(1), request.id, failure(CommitFailureKind::Retriable));
    assert_eq!(committer.poll_request(at(10_000)), None);
}

#[test]
fn b023_a_caller_hears_of_a_failure_after_five_attempts_and_the_policy_goes_on() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_for(LANE, CommitToken(1));
    committer.want_managed(LANE);
    let mut now = 0;
    for attempt in 1..=7 {
        let request = committer.poll_request(at(now)).unwrap();
        committer.handle_result(at(now), request.id, failure(CommitFailureKind::Retriable));
        assert_eq!(committer.failures_in_a_row(), attempt);
        now += 1000;
        let answer = committer.poll_answer();
        assert_eq!(answer.is_some(), attempt == USER_ATTEMPTS, "attempt {attempt}: {answer:?}");
    }
    let request = committer.poll_request(at(now)).unwrap();
    committer.handle_result(at(now), request.id, Ok(()));
    assert_eq!(committer.failures_in_a_row(), 0);
}

#[test]
fn only_refused_authority_is_fatal() {
    for (kind, fatal) in [
        (CommitFailureKind::Retriable, false),
        (CommitFailureKind::Fenced, false),
        (CommitFailureKind::Unauthorised, true),
    ] {
        let mut committer = committer();
        reach(&mut committer, LANE, 5);
        committer.want_all_managed();
        let request = committer.poll_request(at(0)).unwrap();
        assert_eq!(committer.handle_result(at(0), request.id, failure(kind)), fatal);
    }
}

#[test]
fn progress_that_is_told_late_takes_nothing_back() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    reach(&mut committer, LANE, 3);
    committer.want_managed(LANE);
    assert_eq!(offsets(&committer.poll_request(at(0)).unwrap()), [5]);
}

#[test]
fn while_a_request_is_under_way_no_backoff_is_waited_for() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_managed(LANE);
    let request = committer.poll_request(at(0)).unwrap();
    assert_eq!(committer.next_timeout(), None);
    committer.handle_result(at(0), request.id, failure(CommitFailureKind::Retriable));
    assert_eq!(committer.next_timeout(), Some(at(100)));
    committer.poll_request(at(100)).unwrap();
    assert_eq!(committer.next_timeout(), None);
}

#[test]
fn the_wait_between_attempts_doubles_up_to_a_second() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_managed(LANE);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let request = committer.poll_request(now).unwrap();
        committer.handle_result(now, request.id, failure(CommitFailureKind::Retriable));
        let due = committer.next_timeout().unwrap();
        waits.push((due - now).as_millis());
        now = due;
    }
    assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
}

#[test]
fn a_result_that_is_told_twice_does_not_answer_the_next_request() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_managed(LANE);
    let first = committer.poll_request(at(0)).unwrap();
    committer.handle_result(at(0), first.id, Ok(()));
    reach(&mut committer, LANE, 6);
    committer.want_managed(LANE);
    committer.poll_request(at(0)).unwrap();
    assert!(!committer.handle_result(at(0), first.id, failure(CommitFailureKind::Unauthorised)));
    assert!(!committer.is_settled(LANE), "the second is still under way");
}

#[test]
fn a_lane_without_news_wants_nothing() {
    let mut committer = committer();
    committer.want_managed(LANE);
    assert!(committer.is_settled(LANE));
}

const NEXT: LaneNumber = LaneNumber(3);

#[test]
fn a_successor_takes_over_what_was_reached_what_is_asked_and_what_is_under_way() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    reach(&mut committer, OTHER, 7);
    committer.want_for(LANE, CommitToken(1));
    committer.want_managed(OTHER);
    let request = committer.poll_request(at(0)).unwrap();
    reach(&mut committer, LANE, 6);
    committer.want_for(LANE, CommitToken(2));
    committer.carry_over(LANE, NEXT);
    assert!(committer.is_settled(LANE) && !committer.is_settled(NEXT) && !committer.is_settled(OTHER));
    committer.handle_result(at(0), request.id, Ok(()));
    assert_eq!(committer.poll_answer(), Some((CommitToken(1), Ok(()))));
    assert_eq!(committer.uncommitted(OTHER), None);
    let second = committer.poll_request(at(0)).unwrap();
    assert_eq!(offsets(&second), [6], "the first one counted for the successor, as no more than it was");
    committer.handle_result(at(0), second.id, Ok(()));
    assert_eq!(committer.poll_answer(), Some((CommitToken(2), Ok(()))));
    assert!(committer.is_settled(NEXT));
}

#[test]
fn what_the_policy_wants_of_a_lane_is_still_wanted_of_its_successor() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_managed(LANE);
    committer.carry_over(LANE, NEXT);
    let request = committer.poll_request(at(0)).unwrap();
    committer.handle_result(at(0), request.id, failure(CommitFailureKind::Retriable));
    assert_eq!(offsets(&committer.poll_request(at(100)).unwrap()), [5], "no caller waits, and yet");
}

/// Offset 10, and `done` above it.
fn reach_above(committer: &mut Committer, done: core::ops::Range<i64>) {
    let frontier = Frontier { offset: 10, leader_epoch: None };
    committer.progress(LANE, Progress { frontier, done: [done].into(), newest_epoch: None });
}

#[test]
fn more_above_the_same_frontier_is_worth_a_commit_once() {
    let mut committer = committer();
    for until in [12, 14] {
        reach_above(&mut committer, 11..until);
        committer.want_all_managed();
        let request = committer.poll_request(at(0)).unwrap();
        assert_eq!(request.offsets[0].1.done.iter().cloned().flatten().last(), Some(until - 1));
        committer.handle_result(at(0), request.id, Ok(()));
        assert_eq!(committer.uncommitted(LANE), None);
        reach_above(&mut committer, 11..until + 1);
        assert_eq!(committer.uncommitted(LANE), None, "the frontier itself is committed");
        reach_above(&mut committer, 11..until);
        committer.want_all_managed();
        assert_eq!(committer.poll_request(at(0)), None, "nothing new");
    }
}

#[test]
fn b017_a_text_that_is_refused_as_too_long_is_left_out_from_then_on() {
    let mut committer = committer();
    reach_above(&mut committer, 11..14);
    committer.want_for(LANE, CommitToken(1));
    let request = committer.poll_request(at(0)).unwrap();
    committer.handle_result(at(0), request.id, failure(CommitFailureKind::MetadataTooLarge));
    let again = committer.poll_request(at(0)).expect("at once");
    assert_eq!((offsets(&again), again.offsets[0].1.done.len()), ([10].into(), 0));
    committer.handle_result(at(0), again.id, Ok(()));
    assert_eq!(committer.poll_answer(), Some((CommitToken(1), Ok(()))));
    reach_above(&mut committer, 11..20);
    committer.want_all_managed();
    assert_eq!(committer.poll_request(at(0)), None);
}

#[test]
fn a_text_that_is_too_large_although_none_was_sent_is_a_failure() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    for _ in 0..2 {
        committer.want_for(LANE, CommitToken(1));
        let request = committer.poll_request(at(0)).unwrap();
        committer.handle_result(at(0), request.id, failure(CommitFailureKind::MetadataTooLarge));
    }
    assert_eq!(committer.poll_answer(), Some((CommitToken(1), Err(CommitRefusal::Failed))));
}

#[test]
fn giving_up_answers_every_caller_and_forgets_every_lane() {
    let mut committer = committer();
    reach(&mut committer, LANE, 5);
    committer.want_for(LANE, CommitToken(1));
    committer.poll_request(at(0)).unwrap();
    reach(&mut committer, LANE, 6);
    committer.want_for(LANE, CommitToken(2));
    committer.abandon();
    for token in [CommitToken(2), CommitToken(1)] {
        assert_eq!(committer.poll_answer(), Some((token, Err(CommitRefusal::LaneClosed))));
    }
    assert!(committer.is_settled(LANE) && !committer.is_dirty(LANE));
}
