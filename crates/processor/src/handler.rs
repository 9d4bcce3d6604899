//! What the user brings: a handler per record, or a long-lived processor per lane.

use std::future::Future;

use tramline_wire::Record;

use crate::error::BoxError;
use crate::lane::{Lane, LaneStream};

/// Processes one record at a time.
///
/// `Ok` completes the record: what the handler did must be durable by then, since the record's offset may be
/// committed at once. `Err` goes to the run's error policy and leaves the record unfinished; but no policy is asked
/// once a lane that is still ours was told to hurry ([`Lane::stopping`]): then `Err` says that the record was given
/// up, and it comes again. A handler that is dropped at an await (see [`stop`](crate::PartitionedBuilder::stop)) leaves it unfinished too.
///
/// Any `Fn(Record, Lane) -> impl Future<Output = Result<(), E>>` is a handler; with
/// [`decode`](crate::PartitionedBuilder::decode) any `Fn(Decoded<T>, Lane)`.
pub trait Handler<R = Record>: Send + Sync + 'static {
    /// What can go wrong.
    type Error: Into<BoxError> + Send + 'static;

    /// Processes `record` of `lane`.
    fn handle(&self, record: R, lane: Lane) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Fut, E, R> Handler<R> for F
where
    F: Fn(R, Lane) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<BoxError> + Send + 'static,
{
    type Error = E;

    fn handle(&self, record: R, lane: Lane) -> impl Future<Output = Result<(), E>> + Send {
        self(record, lane)
    }
}

/// Processes a whole lane: takes its records, completes them, and returns when the lane ends.
///
/// Returning while the partition is still assigned is a failure, also with `Ok`. An `Err` after the lane was told to
/// hurry ([`Lane::stopping`](crate::Lane::stopping)) is none: what was not done comes again.
///
/// Any `Fn(LaneStream) -> impl Future<Output = Result<(), E>>` is a processor; with
/// [`decode`](crate::PartitionedBuilder::decode) any `Fn(DecodedStream<T>)`.
pub trait Processor<L = LaneStream>: Send + Sync + 'static {
    /// What can go wrong.
    type Error: Into<BoxError> + Send + 'static;

    /// Processes the lane until [`LaneStream::next`] says that it ends.
    fn process(&self, lane: L) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Fut, E, L> Processor<L> for F
where
    F: Fn(L) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<BoxError> + Send + 'static,
{
    type Error = E;

    fn process(&self, lane: L) -> impl Future<Output = Result<(), E>> + Send {
        self(lane)
    }
}
