//! Single stories.

use super::*;

pub(super) fn config() -> RunConfig {
    RunConfig {
        commit: CommitPolicy::OnRevoke,
        stop: StopPolicy::Drain,
        stop_timeout: Duration::from_secs(30),
        has_group: true,
        on_failure: OnFailure::StopRun,
        await_capacity: false,
        jitter: 1,
    }
}

#[test]
fn a_lane_starts_only_after_its_lost_predecessor_has_ended_and_gets_what_was_parked() {
    let mut world = World::new(config());
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    let old = world.live()[0];
    world.pull(old);
    world.lose(&tp);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 3, 0);
    assert_eq!(world.live(), [old], "the old processor has not ended");
    assert!(world.owned[&tp].2, "paused while its batch waits");
    world.end_lane(old, LaneOutcome::Finished);
    let new = world.live()[0];
    assert_ne!(new, old);
    assert!(!world.owned[&tp].2);
    assert!(!world.pull(new));
    world.complete(new, 0);
    world.finish();
    assert_eq!(world.committed[&tp], 3);
}

#[test]
fn t175_a_drain_longer_than_the_group_allows_is_cut_and_nothing_is_committed_afterwards() {
    let mut world = World::new(config());
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    let lane = world.live()[0];
    world.pull(lane);
    world.revoke(std::slice::from_ref(&tp), Some(Duration::from_secs(8)));
    world.advance(Duration::from_secs(5));
    assert!(!world.lanes[&lane].aborted);
    world.advance(Duration::from_secs(1));
    assert!(world.lanes[&lane].aborted, "two seconds are kept for the last commit");
    world.advance(Duration::from_secs(2));
    assert!(world.held.is_empty());
    assert_eq!(world.requests, 0);
    assert_eq!(world.end.as_ref().unwrap().cause, EndCause::StopTimeout);
    assert_eq!(world.end.as_ref().unwrap().still_running, [lane]);
}

#[test]
fn t172_a_lost_lane_is_not_committed_even_when_it_was_being_revoked() {
    let mut world = World::new(config());
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    let lane = world.live()[0];
    world.pull(lane);
    world.complete(lane, 0);
    world.revoke(std::slice::from_ref(&tp), None);
    world.lose(&tp);
    assert!(world.held.is_empty(), "nothing is left to hold it for");
    world.end_lane(lane, LaneOutcome::Finished);
    assert_eq!(world.requests, 0);
}

#[test]
fn a_batch_that_nobody_announced_ends_the_run() {
    let mut world = World::new(config());
    let info = BatchInfo { topic_partition: partition(0), generation: 3, first_offset: 0 };
    let chunk =
        Chunk { records: vec![], first_offset: 0, next_offset: 1, leader_epoch: None, pinned: vec![] };
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    assert_eq!(world.end.as_ref().unwrap().cause, EndCause::SourceBroken);
}

#[test]
fn b041_a_late_batch_of_a_gone_assignment_is_dropped() {
    let mut world = World::new(config());
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.lose(&tp);
    world.end_lane(world.live()[0], LaneOutcome::Finished);
    let info = BatchInfo { topic_partition: tp, generation: 1, first_offset: 818 };
    let chunk = Chunk {
        records: vec![At(818)],
        first_offset: 818,
        next_offset: 819,
        leader_epoch: None,
        pinned: vec![],
    };
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    assert_eq!(world.finish().stale_batches, 1);
}

fn batch_of(tp: &TopicPartition, generation: i32, offset: i64) -> (BatchInfo, Chunk<At>) {
    let chunk = Chunk {
        records: vec![At(offset)],
        first_offset: offset,
        next_offset: offset + 1,
        leader_epoch: None,
        pinned: vec![],
    };
    (BatchInfo { topic_partition: tp.clone(), generation, first_offset: offset }, chunk)
}

fn one_done() -> (World, TopicPartition, LaneNumber) {
    one_done_with(config())
}

/// One partition, assigned, with two records of which the first is completed.
pub(super) fn one_done_with(config: RunConfig) -> (World, TopicPartition, LaneNumber) {
    let mut world = World::new(config);
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 2, 0);
    let lane = world.live()[0];
    world.pull(lane);
    world.complete(lane, 0);
    (world, tp, lane)
}

#[test]
fn an_assignment_that_is_told_twice_changes_nothing() {
    let (mut world, tp, lane) = one_done();
    world.run.handle_assigned(world.now, 1, vec![tp.clone()]);
    world.settle();
    assert_eq!(world.live(), [lane]);
    world.batch(&tp, 2, 0);
    world.finish();
    assert_eq!((world.lanes.len(), world.committed[&tp]), (1, 4), "one lane, to the end");
}

