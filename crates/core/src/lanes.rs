//! Partitioned processing: one ordered lane per assigned partition, and the run that coordinates them.
//!
//! Three machines meet here, and none waits for anything:
//!
//! - A [`Lane`] is one partition under one assignment: the batches queued for it, the order in which its
//!   records become work, and the [`OffsetTracker`] that says which offset may be committed. It is touched
//!   per record, by whoever processes the lane.
//! - A [`Dispatcher`] says which records of one lane may run side by side: those of different keys, or all.
//!   It stands between a lane and its handlers when there is more than one at a time.
//! - A [`Run`] is everything that concerns more than one lane: assignments, revocations and losses, what to
//!   pause, when to commit, how to stop. It is touched per batch and per event, never per record. Feed it
//!   with `handle_*`, then carry out what [`Run::poll_effect`] says until that answers `None`, and come back
//!   with [`Run::handle_timeout`] when [`Run::next_timeout`] is due.
//!
//! What holds, whatever the order of events (the tests of [`run`] check it over random histories):
//!
//! 1. The frontier of a lane never moves backwards and never passes an unfinished delivered record.
//! 2. A partition has at most one live lane; its successor starts after it has ended.
//! 3. A lane gets records of its own assignment only.
//! 4. Nothing is committed for a partition that was lost, or after its revocation was released.
//! 5. Every revocation is released exactly once.
//! 6. Every commit that was asked for is answered exactly once.

pub mod backoff;
pub mod budget;
pub mod commit;
mod key_hash;
pub mod key_order;
mod key_table;
pub mod lane;
mod memory;
pub mod offset_tracker;
pub mod progress;
pub mod run;

pub use backoff::{Backoff, Jitter};
pub use budget::Budget;
pub use commit::{CommitFailure, CommitFailureKind, CommitPolicy, CommitRefusal, CommitRequest, CommitToken};
pub use key_order::{Dispatcher, DispatcherConfig, HasKey, JobId, ParkingConfig, Start};
pub use lane::{
    Chunk, HasOffset, Lane, LaneConfig, LaneId, LaneNumber, LaneState, Offer, Pull, StopReason, Stopped, Work,
};
pub use memory::Pinned;
pub use offset_tracker::{Frontier, OffsetTracker, Ticket};
pub use progress::{Progress, SavedProgress};
pub use run::{
    BatchInfo, Effect, EndCause, HeldBack, LaneEnd, LaneOutcome, OnFailure, RevocationId, Run, RunConfig,
    RunEnd, StopPolicy,
};

#[cfg(test)]
mod tests;
