//! What pauses a partition, why it has no lane, and which cause a run ends with.

use super::examples::{config, one_done_with as one_done};
use super::*;

#[test]
fn a_lane_given_more_bytes_than_there_are_is_paused_until_it_holds_none_or_there_is_room() {
    let mut world = World::new(config());
    let tps = [partition(0), partition(1)];
    world.assign(&tps);
    world.batch(&tps[1], 4, 0);
    let lanes = world.live();
    let paused = |world: &World| tps.clone().map(|tp| (world.run.is_paused(&tp), world.owned[&tp].2));
    assert_eq!(paused(&world), [(false, false), (true, true)], "the second is full of records");
    world.run.handle_bytes_over(lanes[0]);
    world.settle();
    assert_eq!(paused(&world), [(true, true), (true, true)]);
    world.run.handle_lane_holds_nothing(lanes[0]);
    world.settle();
    assert_eq!(paused(&world), [(false, false), (true, true)]);
    lanes.iter().for_each(|&lane| world.run.handle_bytes_over(lane));
    world.settle();
    world.run.handle_bytes_room();
    world.settle();
    assert_eq!(paused(&world), [(false, false), (true, true)], "still full of records");
    world.run.handle_lane_room(lanes[1]);
    world.settle();
    assert_eq!(paused(&world), [(false, false), (false, false)]);
    assert!(!world.run.is_paused(&partition(7)));
}

#[test]
fn awaiting_capacity_bytes_count_as_records_do() {
    let (mut world, tp, lane) = one_done(RunConfig { await_capacity: true, ..config() });
    world.run.handle_bytes_over(lane);
    world.settle();
    assert!(!world.run.wants_batches() && !world.owned[&tp].2);
    world.run.handle_bytes_room();
    assert!(world.run.wants_batches());
    world.run.handle_shutdown(world.now);
    assert!(!world.run.wants_batches(), "whoever stops reads no more");
}

#[test]
fn a_partition_without_a_lane_says_whether_and_when_there_will_be_one() {
    let (mut world, tp, lane) = one_done(RunConfig { on_failure: OnFailure::StopPartition, ..config() });
    assert_eq!(world.run.held_back(&tp), None);
    world.end_lane(lane, LaneOutcome::Failed);
    assert_eq!(world.run.held_back(&tp), Some(HeldBack::Stopped));
    assert_eq!(world.run.held_back(&partition(7)), None);

    let backoff = Backoff::default().without_jitter();
    let (mut world, tp, _) = one_done(RunConfig { on_failure: OnFailure::RestartLane(backoff), ..config() });
    for (failures, wait) in [(1, 100), (2, 200)] {
        world.end_lane(world.live()[0], LaneOutcome::Failed);
        let at = world.now + Duration::from_millis(wait);
        assert_eq!(world.run.held_back(&tp), Some(HeldBack::Restart { at, failures }));
        assert!(world.run.is_paused(&tp));
        world.advance(Duration::from_millis(wait - 1));
        assert_eq!(world.live(), [], "not before its time");
        world.advance(Duration::from_millis(1));
        assert_eq!((world.live().len(), world.run.held_back(&tp)), (1, None));
    }
}

#[test]
fn a_stopping_run_waits_for_no_restart_and_no_blocked_partition() {
    let backoff = Backoff::default().without_jitter();
    let (mut world, tp, lane) =
        one_done(RunConfig { on_failure: OnFailure::RestartLane(backoff), ..config() });
    let other = partition(1);
    world.assign(std::slice::from_ref(&other));
    let standing = *world.live().last().unwrap();
    world.end_lane(lane, LaneOutcome::Failed);
    world.run.handle_fetch_blocked(world.now, &other);
    world.settle();
    assert!(matches!(world.run.held_back(&tp), Some(HeldBack::Restart { .. })) && !world.run.is_stopping());
    world.run.handle_shutdown(world.now);
    world.run.handle_fetch_blocked(world.now, &other);
    world.settle();
    assert_eq!((world.run.held_back(&tp), world.run.is_stopping()), (Some(HeldBack::Stopped), true));
    assert_eq!(world.run.next_timeout(), Some(world.now + config().stop_timeout));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.live(), [standing], "nothing is started any more");
    world.finish();
    assert_eq!(world.committed[&tp], 1);
}

