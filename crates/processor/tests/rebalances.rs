//! Two members, eight partitions, 200 rebalances in virtual time.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Probe, Running, run_on, secs, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{CommitPolicy, Lane};
use tramline_wire::Record;

/// Small, seeded, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[derive(Default)]
struct Oracle {
    /// The last offset each lane saw.
    lanes: BTreeMap<(i32, i32), i64>,
    done: BTreeMap<i32, BTreeSet<i64>>,
    handled: usize,
}

impl Oracle {
    fn first_undone(&self, partition: i32) -> i64 {
        let done = self.done.get(&partition);
        (0..).find(|offset| done.is_none_or(|done| !done.contains(offset))).unwrap()
    }
}

fn member(log: &MemoryLog, oracle: &Arc<Mutex<Oracle>>, probe: &Probe) -> Running {
    let (source, control) = MemorySource::new(log);
    control.max_poll_records(7);
    let (oracle, probe, log) = (Arc::clone(oracle), probe.clone(), log.clone());
    let handler = move |record: Record, lane: Lane| {
        let (oracle, probe, log) = (Arc::clone(&oracle), probe.clone(), log.clone());
        async move {
            let (partition, offset) = (record.partition(), record.offset());
            let _inside = probe.enter(partition);
            {
                let mut oracle = oracle.lock().unwrap();
                let committed = log.committed(record.topic_partition()).unwrap_or(0);
                let expected = match oracle.lanes.get(&(partition, lane.generation())) {
                    Some(last) => last + 1,
                    None => committed,
                };
                assert_eq!(offset, expected, "{} saw a record out of order", lane.id());
                oracle.lanes.insert((partition, lane.generation()), offset);
            }
            tokio::time::sleep(Duration::from_millis((offset * 7 + i64::from(partition)) as u64 % 4)).await;
            if offset % 50 == 0 {
                // A commit of its own may race with a loss; it says so then.
                let _ = lane.commit().await;
            }
            let mut oracle = oracle.lock().unwrap();
            oracle.done.entry(partition).or_default().insert(offset);
            oracle.handled += 1;
            Ok::<_, String>(())
        }
    };
    let with = |b: tramline_processor::PartitionedBuilder<MemorySource>| {
        b.commit(CommitPolicy::Periodic(Duration::from_millis(100))).max_buffered_records(16)
    };
    run_on(source, control, with, handler)
}

async fn rebalances(seed: u64) {
    let log = MemoryLog::new();
    let oracle = Arc::new(Mutex::new(Oracle::default()));
    let probe = Probe::default();
    let members = [member(&log, &oracle, &probe), member(&log, &oracle, &probe)];
    let mut dice = Dice(seed);
    let mut owner: BTreeMap<i32, usize> =
        (0..8).map(|partition| (partition, (partition % 2) as usize)).collect();
    for (&partition, &owner) in &owner {
        members[owner].control.assign(&[tp(partition)]);
    }
    for round in 0..200 {
        for partition in 0..8 {
            log.produce_many(&tp(partition), dice.roll(20) as usize);
        }
        if dice.roll(4) == 0 {
            let failures = [tramline_processor::CommitErrorKind::Retriable];
            members[dice.roll(2) as usize].control.fail_commits(&failures);
        }
        tokio::time::sleep(Duration::from_millis(dice.roll(80))).await;
        let from = dice.roll(2) as usize;
        let mine = owner.iter().filter(|(_, owner)| **owner == from).map(|(&partition, _)| partition);
        let moving: Vec<_> = mine.filter(|_| dice.roll(2) == 0).collect();
        let names: Vec<_> = moving.iter().copied().map(tp).collect();
        if dice.roll(5) == 0 {
            // Lost, and given back at once: a new owner elsewhere could not know of the old handler.
            members[from].control.lose(&names);
            members[from].control.assign(&names);
        } else {
            let revoking = members[from].control.revoke_within(&names, secs(60));
            assert!(revoking.released().await, "round {round} of seed {seed}: not given up in time");
            members[1 - from].control.assign(&names);
            for partition in moving {
                owner.insert(partition, 1 - from);
            }
        }
        assert!(members.iter().all(|member| !member.is_over()), "round {round} of seed {seed}: a run ended");
        for partition in 0..8 {
            let committed = log.committed(&tp(partition)).unwrap_or(0);
            let frontier = oracle.lock().unwrap().first_undone(partition);
            assert!(committed <= frontier, "round {round} of seed {seed}: {committed} above {frontier}");
        }
    }
    tokio::time::sleep(secs(30)).await;
    for member in members {
        member.stop().await.0.unwrap();
    }
    assert_eq!(probe.overlaps(), 0, "seed {seed}: two live processors of one partition");
    for partition in 0..8 {
        let commits = log.commits_of(&tp(partition));
        assert!(commits.is_sorted(), "seed {seed}: the committed offset of {partition} went back");
        assert_eq!(log.committed(&tp(partition)).unwrap_or(0), log.end(&tp(partition)), "seed {seed}");
        assert_eq!(oracle.lock().unwrap().first_undone(partition), log.end(&tp(partition)), "seed {seed}");
    }
    let refused = log
        .commits()
        .into_iter()
        .filter(|commit| commit.failure == Some(tramline_processor::CommitErrorKind::Fenced));
    // Only what was in flight at the very moment of a loss can be refused.
    assert!(refused.count() <= 200, "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn t031_t110_t134_t137_two_members_eight_partitions_two_hundred_rebalances() {
    for seed in 1..=5 {
        rebalances(seed).await;
    }
}
