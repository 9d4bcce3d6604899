//! Single stories.

use super::*;

fn config() -> RunConfig {
    RunConfig {
        commit: CommitPolicy::OnRevoke,
        stop: StopPolicy::Drain,
        stop_timeout: Duration::from_secs(30),
        has_group: true,
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
    let chunk = Chunk { records: vec![], first_offset: 0, next_offset: 1, leader_epoch: None, bytes: 0 };
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
    let chunk =
        Chunk { records: vec![At(818)], first_offset: 818, next_offset: 819, leader_epoch: None, bytes: 0 };
    world.run.handle_batch(world.now, &info, chunk);
    world.settle();
    assert_eq!(world.finish().stale_batches, 1);
}
