//! Single stories on virtual time.

use super::*;

const DONE: Script = |_, _| (0, Outcome::Done);
/// Three leases and a bit.
const LONG: Script = |_, _| (3 * LEASE + 500, Outcome::Done);

#[test]
fn a_handler_that_takes_three_leases_keeps_its_task_by_renewing() {
    let mut world = World::new(LONG);
    world.tasks(1);
    let a = world.join(0, |_| {});
    let b = world.join(0, |_| {});
    world.run(4 * LEASE);
    let (a, b) = (world.members[a].machine.stats(), world.members[b].machine.stats());
    assert_eq!(a.started + b.started, 1, "nobody else got it");
    assert_eq!((a.done + b.done, a.lost + b.lost, a.late + b.late), (1, 0, 0));
    assert!(a.renewed + b.renewed >= 8, "{} renewals", a.renewed + b.renewed);
}

#[test]
fn with_renewal_blocked_the_task_is_lost_and_given_to_another() {
    let mut world = World::new(LONG);
    world.tasks(1);
    let a = world.join(0, |_| {});
    world.run(100);
    world.members[a].renewals_blocked = true;
    let b = world.join(0, |_| {});
    world.run(LEASE + 100);
    assert_eq!(world.members[a].stopped.len(), 1, "its handler was stopped when its lease ended");
    assert_eq!(world.members[a].stopped[0].1, Lost::Expired);
    world.members[a].stalled_until = u64::MAX;
    world.run(4 * LEASE);
    assert_eq!(world.members[b].machine.stats().done, 1);
    assert_eq!(world.broker.done, [0]);
}

/// B181: a worker that stood still past its lease reports done all the same; the log knows better.
#[test]
fn b181_a_late_done_is_recorded_as_late_and_changes_nothing() {
    let mut world = World::new(LONG);
    world.tasks(1);
    let a = world.join(0, |_| {});
    world.run(100);
    let held = world.members[a].running[0].0.clone();
    world.members[a].stalled_until = u64::MAX;
    let b = world.join(0, |_| {});
    world.run(LEASE + 500);
    assert_eq!(world.members[b].running.len(), 1, "taken over");
    let before = world.broker.judge.clone();
    let late = ClaimRecord {
        task: held.task,
        worker: world.members[a].name.as_str().into(),
        kind: Kind::Done { token: held.token },
    };
    assert_eq!(world.broker.append(world.now, &late.encode()), Verdict::Late);
    assert_eq!(world.broker.judge.open(0), before.open(0), "the lease of the holder is untouched");
    assert_eq!(world.broker.judge.counts().late, before.counts().late + 1);
    world.members[a].stalled_until = 0;
    world.run(4 * LEASE);
    assert_eq!(world.members[a].machine.stats().lost, 1, "it learns that it lost the task");
    assert_eq!((world.broker.done.len(), world.members[b].machine.stats().done), (1, 1));
}

/// N15: the claim is not read back in time and wins later.
#[test]
fn n15_a_claim_that_wins_after_it_was_given_up_is_released_at_once() {
    let mut world = World::new(DONE);
    world.tasks(1);
    let a = world.join(0, |config| config.settle_timeout = ms(200));
    world.now += 10;
    world.step(a, 500);
    // It tries nothing else meanwhile, so that the late claim is the first one in the log.
    world.members[a].machine.set_taking(0, false);
    world.run(300);
    assert_eq!(world.members[a].machine.stats().settle_timeouts, 1);
    world.run(300);
    assert_eq!(world.broker.judge.counts().granted, 1, "it won late");
    assert_eq!(world.members[a].machine.stats().released, 1);
    assert_eq!(
        world.broker.judge.state(world.broker.judge.log_time()).ready,
        1,
        "free, with its lease hardly begun"
    );
    world.members[a].machine.set_taking(0, true);
    world.run(100);
    assert_eq!(world.broker.done, [0]);
    assert_eq!(world.broker.judge.counts().lapsed, 0);
}

/// N14: clocks of workers that are off by an hour neither steal nor block.
#[test]
fn n14_workers_whose_clocks_are_an_hour_off_neither_steal_nor_starve() {
    const HOUR: i64 = 3_600_000;
    let mut world = World::new(|_, _| (LEASE / 2, Outcome::Done));
    world.tasks(20);
    for skew in [-HOUR, 0, HOUR] {
        world.join(skew, |config| config.concurrency = 2);
    }
    world.run(20 * LEASE);
    assert_eq!(world.broker.done.len(), 20);
    let counts = world.broker.judge.counts();
    assert_eq!((counts.granted, counts.lapsed, counts.late), (20, 0, 0));
    for member in &world.members {
        assert!(member.machine.stats().done > 0, "{} got nothing", member.name);
    }
    // Not a hot loop of claims that the log refuses, either.
    assert!(counts.refused < 60, "{} refused", counts.refused);
}

