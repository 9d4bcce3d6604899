//! The 61-byte header of a record batch: parsing, checking, and the fields that may be rewritten in place.

use bytes::{Bytes, BytesMut};

use super::BatchError;
use crate::checksum::crc32c;
use crate::compression::Compression;

/// Bytes a batch header takes.
pub const HEADER_LEN: usize = 61;
/// The only batch format read and written.
pub const MAGIC: i8 = 2;

/// Base offset and length, which the length field does not count.
pub(crate) const PREFIX_LEN: usize = 12;
/// What the length field is at least: the header without its prefix.
pub(crate) const MIN_BATCH_LENGTH: i32 = 49;
pub(crate) const CRC_AT: usize = 17;
pub(crate) const CRC_FROM: usize = 21;
pub(crate) const MAGIC_AT: usize = 16;

const CODEC_MASK: i16 = 0x07;
const LOG_APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;
const DELETE_HORIZON: i16 = 1 << 6;

/// Whose clock the timestamps of a batch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer's, one per record.
    CreateTime,
    /// The broker's at the append, one for the whole batch.
    LogAppendTime,
}

/// The header of a record batch, in the order of its fields on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; outside the CRC.
    pub base_offset: i64,
    /// Bytes after this field; the whole batch takes [`total_len`](Self::total_len).
    pub batch_length: i32,
    /// Epoch of the leader that appended the batch, -1 when unknown; outside the CRC.
    pub partition_leader_epoch: i32,
    /// CRC-32C of everything from the attributes to the end.
    pub crc: u32,
    /// Codec in bits 0-2, then timestamp type, transactional, control, delete horizon.
    pub attributes: i16,
    /// Offset of the last record, relative to the base offset. Compaction keeps it when that record goes.
    pub last_offset_delta: i32,
    /// What the records' timestamp deltas count from, in ms since the epoch.
    pub base_timestamp: i64,
    /// The largest timestamp of the batch, in ms since the epoch; -1 when there is none.
    pub max_timestamp: i64,
    /// The idempotent producer, -1 for none.
    pub producer_id: i64,
    /// That producer's epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence number of the first record, -1 for none.
    pub base_sequence: i32,
    /// Number of records in the batch.
    pub record_count: i32,
}

fn field<const N: usize>(head: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may go on after it. Checks magic and the lower bound of the
    /// length; neither the upper bound nor the checksum (that is [`check_batch`]).
    ///
    /// # Errors
    /// [`BatchError::TooShort`], [`BatchError::WrongMagic`], [`BatchError::LengthMismatch`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // An old message set may be shorter than a header; its magic, at the same place, still says what it is.
        if let Some(&magic) = bytes.get(MAGIC_AT)
            && magic != MAGIC.cast_unsigned()
        {
            let base_offset = bytes.first_chunk().map_or(-1, |b| i64::from_be_bytes(*b));
            return Err(BatchError::WrongMagic { magic: magic.cast_signed(), base_offset });
        }
        let head: &[u8; HEADER_LEN] =
            bytes.first_chunk().ok_or(BatchError::TooShort { needed: HEADER_LEN, present: bytes.len() })?;
        let header = Self {
            base_offset: i64::from_be_bytes(field(head, 0)),
            batch_length: i32::from_be_bytes(field(head, 8)),
            partition_leader_epoch: i32::from_be_bytes(field(head, 12)),
            crc: u32::from_be_bytes(field(head, CRC_AT)),
            attributes: i16::from_be_bytes(field(head, 21)),
            last_offset_delta: i32::from_be_bytes(field(head, 23)),
            base_timestamp: i64::from_be_bytes(field(head, 27)),
            max_timestamp: i64::from_be_bytes(field(head, 35)),
            producer_id: i64::from_be_bytes(field(head, 43)),
            producer_epoch: i16::from_be_bytes(field(head, 51)),
            base_sequence: i32::from_be_bytes(field(head, 53)),
            record_count: i32::from_be_bytes(field(head, 57)),
        };
        if header.batch_length < MIN_BATCH_LENGTH {
            return Err(header.length_mismatch(bytes.len()));
        }
        Ok(header)
    }

    /// Writes the header over the first 61 bytes of a batch.
    pub(crate) fn write(&self, head: &mut [u8; HEADER_LEN]) {
        head[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        head[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        head[12..16].copy_from_slice(&self.partition_leader_epoch.to_be_bytes());
        head[MAGIC_AT] = MAGIC.cast_unsigned();
        head[CRC_AT..CRC_FROM].copy_from_slice(&self.crc.to_be_bytes());
        head[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        head[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        head[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        head[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        head[43..51].copy_from_slice(&self.producer_id.to_be_bytes());
        head[51..53].copy_from_slice(&self.producer_epoch.to_be_bytes());
        head[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        head[57..61].copy_from_slice(&self.record_count.to_be_bytes());
    }

    pub(crate) fn length_mismatch(&self, present: usize) -> BatchError {
        BatchError::LengthMismatch { base_offset: self.base_offset, stated: self.batch_length, present }
    }

    /// Bytes of the whole batch, prefix included.
    #[must_use]
    pub fn total_len(&self) -> usize {
        PREFIX_LEN + usize::try_from(self.batch_length).unwrap_or(0)
    }

    /// Offset of the last record the batch ever held; the next batch starts after it.
    #[must_use]
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }

    /// The codec of the records.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] for ids 5 to 7.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        let id = (self.attributes & CODEC_MASK) as u8;
        Compression::from_id(id).ok_or(BatchError::UnknownCompression { base_offset: self.base_offset, id })
    }

    /// Whose clock the timestamps come from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & LOG_APPEND_TIME != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    /// Whether the batch belongs to a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether the records are the log's own (transaction markers), not an application's.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whether compaction put the time at which tombstones may go into the base timestamp.
    #[must_use]
    pub fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON != 0
    }

    /// Whether an idempotent producer made the batch.
    #[must_use]
    pub fn has_producer(&self) -> bool {
        self.producer_id >= 0
    }

    /// Sequence number of the last record; after 2147483647 comes 0. -1 without a producer.
    #[must_use]
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return -1;
        }
        // Not by the count: compaction takes records away and leaves the sequences they had.
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta.max(0));
        (last & i64::from(i32::MAX)) as i32
    }

    pub(crate) fn with_flags(mut self, codec: Compression, transactional: bool, control: bool) -> Self {
        self.attributes = i16::from(codec.id());
        if transactional {
            self.attributes |= TRANSACTIONAL;
        }
        if control {
            self.attributes |= CONTROL;
        }
        self
    }

    /// The same attributes with another codec.
    pub(crate) fn with_codec(mut self, codec: Compression) -> Self {
        self.attributes = (self.attributes & !CODEC_MASK) | i16::from(codec.id());
        self
    }

    /// The same with the moment, in ms since the epoch, from which on its tombstones may go. The records' timestamps
    /// count from it: Kafka keeps the horizon where the base timestamp was.
    pub(crate) fn with_delete_horizon(mut self, horizon: i64) -> Self {
        self.attributes |= DELETE_HORIZON;
        self.base_timestamp = horizon;
        self
    }
}

