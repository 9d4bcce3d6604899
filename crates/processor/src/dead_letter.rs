//! Records that could not be processed, and where they are written instead.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tramline_client::{Delivery, DeliveryError, Producer, ProducerRecord, SendError};
use tramline_core::lanes::LaneId;
use tramline_wire::Record;

use crate::error::BoxError;

/// A record that could not be processed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The record, as it was read.
    pub record: Record,
    /// The lane it failed in.
    pub lane: LaneId,
    /// How often it was handled.
    pub attempts: u32,
    /// What the last attempt said.
    pub cause: String,
}

/// The names of the headers that [`DeadLetter::headers`] gives.
pub mod header {
    /// What the last attempt said.
    pub const CAUSE: &str = "tramline.dead-letter.cause";
    /// How often the record was handled.
    pub const ATTEMPTS: &str = "tramline.dead-letter.attempts";
    /// The topic it was read from.
    pub const TOPIC: &str = "tramline.dead-letter.topic";
    /// The partition it was read from.
    pub const PARTITION: &str = "tramline.dead-letter.partition";
    /// Its offset there.
    pub const OFFSET: &str = "tramline.dead-letter.offset";
}

impl DeadLetter {
    /// What to write beside the record so that it can be understood, and processed again, later: names from
    /// [`header`], values as text.
    #[must_use]
    pub fn headers(&self) -> [(&'static str, String); 5] {
        [
            (header::CAUSE, self.cause.clone()),
            (header::ATTEMPTS, self.attempts.to_string()),
            (header::TOPIC, self.record.topic().to_owned()),
            (header::PARTITION, self.record.partition().to_string()),
            (header::OFFSET, self.record.offset().to_string()),
        ]
    }
}

/// Where dead letters are written.
pub trait DeadLetters: Send + Sync + 'static {
    /// What can go wrong.
    type Error: Into<BoxError> + Send + 'static;

    /// Writes the letter, and returns when it is stored as safely as the record was. It may be written again
    /// when the record comes again.
    fn write(&self, letter: DeadLetter) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Dead letters into a topic: key, value and headers as they were, byte for byte, then those of
/// [`DeadLetter::headers`]; acknowledged as the producer's setting says.
#[derive(Debug)]
pub struct DeadLetterTopic {
    producer: Arc<Producer>,
    topic: String,
}

impl DeadLetterTopic {
    /// Writes to `topic` through `producer`, which may be used for other things too.
    #[must_use]
    pub fn new(producer: Arc<Producer>, topic: impl Into<String>) -> Self {
        Self { producer, topic: topic.into() }
    }
}

/// Why a dead letter could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterError {
    /// The producer did not take it.
    #[error("the dead letter was not accepted: {0}")]
    Send(#[from] SendError),
    /// It was not acknowledged.
    #[error("the dead letter was not acknowledged: {0}")]
    Delivery(#[from] DeliveryError),
}

impl DeadLetters for DeadLetterTopic {
    type Error = DeadLetterError;

    async fn write(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let delivery: Delivery = self.producer.send(to_producer(&self.topic, &letter)).await?;
        delivery.await?;
        Ok(())
    }
}

fn to_producer(topic: &str, letter: &DeadLetter) -> ProducerRecord {
    let record = &letter.record;
    let mut out = ProducerRecord::to(topic);
    if let Some(key) = record.key_bytes() {
        out = out.key(key);
    }
    if let Some(value) = record.value_bytes() {
        out = out.value(value);
    }
    for (name, value) in record.headers() {
        out = match value {
            Some(value) => out.header(name, Bytes::copy_from_slice(value)),
            None => out.null_header(name),
        };
    }
    letter.headers().into_iter().fold(out, |out, (name, value)| out.header(name, value))
}
