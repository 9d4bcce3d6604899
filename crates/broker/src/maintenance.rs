//! What happens without anyone asking: barriers and marks for partitions whose producers want none, and retention.
//!
//! Nothing is done here. Each turn looks at the partitions and hands their write actors messages; the work is theirs,
//! on their threads, in order with the appends.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::engine::Engine;
use crate::node::Node;
use crate::partition::{Change, Failure, Partition, Submission, Written};

/// Runs until it is dropped.
pub(crate) async fn keep(node: Arc<Node>) {
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