#[test]
fn a_partition_assigned_anew_without_a_word_about_the_old_assignment_is_lost_before() {
    let (mut world, tp, old) = one_done();
    world.owned.insert(tp.clone(), (2, 0, false));
    world.run.handle_assigned(world.now, 2, vec![tp]);
    world.settle();
    assert_eq!(world.live(), [old], "the new lane waits for the old processor");
    assert_eq!(world.lanes[&old].lane.stop_reason(), Some(StopReason::Lost));
    world.end_lane(old, LaneOutcome::Finished);
    assert_eq!(world.live().len(), 1);
    assert_ne!(world.live(), [old]);
    world.finish();
    assert_eq!(world.requests, 0, "what the old lane did is covered by no ownership");
}

#[test]
fn b041_a_batch_of_the_assignment_before_does_not_get_into_the_lane_of_this_one() {
    let (mut world, tp, old) = one_done();
    world.lose(&tp);
    world.end_lane(old, LaneOutcome::Finished);
    world.assign(std::slice::from_ref(&tp));
    let (info, chunk) = batch_of(&tp, 1, 818);
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    let new = world.live()[0];
    assert_eq!(world.lanes[&new].lane.queued(), 0);
    assert_eq!(world.finish().stale_batches, 1);
}

#[test]
fn a_batch_that_comes_after_the_wish_to_stop_is_read_again_next_time() {
    let (mut world, tp, _) = one_done();
    world.run.handle_shutdown(world.now);
    world.settle();
    let (info, chunk) = batch_of(&tp, 1, 2);
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    world.finish();
    assert_eq!(world.seeks, [(tp, 2)]);
}

#[test]
fn what_a_lane_refused_and_what_it_left_are_read_again_from_the_lower_of_the_two() {
    let (mut world, tp, lane) = one_done();
    world.run.handle_lane_refused(lane, 2);
    world.end_lane(lane, LaneOutcome::Failed);
    world.answer_commit(None);
    assert_eq!(world.end.as_ref().unwrap().cause, EndCause::LaneFailed(lane));
    assert_eq!(world.seeks, [(tp.clone(), 1)]);

    let (mut world, tp, lane) = one_done();
    world.pull(lane);
    world.complete(lane, 0);
    world.run.handle_lane_refused(lane, 2);
    world.finish();
    assert_eq!(world.seeks, [(tp, 2)], "refused, and nothing else left");
}

#[test]
fn t222_news_of_an_old_lane_do_not_touch_its_successor() {
    let (mut world, tp, old) = one_done();
    world.lose(&tp);
    world.assign(std::slice::from_ref(&tp));
    world.run.handle_lane_full(old);
    world.run.handle_bytes_over(old);
    world.run.handle_lane_refused(old, 0);
    world.settle();
    assert!(!world.owned[&tp].2, "the new assignment is not paused for the old lane");
    world.end_lane(old, LaneOutcome::Finished);
    world.end_lane(old, LaneOutcome::Failed);
    world.run.handle_lane_ended(
        world.now,
        old,
        LaneEnd { outcome: LaneOutcome::Failed, progress: None, rewind_to: Some(0) },
    );
    world.settle();
    assert!(world.end.is_none(), "an end that is told twice counts once");
    world.finish();
    assert_eq!(world.seeks, []);
}

#[test]
fn t148_a_lost_lane_and_an_ended_one_commit_nothing_more_and_are_told() {
    let (mut world, tp, lane) = one_done();
    world.lose(&tp);
    world.ask_commit(lane);
    assert_eq!(world.answers, [Err(CommitRefusal::LaneClosed)]);

    let (mut world, tp, lane) = one_done();
    world.revoke(std::slice::from_ref(&tp), None);
    world.pull(lane);
    world.complete(lane, 0);
    world.end_lane(lane, LaneOutcome::Finished);
    assert!(world.in_flight.is_some() && !world.held.is_empty(), "the last commit is under way");
    world.ask_commit(lane);
    assert_eq!(world.answers, [Err(CommitRefusal::LaneClosed)]);
    world.answer_commit(None);
    assert!(world.held.is_empty());
}

