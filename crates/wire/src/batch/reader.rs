//! The zero-copy reader: one checked pass over a batch's records leaves the bytes and one range each.

use std::sync::Arc;

use bytes::Bytes;

use super::header::HEADER_LEN;
use super::{BatchError, BatchHeader, Cursor, RecordFlaw, TimestampType, check_batch};
use crate::compression::Compression;
use crate::record::Record;
use crate::types::TopicPartition;

/// What the records of one batch may take after decompression unless a reader says otherwise: 256 MiB.
pub const DEFAULT_MAX_UNCOMPRESSED: usize = 256 << 20;

/// The fewest bytes a record takes: length, attributes, two deltas, null key, null value, no headers.
pub(crate) const MIN_RECORD_LEN: usize = 7;

/// Where one record lies in the uncompressed records; 32 bytes, so that a batch of small records costs
/// at most about five times its own size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key_at: u32,
    pub(crate) key_len: i32,
    pub(crate) value_at: u32,
    pub(crate) value_len: i32,
    /// Where the record ends; its headers lie between the value and here.
    pub(crate) end: u32,
}

/// What all records of a batch share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) header: BatchHeader,
    pub(crate) records: Bytes,
    pub(crate) ranges: Vec<Range>,
    pub(crate) pinned: usize,
}

/// A checked record batch. Cloning costs a reference count; so does each [`Record`] taken from it.
#[derive(Debug, Clone)]
pub struct RecordBatch {
    pub(crate) inner: Arc<Inner>,
}

impl RecordBatch {
    /// Checks and reads one whole batch of `topic_partition`: length, CRC, decompression up to
    /// [`DEFAULT_MAX_UNCOMPRESSED`], every record.
    ///
    /// An uncompressed batch keeps sharing `bytes`; nothing is copied.
    ///
    /// # Errors
    /// Any [`BatchError`] but `Full`.
    pub fn decode(topic_partition: TopicPartition, bytes: Bytes) -> Result<Self, BatchError> {
        Self::decode_with_limit(topic_partition, bytes, DEFAULT_MAX_UNCOMPRESSED)
    }

    /// [`decode`](Self::decode) with another limit, in bytes, on what the records may take after decompression.
    ///
    /// Memory grows with the output that really appears, never with a size the batch states.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_with_limit(
        topic_partition: TopicPartition,
        bytes: Bytes,
        max_uncompressed: usize,
    ) -> Result<Self, BatchError> {
        let header = check_batch(&bytes)?;
        let content = bytes.slice(HEADER_LEN..);
        let (records, held) = match header.compression()? {
            Compression::None => (content, bytes.len()),
            codec => {
                let plain = decompress(&header, codec, &content, max_uncompressed)?;
                let held = plain.capacity();
                (Bytes::from(plain), held)
            }
        };
        let ranges = read_ranges(&header, &records)?;
        let pinned = held + ranges.capacity() * size_of::<Range>() + size_of::<Inner>();
        Ok(Self { inner: Arc::new(Inner { topic_partition, header, records, ranges, pinned }) })
    }

    /// The partition the batch was read from.
    #[must_use]
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.inner.topic_partition
    }

    /// The batch's header.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.inner.header
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.ranges.len()
    }

    /// Whether there is no record, which compaction may leave.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.ranges.is_empty()
    }

    /// The record at place `index`, from 0.
    #[must_use]
    pub fn record(&self, index: usize) -> Option<Record> {
        let index = u32::try_from(index).ok().filter(|_| index < self.len())?;
        Some(Record::in_batch(Arc::clone(&self.inner), index))
    }

    /// The records in offset order.
    #[must_use]
    pub fn iter(&self) -> Records {
        // A batch holds at most i32::MAX records, so the count fits.
        Records { inner: Arc::clone(&self.inner), next: 0, end: self.len() as u32 }
    }

    /// The records from offset `offset` on, in offset order: a fetch may answer from the middle of a batch.
    #[must_use]
    pub fn iter_from(&self, offset: i64) -> Records {
        let base = self.inner.header.base_offset;
        let skipped =
            self.inner.ranges.partition_point(|r| base.saturating_add(i64::from(r.offset_delta)) < offset);
        Records { inner: Arc::clone(&self.inner), next: skipped as u32, end: self.len() as u32 }
    }

    /// Bytes of memory this batch keeps alive: its records, or its part of the response they share, and the ranges.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.inner.pinned
    }
}

impl IntoIterator for RecordBatch {
    type Item = Record;
    type IntoIter = Records;

