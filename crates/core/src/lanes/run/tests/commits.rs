//! When a run commits by itself, and what it tells of commits that did not work.

use super::examples::{config, one_done_with as one_done};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn told(end: &RunEnd) -> Vec<(TopicPartition, i64)> {
    end.uncommitted.iter().map(|(tp, frontier)| (tp.clone(), frontier.offset)).collect()
}

#[test]
fn with_commits_left_to_the_user_only_a_lanes_own_are_sent_and_nothing_is_told_as_uncommitted() {
    let (mut world, tp, lane) = one_done(RunConfig { commit: CommitPolicy::UserManaged, ..config() });
    world.ask_commit(lane);
    world.answer_commit(None);
    assert_eq!((world.requests, &*world.answers), (1, &[Ok(())][..]));
    world.pull(lane);
    world.complete(lane, 0);
    world.revoke(std::slice::from_ref(&tp), None);
    world.end_lane(lane, LaneOutcome::Finished);
    assert!(world.held.is_empty(), "nothing to wait for");
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    let end = world.finish();
    assert_eq!((world.requests, world.committed[&tp], told(&end)), (1, 1, Vec::new()));
}

#[test]
fn without_a_group_nothing_is_committed_and_a_lane_that_asks_is_told_so() {
    let policy = CommitPolicy::Periodic(SECOND);
    let (mut world, tp, lane) = one_done(RunConfig { has_group: false, commit: policy, ..config() });
    assert_eq!(world.run.next_timeout(), None);
    world.ask_commit(lane);
    assert_eq!(world.answers, [Err(CommitRefusal::NoGroup)]);
    world.pull(lane);
    world.complete(lane, 0);
    world.revoke(std::slice::from_ref(&tp), None);
    world.end_lane(lane, LaneOutcome::Finished);
    assert!(world.held.is_empty());
    world.assign(std::slice::from_ref(&tp));
    let end = world.finish();
    assert_eq!((world.requests, told(&end)), (0, Vec::new()));
}

#[test]
fn t123_progress_is_committed_every_interval_when_there_is_any_and_no_more_by_the_clock_once_stopping() {
    let policy = CommitPolicy::Periodic(5 * SECOND);
    let (mut world, tp, lane) = one_done(RunConfig { commit: policy, ..config() });
    assert_eq!(world.run.next_timeout(), Some(Instant::ZERO + 5 * SECOND));
    world.advance(4 * SECOND);
    assert_eq!(world.requests, 0);
    world.advance(SECOND);
    world.answer_commit(None);
    assert_eq!((world.requests, world.committed[&tp]), (1, 1));
    assert_eq!(world.run.next_timeout(), Some(Instant::ZERO + 10 * SECOND));
    world.advance(5 * SECOND);
    assert_eq!(world.requests, 1, "nothing new");
    world.run.handle_shutdown(world.now);
    world.settle();
    assert_eq!(world.run.next_timeout(), Some(world.now + config().stop_timeout));
    world.pull(lane);
    world.complete(lane, 0);
    world.finish();
    assert_eq!((world.requests, world.committed[&tp]), (2, 2));
}

#[test]
fn a_lane_without_anything_new_is_answered_at_once() {
    let (mut world, _, lane) = one_done(config());
    for requests in [1, 1] {
        world.ask_commit(lane);
        world.answer_commit(None);
        assert_eq!(world.requests, requests);
    }
    assert_eq!(world.answers, [Ok(()), Ok(())]);
}

#[test]
fn progress_that_was_refused_is_told_at_the_end_and_nothing_more_is_tried() {
    let (mut world, tp, lane) = one_done(config());
    world.pull(lane);
    world.complete(lane, 0);
    world.revoke(std::slice::from_ref(&tp), None);
    world.end_lane(lane, LaneOutcome::Finished);
    assert_eq!(world.run.commit_failures_in_a_row(), 0);
    world.answer_commit(Some(CommitFailureKind::Fenced));
    assert!(world.held.is_empty(), "released all the same");
    assert_eq!(world.run.commit_failures_in_a_row(), 1);
    let end = world.finish();
    assert_eq!((end.cause, world.requests, told(&end)), (EndCause::Shutdown, 1, vec![(tp, 2)]));
}

