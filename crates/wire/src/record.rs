//! One record: owned, cheap to clone, readable without a copy.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{Cursor, Inner, Range, TimestampType};
use crate::types::{Str, TopicPartition};

/// A record of a log. It keeps the batch it came from alive and costs a reference count to clone;
/// [`detached`](Self::detached) makes a copy that stands alone.
#[derive(Clone)]
pub struct Record(Repr);

#[derive(Clone)]
enum Repr {
    /// The record at `index` of a batch; the index was checked when the record was made.
    InBatch { batch: Arc<Inner>, index: u32 },
    /// A record of its own.
    Alone(Arc<Parts>),
}

#[derive(Clone)]
struct Parts {
    topic_partition: TopicPartition,
    offset: i64,
    timestamp: i64,
    timestamp_type: TimestampType,
    leader_epoch: i32,
    control: bool,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Record {
    /// A record from parts: for sources that are not this log, and for tests. `timestamp` is in ms since the epoch,
    /// -1 for none.
    #[must_use]
    pub fn from_parts(
        topic_partition: TopicPartition,
        offset: i64,
        timestamp: i64,
        key: Option<Bytes>,
        value: Option<Bytes>,
        headers: Vec<(Str, Option<Bytes>)>,
    ) -> Self {
        Self(Repr::Alone(Arc::new(Parts {
            topic_partition,
            offset,
            timestamp,
            timestamp_type: TimestampType::CreateTime,
            leader_epoch: -1,
            control: false,
            key,
            value,
            headers: headers.into_iter().map(|(key, value)| (key.as_bytes().clone(), value)).collect(),
        })))
    }

    /// The same record with its timestamp taken by this clock; [`from_parts`](Self::from_parts) takes it for the
    /// producer's. A record that shares a batch is copied out of it.
    #[must_use]
    pub fn with_timestamp_type(self, timestamp_type: TimestampType) -> Self {
        if self.timestamp_type() == timestamp_type {
            return self;
        }
        let Self(Repr::Alone(parts)) = self else {
            return self.detached().with_timestamp_type(timestamp_type);
        };
        Self(Repr::Alone(Arc::new(Parts { timestamp_type, ..Arc::unwrap_or_clone(parts) })))
    }

    /// The record at `index` of `batch`, which must be below the number of its records.
    pub(crate) fn in_batch(batch: Arc<Inner>, index: u32) -> Self {
        Self(Repr::InBatch { batch, index })
    }

    /// The partition the record was read from.
    #[must_use]
    pub fn topic_partition(&self) -> &TopicPartition {
        match &self.0 {
            Repr::InBatch { batch, .. } => &batch.topic_partition,
            Repr::Alone(parts) => &parts.topic_partition,
        }
    }

    /// The topic's name.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic_partition().topic
    }