#[test]
fn a_clock_that_is_ahead_does_not_ask_for_a_delayed_task_again_and_again() {
    let mut world = World::new(DONE);
    let due = world.broker.skew + 10_000;
    world.broker.publish(TaskMeta { not_before: due, ..TaskMeta::plain(0) });
    world.join(3_600_000, |_| {});
    world.run(9000);
    assert!(world.broker.judge.counts().refused <= 2, "{:?}", world.broker.judge.counts());
    world.run(1500);
    assert_eq!(world.broker.done, [0]);
}

/// B178: there is a ceiling, and a restart of the worker does not lift it.
#[test]
fn b178_a_task_that_always_fails_is_dead_after_its_attempts_also_across_restarts() {
    let mut world = World::new(|_, _| (10, Outcome::Retry { after: Some(ms(50)), cause: "no".into() }));
    world.broker.publish(TaskMeta { max_attempts: 3, ..TaskMeta::plain(0) });
    for _ in 0..6 {
        world.join(0, |_| {});
        world.run(400);
        world.members.clear();
    }
    world.join(0, |_| {});
    world.run(3 * LEASE);
    let counts = world.broker.judge.counts();
    assert_eq!((counts.buried, world.broker.judge.dead().count()), (1, 1));
    assert_eq!(world.broker.grants.len() as u64, counts.granted);
    assert!(counts.granted <= 4, "three attempts and at most one burial: {counts:?}");
}

#[test]
fn a_worker_that_stops_gives_back_what_it_did_not_begin_and_what_it_is_told_to() {
    let mut world = World::new(LONG);
    world.tasks(2);
    let a = world.join(0, |config| config.concurrency = 2);
    world.run(100);
    world.members[a].machine.stop();
    let ids: Vec<u64> = world.members[a].running.iter().map(|(held, ..)| held.id).collect();
    assert_eq!(ids.len(), 2);
    ids.into_iter().for_each(|id| world.members[a].machine.give_up(id));
    world.run(100);
    assert_eq!(world.members[a].machine.in_hand(), 0);
    assert_eq!(
        world.broker.judge.state(world.broker.judge.log_time()).ready,
        2,
        "free without waiting for the lease"
    );
}

/// N16: what is done stays done for whoever begins with a snapshot, although the claims before it are gone.
#[test]
fn n16_done_tasks_stay_done_when_their_claims_are_gone() {
    let mut world = World::new(DONE);
    world.tasks(30);
    let a = world.join(0, |config| config.concurrency = 4);
    world.run(500);
    assert_eq!(world.broker.done.len(), 30);
    let (&covered, bytes) =
        world.broker.snapshots.last_key_value().expect("thirty tasks leave snapshots behind");
    let restored = Ledger::restore(bytes).expect("a snapshot that was just written");
    assert_eq!(restored.claims_end(), covered);
    let open = restored.all_open().count();
    world.members.remove(a);
    let b = world.join(0, |_| {});
    world.run(500);
    assert!(world.members[b].machine.stats().started as usize <= open);
    assert_eq!(world.broker.done.len(), 30);
}

#[test]
fn a_second_visit_to_a_shard_writes_nothing_about_what_the_first_one_settled() {
    let mut world = World::new(DONE);
    world.tasks(5);
    let a = world.join(0, |config| config.settle_timeout = ms(200));
    world.run(200);
    assert_eq!(world.broker.done.len(), 5);
    // A claim of the first visit that arrives when the worker has left.
    world.tasks(1);
    world.now += 10;
    world.step(a, 0);
    world.run(0);
    world.members[a].machine.set_taking(0, false);
    world.now += 300;
    let late = core::mem::take(&mut world.members[a].on_their_way);
    assert_eq!(late.len(), 1);
    world.step(a, 0);
    assert!(world.members[a].machine.remove_shard(0));
    world.broker.append(world.now, &late[0].1.encode());

    let (records, done) = (world.broker.claims.len(), world.members[a].machine.stats().done);
    let ends = Ends { tasks: 6, claims: records as i64 };
    let (wall, now) = (world.now as i64 + world.broker.skew, world.at());
    world.members[a].machine.add_shard(0, Ledger::new(0, 0), ends, wall, now);
    (world.members[a].tasks, world.members[a].claims) = (0, 0);
    world.run(20);
    let said: Vec<&str> = world.broker.claims[records..].iter().map(|(_, text)| &text[..11]).collect();
    assert_eq!(said[0], "release tas", "what is left of the first visit is given back: {said:?}");
    assert_eq!(world.broker.judge.counts().late, 0, "{said:?}");
    assert_eq!(world.members[a].machine.stats().done, done, "what was done then is not counted again");
    world.run(200);
    assert_eq!(world.broker.done.len(), 6);
}
