//! The builder: records go in one by one, a finished batch comes out.

use bytes::Bytes;

use super::header::{CRC_AT, CRC_FROM, HEADER_LEN, PREFIX_LEN};
use super::{BatchError, BatchHeader, put_varint, put_varlong, varint_len, varlong_len};
use crate::checksum::crc32c;
use crate::compression::Compression;
use crate::record::Record;
use crate::types::Str;

mod thinned;

/// Builds one record batch after another; each starts at base offset 0 with leader epoch -1, as a producer sends it.
///
/// Memory: the uncompressed batch, and while [`build`](Self::build) runs the compressed one beside it.
#[derive(Debug, Clone)]
pub struct BatchBuilder {
    compression: Compression,
    /// Room for the header, then the uncompressed records.
    buffer: Vec<u8>,
    /// What the batch before took, as the room to begin the next with.
    expected: usize,
    count: i32,
    /// What timestamp deltas count from; that of the first record unless it was set before.
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    transactional: bool,
    control: bool,
}

impl BatchBuilder {
    /// An empty batch whose records will be compressed with `compression`.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self {
            compression,
            buffer: Vec::new(),
            expected: 0,
            count: 0,
            base_timestamp: None,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            transactional: false,
            control: false,
        }
    }

    /// An empty batch with room for `bytes` of batch before its memory grows.
    #[must_use]
    pub fn with_capacity(compression: Compression, bytes: usize) -> Self {
        Self { buffer: Vec::with_capacity(bytes), ..Self::new(compression) }
    }

    /// Appends a record and says by how many bytes the uncompressed batch grew: exactly what
    /// [`record_len`](Self::record_len) says. `timestamp` is in ms since the epoch, -1 for none.
    ///
    /// # Errors
    /// [`BatchError::Full`] when the batch would reach 2 GiB; it is unchanged then.
    pub fn append(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(Str, Option<Bytes>)],
    ) -> Result<usize, BatchError> {
        let headers = headers.iter().map(|(key, value)| (&key.as_bytes()[..], value.as_deref()));
        self.append_parts(self.count, timestamp, key, value, headers)
    }

    /// Appends a copy of `record`: its timestamp, key, value and headers.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_record(&mut self, record: &Record) -> Result<usize, BatchError> {
        self.append_at(self.count, record)
    }

    /// Appends a copy of `record` at this distance from the base offset.
    fn append_at(&mut self, offset_delta: i32, record: &Record) -> Result<usize, BatchError> {
        self.append_parts(
            offset_delta,
            record.timestamp(),
            record.key(),
            record.value(),
            record.raw_headers(),
        )
    }

    fn append_parts<'a>(
        &mut self,
        offset_delta: i32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Result<usize, BatchError> {
        let body = self.body_len(offset_delta, timestamp, key, value, headers.clone());
        let grown = body + i32::try_from(body).map_or(5, varint_len);
        let before = self.size_bytes();
        if before.checked_add(grown).is_none_or(|size| size > i32::MAX as usize) {
            return Err(BatchError::Full { record_bytes: grown, batch_bytes: before });
        }
        if self.count == 0 {
            self.buffer.reserve(self.expected.max(HEADER_LEN + grown));
            self.buffer.resize(HEADER_LEN, 0);
            self.max_timestamp = timestamp;
        }
        let base_timestamp = *self.base_timestamp.get_or_insert(timestamp);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let out = &mut self.buffer;
        out.reserve(grown);
        // Every length below is at most that of the batch, which was just seen to fit.
        put_varint(out, body as i32);
        out.push(0);
        put_varlong(out, timestamp.wrapping_sub(base_timestamp));
        put_varint(out, offset_delta);
        put_field(out, key);
        put_field(out, value);
        put_varint(out, headers.len() as i32);
        for (key, value) in headers {
            put_field(out, Some(key));
            put_field(out, value);
        }
        self.count += 1;
        debug_assert_eq!(out.len(), if before == 0 { HEADER_LEN } else { before } + grown);
        Ok(grown)
    }

    /// Bytes of a record after its length prefix.
    fn body_len<'a>(
        &self,
        offset_delta: i32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> usize {
        let delta = self.base_timestamp.map_or(0, |base| timestamp.wrapping_sub(base));
        let count = varint_len(i32::try_from(headers.len()).unwrap_or(i32::MAX));
        let fixed = 1 + varlong_len(delta) + varint_len(offset_delta) + count;
        headers.fold(fixed + field_len(key) + field_len(value), |sum, (key, value)| {
            sum.saturating_add(field_len(Some(key))).saturating_add(field_len(value))
        })
    }

    /// By how many bytes [`append`](Self::append) of this record would make the uncompressed batch grow now.
    #[must_use]
    pub fn record_len(
        &self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(Str, Option<Bytes>)],
    ) -> usize {
        let headers = headers.iter().map(|(key, value)| (&key.as_bytes()[..], value.as_deref()));
        let body = self.body_len(self.count, timestamp, key, value, headers);
        body + i32::try_from(body).map_or(5, varint_len)
    }

    /// Whether this record would take the uncompressed batch above `limit` bytes, header included.
    #[must_use]
    pub fn would_exceed(
        &self,
        limit: usize,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(Str, Option<Bytes>)],
    ) -> bool {
        self.size_bytes().saturating_add(self.record_len(timestamp, key, value, headers)) > limit
    }

    /// The number of records appended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.unsigned_abs() as usize
    }

    /// Whether no record was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch before compression, header included, from the empty batch on.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.buffer.len().max(HEADER_LEN)
    }

    /// Names the idempotent producer and the sequence number of the first record.
    pub fn producer(&mut self, id: i64, epoch: i16, base_sequence: i32) -> &mut Self {
        (self.producer_id, self.producer_epoch, self.base_sequence) = (id, epoch, base_sequence);
        self
    }

    /// Makes the batch part of its producer's transaction.
    pub fn transactional(&mut self, transactional: bool) -> &mut Self {
        self.transactional = transactional;
        self
    }

    /// Makes the records the log's own; a broker refuses such a batch from a client.
    pub fn control(&mut self, control: bool) -> &mut Self {
        self.control = control;
        self
    }

    /// Compresses, fills in the header and its CRC, and leaves the builder empty, without producer and flags, ready
    /// for the next batch. No record gives no bytes: there is no batch of none.
    ///
    /// The codec is used even where it makes a small batch larger, as other clients do.
    #[must_use]
    pub fn build(&mut self) -> Bytes {
        let mut done = std::mem::replace(self, Self::new(self.compression));
        if done.count == 0 {
            self.buffer = done.buffer;
            return Bytes::new();
        }
        self.expected = done.buffer.len();
        let (codec, mut batch) = done.compressed();
        let header = BatchHeader {
            base_offset: 0,
            // Appends kept the uncompressed batch below 2 GiB, and a compressed one above that is not used.
            batch_length: (batch.len() - PREFIX_LEN) as i32,
            partition_leader_epoch: -1,
            crc: 0,
            attributes: 0,
            last_offset_delta: done.count - 1,
            base_timestamp: done.base_timestamp.unwrap_or(-1),
            max_timestamp: done.max_timestamp,
            producer_id: done.producer_id,
            producer_epoch: done.producer_epoch,
            base_sequence: done.base_sequence,
            record_count: done.count,
        };
        let header = header.with_flags(codec, done.transactional, done.control);
        complete(&mut batch, &header);
        // Uncompressed, the memory went out with the batch and this is an empty one.
        done.buffer.clear();
        self.buffer = done.buffer;
        Bytes::from(batch)
    }

    /// The batch with its records compressed and its header still empty; uncompressed should the codec fail, which
    /// writing to memory gives it no reason to.
    fn compressed(&mut self) -> (Compression, Vec<u8>) {
        if self.compression != Compression::None {
            let mut out = Vec::with_capacity(HEADER_LEN + self.buffer.len() / 2);
            out.resize(HEADER_LEN, 0);
            let written = self.compression.compress(&self.buffer[HEADER_LEN..], &mut out);
            if written.is_ok() && out.len() <= i32::MAX as usize {
                return (self.compression, out);
            }
        }
        (Compression::None, std::mem::take(&mut self.buffer))
    }
}

/// Writes the header and the CRC over the room that was left for them.
fn complete(batch: &mut [u8], header: &BatchHeader) {
    if let Some(head) = batch.first_chunk_mut() {
        header.write(head);
    }
    let crc = crc32c(&batch[CRC_FROM..]);
    batch[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}

#[inline]
fn field_len(field: Option<&[u8]>) -> usize {
    match field {
        None => 1,
        Some(bytes) => bytes.len() + i32::try_from(bytes.len()).map_or(5, varint_len),
    }
}

#[inline]
fn put_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, bytes.len() as i32);
            out.extend_from_slice(bytes);
        }
    }
}
