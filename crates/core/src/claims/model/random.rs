//! Random histories. Each prints its seed when it fails; `TRAMLINE_CLAIMS_SEED` repeats one, `TRAMLINE_CLAIMS_RUNS` asks
//! for more of them.

use std::env;
use std::println;

use bytes::Bytes;

use super::*;
use crate::claims::task::Unique;
use crate::group::Seeded;

fn runs() -> (u64, u64) {
    let number = |name| env::var(name).ok().map(|text: String| text.parse().expect("a number"));
    match number("TRAMLINE_CLAIMS_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("TRAMLINE_CLAIMS_RUNS").unwrap_or(60)),
    }
}

fn random_task(random: &mut Seeded, published: Timestamp) -> TaskMeta {
    let mut meta = TaskMeta::plain(published);
    meta.class = random.below(10) as u8;
    meta.max_attempts = 1 + random.below(4) as u32;
    if random.below(3) == 0 {
        meta.key = Some(Bytes::from(format!("k{}", random.below(4))));
    }
    if random.below(5) == 0 {
        meta.not_before = published + random.below(4000) as i64;
    }
    if random.below(6) == 0 {
        let id = Bytes::from(format!("u{}", random.below(5)));
        meta.unique = Some(Unique { id, window: 200 + random.below(3000) as i64 });
    }
    meta
}

/// The name of a task and the time decide how its handler ends, so that a seed repeats a run.
const SCRIPT: Script = |held, now| {
    let dice = (held.task as u64 * 31 + held.token as u64 * 17 + now) % 100;
    let takes = if dice.is_multiple_of(9) { 2 * LEASE + 500 } else { dice * 3 };
    match dice {
        0..=69 => (takes, Outcome::Done),
        70..=94 => (takes, Outcome::Retry { after: Some(ms(dice * 5)), cause: "not now".into() }),
        _ => (takes, Outcome::Failed { cause: "never".into() }),
    }
};

struct Chaos {
    world: World,
    random: Seeded,
}

impl Chaos {
    fn join(&mut self) {
        let skew = self.random.below(7_200_000) as i64 - 3_600_000;
        let concurrency = 1 + self.random.below(3) as usize;
        self.world.join(skew, |config| config.concurrency = concurrency);
    }

    /// One moment in which anything may happen.
    fn moment(&mut self) {
        let Self { world, random } = self;
        world.now += 1 + random.below(120);
        match random.below(60) {
            // The broker's clock is set.
            0 => world.broker.skew += random.below(4000) as i64 - 2000,
            // A worker stands still, up to three leases.
            1 if !world.members.is_empty() => {
                let who = random.below(world.members.len() as u64) as usize;
                world.members[who].stalled_until = world.now + random.below(3 * LEASE);
            }
            // One dies with what is on its way, which may arrive all the same; another comes in its place.
            2 if !world.members.is_empty() => {
                let who = random.below(world.members.len() as u64) as usize;
                let dead = world.members.swap_remove(who);
                for (_, record) in dead.on_their_way {
                    if random.below(2) == 0 {
                        world.broker.append(world.now, &record.encode());
                    }
                }
                self.join();
            }
            3 => {
                let junk = ["", "claim", "what is this", "claim task=0 lease=x n=1 w=z"];
                world.broker.append(world.now, junk[random.below(4) as usize]);
            }
            4..=14 => {
                let published = world.now as i64 + world.broker.skew;
                let task = random_task(random, published);
                world.broker.publish(task);
            }
            _ => {}
        }
        self.act();
        self.world.arrive();
    }

    fn act(&mut self) {
        let Self { world, random } = self;
        for member in 0..world.members.len() {
            // Now and then somebody is slow to read.
            if random.below(4) == 0 {
                continue;
            }
            let delay = match random.below(30) {
                0 => random.below(2 * LEASE),
                1..=9 => random.below(100),
                _ => 0,
            };
            world.step(member, delay);
            double_or_lose(&mut world.members[member], random, world.now);
        }
    }
}

