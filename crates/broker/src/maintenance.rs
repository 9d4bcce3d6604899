//! What happens without anyone asking: barriers and marks for partitions whose producers want none, retention,
//! compaction.
//!
//! Nothing is done here. Each turn looks at the partitions and hands their write actors messages; the work is theirs,
//! on their threads, in order with the appends.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::blocking::NotRun;
use crate::engine::Engine;
use crate::node::Node;
use crate::partition::{Change, Failure, Partition, Pass, Submission, Written, lock_pass};

/// Runs until it is dropped.
pub(crate) async fn keep(node: Arc<Node>) {
    tokio::join!(keep_small(Arc::clone(&node)), keep_compact(node));
}

/// A pass may take long, and nothing else waits for it.
async fn keep_compact(node: Arc<Node>) {
    loop {
        sleep(node.config.compaction_check_interval).await;
        compact_all(Arc::clone(&node)).await;
    }
}

async fn keep_small(node: Arc<Node>) {
    let (sync, retention) = (node.config.background_sync_interval, node.config.retention_check_interval);
    let mut next_sync = Instant::now() + sync;
    let mut next_retention = Instant::now() + retention;
    loop {
        sleep_until(next_sync.min(next_retention)).await;
        let now = Instant::now();
        if now >= next_sync {
            next_sync = now + sync;
            sync_all(&node);
        }
        if now >= next_retention {
            next_retention = now + retention;
            retain_all(&node);
        }
    }
}

/// Forces what nobody waits for, and writes down what is durable and not yet known to the next start.
pub(crate) fn sync_all(node: &Node) {
    for partition in partitions(node) {
        let end = partition.reader.log_end();
        let submission = if partition.durable() < end {
            Submission::WhenDurable { offset: end, done: Box::new(|_| ()) }
        } else if partition.written_down() < end {
            Submission::Change { change: Change::Checkpoint, done: Box::new(|_| ()) }
        } else {
            continue;
        };
        node.engine.submit(&partition, submission);
    }
}

/// Removes what is too old or too much, where anything may be.
pub(crate) fn retain_all(node: &Node) {
    for partition in partitions(node) {
        let reader = &partition.reader;
        if reader.log_end() > reader.log_start() || reader.segment_count() > 1 {
            retain(&node.engine, &partition);
        }
    }
}

/// Compacts what is worth it, one partition after the other.
pub(crate) async fn compact_all(node: Arc<Node>) {
    for partition in partitions(&node).into_iter().filter(|p| p.settings().compaction.is_some()) {
        compact(&node, &partition).await;
    }
}

async fn compact(node: &Arc<Node>, partition: &Arc<Partition>) {
    let pass = Arc::new(Mutex::new(Pass::default()));
    if change(&node.engine, partition, Change::PlanCompaction(Arc::clone(&pass))).await.is_err() {
        return;
    }
    let Some(job) = lock_pass(&pass).job.take() else { return };
    let (stopping, killed, of) = (node.stopping.clone(), node.killed.clone(), Arc::clone(partition));
    let go_on = move || !stopping.is_cancelled() && !killed.is_cancelled() && !of.is_deleted();
    let run = move || job.run(go_on);
    match node.compactor.run(run).await {
        Ok(Ok(Some(done))) => lock_pass(&pass).done = Some(done),
        // Told to stop.
        Ok(Ok(None)) | Err(NotRun) => return,
        Ok(Err(reason)) => {
            tracing::warn!(partition = %partition.id, %reason, "compaction failed and is tried again later");
            return;
        }
    }
    // A failure has fenced the partition, which is told there.
    let _ = change(&node.engine, partition, Change::EndCompaction(Arc::clone(&pass))).await;
    if let Some(report) = lock_pass(&pass).report {
        let saved = report.bytes_before - report.bytes_after;
        node.metrics.compactions.add(1);
        node.metrics.bytes_compacted_away.add(usize::try_from(saved).unwrap_or(usize::MAX));
        tracing::debug!(partition = %partition.id, records = report.records_removed, bytes = saved, "compacted");
    }
}

fn retain(engine: &Engine, partition: &Arc<Partition>) {
    engine.submit(partition, Submission::Change { change: Change::Retain, done: Box::new(|_| ()) });
}

/// Hands a change to the partition's write actor and waits until it is made.
pub(crate) async fn change(
    engine: &Engine,
    partition: &Arc<Partition>,
    change: Change,
) -> Result<Written, Failure> {
    let (sender, made) = oneshot::channel();
    let done = Box::new(move |result| {
        let _ = sender.send(result);
    });
    engine.submit(partition, Submission::Change { change, done });
    // Dropped unanswered: a bug of ours that has closed the partition.
    made.await.unwrap_or(Err(Failure::Storage))
}

fn partitions(node: &Node) -> Vec<Arc<Partition>> {
    let topics = node.topics();
    let all = topics.iter().flat_map(|topic| &topic.partitions);
    all.filter(|partition| !partition.is_deleted() && !partition.is_fenced()).cloned().collect()
}
