//! A queue whose workers, and whose broker, are killed with SIGKILL while they work, and what the log must say afterwards.
//!
//! `TRAMLINE_TASKS` says how many tasks (default 2,000). `TRAMLINE_TASK_KILL_SECONDS` kills a worker every so many seconds;
//! unset, three are killed along the way. `TRAMLINE_TEST_BROKERS` names an existing cluster, whose broker is left alone.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

#[path = "../common/mod.rs"]
mod common;

mod effects;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{PATIENCE, Serve, last_words};
use tramline::client::ClientConfig;
use tramline::queue::{NewTask, Queue, QueueStatus, Verdict};

use effects::Effects;
use worker::Workers;

/// How many workers there are at once.
const WORKERS: usize = 4;
/// How long nothing may happen at all.
const STANDSTILL: Duration = PATIENCE;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// The worker processes are this program again; called by itself this does nothing.
#[test]
fn worker_process() {
    worker::run_if_asked();
}

#[test]
fn tasks_survive_killed_workers_and_a_killed_broker_and_each_effect_has_one_token() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = std::panic::catch_unwind(|| run(folder.path()));
    if outcome.is_err() {
        let kept = folder.keep();
        panic!("effects and log are in {}; the broker's last words:\n{}", kept.display(), last_words(&kept));
    }
}

fn run(folder: &Path) {
    let begun = Instant::now();
    let tasks = number("TRAMLINE_TASKS").unwrap_or(2000);
    let every = number("TRAMLINE_TASK_KILL_SECONDS").map(Duration::from_secs);
    let mut serve = None;
    let address = std::env::var("TRAMLINE_TEST_BROKERS").unwrap_or_else(|_| {
        let own = serve.insert(Serve::start(folder, &[]));
        own.address.clone()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let name = format!("killed-{since:x}");
    let queue = runtime.block_on(publish(&address, &name, tasks));
    let mut workers = Workers::start(&address, &name, folder, WORKERS);
    let mut effects = Effects::new(folder);
    let (mut kills, mut broker_kills) = (0, 0);
    let mut last_kill = Instant::now();
    let mut moved = (0, Instant::now());
    // Until as many effects are there as tasks; some tasks have more than one by then.
    while effects.read_on() < tasks {
        let seen = effects.read_on();
        if seen > moved.0 {
            moved = (seen, Instant::now());
        }
        assert!(moved.1.elapsed() < STANDSTILL, "{seen} of {tasks} effects, then none for {STANDSTILL:?}");
        let is_time = match every {
            Some(every) => last_kill.elapsed() >= every,
            None => kills < 3 && seen >= (kills + 1) * tasks / 5,
        };
        if is_time {
            workers.kill_one(kills);
            kills += 1;
            last_kill = Instant::now();
        }
        if broker_kills == 0
            && seen >= tasks / 2
            && let Some(broker) = serve.take()
        {
            serve = Some(broker.kill().restart());
            broker_kills = 1;
        }
        // Not to wait for something, but not to take the processor from those who work.
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.block_on(all_done(&queue));
    drop(workers);
    effects.read_on();
    let (status, report) = runtime.block_on(report(&queue, tasks, &effects));
    println!(
        "tasks={tasks} worker_kills={kills} broker_kills={broker_kills} effects={} {report} done={} seconds={:.1}",
        effects.count(),
        status.total().done,
        begun.elapsed().as_secs_f64(),
    );
}

async fn publish(address: &str, name: &str, tasks: u64) -> Queue {
    let queue = Queue::open(ClientConfig::new(address), name).await.unwrap();
    for n in 0..tasks {
        drop(queue.enqueue(NewTask::new(n.to_string()).max_attempts(1000)).await.unwrap());
    }
    queue.flush().await.unwrap();
    queue
}

/// Waits until nothing is left to be done.
async fn all_done(queue: &Queue) {
    let begun = Instant::now();
    loop {
        let total = queue.status().await.unwrap().total();
        if total.ready + total.claimed + total.delayed == 0 {
            return;
        }
        assert!(begun.elapsed() < STANDSTILL, "{total:?} after {STANDSTILL:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// One replay of the claims from their first record, held against the effects.
async fn report(queue: &Queue, tasks: u64, effects: &Effects) -> (QueueStatus, String) {
    let mut grants: BTreeMap<(i32, i64), (i64, String)> = BTreeMap::new();
    let mut done: BTreeMap<(i32, i64), i64> = BTreeMap::new();
    let replay = queue.replay(|row| {
        let Some(record) = row.record else { return };
        match row.verdict {
            Verdict::Granted { .. } => {
                grants.insert((row.shard, row.offset), (record.task, record.worker.to_string()));
            }
            Verdict::Done => {
                let tramline::queue::Kind::Done { token } = record.kind else { panic!("{record:?}") };
                assert_eq!(done.insert((row.shard, record.task), token), None, "done twice: {record:?}");
            }
            _ => {}
        }
    });
    let status = replay.await.unwrap();
    assert_eq!(done.len() as u64, tasks, "every task is done");
    for effect in effects.all() {
        let granted = grants.get(&(effect.shard, effect.token));
        let expected = (effect.task, effect.worker.clone());
        assert_eq!(granted, Some(&expected), "an effect whose writer the log does not name: {effect:?}");
    }
    for (&(shard, task), &token) in &done {
        assert!(effects.has(shard, task, token), "task {task} of shard {shard} is done without its effect");
    }
    // The same from snapshots: what a reader knows that never saw the beginning.
    let by_snapshot = queue.status().await.unwrap();
    for (whole, short) in status.shards.iter().zip(&by_snapshot.shards) {
        assert_eq!((whole.state, whole.counts), (short.state, short.counts), "shard {}", whole.shard);
    }
    let sum = |of: fn(&tramline::queue::Counts) -> u64| -> u64 {
        status.shards.iter().map(|shard| of(&shard.counts)).sum()
    };
    let report = format!(
        "granted={} refused={} lapsed={} late={} released={} renewed={}",
        sum(|counts| counts.granted),
        sum(|counts| counts.refused),
        sum(|counts| counts.lapsed),
        sum(|counts| counts.late),
        sum(|counts| counts.released),
        sum(|counts| counts.renewed),
    );
    (status, report)
}
