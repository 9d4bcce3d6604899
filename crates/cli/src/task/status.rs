//! `tramline task status`: how a queue stands.

use anyhow::Result;
use serde::Serialize;
use tramline::queue::{QueueStatus, State};

use crate::args::Global;
use crate::{Outcome, output};

/// The last line on stdout.
#[derive(Serialize)]
struct Sums {
    ready: u64,
    claimed: u64,
    delayed: u64,
    done: u64,
    dead: u64,
}

#[derive(Serialize)]
struct Shard {
    shard: i32,
    ready: u64,
    claimed: u64,
    delayed: u64,
    done: u64,
    dead: u64,
    oldest_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Claimed<'a> {
    shard: i32,
    task: i64,
    worker: &'a str,
    token: i64,
    attempt: u32,
    since: String,
    expires: String,
}

/// Prints the shards, who holds what, and the sums.
pub async fn run(name: &str, global: &Global) -> Result<Outcome> {
    let queue = super::existing(name, global).await?;
    let status = queue.status().await?;
    if global.json {
        for shard in &status.shards {
            let State { ready, claimed, delayed, done, dead, .. } = shard.state;
            let oldest_seconds = age(&status, shard.state).map(|millis| millis as f64 / 1000.0);
            output::json(&Shard { shard: shard.shard, ready, claimed, delayed, done, dead, oldest_seconds })?;
        }
        claimed(&status).try_for_each(|claimed| output::json(&claimed))?;
    } else {
        print(&status)?;
    }
    let State { ready, claimed, delayed, done, dead, .. } = status.total();
    output::json(&Sums { ready, claimed, delayed, done, dead })?;
    Ok(Outcome::Done)
}

fn print(status: &QueueStatus) -> Result<()> {
    let headings = ["shard", "ready", "claimed", "delayed", "done", "dead", "oldest"];
    let mut table = output::table(&headings, &[0, 1, 2, 3, 4, 5, 6]);
    for shard in &status.shards {
        let State { ready, claimed, delayed, done, dead, .. } = shard.state;
        let numbers = [ready, claimed, delayed, done, dead].map(|number| number.to_string());
        let oldest = age(status, shard.state).map_or_else(|| "-".to_owned(), time);
        table.add_row([vec![shard.shard.to_string()], numbers.to_vec(), vec![oldest]].concat());
    }
    output::print_table(&table)?;
    let mut table =
        output::table(&["shard", "task", "worker", "token", "attempt", "since", "expires"], &[0, 1, 3, 4]);
    let mut any = false;
    for row in claimed(status) {
        any = true;
        table.add_row([
            row.shard.to_string(),
            row.task.to_string(),
            row.worker.to_owned(),
            row.token.to_string(),
            row.attempt.to_string(),
            row.since,
            row.expires,
        ]);
    }
    if any {
        output::line("")?;
        output::print_table(&table)?;
    }
    Ok(())
}

fn claimed(status: &QueueStatus) -> impl Iterator<Item = Claimed<'_>> {
    status.shards.iter().flat_map(|shard| {
        shard.claimed.iter().map(|claimed| Claimed {
            shard: shard.shard,
            task: claimed.task,
            worker: &claimed.worker,
            token: claimed.token,
            attempt: claimed.attempt,
            since: timestamp(claimed.since),
            expires: timestamp(claimed.expires),
        })
    })
}

/// How old the oldest task is that waits or is held, in milliseconds.
fn age(status: &QueueStatus, state: State) -> Option<i64> {
    state.oldest.map(|published| (status.now - published).max(0))
}

fn timestamp(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.to_string(), |time| time.to_string())
}

fn time(millis: i64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..120 => format!("{}.{} s", seconds, millis % 1000 / 100),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
