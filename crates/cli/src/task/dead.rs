//! `tramline task dead` and `tramline task retry`.

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Global;
use crate::{Outcome, output};

/// The last line on stdout of `retry`.
#[derive(Serialize)]
struct Summary {
    retried: u64,
    failed: u64,
}

/// Prints the dead tasks.
pub async fn list(name: &str, global: &Global) -> Result<Outcome> {
    let queue = super::existing(name, global).await?;
    let dead = queue.dead().await?;
    if dead.is_empty() && !global.json {
        output::note(format_args!("no task of {name} is dead"));
        return Ok(Outcome::Done);
    }
    let mut table = output::table(&["shard", "task", "attempts", "payload", "cause"], &[0, 1, 2]);
    for task in &dead {
        if global.json {
            output::json(&json!({
                "shard": task.shard, "task": task.task, "attempts": task.attempts, "cause": task.cause,
                "earlier_causes": task.earlier_causes, "payload": text(&task.payload),
                "key": task.key.as_deref().map(text), "since": task.since,
            }))?;
        } else {
            let payload: String = String::from_utf8_lossy(&task.payload).chars().take(40).collect();
            table.add_row([
                task.shard.to_string(),
                task.task.to_string(),
                task.attempts.to_string(),
                payload.escape_debug().to_string(),
                task.cause.clone(),
            ]);
        }
    }
    if !global.json {
        output::print_table(&table)?;
    }
    Ok(Outcome::Done)
}

/// Adds the dead tasks again.
pub async fn retry(name: &str, global: &Global) -> Result<Outcome> {
    let queue = super::existing(name, global).await?;
    let (mut retried, mut failed) = (0, 0);
    for task in queue.retry_dead().await? {
        match task.outcome {
            Ok(receipt) => {
                retried += 1;
                if global.json {
                    output::json(&json!({
                        "shard": task.shard, "task": task.task, "new_shard": receipt.shard, "new_task": receipt.task,
                    }))?;
                }
            }
            Err(error) => {
                failed += 1;
                output::note(format_args!("error: task {} of shard {}: {error}", task.task, task.shard));
            }
        }
    }
    output::json(&Summary { retried, failed })?;
    Ok(if failed == 0 { Outcome::Done } else { Outcome::Failed })
}

/// Text as it is, other bytes in base64, as `consume --json` shows them.
fn text(bytes: impl AsRef<[u8]>) -> Value {
    match std::str::from_utf8(bytes.as_ref()) {
        Ok(text) => json!(text),
        Err(_) => json!({"base64": BASE64.encode(bytes)}),
    }
}