/// Checks that `bytes` are exactly one batch: length, magic, CRC-32C. Looks at no record.
///
/// # Errors
/// As [`BatchHeader::parse`], [`BatchError::LengthMismatch`] also for bytes missing or left over,
/// [`BatchError::Crc`].
pub fn check_batch(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(bytes)?;
    if header.total_len() != bytes.len() {
        return Err(header.length_mismatch(bytes.len()));
    }
    let computed = crc32c(&bytes[CRC_FROM..]);
    if computed != header.crc {
        return Err(BatchError::Crc { base_offset: header.base_offset, stored: header.crc, computed });
    }
    Ok(header)
}

/// Gives a batch its place in a log: base offset and leader epoch. Both lie outside the CRC, which stays as it is.
///
/// # Panics
/// When `batch` has less than 16 bytes: it must have passed [`check_batch`].
pub fn set_base_offset_and_epoch(batch: &mut [u8], base_offset: i64, leader_epoch: i32) {
    batch[0..8].copy_from_slice(&base_offset.to_be_bytes());
    batch[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// Makes `now` (ms since the epoch) the time of every record, and recomputes the CRC.
///
/// # Errors
/// As [`check_batch`]: a batch that was damaged before is not given a fresh checksum.
pub fn set_log_append_time(batch: &mut [u8], now: i64) -> Result<(), BatchError> {
    let header = check_batch(batch)?;
    let attributes = header.attributes | LOG_APPEND_TIME;
    batch[21..23].copy_from_slice(&attributes.to_be_bytes());
    batch[35..43].copy_from_slice(&now.to_be_bytes());
    refresh_crc(batch);
    Ok(())
}

/// Rewrites who produced a built batch and with which sequence, and recomputes the CRC: for a batch that must be
/// sent again after its producer's epoch was raised.
///
/// # Errors
/// As [`check_batch`]: a batch that was damaged before is not given a fresh checksum.
pub fn set_producer(batch: &mut [u8], id: i64, epoch: i16, base_sequence: i32) -> Result<(), BatchError> {
    check_batch(batch)?;
    batch[43..51].copy_from_slice(&id.to_be_bytes());
    batch[51..53].copy_from_slice(&epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&base_sequence.to_be_bytes());
    refresh_crc(batch);
    Ok(())
}

/// [`set_producer`] on shared bytes: in place when nobody else holds them, else on a copy.
///
/// # Errors
/// As [`set_producer`].
pub fn with_producer(batch: Bytes, id: i64, epoch: i16, base_sequence: i32) -> Result<Bytes, BatchError> {
    let mut batch = batch.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    set_producer(&mut batch, id, epoch, base_sequence)?;
    Ok(batch.freeze())
}

fn refresh_crc(batch: &mut [u8]) {
    let crc = crc32c(&batch[CRC_FROM..]);
    batch[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}