    /// The partition's number.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.topic_partition().partition
    }

    /// The record's offset in its partition.
    #[must_use]
    pub fn offset(&self) -> i64 {
        match &self.0 {
            Repr::InBatch { batch, index } => {
                batch.header.base_offset.saturating_add(i64::from(range(batch, *index).offset_delta))
            }
            Repr::Alone(parts) => parts.offset,
        }
    }

    /// Milliseconds since the epoch by the clock [`timestamp_type`](Self::timestamp_type) names; -1 for none.
    #[must_use]
    pub fn timestamp(&self) -> i64 {
        match &self.0 {
            Repr::InBatch { batch, index } => batch.timestamp(range(batch, *index)),
            Repr::Alone(parts) => parts.timestamp,
        }
    }

    /// Whose clock the timestamp comes from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        match &self.0 {
            Repr::InBatch { batch, .. } => batch.header.timestamp_type(),
            Repr::Alone(parts) => parts.timestamp_type,
        }
    }

    /// Epoch of the leader that appended the record, when known.
    #[must_use]
    pub fn leader_epoch(&self) -> Option<i32> {
        let epoch = match &self.0 {
            Repr::InBatch { batch, .. } => batch.header.partition_leader_epoch,
            Repr::Alone(parts) => parts.leader_epoch,
        };
        (epoch >= 0).then_some(epoch)
    }

    /// Whether the record is the log's own, a transaction marker for instance, and not an application's.
    #[must_use]
    pub fn is_control(&self) -> bool {
        match &self.0 {
            Repr::InBatch { batch, .. } => batch.header.is_control(),
            Repr::Alone(parts) => parts.control,
        }
    }

    /// The key; `None` is null, which differs from empty.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::InBatch { batch, index } => {
                let range = range(batch, *index);
                field(&batch.records, range.key_at, range.key_len)
            }
            Repr::Alone(parts) => parts.key.as_deref(),
        }
    }

    /// The value; `None` is null (a tombstone in a compacted topic), which differs from empty.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::InBatch { batch, index } => {
                let range = range(batch, *index);
                field(&batch.records, range.value_at, range.value_len)
            }
            Repr::Alone(parts) => parts.value.as_deref(),
        }
    }

    /// The key as shared bytes, which keep the whole batch alive.
    #[must_use]
    pub fn key_bytes(&self) -> Option<Bytes> {
        self.key().map(|key| self.share(key))
    }

    /// The value as shared bytes, which keep the whole batch alive.
    #[must_use]
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.value().map(|value| self.share(value))
    }

    /// The headers in their order, duplicates included. A key that is not UTF-8 reads as U+FFFD here; see
    /// [`raw_headers`](Self::raw_headers).
    #[must_use]
    pub fn headers(&self) -> Headers<'_> {
        Headers { raw: self.raw_headers() }
    }

    /// The headers with their keys as bytes, in their order, duplicates included.
    #[must_use]
    pub fn raw_headers(&self) -> RawHeaders<'_> {
        RawHeaders(match &self.0 {
            Repr::InBatch { batch, index } => {
                let range = range(batch, *index);
                let start = range.value_at + range.value_len.max(0).cast_unsigned();
                let mut cursor = Cursor::new(&batch.records[..range.end as usize], start as usize);
                // The count was read once when the batch was checked.
                let left = cursor.len().unwrap_or(0);
                HeadersRepr::Encoded { cursor, left }
            }
            Repr::Alone(parts) => HeadersRepr::Parts(parts.headers.iter()),
        })
    }

    /// The value of the last header `key`: `None` when there is none, `Some(None)` when its value is null.
    #[must_use]
    pub fn header(&self, key: &str) -> Option<Option<&[u8]>> {
        self.raw_headers().filter(|(name, _)| *name == key.as_bytes()).last().map(|(_, value)| value)
    }

    /// Bytes of key, value and headers, without any encoding.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        let len = |field: Option<&[u8]>| field.map_or(0, <[u8]>::len);
        let headers: usize = self.raw_headers().map(|(key, value)| key.len() + len(value)).sum();
        len(self.key()) + len(self.value()) + headers
    }

    /// Bytes of memory this record keeps alive: those of its whole batch, which records of the same batch share
    /// (see [`same_batch`](Self::same_batch)).
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        match &self.0 {
            Repr::InBatch { batch, .. } => batch.pinned,
            Repr::Alone(parts) => {
                let slots = parts.headers.capacity() * size_of::<(Bytes, Option<Bytes>)>();
                size_of::<Parts>() + slots + self.payload_len()
            }
        }
    }

    /// Whether both keep the same memory alive, so that it counts once.
    #[must_use]
    pub fn same_batch(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::InBatch { batch: a, .. }, Repr::InBatch { batch: b, .. }) => Arc::ptr_eq(a, b),
            (Repr::Alone(a), Repr::Alone(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// A copy that no longer keeps its batch, or the response that came in, alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        let copy = |field: &[u8]| Bytes::copy_from_slice(field);
        Self(Repr::Alone(Arc::new(Parts {
            topic_partition: TopicPartition {
                topic: self.topic_partition().topic.detached(),
                partition: self.partition(),
            },
            offset: self.offset(),
            timestamp: self.timestamp(),
            timestamp_type: self.timestamp_type(),
            leader_epoch: self.leader_epoch().unwrap_or(-1),
            control: self.is_control(),
            key: self.key().map(copy),
            value: self.value().map(copy),
            headers: self.raw_headers().map(|(key, value)| (copy(key), value.map(copy))).collect(),
        })))
    }

    /// Shares a slice that one of the accessors above gave.
    fn share(&self, part: &[u8]) -> Bytes {
        match &self.0 {
            Repr::InBatch { batch, .. } => batch.records.slice_ref(part),
            Repr::Alone(parts) => {
                let within = |field: &&Bytes| field.as_ptr_range() == part.as_ptr_range();
                let found = [parts.key.as_ref(), parts.value.as_ref()].into_iter().flatten().find(within);
                found.map_or_else(|| Bytes::copy_from_slice(part), Bytes::clone)
            }
        }
    }
}

