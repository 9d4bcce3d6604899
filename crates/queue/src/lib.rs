//! A task queue over a log: the order of a claims partition decides who works on what.
//!
//! A queue is a handful of topics, on the embedded broker or on Apache Kafka alike. [`Queue::publish`] adds a task;
//! [`Worker::run`] takes tasks, one lease each, renews while the handler runs, and writes down what became of them. There
//! is no server of its own: every worker folds the same records (`tramline_core::claims`) and comes to the same verdicts.
//!
//! A handler may run twice: a worker that stalls past its lease loses its task to another. [`Task::token`] grows with every
//! holder of a task; a store that refuses smaller tokens than it has seen makes the effect happen once.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tramline_client::ClientConfig;
//! use tramline_queue::{NewTask, Outcome, Queue, Task};
//!
//! let queue = Queue::open(ClientConfig::new("127.0.0.1:9092"), "mails").await?;
//! queue.publish(NewTask::new("to ann").max_attempts(3)).await?;
//! let worker = queue.worker().concurrency(8).build()?;
//! let report = worker
//!     .run(tokio::time::sleep(std::time::Duration::from_secs(60)), |task: Task| async move {
//!         println!("{:?} under token {}", task.payload(), task.token());
//!         Outcome::Done
//!     })
//!     .await?;
//! println!("{} done", report.done);
//! # Ok(())
//! # }
//! ```

mod dead;
mod error;
mod new_task;
mod queue;
mod replay;
mod shared;
mod snapshots;
mod task;
mod topics;
mod worker;

pub use dead::{DeadTask, Retried};
pub use error::{HealthError, OpenError, PublishError, ReadError, WorkError, WorkerConfigError};
pub use new_task::NewTask;
pub use queue::{Queue, QueueBuilder, Receipt};
pub use replay::{ClaimedTask, QueueStatus, ReplayedRecord, ShardStatus};
pub use task::{Outcome, Task};
pub use tramline_core::claims::ledger::{Counts, State, Verdict};
pub use tramline_core::claims::record::{ClaimRecord, Kind};
pub use tramline_core::claims::worker::{Lost, Pick, WorkerStats};
pub use tramline_core::lanes::Backoff;
pub use worker::{Monitor, Worker, WorkerBuilder};
