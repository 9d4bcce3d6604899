//! Typed values beside records: what handlers are given, and how it comes about inside the lane.

use std::any::type_name;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tramline_core::lanes::HasKey;
use tramline_wire::Record;

use crate::batch::Batch;
use crate::driver::{LaneFailure, panic_message};
use crate::error::BoxError;
use crate::lane::{Delivered, Lane, LaneStream, Signal};
use crate::ordering::{KeyBy, LaneKey};

/// A record and the value that was decoded from it, see [`decode`](crate::PartitionedBuilder::decode).
///
/// Made to be taken apart: `|Decoded { record, value }: Decoded<Order>, lane: Lane| async move { .. }`.
#[derive(Clone, Debug)]
pub struct Decoded<T> {
    /// The record, with the bytes as they were read.
    pub record: Record,
    /// What they mean.
    pub value: T,
}

/// Handlers are given records as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

/// Handlers are given a [`Decoded<T>`] for each record.
pub struct Decode<T> {
    decode: Arc<DecodeFn<T>>,
    pub(crate) key_by: Option<Arc<KeyFn<T>>>,
}

type DecodeFn<T> = dyn Fn(&Record) -> Result<T, BoxError> + Send + Sync;
type KeyFn<T> = dyn Fn(&Decoded<T>) -> LaneKey + Send + Sync;

impl<T> Decode<T> {
    pub(crate) fn new<E: Into<BoxError>>(
        decode: impl Fn(&Record) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        Self { decode: Arc::new(move |record| decode(record).map_err(Into::into)), key_by: None }
    }

    /// A panic of the user's function is a failure of this record.
    fn decode(&self, record: &Record) -> Result<T, BoxError> {
        match catch_unwind(AssertUnwindSafe(|| (self.decode)(record))) {
            Ok(decoded) => decoded,
            Err(panic) => Err(format!("decoding panicked: {}", panic_message(panic.as_ref())).into()),
        }
    }
}

impl<T> Clone for Decode<T> {
    fn clone(&self) -> Self {
        Self { decode: Arc::clone(&self.decode), key_by: self.key_by.clone() }
    }
}

impl<T> fmt::Debug for Decode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Decode").field(&type_name::<T>()).finish()
    }
}

/// What handlers are given: with [`Raw`] a [`Record`], and processors of whole lanes a [`LaneStream`]; with
/// [`Decode<T>`] a [`Decoded<T>`] and a [`DecodedStream<T>`]. Cannot be implemented outside of this crate.
pub trait Values: private::Values {}

impl Values for Raw {}

impl<T: Send + Sync + 'static> Values for Decode<T> {}

pub(crate) mod private {
    use super::{Arc, Batch, BoxError, HasKey, KeyBy, LaneKey, LaneStream, Record};

    /// What the lanes need of [`Values`](super::Values).
    pub trait Values: Clone + Send + Sync + 'static {
        /// What waits for a handler.
        type Item: HasKey + Send + Sync + 'static;
        /// What a record handler is given, and a batch has.
        type Given: Send + Sync + 'static;
        /// What a processor of a whole lane is given.
        type Stream: Send + 'static;

        fn admit(&self, record: Record) -> Self::Item;
        /// The key that the user's function gives; none without such a function.
        fn key(&self, item: &Self::Item, by_record: Option<&KeyBy>) -> Option<LaneKey>;
        fn record(item: &Self::Item) -> &Record;
        /// Whether the item may not be in a batch with others, since it fails.
        fn is_alone(item: &Self::Item) -> bool;
        /// For a handler that is called at once, and once.
        fn give_now(&self, record: Record) -> Result<Self::Given, BoxError>;
        /// For a handler, again after each failure.
        fn give(&self, item: &mut Self::Item) -> Result<Self::Given, BoxError>;
        fn give_all(&self, items: &mut Arc<Vec<Self::Item>>) -> Result<Batch<Self::Given>, BoxError>;
        fn stream(&self, lane: LaneStream) -> Self::Stream;
    }
}

impl private::Values for Raw {
    type Item = Record;
    type Given = Record;
    type Stream = LaneStream;

    fn admit(&self, record: Record) -> Record {
        record
    }

    fn key(&self, item: &Record, by_record: Option<&KeyBy>) -> Option<LaneKey> {
        by_record.map(|key_by| (key_by.0)(item))
    }

    fn record(item: &Record) -> &Record {
        item
    }

    fn is_alone(_: &Record) -> bool {
        false
    }

    #[inline]
    fn give_now(&self, record: Record) -> Result<Record, BoxError> {
        Ok(record)
    }

    #[inline]
    fn give(&self, item: &mut Record) -> Result<Record, BoxError> {
        Ok(item.clone())
    }

    fn give_all(&self, items: &mut Arc<Vec<Record>>) -> Result<Batch, BoxError> {
        Ok(Batch(Arc::clone(items)))
    }

    fn stream(&self, lane: LaneStream) -> LaneStream {
        lane
    }
}

