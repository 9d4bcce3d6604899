//! The forms a lane's processor has: the loop that feeds a record handler, and the user's own loop.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;
use tracing::Instrument;
use tramline_core::lanes::Work;

use super::outcome::LaneFailure;
use crate::batch::BatchHandler;
use crate::decode::Values;
use crate::dispatch::{EachBatch, EachRecord, Plan, dispatch};
use crate::error::BoxError;
use crate::handler::{Handler, Processor};
use crate::lane::{Lane, LaneShared, LaneStream};
use crate::spans;
use crate::stats::Sampler;

/// A form of processing.
pub(crate) trait StartLane {
    /// How many records of a lane may be out at once.
    fn at_once(&self) -> usize;

    /// The whole life of a lane's processor.
    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static;
}

/// A handler per record.
pub(crate) struct ForEach<H, V> {
    pub handler: Arc<H>,
    pub values: V,
    pub plan: Arc<Plan>,
}

impl<V: Values, H: Handler<V::Given>> StartLane for ForEach<H, V> {
    fn at_once(&self) -> usize {
        if self.plan.is_plain() { 1 } else { usize::MAX }
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let (handler, plan) = (Arc::clone(&self.handler), Arc::clone(&self.plan));
        let values = self.values.clone();
        async move {
            if plan.is_plain() {
                one_by_one(lane, handler, values).await
            } else {
                let work = EachRecord { handler, values: values.clone() };
                dispatch(lane, Arc::new(work), values, plan).await
            }
        }
    }
}

/// The short way for what most runs are: one record after the other, and the first failure is the last.
async fn one_by_one<V: Values, H: Handler<V::Given>>(
    lane: Arc<LaneShared>,
    handler: Arc<H>,
    values: V,
) -> Result<(), LaneFailure> {
    let handle = Lane::new(Arc::clone(&lane));
    let mut done = None;
    let mut sampler = Sampler::default();
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
        // Reading the clock costs as much as the rest of the loop, so only who waits pays it, and one in many.
        let begun = sampler.is_due().then(Instant::now);
        let span = spans::around(Some(&record), 1, 1);
        let given = match values.give_now(record) {
            Ok(given) => given,
            Err(error) => return Err(LaneFailure::Undecodable { offset: Some(offset), error }),
        };
        let mut handling = pin!(handler.handle(given, handle.clone()).instrument(span));
        let result = match poll_fn(|cx| Poll::Ready(handling.as_mut().poll(cx))).await {
            Poll::Ready(result) => {
                if let Some(begun) = begun {
                    lane.note_handled(begun.elapsed(), sampler.weight());
                }
                result
            }
            Poll::Pending => {
                let now = Instant::now();
                lane.note_working(now);
                let result = handling.await;
                if begun.is_none() {
                    sampler.waited();
                }
                lane.note_handled(begun.unwrap_or(now).elapsed(), 1);
                result
            }
        };
        match result {
            Ok(()) => done = Some(ticket),
            Err(error) if lane.is_cut_short() => {
                let error: BoxError = error.into();
                tracing::warn!(lane = %lane.id, offset, %error, "given up, since the lane stops at once");
                return Ok(());
            }
            Err(error) => {
                return Err(LaneFailure::Handler { offset: Some(offset), error: error.into() });
            }
        }
    }
}

/// A handler per batch.
pub(crate) struct ForEachBatch<H, V> {
    pub handler: Arc<H>,
    pub values: V,
    pub plan: Arc<Plan>,
}

impl<V: Values, H: BatchHandler<V::Given>> StartLane for ForEachBatch<H, V> {
    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let (handler, plan) = (Arc::clone(&self.handler), Arc::clone(&self.plan));
        let values = self.values.clone();
        async move {
            let work = EachBatch { handler, values: values.clone() };
            dispatch(lane, Arc::new(work), values, plan).await
        }
    }
}

/// The user's own loop per lane.
pub(crate) struct Lanes<P, V> {
    pub processor: Arc<P>,
    pub values: V,
}

impl<V: Values, P: Processor<V::Stream>> StartLane for Lanes<P, V> {
    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn start(&self, lane: Arc<LaneShared>) -> impl Future<Output = Result<(), LaneFailure>> + Send + 'static {
        let processor = Arc::clone(&self.processor);
        let stream = self.values.stream(LaneStream::new(Arc::clone(&lane)));
        async move {
            let Err(error) = processor.process(stream).await else { return Ok(()) };
            let error: BoxError = error.into();
            if lane.is_cut_short() {
                tracing::warn!(lane = %lane.id, %error, "given up, since the lane stops at once");
                return Ok(());
            }
            Err(LaneFailure::Handler { offset: None, error })
        }
    }
}
