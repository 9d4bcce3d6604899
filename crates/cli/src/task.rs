//! `tramline task`: add tasks to a queue, work on them with a command, see how it stands, deal with the dead.

mod add;
pub mod args;
mod dead;
mod status;
mod work;

use anyhow::{Context, Result};
use tramline::queue::{OpenError, Queue};

use crate::args::Global;
use crate::stop::Stop;
use crate::{Outcome, cluster};
use args::{Task, TaskCommand};

/// Runs one of the task commands.
pub async fn run(args: Task, global: &Global, stop: Stop) -> Result<Outcome> {
    match args.command {
        TaskCommand::Add(args) => add::run(args, global, stop).await,
        TaskCommand::Work(args) => work::run(args, global, stop).await,
        TaskCommand::Status { queue } => stop.or(status::run(&queue, global)).await,
        TaskCommand::Dead { queue } => stop.or(dead::list(&queue, global)).await,
        TaskCommand::Retry { queue } => stop.or(dead::retry(&queue, global)).await,
    }
}

/// A queue that is there.
async fn existing(name: &str, global: &Global) -> Result<Queue> {
    let opened = Queue::builder(cluster::config(global), name).create(false).open().await;
    match opened {
        Err(OpenError::Missing(_)) => Err(anyhow::anyhow!(
            "there is no queue {name}: its first task makes it (tramline task add {name})"
        )),
        opened => opened.with_context(|| format!("cannot open the queue {name} at {}", global.brokers())),
    }
}