    fn into_iter(self) -> Records {
        self.iter()
    }
}

impl IntoIterator for &RecordBatch {
    type Item = Record;
    type IntoIter = Records;

    fn into_iter(self) -> Records {
        self.iter()
    }
}

/// The records of a batch; made by [`RecordBatch::iter`].
#[derive(Debug, Clone)]
pub struct Records {
    inner: Arc<Inner>,
    next: u32,
    end: u32,
}

impl Iterator for Records {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        if self.next >= self.end {
            return None;
        }
        let record = Record::in_batch(Arc::clone(&self.inner), self.next);
        self.next += 1;
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next.min(self.end)) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Records {}
impl std::iter::FusedIterator for Records {}

impl Inner {
    pub(crate) fn timestamp(&self, range: &Range) -> i64 {
        match self.header.timestamp_type() {
            TimestampType::CreateTime => self.header.base_timestamp.wrapping_add(range.timestamp_delta),
            TimestampType::LogAppendTime => self.header.max_timestamp,
        }
    }
}

/// Decompresses the content of a batch into at most `limit` bytes (2 GiB at most, since ranges are 32-bit).
pub(crate) fn decompress(
    header: &BatchHeader,
    codec: Compression,
    content: &[u8],
    limit: usize,
) -> Result<Vec<u8>, BatchError> {
    codec.decompress(content, limit.min(i32::MAX as usize)).map_err(|error| BatchError::Decompression {
        base_offset: header.base_offset,
        codec,
        error,
    })
}

/// Walks every record of a batch and keeps where each lies.
fn read_ranges(header: &BatchHeader, records: &[u8]) -> Result<Vec<Range>, BatchError> {
    let stated = usize::try_from(header.record_count).unwrap_or(0);
    let mut ranges = Vec::with_capacity(stated.min(records.len() / MIN_RECORD_LEN));
    walk_records(header, records, |range| ranges.push(range))?;
    Ok(ranges)
}

/// Checks every record against the header and hands its range to `visit`.
pub(crate) fn walk_records(
    header: &BatchHeader,
    records: &[u8],
    mut visit: impl FnMut(Range),
) -> Result<(), BatchError> {
    let miscounted = |found| BatchError::RecordCount {
        base_offset: header.base_offset,
        stated: header.record_count,
        found,
    };
    let stated = usize::try_from(header.record_count).map_err(|_| miscounted(0))?;
    let mut at = 0;
    let mut previous = -1;
    for index in 0..stated {
        if at == records.len() {
            return Err(miscounted(index));
        }
        let range = read_record(records, at)
            .and_then(|range| {
                let (delta, last) = (range.offset_delta, header.last_offset_delta);
                if delta <= previous || delta > last {
                    return Err(RecordFlaw::OffsetDelta { delta, previous, last });
                }
                Ok(range)
            })
            .map_err(|flaw| BatchError::Record { base_offset: header.base_offset, index, flaw })?;
        previous = range.offset_delta;
        at = range.end as usize;
        visit(range);
    }
    if at == records.len() { Ok(()) } else { Err(miscounted(stated + 1)) }
}

#[inline]
fn read_record(records: &[u8], at: usize) -> Result<Range, RecordFlaw> {
    let mut cursor = Cursor::new(records, at);
    let len = cursor.len()?;
    let start = cursor.at();
    let end = start.checked_add(len).filter(|&end| end <= records.len()).ok_or(RecordFlaw::RunsPastEnd)?;
    let mut cursor = Cursor::new(&records[..end], start);
    cursor.byte()?;
    let timestamp_delta = cursor.varlong()?;
    let offset_delta = cursor.varint()?;
    let key_len = cursor.nullable_len()?;
    let key_at = cursor.at();
    cursor.skip_nullable(key_len)?;
    let value_len = cursor.nullable_len()?;
    let value_at = cursor.at();
    cursor.skip_nullable(value_len)?;
    for _ in 0..cursor.len()? {
        let key_len = cursor.len()?;
        cursor.take(key_len)?;
        cursor.nullable()?;
    }
    if cursor.left() != 0 {
        return Err(RecordFlaw::TrailingBytes(cursor.left()));
    }
    // The records are below 2 GiB (a batch length and the decompression limit are), so places fit in 32 bits.
    let (key_at, value_at, end) = (key_at as u32, value_at as u32, end as u32);
    Ok(Range { timestamp_delta, offset_delta, key_at, key_len, value_at, value_len, end })
}
