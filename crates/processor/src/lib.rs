//! Ordered lanes per partition over any source of records.
//!
//! A *lane* is one assigned partition's queue and processor. Records of a lane are processed in offset order;
//! lanes run side by side; an offset is committed only when everything before it is completed. Revocation,
//! loss and shutdown are three different things and each is handled as such.
//!
//! Begin with [`PartitionedExt::partitioned`] on a consumer (or any [`Source`]), then
//! [`for_each`](Partitioned::for_each) for a handler per record or [`lanes`](Partitioned::lanes) for a
//! processor per partition.

mod config;
mod consumer;
mod driver;
mod error;
mod handler;
mod lane;
mod monitor;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::{ErrorPolicy, Ordering, Partitioned, PartitionedBuilder, PartitionedExt};
pub use error::{
    BoxError, ConfigError, ConfigErrorKind, LaneCommitError, LaneReport, RunEndReason, RunError, RunReport,
};
pub use handler::{Handler, Processor};
pub use lane::{Delivered, FencingToken, Lane, LaneStream};
pub use monitor::{LaneSnapshot, Monitor, WaitingFor};
pub use source::{
    CommitConfiguration, CommitError, CommitErrorKind, CommitOffset, GroupMetadata, RevocationHold, Source,
    SourceBatch, SourceEvent, SourceEvents,
};
pub use tramline_core::lanes::{CommitPolicy, LaneId, LaneState, StopPolicy, StopReason};
