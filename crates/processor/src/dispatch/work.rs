//! What a slot does: a handler's call, for one record or many, or the writing of dead letters.

use std::future::Future;
use std::sync::Arc;

use crate::batch::{Batch, BatchHandler};
use crate::dead_letter::DeadLetter;
use crate::decode::Values;
use crate::error::BoxError;
use crate::handler::Handler;
use crate::lane::Lane;
use crate::policy::AnyDeadLetters;

/// What handlers of one and of many records have in common.
pub(crate) trait Work: Send + Sync + 'static {
    type Values: Values;
    /// What a handler is given.
    type Input: Send;

    /// Is asked again before each attempt.
    fn input(&self, items: &mut Items<Self::Values>) -> Self::Input;

    fn handle(&self, input: Self::Input, lane: Lane) -> impl Future<Output = Result<(), Failed>> + Send;
}

/// The records of one job.
pub(crate) type Items<V> = Arc<Vec<<V as crate::decode::private::Values>::Item>>;

/// What went wrong in a slot.
pub(crate) enum Failed {
    Handler(BoxError),
    Undecodable(BoxError),
    /// A dead letter could not be written.
    Unwritten(BoxError),
}

pub(crate) struct EachRecord<H, V> {
    pub handler: Arc<H>,
    pub values: V,
}

impl<V: Values, H: Handler<V::Given>> Work for EachRecord<H, V> {
    type Values = V;
    type Input = Option<Result<V::Given, BoxError>>;

    fn input(&self, items: &mut Items<V>) -> Self::Input {
        Arc::get_mut(items).and_then(|items| items.first_mut()).map(|item| self.values.give(item))
    }

    async fn handle(&self, input: Self::Input, lane: Lane) -> Result<(), Failed> {
        match input {
            Some(Ok(given)) => {
                self.handler.handle(given, lane).await.map_err(|error| Failed::Handler(error.into()))
            }
            Some(Err(error)) => Err(Failed::Undecodable(error)),
            None => Ok(()),
        }
    }
}

pub(crate) struct EachBatch<H, V> {
    pub handler: Arc<H>,
    pub values: V,
}

impl<V: Values, H: BatchHandler<V::Given>> Work for EachBatch<H, V> {
    type Values = V;
    type Input = Result<Batch<V::Given>, BoxError>;

    fn input(&self, items: &mut Items<V>) -> Self::Input {
        self.values.give_all(items)
    }

    async fn handle(&self, input: Self::Input, lane: Lane) -> Result<(), Failed> {
        match input {
            Ok(batch) => {
                self.handler.handle(batch, lane).await.map_err(|error| Failed::Handler(error.into()))
            }
            Err(error) => Err(Failed::Undecodable(error)),
        }
    }
}

/// What a slot does.
pub(super) enum Task<I> {
    /// With the number of the attempt.
    Handle(I, u32),
    Bury(Arc<dyn AnyDeadLetters>, Vec<DeadLetter>),
}

pub(super) async fn run<W: Work>(work: Arc<W>, lane: Lane, task: Task<W::Input>) -> Result<(), Failed> {
    match task {
        Task::Handle(input, attempt) => work.handle(input, lane.at_attempt(attempt)).await,
        Task::Bury(letters, all) => {
            for letter in all {
                letters.write(letter).await.map_err(Failed::Unwritten)?;
            }
            Ok(())
        }
    }
}
