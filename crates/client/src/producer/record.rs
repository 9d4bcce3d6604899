//! A record to be sent, and where it went.

use bytes::Bytes;
use tramline_core::client::accumulator::RecordParts;
use tramline_core::time::Timestamp;
use tramline_wire::{Str, TopicPartition};

/// A record on its way to a topic.
///
/// ```
/// use tramline_client::ProducerRecord;
///
/// let record = ProducerRecord::to("readings").key("meter-7").value("21.5").header("unit", "C");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ProducerRecord {
    pub(crate) topic: Str,
    pub(crate) partition: Option<i32>,
    pub(crate) routing_key: Option<Bytes>,
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<(Str, Option<Bytes>)>,
}

impl ProducerRecord {
    /// A record for `topic` with neither key nor value (a tombstone once it has a key).
    #[must_use]
    pub fn to(topic: impl Into<Str>) -> Self {
        Self {
            topic: topic.into(),
            partition: None,
            routing_key: None,
            timestamp: None,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// The key. It is stored with the record and picks its partition: records of one key keep their order. An empty
    /// key is a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The value.
    #[must_use]
    pub fn value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Adds a header. Names may repeat and keep their order.
    #[must_use]
    pub fn header(mut self, name: impl Into<Str>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Adds a header whose value is null, which is not an empty value.
    #[must_use]
    pub fn null_header(mut self, name: impl Into<Str>) -> Self {
        self.headers.push((name.into(), None));
        self
    }

    /// The partition. It wins over every key.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Milliseconds since 1970. Default: the time when the record is sent.
    #[must_use]
    pub fn timestamp(mut self, milliseconds: Timestamp) -> Self {
        self.timestamp = Some(milliseconds);
        self
    }

    /// Picks the partition in place of the key, and is not sent.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<Bytes>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// What decides about the partition when none is asked for.
    pub(crate) fn router(&self) -> Option<&[u8]> {
        self.routing_key.as_deref().or(self.key.as_deref())
    }

    pub(crate) fn parts(&self, timestamp: Timestamp) -> RecordParts<'_> {
        RecordParts {
            timestamp,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &self.headers,
        }
    }
}

/// Where a record was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The offset. `None` when the broker does not tell: with [`Acks::None`](crate::Acks::None), and after a retry
    /// that an old broker recognised as one.
    pub offset: Option<i64>,
    /// Milliseconds since 1970: the record's own, or the broker's when the topic is set to use that.
    pub timestamp: Timestamp,
}
