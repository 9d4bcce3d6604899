//! What runs beside the driver for one task: its handler, its result, its dead letter.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tramline_client::ProducerRecord;
use tramline_core::claims::worker::{Held, Outcome as Settle};

use super::payloads::Payloads;
use crate::dead;
use crate::shared::Shared;
use crate::task::{Outcome, Task};

/// How long a dead letter, or the record of a task, waits before it is tried again; the lease is renewed meanwhile.
const AGAIN: Duration = Duration::from_secs(1);

/// How one of them ended.
#[derive(Debug)]
pub(super) enum Ended {
    Handler(u64, Settle),
    Letter(u64, String),
}

/// Gets the record, runs the handler, writes the result.
pub(super) async fn handle<H, F>(
    shared: Arc<Shared>,
    payloads: Arc<Payloads>,
    handler: Arc<H>,
    held: Held,
    lost: CancellationToken,
) -> Ended
where
    H: Fn(Task) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let id = held.id;
    let record = loop {
        match payloads.get(held.shard, held.task).await {
            Ok(Some(record)) => break record,
            Ok(None) => {
                return Ended::Handler(id, Settle::Failed { cause: "the task's record is gone".into() });
            }
            // No handler has begun, so no attempt is spent on a broker that is away.
            Err(error) if error.is_retriable() => tokio::time::sleep(AGAIN).await,
            Err(error) => {
                return Ended::Handler(id, retry(format!("the task's record cannot be read: {error}")));
            }
        }
    };
    let task = Task { held: held.clone(), record, lost };
    // A task of its own, so that a panic is an outcome. It ends with this future.
    let mut running = tokio::task::JoinSet::new();
    running.spawn(handler(task));
    let outcome = match running.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) => Outcome::retry(format_args!("the handler panicked: {error}")),
        None => Outcome::retry("the handler did not run"),
    };
    let settle = match outcome {
        Outcome::Done => Settle::Done,
        Outcome::DoneWith(result) => match write_result(&shared, &held, result).await {
            Ok(()) => Settle::Done,
            Err(cause) => retry(cause),
        },
        Outcome::Retry { after, cause } => Settle::Retry { after, cause },
        Outcome::Failed { cause } => Settle::Failed { cause },
    };
    if settle == Settle::Done {
        payloads.forget(held.shard, held.task);
    }
    Ended::Handler(id, settle)
}

fn retry(cause: String) -> Settle {
    Settle::Retry { after: None, cause }
}

async fn write_result(shared: &Shared, held: &Held, result: bytes::Bytes) -> Result<(), String> {
    if !shared.results {
        return Err("the handler gave a result, and the queue was opened without results".into());
    }
    let topic = shared.topics.results.clone();
    let record = ProducerRecord::to(topic.clone())
        .key(held.task.to_string())
        .value(result)
        .header("tl-token", held.token.to_string());
    let written = shared.producer.send_batch(topic, held.shard, vec![record]).await;
    written.map(|_| ()).map_err(|error| format!("the result was not written: {error}"))
}

/// Writes the letter, however often that takes: the lease is renewed meanwhile, and whoever takes it over does the same.
pub(super) async fn bury(shared: Arc<Shared>, payloads: Arc<Payloads>, held: Held, cause: String) -> Ended {
    loop {
        let record = match payloads.get(held.shard, held.task).await {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(shard = held.shard, task = held.task, %error, "a dead task's record cannot be read");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        match dead::write(&shared, &held, &cause, record.as_ref()).await {
            Ok(()) => return Ended::Letter(held.id, cause),
            Err(error) => {
                tracing::warn!(shard = held.shard, task = held.task, %error, "a dead letter was not written");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
