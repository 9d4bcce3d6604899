//! The forms a lane's processor has: the loop that feeds a record handler, and the user's own loop.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;
use tramline_core::lanes::Work;

use super::outcome::LaneFailure;
use crate::batch::BatchHandler;
use crate::dispatch::{EachBatch, EachRecord, Plan, dispatch};
use crate::handler::{Handler, Processor};
use crate::lane::{Lane, LaneShared, LaneStream};

/// A form of processing.
pub(crate) trait StartLane {
    /// How many records of a lane may be out at once.
    fn at_once(&self) -> usize;

    /// The whole life of a lane's processor.
    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static;
}

/// A handler per record.
pub(crate) struct ForEach<H> {
    pub handler: Arc<H>,
    pub plan: Arc<Plan>,
}

impl<H: Handler> StartLane for ForEach<H> {
    fn at_once(&self) -> usize {
        if self.plan.is_plain() { 1 } else { usize::MAX }
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let (handler, plan) = (Arc::clone(&self.handler), Arc::clone(&self.plan));
        async move {
            if plan.is_plain() {
                one_by_one(lane, handler).await
            } else {
                dispatch(lane, Arc::new(EachRecord(handler)), plan).await
            }
        }
    }
}

/// The short way for what most runs are: one record after the other, and the first failure is the last.
async fn one_by_one<H: Handler>(lane: Arc<LaneShared>, handler: Arc<H>) -> Result<(), LaneFailure> {
    let handle = Lane(Arc::clone(&lane));
    let mut done = None;
    loop {
        let (record, ticket) = match lane.complete_and_pull(done.take()) {
            Work::Record(record, ticket) => (record, ticket),
            Work::Wait => {
                lane.wake.notified().await;
                continue;
            }
            Work::End | Work::OutOfOrder { .. } => return Ok(()),
        };
        // Handlers that never wait must not keep others from running.
        tokio::task::coop::consume_budget().await;
        let offset = record.offset();
        let mut handling = pin!(handler.handle(record, handle.clone()));
        let result = match poll_fn(|cx| Poll::Ready(handling.as_mut().poll(cx))).await {
            Poll::Ready(result) => result,
            Poll::Pending => {
                // Reading the clock costs as much as the rest of the loop, so only who waits pays it.
                lane.note_working(Instant::now());
                handling.await
            }
        };
        match result {
            Ok(()) => done = Some(ticket),
            Err(error) => {
                return Err(LaneFailure::Handler { offset: Some(offset), error: error.into() });
            }
        }
    }
}

/// A handler per batch.
pub(crate) struct ForEachBatch<H> {
    pub handler: Arc<H>,
    pub plan: Arc<Plan>,
}

impl<H: BatchHandler> StartLane for ForEachBatch<H> {
    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let (handler, plan) = (Arc::clone(&self.handler), Arc::clone(&self.plan));
        async move { dispatch(lane, Arc::new(EachBatch(handler)), plan).await }
    }
}

/// The user's own loop per lane.
pub(crate) struct Lanes<P>(pub Arc<P>);

impl<P: Processor> StartLane for Lanes<P> {
    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let processor = Arc::clone(&self.0);
        async move {
            let processed = processor.process(LaneStream::new(lane)).await;
            processed.map_err(|error| LaneFailure::Handler { offset: None, error: error.into() })
        }
    }
}
