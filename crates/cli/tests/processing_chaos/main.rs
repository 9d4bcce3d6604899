//! A group in key order whose members are killed and added all the time, and what its handlers must have seen.
//!
//! `TRAMLINE_CHAOS=full` is the long run, with a kill every second; `TRAMLINE_CHAOS_SEED` repeats a run's choices,
//! `TRAMLINE_CHAOS_METADATA=off` leaves out of the commits what is completed above them.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

#[path = "../common/mod.rs"]
mod common;

mod checker;
mod crew;
mod deliveries;
mod load;
mod member;
mod verdicts;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Serve, seed};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tramline::client::{Admin, ClientConfig};

use crew::Crew;
use deliveries::{Deliveries, Entry};
use load::Load;

const TOPIC: &str = "orders";
const GROUP: &str = "kitchen";

/// How much work there is, and how many members do not live to see its end.
#[derive(Clone, Copy)]
pub struct Size {
    partitions: i32,
    keys: u64,
    records: u64,
    kills: u64,
    /// The time between kills; without one, a kill follows a share of the work.
    every: Option<Duration>,
}

impl Size {
    fn from_environment() -> Self {
        match std::env::var("TRAMLINE_CHAOS").as_deref() {
            Ok("full") => Self {
                partitions: 12,
                keys: 10_000,
                records: 1_000_000,
                kills: 60,
                every: Some(Duration::from_secs(1)),
            },
            Ok(other) => panic!("TRAMLINE_CHAOS is `full` or not there, not {other}"),
            Err(_) => Self { partitions: 6, keys: 500, records: 20_000, kills: 6, every: None },
        }
    }
}

#[test]
fn members_killed_and_added_lose_nothing_keep_keys_in_order_and_commit_only_what_is_done() {
    let seed = seed("TRAMLINE_CHAOS_SEED");
    println!("seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = std::panic::catch_unwind(|| {
        runtime.block_on(run(folder.path(), seed, Size::from_environment()));
    });
    if outcome.is_err() {
        panic!("seed {seed}; the deliveries and the log are in {}", folder.keep().display());
    }
}

async fn run(folder: &Path, seed: u64, size: Size) {
    let begun = Instant::now();
    let metadata = !std::env::var("TRAMLINE_CHAOS_METADATA").is_ok_and(|text| text == "off");
    let serve = Serve::start(folder, &[]);
    let load = Load::start(&serve.address, size, seed).await;
    let committed = watch_commits(&serve.address, Deliveries::open(&folder.join("deliveries")));
    let mut crew = Crew::start(folder.to_owned(), &serve.address, seed, metadata);

    // On a clock the second half is written from kill to kill, so that there is work at each of them.
    let mut clock = size.every.map(interval);
    load.allow(if clock.is_some() { size.records / 2 } else { size.records });
    for kill in 1..=size.kills {
        if let Some(clock) = &mut clock {
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            clock.tick().await;
            load.allow(size.records / 2 + size.records / 2 * kill / size.kills);
        } else {
            reached(&committed, size.records * kill / (size.kills + 2), PATIENCE).await;
        }
        crew.kill_one_and_add_one();
    }
    let killed = begun.elapsed();
    let committed_by_then = *committed.borrow();

    let written = load.finish().await;
    reached(&committed, size.records, 15 * PATIENCE).await;
    let members = crew.members();
    tokio::task::spawn_blocking(|| crew.finish()).await.unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    let entries = deliveries::read(&folder.join("deliveries"));
    let summary = checker::check(&written, &entries).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!(
        "records={} keys={} partitions={} metadata={metadata} members={members} {summary} entries={} committed_while_killing={committed_by_then} \
         killing_seconds={:.1} seconds={seconds:.1} load={} seed={seed}",
        size.records,
        size.keys,
        size.partitions,
        entries.len(),
        killed.as_secs_f64(),
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    );
}

async fn reached(committed: &watch::Receiver<u64>, records: u64, patience: Duration) {
    let mut committed = committed.clone();
    let waited = timeout(patience, committed.wait_for(|committed| *committed >= records)).await;
    assert!(waited.is_ok_and(|open| open.is_ok()), "{} of {records} committed", *committed.borrow());
}

/// Reads the group's offsets 20 times a second, notes each that moved, and tells their sum.
fn watch_commits(address: &str, deliveries: Deliveries) -> watch::Receiver<u64> {
    let admin = Admin::new(ClientConfig::new(address));
    let (tell, told) = watch::channel(0);
    tokio::spawn(async move {
        let mut clock = interval(Duration::from_millis(50));
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = BTreeMap::new();
        while !tell.is_closed() {
            clock.tick().await;
            let offsets = admin.group_offsets(GROUP).await.unwrap();
            for (place, at) in offsets {
                if seen.insert(place.partition, at.offset) != Some(at.offset) {
                    deliveries.append(Entry::Committed { partition: place.partition, offset: at.offset });
                }
            }
            tell.send_replace(seen.values().sum::<i64>().cast_unsigned());
        }
    });
    told
}
