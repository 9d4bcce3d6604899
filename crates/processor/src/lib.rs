//! Ordered lanes per partition over any source of records.
//!
//! A *lane* is one assigned partition's queue and processor. Records of a lane are processed in offset order;
//! lanes run side by side; an offset is committed only when everything before it is completed. Revocation,
//! loss and shutdown are three different things and each is handled as such.
//!
//! Begin with [`PartitionedExt::partitioned`] on a consumer (or any [`Source`]), then
//! [`for_each`](Partitioned::for_each) for a handler per record,
//! [`for_each_batch`](Partitioned::for_each_batch) for one per batch or [`lanes`](PartitionedLanes::lanes) for a
//! processor per partition. Records of one partition run one after the other, by key or side by side
//! ([`Ordering`]); what a failure means is an [`ErrorPolicy`].

mod batch;
mod config;
mod consumer;
pub mod dead_letter;
mod decode;
mod dispatch;
mod driver;
mod error;
mod handler;
#[cfg(test)]
mod interleavings;
mod lane;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
mod monitor;
mod ordering;
mod parked;
mod policy;
mod slots;
#[cfg(test)]
mod slots_tests;
mod source;
mod spans;
mod stats;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use batch::{Batch, BatchHandler};
pub use config::{Backpressure, Partitioned, PartitionedBuilder, PartitionedExt, PartitionedLanes};
pub use dead_letter::{DeadLetter, DeadLetterError, DeadLetterTopic, DeadLetters};
pub use decode::{Decode, Decoded, DecodedStream, DeliveredValue, Raw, Values};
pub use error::{
    BoxError, ConfigError, ConfigErrorKind, LaneCommitError, LaneReport, RunEndReason, RunError, RunReport,
};
pub use handler::{Handler, Processor};
pub use lane::{Delivered, FencingToken, Lane, LaneStream};
pub use monitor::{LaneSnapshot, Monitor, WaitingFor};
pub use ordering::{LaneKey, Ordering};
pub use parked::{ParkedError, ParkedId, ParkedKey, ParkedKeys};
pub use policy::{DeadLetterTo, ErrorPolicy, Park, Retry};
pub use source::{
    CommitConfiguration, CommitError, CommitErrorKind, CommitOffset, Committed, FetchBlocked, GroupMetadata,
    RevocationHold, Source, SourceBatch, SourceEvent, SourceEvents,
};
pub use spans::TraceContext;
pub use stats::{Durations, LaneStates, PartitionStats, RunStats, StopDurations};
pub use tramline_core::lanes::{
    Backoff, CommitPolicy, LaneId, LaneOutcome, LaneState, StopPolicy, StopReason,
};