#[test]
fn a_client_that_may_not_commit_ends_its_run_and_is_told_what_stays_uncommitted() {
    let (mut world, tp, lane) = one_done(config());
    let other = partition(1);
    world.assign(std::slice::from_ref(&other));
    world.ask_commit(lane);
    world.answer_commit(Some(CommitFailureKind::Unauthorised));
    assert_eq!(world.answers, [Err(CommitRefusal::Unauthorised)]);
    world.revoke(std::slice::from_ref(&other), None);
    let end = world.finish();
    assert_eq!((end.cause, world.requests, told(&end)), (EndCause::CommitRefused, 1, vec![(tp, 2)]));
}

#[test]
fn the_last_commit_has_what_is_left_of_the_stop_timeout_and_a_second_at_least() {
    for (after, at_most) in [(Duration::ZERO, 30 * SECOND), (29 * SECOND + SECOND / 2, SECOND)] {
        let (mut world, tp, lane) = one_done(config());
        world.pull(lane);
        world.complete(lane, 0);
        world.run.handle_shutdown(world.now);
        world.settle();
        world.advance(after);
        world.ask_commit(lane);
        world.end_lane(lane, LaneOutcome::Finished);
        assert_eq!(world.run.next_timeout(), Some(world.now + at_most));
        world.advance(at_most - Duration::from_millis(1));
        assert!(world.end.is_none() && world.answers.is_empty());
        world.advance(Duration::from_millis(1));
        let end = world.end.clone().unwrap();
        assert_eq!((end.cause, told(&end)), (EndCause::Shutdown, vec![(tp, 2)]));
        assert_eq!(world.answers, [Err(CommitRefusal::LaneClosed)]);
        assert_eq!(world.run.next_timeout(), None);
    }
}

#[test]
fn what_was_not_committed_when_a_revocation_had_to_be_released_is_told() {
    let (mut world, tp, lane) = one_done(config());
    world.pull(lane);
    world.complete(lane, 0);
    world.revoke(std::slice::from_ref(&tp), Some(4 * SECOND));
    world.end_lane(lane, LaneOutcome::Finished);
    assert!(world.in_flight.is_some());
    world.advance(4 * SECOND - Duration::from_millis(1));
    assert!(!world.held.is_empty());
    world.advance(Duration::from_millis(1));
    assert!(world.held.is_empty());
    world.in_flight = None;
    assert_eq!(told(&world.finish()), [(tp, 2)]);
}

#[test]
fn a_lane_that_is_revoked_stops_early_enough_for_its_last_commit() {
    for (within, stops) in [(4, 3), (8, 6), (20, 18), (300, 30)] {
        let (mut world, tp, _) = one_done(config());
        world.revoke(&[tp], Some(Duration::from_secs(within)));
        assert_eq!(world.run.next_timeout(), Some(world.now + Duration::from_secs(stops)), "{within} s");
    }
}

#[test]
fn a_stopped_partition_is_committed_by_the_policy_only_where_there_is_one_and_a_group() {
    for (commit, has_group, requests) in [
        (CommitPolicy::OnRevoke, true, 1),
        (CommitPolicy::UserManaged, true, 0),
        (CommitPolicy::OnRevoke, false, 0),
    ] {
        let on_failure = OnFailure::StopPartition;
        let (mut world, ..) = one_done(RunConfig { commit, has_group, on_failure, ..config() });
        let lane = world.live()[0];
        world.end_lane(lane, LaneOutcome::Failed);
        assert_eq!(world.requests, requests, "{commit:?}, group: {has_group}");
    }
}

#[test]
fn the_lanes_of_one_revocation_are_committed_together_once_the_last_has_ended() {
    let mut world = World::new(config());
    let tps = [partition(0), partition(1)];
    world.assign(&tps);
    let lanes = world.live();
    for (tp, &lane) in tps.iter().zip(&lanes) {
        world.batch(tp, 1, 0);
        world.pull(lane);
        world.complete(lane, 0);
    }
    world.revoke(&tps, None);
    world.end_lane(lanes[0], LaneOutcome::Finished);
    assert_eq!(world.requests, 0);
    world.end_lane(lanes[1], LaneOutcome::Finished);
    world.answer_commit(None);
    assert_eq!((world.requests, tps.map(|tp| world.committed[&tp])), (1, [1, 1]));
    assert!(world.held.is_empty());
    assert_eq!(told(&world.finish()), []);
}
