//! How a record ended, for whoever waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tramline_core::client::accumulator::{Completion, Failure, Written};
use tramline_core::time::Timestamp;
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::RecordMetadata;

/// A record was accepted but is not known to be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The broker refused the record, or a batch with it. It is not written, and sending it again changes nothing.
    #[error("the broker refused the record: {code}{}", message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
    Refused {
        /// Why.
        code: ErrorCode,
        /// In its own words.
        message: Option<Str>,
    },
    /// The delivery timeout passed.
    #[error("no acknowledgement within the delivery timeout{}{}",
        if *possibly_written { "; the record is possibly written" } else { "; the record is not written" },
        last_error.map(|code| format!(" (last error {code})")).unwrap_or_default())]
    TimedOut {
        /// Whether the record was ever sent, so that it may be written although no acknowledgement came.
        possibly_written: bool,
        /// What the broker refused it with last, if it answered at all.
        last_error: Option<ErrorCode>,
    },
    /// The producer was dropped without [`close`](super::Producer::close).
    #[error("the producer was dropped before the record was acknowledged{}",
        if *possibly_written { "; the record is possibly written" } else { "" })]
    Dropped {
        /// Whether the record was ever sent.
        possibly_written: bool,
    },
    /// The batch cannot be sent: it does not fit in a request, its topic or partition is not there, or the producer
    /// cannot accept it. Nothing was sent.
    #[error(transparent)]
    NotAccepted(Box<super::SendError>),
    /// The bytes of the batch changed in memory while it waited. Our own bug, or a broken machine.
    #[error("the batch was damaged in memory")]
    Damaged,
}

impl DeliveryError {
    /// Whether the record may be in the log although it was not acknowledged. Sending it again may store it twice.
    #[must_use]
    pub fn is_possibly_written(&self) -> bool {
        match self {
            Self::TimedOut { possibly_written, .. } | Self::Dropped { possibly_written } => *possibly_written,
            Self::Refused { .. } | Self::NotAccepted(_) | Self::Damaged => false,
        }
    }

    /// Whether sending the record again can succeed without any other change.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Refused { code, .. } => code.is_retriable(),
            Self::NotAccepted(error) => error.is_retriable(),
            Self::Dropped { .. } | Self::Damaged => false,
        }
    }
}

impl From<Failure> for DeliveryError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, message } => Self::Refused { code: ErrorCode::from(code), message },
            Failure::TimedOut { possibly_written, last_error } => {
                Self::TimedOut { possibly_written, last_error: last_error.map(ErrorCode::from) }
            }
            Failure::Abandoned { possibly_written } => Self::Dropped { possibly_written },
            _ => Self::Damaged,
        }
    }
}

#[derive(Debug)]
struct Part {
    first: u32,
    count: u32,
    outcome: Result<Written, DeliveryError>,
}

#[derive(Debug, Default)]
struct Told {
    /// One part unless the batch was split.
    parts: Vec<Part>,
    wakers: Vec<(u32, Waker)>,
}

/// What the records of one batch share: who waits, and what they are told.
#[derive(Debug)]
pub(crate) struct BatchFate {
    topic_partition: TopicPartition,
    told: Mutex<Told>,
}

impl BatchFate {
    pub(crate) fn new(topic_partition: TopicPartition) -> Arc<Self> {
        Arc::new(Self { topic_partition, told: Mutex::default() })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // A waker that panics leaves the vectors whole.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells some of the records. Call it without holding any lock: tasks are woken.
    pub(crate) fn tell(completion: Completion<Arc<Self>>) -> Option<DeliveryError> {
        let outcome = completion.outcome.map_err(DeliveryError::from);
        let failure = outcome.as_ref().err().cloned();
        let wakers = {
            let mut told = completion.token.told();
            told.parts.push(Part { first: completion.first, count: completion.count, outcome });
            std::mem::take(&mut told.wakers)
        };
        for (_, waker) in wakers {
            waker.wake();
        }
        failure
    }
}

/// What becomes of an accepted record. Await it, or drop it: dropping cancels nothing, the record is sent either way.
#[derive(Debug)]
#[must_use = "whether the record was written is only told here; flush() and close() tell whether any failed"]
pub struct Delivery {
    fate: Arc<BatchFate>,
    index: u32,
    timestamp: Timestamp,
    slot: usize,
}

impl Delivery {
    pub(crate) fn new(fate: Arc<BatchFate>, index: u32, timestamp: Timestamp) -> Self {
        Self { fate, index, timestamp, slot: usize::MAX }
    }

    /// The partition the record goes to.
    #[must_use]
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.fate.topic_partition
    }
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, DeliveryError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (index, slot) = (self.index, self.slot);
        let mut told = self.fate.told();
        let mine = told.parts.iter().find(|part| (part.first..part.first + part.count).contains(&index));
        if let Some(part) = mine {
            return Poll::Ready(part.outcome.clone().map(|written| RecordMetadata {
                topic_partition: self.fate.topic_partition.clone(),
                offset: written.base_offset.map(|base| base + i64::from(index - part.first)),
                timestamp: written.append_time.unwrap_or(self.timestamp),
            }));
        }
        // The slot is only a guess: others' wakers move when a part of the batch is told.
        match told.wakers.get_mut(slot).filter(|(owner, _)| *owner == index) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => {
                told.wakers.push((index, cx.waker().clone()));
                let slot = told.wakers.len() - 1;
                drop(told);
                self.slot = slot;
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b185_nothing_is_kept_of_deliveries_that_were_dropped() {
        let fate = BatchFate::new(TopicPartition::new("t", 0));
        let kept = Arc::downgrade(&fate);
        let mut context = Context::from_waker(Waker::noop());
        for index in 0..1000 {
            let mut delivery = Delivery::new(fate.clone(), index, 0);
            assert!(Pin::new(&mut delivery).poll(&mut context).is_pending());
        }
        let outcome = Ok(Written { base_offset: Some(0), append_time: None });
        BatchFate::tell(Completion { token: fate, first: 0, count: 1000, outcome });
        assert!(kept.upgrade().is_none(), "the batch itself is the last to hold it");
    }
}
