//! `tramline task add`: a task for each line of stdin.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use bytes::Bytes;
use serde::Serialize;
use tokio::io::BufReader;
use tramline::client::Delivery;
use tramline::queue::{NewTask, Queue};

use super::args::Add;
use crate::args::Global;
use crate::produce::{LONGEST, read_line, split};
use crate::stop::Stop;
use crate::{Outcome, cluster, output};

/// Deliveries that may be open before the oldest is waited for.
const OPEN: usize = 100_000;

/// The last line on stdout.
#[derive(Debug, Default, Serialize)]
struct Summary {
    added: u64,
    failed: u64,
}

impl Summary {
    async fn settle(&mut self, delivery: Delivery) {
        match delivery.await {
            Ok(_) => self.added += 1,
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &dyn std::fmt::Display) {
        self.failed += 1;
        output::note(format_args!("error: {error}"));
    }
}

/// Reads lines until stdin ends or a stop is asked for, and waits for every acknowledgement.
pub async fn run(args: Add, global: &Global, stop: Stop) -> Result<Outcome> {
    let opening = async {
        let queue = Queue::builder(cluster::config(global), &*args.queue).shards(args.shards).open().await;
        queue.with_context(|| format!("cannot open the queue {} at {}", args.queue, global.brokers()))
    };
    let queue = stop.or(opening).await?;
    let mut summary = Summary::default();
    let mut open = VecDeque::new();
    let mut lines = BufReader::new(tokio::io::stdin());
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = tokio::select! {
            read = read_line(&mut lines, &mut line) => read.context("cannot read stdin")?,
            () = stop.asked() => 0,
        };
        if read == 0 {
            break;
        }
        if read > line.len() {
            summary.fail(&format_args!("a line of {read} bytes, at most {LONGEST} can be read"));
            continue;
        }
        match queue.enqueue(task(&args, &line)).await {
            Ok(delivery) => open.push_back(delivery),
            Err(error) => summary.fail(&error),
        }
        if open.len() > OPEN
            && let Some(oldest) = open.pop_front()
        {
            summary.settle(oldest).await;
        }
    }
    for delivery in open {
        summary.settle(delivery).await;
    }
    output::json(&summary)?;
    Ok(if summary.failed == 0 { Outcome::Done } else { Outcome::Failed })
}

fn task(args: &Add, line: &[u8]) -> NewTask {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (key, payload) = split(line, args.key_separator.as_deref().unwrap_or_default().as_bytes());
    let mut task = NewTask::new(Bytes::copy_from_slice(payload))
        .delay(args.delay)
        .class(args.class)
        .max_attempts(args.max_attempts);
    if let Some(key) = key {
        task = task.key(Bytes::copy_from_slice(key));
    }
    match args.unique {
        Some(window) => task.unique(Bytes::copy_from_slice(line), window),
        None => task,
    }
}