#[test]
fn an_older_generation_that_is_told_late_makes_no_newer_one_unannounced() {
    let mut world = World::new(config());
    let (one, two) = (partition(0), partition(1));
    world.owned.insert(one.clone(), (5, 0, false));
    world.owned.insert(two.clone(), (3, 0, false));
    world.run.handle_assigned(world.now, 5, vec![one.clone()]);
    world.run.handle_assigned(world.now, 3, vec![two]);
    world.settle();
    world.lose(&one);
    let (info, chunk) = batch_of(&one, 5, 0);
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    let end = world.finish();
    assert_eq!((end.cause, end.stale_batches), (EndCause::Shutdown, 1));
}

#[test]
fn a_stopping_run_asks_for_no_more_records_although_there_is_room() {
    let (mut world, tp, lane) = one_done();
    world.batch(&tp, 4, 0);
    assert!(world.owned[&tp].2, "full");
    world.run.handle_shutdown(world.now);
    world.settle();
    for _ in 0..4 {
        world.pull(lane);
        world.complete(lane, 0);
    }
    assert!(world.owned[&tp].2, "still paused while it drains");
    world.finish();
    assert!(!world.owned[&tp].2, "resumed at the end");
}

#[test]
fn a_lane_that_fails_after_it_was_lost_is_told_and_ends_nothing() {
    let (mut world, tp, lane) = one_done();
    world.lose(&tp);
    world.end_lane(lane, LaneOutcome::Failed);
    world.assign(&[tp, partition(1)]);
    assert_eq!(world.live().len(), 2);
    let end = world.finish();
    assert_eq!((end.cause, end.also), (EndCause::Shutdown, vec![EndCause::LaneFailed(lane)]));

    let (mut world, tp, lane) = one_done();
    world.revoke(&[tp], None);
    world.end_lane(lane, LaneOutcome::Failed);
    world.answer_commit(None);
    assert_eq!(world.end.as_ref().unwrap().cause, EndCause::LaneFailed(lane), "ours until it is released");
}

#[test]
fn a_revocation_during_a_shutdown_brings_the_deadline_forward_and_never_back() {
    let (mut world, tp, lane) = one_done();
    world.pull(lane);
    world.run.handle_shutdown(world.now);
    world.settle();
    world.revoke(std::slice::from_ref(&tp), Some(Duration::from_secs(8)));
    world.advance(Duration::from_secs(6));
    assert!(world.lanes[&lane].aborted, "in time for its last commit");

    let (mut world, tp, lane) = one_done();
    world.pull(lane);
    world.run.handle_shutdown(world.now);
    world.settle();
    world.advance(Duration::from_secs(20));
    world.revoke(&[tp], Some(Duration::from_secs(60)));
    world.advance(Duration::from_secs(10));
    assert!(world.lanes[&lane].aborted, "the shutdown's own deadline still holds");
}

#[test]
fn a_second_revocation_of_a_partition_takes_the_place_of_the_first() {
    let (mut world, tp, lane) = one_done();
    world.pull(lane);
    world.revoke(std::slice::from_ref(&tp), None);
    let second = RevocationId(2);
    world.held.values_mut().for_each(|held| held.0.clear());
    world.held.insert(second, (vec![(tp.clone(), 1)], None));
    world.run.handle_revoked(world.now, second, &[tp], None);
    world.settle();
    assert_eq!(world.held.keys().collect::<Vec<_>>(), [&second], "the first has nothing left to hold");
    world.complete(lane, 0);
    world.end_lane(lane, LaneOutcome::Finished);
    world.answer_commit(None);
    assert!(world.held.is_empty());
}

#[test]
fn t211_t219_a_stopped_partition_is_committed_paused_and_starts_fresh_with_the_next_assignment() {
    let mut world = World::new(RunConfig { on_failure: OnFailure::StopPartition, ..config() });
    let (tp, other) = (partition(0), partition(1));
    world.assign(&[tp.clone(), other.clone()]);
    world.batch(&tp, 4, 0);
    let failing = world.live()[0];
    world.pull(failing);
    world.pull(failing);
    world.complete(failing, 0);
    world.end_lane(failing, LaneOutcome::Failed);
    world.answer_commit(None);
    assert_eq!(world.committed[&tp], 1, "committed as soon as it failed");
    assert!(world.owned[&tp].2 && !world.owned[&other].2);
    assert_eq!(world.live().len(), 1);
    world.revoke(std::slice::from_ref(&tp), None);
    assert!(world.held.is_empty(), "nothing to wait for");
    world.assign(std::slice::from_ref(&tp));
    assert!(!world.owned[&tp].2);
    assert_eq!(world.live().len(), 2);
    world.finish();
    assert!(world.end.unwrap().cause == EndCause::Shutdown);
}

