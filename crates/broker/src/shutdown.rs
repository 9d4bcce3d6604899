//! How a node ends: cleanly, with everything forced and written down, or at once, like a process that dies.

use std::sync::{Arc, PoisonError};

use tramline_log::Log;

use crate::error::ShutdownError;
use crate::node::Node;

/// Writes and forces what is queued, then closes every log. Blocks; connections have ended.
pub(crate) fn close(node: &Arc<Node>) -> Result<(), ShutdownError> {
    node.engine.stop();
    node.readers.stop();
    node.unpackers.stop();
    node.compactor.stop();
    let mut failures = Vec::new();
    for topic in node.topics().iter() {
        for partition in &topic.partitions {
            let (log, answers) = partition.actor().take_log();
            answers.give();
            if let Some(Err(error)) = log.map(Log::close) {
                failures.push((partition.id.to_string(), error.to_string()));
            }
        }
    }
    release(node);
    let count = failures.len();
    match failures.into_iter().next() {
        None => Ok(()),
        Some((first, reason)) => Err(ShutdownError::Logs { count, first, reason }),
    }
}

/// Ends the threads and lets go of the directory; nothing is forced or written down that nobody waited for. Blocks.
pub(crate) fn abandon(node: &Arc<Node>) {
    node.engine.stop();
    node.readers.stop();
    node.unpackers.stop();
    node.compactor.stop();
    for topic in node.topics().iter() {
        for partition in &topic.partitions {
            let (log, answers) = partition.actor().take_log();
            answers.give();
            drop(log);
        }
    }
    release(node);
}

fn release(node: &Node) {
    *node.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