fn range(batch: &Inner, index: u32) -> &Range {
    &batch.ranges[index as usize]
}

fn field(records: &[u8], at: u32, len: i32) -> Option<&[u8]> {
    let len = usize::try_from(len).ok()?;
    let at = at as usize;
    Some(&records[at..at + len])
}

/// The headers of a record with their keys as text; made by [`Record::headers`].
#[derive(Clone)]
pub struct Headers<'a> {
    raw: RawHeaders<'a>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.raw.next()?;
        Some((std::str::from_utf8(key).unwrap_or("\u{fffd}"), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.raw.size_hint()
    }
}

impl ExactSizeIterator for Headers<'_> {}

/// The headers of a record with their keys as bytes; made by [`Record::raw_headers`].
#[derive(Clone)]
pub struct RawHeaders<'a>(HeadersRepr<'a>);

#[derive(Clone)]
enum HeadersRepr<'a> {
    Encoded { cursor: Cursor<'a>, left: usize },
    Parts(std::slice::Iter<'a, (Bytes, Option<Bytes>)>),
}

impl<'a> Iterator for RawHeaders<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            HeadersRepr::Encoded { cursor, left } => {
                *left = left.checked_sub(1)?;
                // Every header was read once when the batch was checked, so none of these ends the walk early.
                let key_len = cursor.len().ok()?;
                let key = cursor.take(key_len).ok()?;
                let value = cursor.nullable().ok()?;
                Some((key, value))
            }
            HeadersRepr::Parts(parts) => parts.next().map(|(key, value)| (&key[..], value.as_deref())),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            HeadersRepr::Encoded { left, .. } => *left,
            HeadersRepr::Parts(parts) => parts.len(),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for RawHeaders<'_> {}

/// Equal in everything an accessor shows; where the memory lies does not count.
impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.topic_partition() == other.topic_partition()
            && self.offset() == other.offset()
            && self.timestamp() == other.timestamp()
            && self.timestamp_type() == other.timestamp_type()
            && self.leader_epoch() == other.leader_epoch()
            && self.is_control() == other.is_control()
            && self.key() == other.key()
            && self.value() == other.value()
            && self.raw_headers().eq(other.raw_headers())
    }
}

impl Eq for Record {}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> =
            self.headers().map(|(key, value)| (key, value.map(<[u8]>::escape_ascii))).collect();
        f.debug_struct("Record")
            .field("topic_partition", &format_args!("{}", self.topic_partition()))
            .field("offset", &self.offset())
            .field("timestamp", &self.timestamp())
            .field("key", &self.key().map(<[u8]>::escape_ascii))
            .field("value", &self.value().map(<[u8]>::escape_ascii))
            .field("headers", &headers)
            .finish()
    }
}