#[test]
fn t212_t215_t217_a_failed_lane_restarts_at_its_frontier_after_a_wait_that_grows_until_it_moves() {
    let backoff = Backoff::default().without_jitter();
    let mut world = World::new(RunConfig { on_failure: OnFailure::RestartLane(backoff), ..config() });
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 4, 0);
    let mut waits = Vec::new();
    for round in 0..4 {
        let lane = world.live()[0];
        world.pull(lane);
        if round == 3 {
            world.complete(lane, 0);
            world.pull(lane);
        }
        world.end_lane(lane, LaneOutcome::Failed);
        assert!(world.owned[&tp].2, "paused while it waits");
        let due = world.run.next_timeout().unwrap();
        waits.push((due - world.now).as_millis());
        world.advance(due - world.now);
        assert!(!world.owned[&tp].2);
        world.batch(&tp, 4, 0);
    }
    assert_eq!(waits, [100, 200, 400, 100]);
    assert_eq!(world.seeks, [(tp.clone(), 0), (tp.clone(), 0), (tp.clone(), 0), (tp.clone(), 1)]);
    assert_eq!(world.finish().cause, EndCause::Shutdown);
    assert_eq!(world.committed[&tp], 5, "nothing was lost");
}

#[test]
fn t222_the_failure_of_a_lane_that_lost_its_partition_does_not_touch_its_successor() {
    let backoff = Backoff::default();
    let mut world = World::new(RunConfig { on_failure: OnFailure::RestartLane(backoff), ..config() });
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    let old = world.live()[0];
    world.lose(&tp);
    world.assign(std::slice::from_ref(&tp));
    world.end_lane(old, LaneOutcome::Failed);
    assert_eq!(world.live().len(), 1);
    assert!(!world.owned[&tp].2 && world.seeks.is_empty());
    world.finish();
}

#[test]
fn t047_a_lane_that_fails_while_work_of_it_runs_takes_nothing_more_and_has_the_stop_timeout() {
    let mut world = World::new(RunConfig { on_failure: OnFailure::StopPartition, ..config() });
    let tp = partition(0);
    world.assign(std::slice::from_ref(&tp));
    world.batch(&tp, 4, 0);
    let lane = world.live()[0];
    world.pull(lane);
    world.run.handle_lane_failing(world.now, lane);
    world.settle();
    assert!(world.pull(lane), "hands out nothing more");
    world.advance(Duration::from_secs(31));
    assert!(world.lanes[&lane].aborted);
    assert_eq!(world.finish().cause, EndCause::StopTimeout);
}

#[test]
fn a_blocked_partition_is_left_alone_and_tried_again_ever_more_rarely() {
    let mut world = World::new(config());
    let tps = [partition(0), partition(1)];
    world.assign(&tps);
    let mut waits = Vec::new();
    for _ in 0..8 {
        world.run.handle_fetch_blocked(world.now, &tps[0]);
        world.settle();
        assert!(world.owned[&tps[0]].2 && !world.owned[&tps[1]].2, "paused alone");
        let due = world.run.next_timeout().unwrap();
        waits.push((due - world.now).as_secs_f64());
        world.advance(due - world.now);
        assert!(!world.owned[&tps[0]].2, "tried again");
    }
    let most = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0];
    assert!(waits.iter().zip(most).all(|(wait, most)| (most / 2.0..=most).contains(wait)), "{waits:?}");
    world.batch(&tps[0], 1, 0);
    world.run.handle_fetch_blocked(world.now, &tps[0]);
    assert!(
        world.run.next_timeout().unwrap() - world.now <= Duration::from_secs(1),
        "a batch ends the series"
    );
    world.settle();
    world.finish();
}

#[test]
fn awaiting_capacity_nothing_is_read_while_a_running_lane_is_full_and_nothing_is_paused() {
    let mut world = World::new(RunConfig { await_capacity: true, ..config() });
    let tps = [partition(0), partition(1)];
    world.assign(&tps);
    world.batch(&tps[0], 4, 0);
    assert!(!world.run.wants_batches() && !world.owned[&tps[0]].2);
    let lane = world.live()[0];
    for _ in 0..2 {
        world.pull(lane);
        world.complete(lane, 0);
    }
    assert!(world.run.wants_batches(), "room again");
    world.batch(&tps[0], 4, 0);
    assert!(!world.run.wants_batches());
    world.revoke(&tps[..1], None);
    assert!(world.run.wants_batches(), "a lane that stops keeps nobody waiting");
    world.finish();
}