#[test]
fn a_lane_that_fails_under_a_stopping_run_is_not_restarted_and_not_paused() {
    for on_failure in [OnFailure::StopPartition, OnFailure::RestartLane(Backoff::default())] {
        let (mut world, tp, lane) = one_done(RunConfig { on_failure, ..config() });
        world.run.handle_shutdown(world.now);
        world.settle();
        world.end_lane(lane, LaneOutcome::Failed);
        assert_eq!((world.run.held_back(&tp), world.run.is_paused(&tp)), (None, false));
        assert_eq!(world.finish().cause, EndCause::Shutdown);
        assert_eq!((&*world.seeks, world.committed[&tp]), (&[(tp.clone(), 1)][..], 1));
    }
}

#[test]
fn batches_that_waited_for_an_older_lane_when_the_run_ended_are_read_again() {
    let (mut world, tp, old) = one_done(config());
    world.lose(&tp);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    world.run.handle_shutdown(world.now);
    world.settle();
    world.end_lane(old, LaneOutcome::Finished);
    assert!(world.end.is_some());
    assert_eq!(world.seeks, [(tp, 0)]);
}

#[test]
fn the_first_failure_is_the_cause_of_the_end_and_each_later_one_is_told_once() {
    let mut world = World::new(config());
    world.assign(&[partition(0), partition(1), partition(2)]);
    let lanes = world.live();
    world.run.handle_shutdown(world.now);
    world.run.handle_source_failed(world.now);
    world.settle();
    world.end_lane(lanes[0], LaneOutcome::Broken);
    world.end_lane(lanes[1], LaneOutcome::Failed);
    world.run.handle_lane_failing(world.now, lanes[2]);
    world.settle();
    world.end_lane(lanes[2], LaneOutcome::Failed);
    let end = world.end.clone().unwrap();
    assert_eq!(end.cause, EndCause::SourceFailed, "a failure comes before the wish to stop");
    assert_eq!(end.also, [0, 1, 2].map(|lane| EndCause::LaneFailed(lanes[lane])));
}

#[test]
fn wishes_to_stop_are_no_failures() {
    let mut world = World::new(config());
    world.assign(&[partition(0)]);
    world.run.handle_source_closed(world.now);
    world.run.handle_shutdown(world.now);
    let end = world.finish();
    assert_eq!((end.cause, end.also), (EndCause::SourceClosed, Vec::new()));
}

#[test]
fn under_every_policy_a_source_that_breaks_its_contract_and_a_processor_that_returns_end_the_run() {
    for on_failure in
        [OnFailure::StopRun, OnFailure::StopPartition, OnFailure::RestartLane(Backoff::default())]
    {
        for (outcome, cause) in [
            (LaneOutcome::Broken, EndCause::LaneFailed as fn(LaneNumber) -> EndCause),
            (LaneOutcome::Finished, EndCause::LaneEndedEarly),
        ] {
            let (mut world, _, lane) = one_done(RunConfig { on_failure, ..config() });
            world.end_lane(lane, outcome);
            assert_eq!(world.finish().cause, cause(lane));
        }
    }
}

#[test]
fn a_lane_that_is_failing_stops_the_run_when_that_is_the_policy_and_its_partition_is_ours() {
    for (lost, cause) in [(false, Some(())), (true, None)] {
        let (mut world, tp, lane) = one_done(config());
        if lost {
            world.lose(&tp);
        }
        world.run.handle_lane_failing(world.now, lane);
        world.settle();
        assert_eq!(world.run.wants_batches(), cause.is_none());
        world.end_lane(lane, LaneOutcome::Failed);
        let expected = cause.map_or(EndCause::Shutdown, |()| EndCause::LaneFailed(lane));
        assert_eq!(world.finish().cause, expected);
    }
}