/// A record that waits for its handler.
pub enum Waiting<T> {
    /// With its value.
    Decoded(Decoded<T>),
    /// It cannot be decoded.
    Undecodable(Record, BoxError),
    /// Its value, or what kept it from having one, was given away. What is handled again is decoded again, so
    /// that values need not be copied.
    Given(Record),
}

impl<T> Waiting<T> {
    const fn record(&self) -> &Record {
        match self {
            Self::Decoded(decoded) => &decoded.record,
            Self::Undecodable(record, _) | Self::Given(record) => record,
        }
    }
}

impl<T> HasKey for Waiting<T> {
    fn key(&self) -> Option<&[u8]> {
        self.record().key()
    }

    fn key_bytes(&self) -> Option<Bytes> {
        self.record().key_bytes()
    }

    fn settle_down(&mut self) -> Option<usize> {
        match self {
            Self::Decoded(decoded) => decoded.record.settle_down(),
            Self::Undecodable(record, _) | Self::Given(record) => record.settle_down(),
        }
    }
}

impl<T: Send + Sync + 'static> private::Values for Decode<T> {
    type Item = Waiting<T>;
    type Given = Decoded<T>;
    type Stream = DecodedStream<T>;

    fn admit(&self, record: Record) -> Waiting<T> {
        match self.decode(&record) {
            Ok(value) => Waiting::Decoded(Decoded { record, value }),
            Err(error) => Waiting::Undecodable(record, error),
        }
    }

    fn key(&self, item: &Waiting<T>, by_record: Option<&KeyBy>) -> Option<LaneKey> {
        match (&self.key_by, item) {
            (None, _) => by_record.map(|key_by| (key_by.0)(item.record())),
            (Some(key_by), Waiting::Decoded(decoded)) => Some(key_by(decoded)),
            (Some(_), Waiting::Undecodable(..)) => None,
            (Some(key_by), Waiting::Given(record)) => {
                let decoded = self.decode(record).map(|value| Decoded { record: record.clone(), value });
                decoded.ok().map(|decoded| key_by(&decoded))
            }
        }
    }

    fn record(item: &Waiting<T>) -> &Record {
        item.record()
    }

    fn is_alone(item: &Waiting<T>) -> bool {
        matches!(item, Waiting::Undecodable(..))
    }

    fn give_now(&self, record: Record) -> Result<Decoded<T>, BoxError> {
        self.decode(&record).map(|value| Decoded { record, value })
    }

    fn give(&self, item: &mut Waiting<T>) -> Result<Decoded<T>, BoxError> {
        let record = item.record().clone();
        match mem::replace(item, Waiting::Given(record)) {
            Waiting::Decoded(decoded) => Ok(decoded),
            Waiting::Undecodable(_, error) => Err(error),
            Waiting::Given(record) => self.give_now(record),
        }
    }

    fn give_all(&self, items: &mut Arc<Vec<Waiting<T>>>) -> Result<Batch<Decoded<T>>, BoxError> {
        let items = Arc::get_mut(items).ok_or("records that wait are shared with nobody")?;
        let all: Result<Vec<_>, _> = items.iter_mut().map(|item| self.give(item)).collect();
        Ok(Batch(Arc::new(all?)))
    }

    fn stream(&self, lane: LaneStream) -> DecodedStream<T> {
        DecodedStream { lane, values: self.clone() }
    }
}

/// The records of one lane with their values, for a long-lived processor; as [`LaneStream`].
pub struct DecodedStream<T> {
    lane: LaneStream,
    values: Decode<T>,
}

impl<T> DecodedStream<T> {
    /// The next record with its value; `None` when the lane ends. A record that cannot be decoded ends the
    /// lane as a failure of the processor would, which the error policy then deals with. Cancel-safe.
    pub async fn next(&mut self) -> Option<DeliveredValue<T>> {
        let delivered = self.lane.next().await?;
        match self.values.decode(&delivered) {
            Ok(value) => Some(DeliveredValue { value, delivered }),
            Err(error) => {
                let lane = &self.lane.lane().shared;
                let offset = Some(delivered.offset());
                lane.cell().failure.get_or_insert(LaneFailure::Undecodable { offset, error });
                // The coordinator is gone only when the run is over.
                let _ = lane.run.signals.send(Signal::Failing(lane.number));
                None
            }
        }
    }

    /// The lane's handle, to keep or pass on.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        self.lane.lane()
    }
}

impl<T> std::ops::Deref for DecodedStream<T> {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.lane()
    }
}

impl<T> fmt::Debug for DecodedStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DecodedStream").field(self.lane.lane()).finish()
    }
}

/// A record with its value, handed to a processor; as [`Delivered`].
#[derive(Debug)]
#[must_use = "a record that is dropped without done() is never committed"]
pub struct DeliveredValue<T> {
    /// What the record's bytes mean.
    pub value: T,
    delivered: Delivered,
}

impl<T> DeliveredValue<T> {
    /// The record, which may be kept longer than this.
    #[must_use]
    pub fn record(&self) -> &Record {
        self.delivered.record()
    }

    /// The record is processed, see [`Delivered::done`]. Gives the value back.
    pub fn done(self) -> T {
        self.delivered.done();
        self.value
    }
}