/// A retry that stores a record twice, and an append that fails and is told.
fn double_or_lose(member: &mut Member, random: &mut Seeded, now: u64) {
    if member.on_their_way.is_empty() {
        return;
    }
    let which = random.below(member.on_their_way.len() as u64) as usize;
    match random.below(25) {
        0 => {
            let (at, record) = member.on_their_way[which].clone();
            member.on_their_way.push((at + random.below(3000), record));
        }
        1 => {
            let (at, record) = member.on_their_way.remove(which);
            if random.below(3) == 0 {
                // Told as failed, and written all the same.
                member.on_their_way.push((at + random.below(3000), record.clone()));
            }
            member.machine.handle_append_failed(0, &record, Instant::from_start(ms(now)));
        }
        _ => {}
    }
}

fn history(seed: u64) -> (u64, u64) {
    let mut chaos = Chaos { world: World::new(SCRIPT), random: Seeded::from_number(seed) };
    for _ in 0..1 + chaos.random.below(5) {
        chaos.join();
    }
    for _ in 0..600 {
        chaos.moment();
    }
    // Quiet: whoever is left finishes.
    let world = &mut chaos.world;
    world.members.iter_mut().for_each(|member| member.stalled_until = 0);
    for _ in 0..200 {
        world.run(1000);
        if world.broker.judge.all_open().count() == 0 {
            break;
        }
    }
    check_end(world, seed);
    let counts = world.broker.judge.counts();
    (counts.lapsed, counts.late)
}

fn check_end(world: &World, seed: u64) {
    let judge = &world.broker.judge;
    let open: Vec<i64> = judge.all_open().map(|(task, _)| task).collect();
    assert_eq!(open, [], "seed {seed}: tasks nobody finishes");
    let (tasks, done, dead) = (world.broker.tasks.len(), world.broker.done.len(), judge.dead().count());
    assert_eq!(tasks, done + dead + judge.duplicates() as usize, "seed {seed}: a task was lost");
    // Of one key, tasks end in their order.
    let mut newest: BTreeMap<Bytes, i64> = BTreeMap::new();
    for &task in &world.broker.done {
        if let Some(key) = &world.broker.tasks[task as usize].key
            && let Some(before) = newest.insert(key.clone(), task)
        {
            assert!(before < task, "seed {seed}: task {task} of its key was done after task {before}");
        }
    }
    refold(world, seed);
}

/// N17: any prefix folded again changes nothing, and from any snapshot on the end is the same.
fn refold(world: &World, seed: u64) {
    let fold = |ledger: &mut Ledger, up_to: usize| {
        for (offset, meta) in world.broker.tasks.iter().enumerate() {
            ledger.add_task(offset as i64, meta.clone());
        }
        for (offset, (at, text)) in world.broker.claims.iter().enumerate().take(up_to) {
            let record = ClaimRecord::decode(text.as_bytes());
            ledger.apply(offset as i64, *at, record.as_ref()).expect("all tasks are there");
        }
    };
    let all = world.broker.claims.len();
    let mut once = Ledger::new(0, 0);
    fold(&mut once, all);
    let end = once.snapshot();
    for up_to in [0, all / 3, all / 2, all] {
        fold(&mut once, up_to);
        assert!(once.snapshot() == end, "seed {seed}: folding {up_to} records again changed the state");
    }
    for (at, bytes) in world.broker.snapshots.iter().step_by(5) {
        let mut restored = Ledger::restore(bytes).expect("a snapshot that was just written");
        assert!(restored.snapshot().bytes[..] == bytes[..], "seed {seed}: {at} does not come back as it was");
        fold(&mut restored, all);
        assert!(restored.snapshot() == end, "seed {seed}: from the snapshot at {at} the end differs");
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            assert!(Ledger::restore(&bytes[..cut]).is_err(), "a snapshot cut at {cut} was read");
        }
    }
}

#[test]
fn n17_random_histories_keep_every_invariant_whatever_clocks_and_networks_do() {
    let (first, count) = runs();
    let (mut lapsed, mut late) = (0, 0);
    for seed in first..first + count {
        let outcome = std::panic::catch_unwind(|| history(seed));
        let Ok((lapses, lates)) = outcome else { panic!("seed {seed} (TRAMLINE_CLAIMS_SEED)") };
        lapsed += lapses;
        late += lates;
    }
    println!("histories={count} first_seed={first} lapsed={lapsed} late={late}");
    assert!(
        count == 1 || (lapsed > 0 && late > 0),
        "the histories were too tame: {lapsed} lapsed, {late} late"
    );
}