#[test]
fn to_cancel_drops_what_is_queued_and_to_drain_does_not() {
    for (stop, ends) in [(StopPolicy::Drain, false), (StopPolicy::Cancel, true)] {
        for revoked in [false, true] {
            let (mut world, tp, lane) = one_done(RunConfig { stop, ..config() });
            if revoked {
                world.revoke(&[tp], None);
            } else {
                world.run.handle_shutdown(world.now);
                world.settle();
            }
            assert_eq!(world.pull(lane), ends, "{stop:?}, revoked: {revoked}");
        }
    }
}

#[test]
fn batches_of_gone_assignments_are_counted() {
    let (mut world, tp, lane) = one_done(config());
    assert_eq!(world.run.stale_batches(), 0);
    world.lose(&tp);
    world.end_lane(lane, LaneOutcome::Finished);
    let info = BatchInfo { topic_partition: tp, generation: 1, first_offset: 2 };
    for stale in [1, 2] {
        let chunk =
            Chunk { records: vec![], first_offset: 2, next_offset: 3, leader_epoch: None, pinned: vec![] };
        world.run.handle_batch(world.now, &info, chunk);
        world.settle();
        assert_eq!(world.run.stale_batches(), stale);
    }
    assert!(world.run.wants_batches());
}

#[test]
fn a_batch_of_a_generation_that_is_still_to_come_ends_the_run() {
    let (mut world, tp, lane) = one_done(config());
    world.lose(&tp);
    world.end_lane(lane, LaneOutcome::Finished);
    let info = BatchInfo { topic_partition: tp, generation: 2, first_offset: 0 };
    let chunk =
        Chunk { records: vec![], first_offset: 0, next_offset: 1, leader_epoch: None, pinned: vec![] };
    world.run.handle_batch(world.now, &info, chunk);
    assert_eq!(world.finish().cause, EndCause::SourceBroken);
}

#[test]
fn the_loss_of_a_partition_leaves_the_others_as_they_are() {
    let (mut world, tp, lane) = one_done(config());
    let other = partition(1);
    world.assign(std::slice::from_ref(&other));
    world.lose(&other);
    world.end_lane(*world.live().last().unwrap(), LaneOutcome::Aborted);
    assert_eq!(world.live(), [lane]);
    assert!(!world.pull(lane), "it hands out its records");
    world.complete(lane, 0);
    world.finish();
    assert_eq!(world.committed[&tp], 2);
}

#[test]
fn a_draining_lane_that_fails_hands_out_nothing_more() {
    let (mut world, _, lane) = one_done(config());
    world.run.handle_shutdown(world.now);
    world.run.handle_lane_failing(world.now, lane);
    world.settle();
    assert!(world.pull(lane));
}

#[test]
fn a_deadline_that_is_not_due_yet_is_not_met_by_another_that_is() {
    let commit = CommitPolicy::Periodic(Duration::from_secs(1));
    let (mut world, tp, lane) = one_done(RunConfig { commit, ..config() });
    world.revoke(&[tp], None);
    world.advance(Duration::from_secs(29));
    assert!(!world.lanes[&lane].aborted);
    world.advance(Duration::from_secs(1));
    assert!(world.lanes[&lane].aborted);
}

#[test]
fn failures_of_lost_lanes_are_told_up_to_a_number_and_only_where_they_would_have_ended_the_run() {
    for (on_failure, told) in [(OnFailure::StopRun, 64), (OnFailure::StopPartition, 0)] {
        let mut world = World::new(RunConfig { on_failure, ..config() });
        let tps: Vec<_> = (0..66).map(partition).collect();
        world.assign(&tps);
        tps.iter().for_each(|tp| world.lose(tp));
        for lane in world.live() {
            world.end_lane(lane, LaneOutcome::Failed);
        }
        assert_eq!(world.finish().also.len(), told, "{on_failure:?}");
    }
}
