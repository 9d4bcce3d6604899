//! A broker that is killed with SIGKILL again and again under load, and what must be there afterwards.
//!
//! `TRAMLINE_KILLS` says how often (default 5), `TRAMLINE_KILL_SEED` repeats a run's choices.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

#[path = "../common/mod.rs"]
mod common;

mod commits;
mod ledger;
mod load;
mod sequences;

use std::sync::Arc;
use std::time::Instant;

use common::frames::Wire;
use common::{Random, Serve, last_words, seed};
use tramline::client::{Admin, ClientConfig, NewTopic};

use commits::Committers;
use ledger::{Log, Model};
use load::{Ledger, Load};

/// Topic, partitions, bytes of a segment: logs that roll all the time, now and then, and never.
const TOPICS: [(&str, i32, &str); 3] =
    [("rolling", 2, "196608"), ("growing", 3, "1048576"), ("whole", 1, "1073741824")];

fn kills() -> u64 {
    std::env::var("TRAMLINE_KILLS").map_or(5, |text| text.parse().unwrap())
}

#[test]
fn a_broker_killed_under_load_keeps_what_it_acknowledged_and_stores_nothing_twice() {
    let seed = seed("TRAMLINE_KILL_SEED");
    println!("seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let outcome = std::panic::catch_unwind(|| run(folder.path(), seed));
    if outcome.is_err() {
        let kept = folder.keep();
        panic!(
            "seed {seed}; the log is in {}; the broker's last words:\n{}",
            kept.display(),
            last_words(&kept)
        );
    }
}

fn run(folder: &std::path::Path, seed: u64) {
    let begun = Instant::now();
    let mut random = Random::new(seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut serve = Serve::start(folder, &[]);
    runtime.block_on(create_topics(&serve.address));
    let ledger = Arc::new(Ledger::new(seed));
    let load = Load::start(&runtime, &serve.address, &ledger);
    let committers = Committers::start(&serve.address, &ledger);
    let mut model = Model::new(seed, &TOPICS);
    let mut recovery_kills = 0;

    for _ in 0..kills() {
        // As often a few acknowledgements as many: the kill meets a broker that has just come up as well as one at work.
        let bits = random.below(13);
        let further = 1 + random.below(1 << bits);
        runtime.block_on(load.further_acks(further));
        let killed = serve.kill();
        ledger.note_kill();
        if random.below(6) == 0 {
            killed.start_and_kill(random.below(4));
            recovery_kills += 1;
        }
        serve = killed.restart();
        let mut wire = Wire::connect(&serve.address).unwrap();
        model.note_start(&mut wire);
        ledger.note_start();
        committers.broker_is_back();
        // Now and then not: the next kill then meets a broker that has just come up.
        if random.below(4) > 0 {
            model.check(&mut wire, &ledger);
            committers.check(&mut wire);
        }
    }

    runtime.block_on(load.further_acks(1000));
    let sent = runtime.block_on(load.finish());
    let mut wire = Wire::connect(&serve.address).unwrap();
    model.check(&mut wire, &ledger);
    let commits = committers.finish(&mut wire);
    drop(wire);
    let (status, left) = serve.terminate();
    assert!(status.success(), "a clean stop ends with {status}");

    let serve = left.restart();
    let mut wire = Wire::connect(&serve.address).unwrap();
    let log = Log::read_all(seed, &TOPICS, &mut wire);
    log.holds(&ledger, &sent);
    println!(
        "kills={} recovery_kills={recovery_kills} acked={} acked_written={} in_flight_at_kills={} \
         acked_on_retry_without_append={} stored={} written_stored_again={} batches={} rolls={} commits={commits} \
         seconds={:.1} seed={seed}",
        kills(),
        ledger.acked(),
        ledger.acked_written(),
        ledger.in_flight_at_kills(),
        model.deduplicated(),
        log.records(),
        log.records() as u64 - ledger.acked(),
        log.batches(),
        rolls(folder),
        begun.elapsed().as_secs_f64(),
    );
}

async fn create_topics(address: &str) {
    let admin = Admin::new(ClientConfig::new(address));
    let topics = TOPICS
        .map(|(name, partitions, bytes)| NewTopic::new(name, partitions).config("segment.bytes", bytes));
    for (topic, created) in admin.create_topics(topics).await.unwrap() {
        created.unwrap_or_else(|error| panic!("{topic}: {error}"));
    }
}

/// Segments beyond the first of each partition.
fn rolls(folder: &std::path::Path) -> usize {
    let segments = |partition: std::fs::DirEntry| {
        let files = std::fs::read_dir(partition.path()).into_iter().flatten().flatten();
        files.filter(|file| file.path().extension().is_some_and(|ext| ext == "log")).count().saturating_sub(1)
    };
    std::fs::read_dir(folder.join("data")).unwrap().flatten().map(segments).sum()
}
