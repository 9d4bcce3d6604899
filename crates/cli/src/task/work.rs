//! `tramline task work`: a command for each task.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tramline::queue::{Outcome as Settle, Queue, ReadError, Task};

use super::args::Work;
use crate::args::Global;
use crate::child::{ChildError, CommandLine, Stdout, plain_paper};
use crate::stop::Stop;
use crate::{Outcome, cluster, output};

/// What a command ends with that wants to be tried again: `EX_TEMPFAIL`.
const TRY_AGAIN: i32 = 75;
/// How long commands may go on after a stop was asked for.
const LONGEST_COMMAND: Duration = Duration::from_secs(300);
/// How often it is looked whether everything is done, with `-e`.
const LOOK: Duration = Duration::from_millis(500);

/// What `--json` shows of each command's end.
#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    shard: i32,
    task: i64,
    token: i64,
    attempt: u32,
    error: Option<&'a str>,
}

/// Runs the command for each task until a stop, or, with `-e`, until all that was there is done or dead.
pub async fn run(args: Work, global: &Global, stop: Stop) -> Result<Outcome> {
    let stdout = if global.json { Stdout::Stderr } else { Stdout::Inherit };
    let command = CommandLine::find(&args.command, stop.children(), stdout, plain_paper())?;
    let opening = async {
        let queue = Queue::open(cluster::config(global), &*args.queue).await;
        queue.with_context(|| format!("cannot open the queue {} at {}", args.queue, global.brokers()))
    };
    let queue = stop.or(opening).await?;
    let worker = queue
        .worker()
        .name(&*args.name)
        .concurrency(args.workers.into())
        .lease(args.lease)
        .drain_timeout(LONGEST_COMMAND)
        .build()?;
    let broken = CancellationToken::new();
    let unrunnable = Arc::new(OnceLock::new());
    let runner = Arc::new(Runner {
        command,
        queue: args.queue.clone(),
        json: global.json,
        unrunnable: Arc::clone(&unrunnable),
        broken: broken.clone(),
    });
    let shutdown = async {
        tokio::select! {
            () = stop.asked() => {}
            () = broken.cancelled() => {}
            () = all_done(&queue), if args.end => {}
        }
    };
    let stats = worker
        .run(shutdown, move |task| {
            let runner = Arc::clone(&runner);
            async move { runner.run(&task).await }
        })
        .await?;
    if global.json {
        output::json(&serde_json::json!({
            "event": "end", "done": stats.done, "retried": stats.failed, "dead": stats.buried, "lost": stats.lost,
        }))?;
    } else {
        output::note(format_args!(
            "{} done, {} to be tried again, {} dead",
            stats.done, stats.failed, stats.buried
        ));
    }
    match unrunnable.get() {
        Some(error) => Err(anyhow!("{error}")),
        None => Ok(Outcome::Done),
    }
}

/// Waits until the tasks that are there now are done or dead. What cannot be read for a moment is asked for again.
async fn all_done(queue: &Queue) {
    let mut ends: Option<BTreeMap<i32, i64>> = None;
    loop {
        match queue.status().await {
            Ok(status) => {
                let now = || status.shards.iter().map(|shard| (shard.shard, shard.tasks_end)).collect();
                let ends = ends.get_or_insert_with(now);
                let end_of = |shard| ends.get(&shard).copied().unwrap_or(0);
                let done = |open: Option<i64>, end| open.is_none_or(|open| open >= end);
                if status.shards.iter().all(|shard| done(shard.first_open, end_of(shard.shard))) {
                    return;
                }
            }
            Err(error) => tell(&error),
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn tell(error: &ReadError) {
    tracing::info!(%error, "cannot see whether all is done");
}

struct Runner {
    command: CommandLine,
    queue: String,
    json: bool,
    unrunnable: Arc<OnceLock<String>>,
    broken: CancellationToken,
}

impl Runner {
    async fn run(&self, task: &Task) -> Settle {
        let (event, settle) = match self.command.run(task.payload(), &self.variables(task)).await {
            Ok(()) => ("done", Settle::Done),
            Err(error @ ChildError::NotStarted { .. }) => {
                // No fault of this task.
                let text = self.unrunnable.get_or_init(|| error.to_string());
                self.broken.cancel();
                ("retry", Settle::retry(text))
            }
            Err(ChildError::Ended { status, words })
                if status.code().is_none() || status.code() == Some(TRY_AGAIN) =>
            {
                ("retry", Settle::retry(ChildError::Ended { status, words }))
            }
            Err(error) => ("failed", Settle::failed(error)),
        };
        if self.json {
            let error = match &settle {
                Settle::Retry { cause, .. } | Settle::Failed { cause } => Some(cause.as_str()),
                _ => None,
            };
            let line = Line {
                event,
                shard: task.shard(),
                task: task.id(),
                token: task.token(),
                attempt: task.attempt(),
                error,
            };
            // A reader that went away costs the lines, not the tasks.
            let _ = output::json(&line);
        }
        settle
    }

    /// What the command learns about its task.
    fn variables(&self, task: &Task) -> [(&'static str, Option<OsString>); 6] {
        let number = |number: i64| Some(number.to_string().into());
        // A variable is any bytes but zero.
        let key = task.key().filter(|key| !key.contains(&0)).map(|key| OsString::from_vec(key.to_vec()));
        [
            ("TRAMLINE_QUEUE", Some(self.queue.clone().into())),
            ("TRAMLINE_SHARD", number(task.shard().into())),
            ("TRAMLINE_TASK", number(task.id())),
            ("TRAMLINE_TOKEN", number(task.token())),
            ("TRAMLINE_ATTEMPT", number(task.attempt().into())),
            ("TRAMLINE_KEY", key),
        ]
    }
}
