//! The task queue's decisions: who works on what, decided by the order of a claims partition.
//!
//! A queue has a topic of tasks and a topic of claims with as many partitions: a *shard* is a partition of both. A task is
//! named by its offset. To take it, a worker appends a claim and reads its own claim back: the first claim on a free task
//! wins, in every reader, since all of them fold the same records in the same order. The claim's offset is the *token*
//! under which the work is done.
//!
//! - [`record`]: what a claims partition holds, as text;
//! - [`task`]: what a task's record says about how it wants to be worked on;
//! - [`ledger`]: the fold, a ledger machine: only [`Ledger::apply`] and [`Ledger::add_task`] change it;
//! - [`snapshot`]: its state as bytes, the same from every reader;
//! - [`worker`]: the event machine of a worker: whom to try, when to renew, what to give up.
//!
//! No verdict depends on a reader's clock. Leases end by *log time*: the largest append time so far in the claims
//! partition, which a broker whose clock steps back cannot turn back.

mod codec;
pub mod ledger;
pub mod record;
pub mod snapshot;
pub mod task;
pub mod worker;

#[cfg(test)]
mod model;

pub use ledger::{Behind, Counts, Lease, Ledger, Refusal, State, Verdict};
pub use record::{ClaimRecord, Kind};
pub use snapshot::{Snapshot, SnapshotError};
pub use task::{TaskMeta, Unique};
pub use worker::{Action, Worker, WorkerConfig};
