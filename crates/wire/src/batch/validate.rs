//! What a broker asks of a batch that a client wants appended.

use super::header::{HEADER_LEN, MAGIC_AT};
use super::reader::{Range, decompress, walk_records};
use super::{BatchError, BatchHeader, MAGIC, TimestampType, check_batch};
use crate::compression::Compression;

/// The settings of a topic and a request that decide about a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProduceRules {
    /// The largest batch as sent, in bytes, header included (`max.message.bytes`).
    pub max_message_bytes: usize,
    /// Whether the topic is compacted, so that each record needs a key.
    pub compacted: bool,
    /// Whether the broker's clock gives the timestamps; a client may then send any.
    pub log_append_time: bool,
    /// The smallest and largest timestamp allowed, in ms since the epoch. -1, no timestamp, is always allowed.
    pub timestamps: Option<(i64, i64)>,
    /// Whether the request's version allows zstd (Produce 7 and later).
    pub zstd: bool,
    /// Whether every record is looked at even when no other rule needs it. Costs the decompression.
    pub deep: bool,
    /// What the records may take after decompression, in bytes, when they are looked at.
    pub max_uncompressed: usize,
}

impl Default for ProduceRules {
    /// Kafka's defaults: 1,048,588 bytes, not compacted, the producer's clock, any timestamp, zstd, not deep.
    fn default() -> Self {
        Self {
            max_message_bytes: 1_048_588,
            compacted: false,
            log_append_time: false,
            timestamps: None,
            zstd: true,
            deep: false,
            max_uncompressed: super::DEFAULT_MAX_UNCOMPRESSED,
        }
    }
}

/// Why a batch is refused, with what a produce response says about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct BatchRefusal {
    /// What was wrong.
    pub reason: RefusalReason,
    /// The single records at fault, empty when it is the batch as a whole.
    pub record_errors: Vec<RecordError>,
}

/// One record at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordError {
    /// The record's place in its batch, from 0.
    pub batch_index: i32,
    /// What is wrong with it.
    pub message: &'static str,
}

/// What was wrong with a refused batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The bytes are not a sound batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// No batch at all.
    #[error("no record batch")]
    NoBatch,
    /// More than one batch.
    #[error("more than one record batch for a partition")]
    SeveralBatches,
    /// Larger than the topic allows.
    #[error("a batch of {size} bytes, the topic takes {max}")]
    TooLarge {
        /// The batch's size in bytes.
        size: usize,
        /// The topic's limit in bytes.
        max: usize,
    },
    /// A client's base offset is 0.
    #[error("base offset {0}, a client sends 0")]
    BaseOffset(i64),
    /// Count and last offset delta do not say the same, or the count is not positive.
    #[error("{count} records and a last offset delta of {last_offset_delta}")]
    Count {
        /// The header's record count.
        count: i32,
        /// The header's last offset delta.
        last_offset_delta: i32,
    },
    /// Control batches are the broker's own.
    #[error("a control batch from a client")]
    Control,
    /// A producer id without a sequence number.
    #[error("producer id {producer_id} with base sequence {base_sequence}")]
    Sequence {
        /// The header's producer id.
        producer_id: i64,
        /// The header's base sequence.
        base_sequence: i32,
    },
    /// The request's version does not know the codec.
    #[error("{0} needs a newer version of the request")]
    Unsupported(Compression),
    /// Records without a key in a compacted topic.
    #[error("records without a key in a compacted topic")]
    MissingKey,
    /// A timestamp out of the bounds of the topic, or of a type the topic does not take from clients.
    #[error("a timestamp the topic does not accept")]
    Timestamp,
}

impl BatchRefusal {
    /// Kafka's error code for it.
    #[must_use]
    pub fn error_code(&self) -> i16 {
        const CORRUPT_MESSAGE: i16 = 2;
        const MESSAGE_TOO_LARGE: i16 = 10;
        const INVALID_TIMESTAMP: i16 = 32;
        const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;
        const INVALID_RECORD: i16 = 87;
        match &self.reason {
            RefusalReason::Batch(BatchError::WrongMagic { .. }) => INVALID_RECORD,
            RefusalReason::Batch(BatchError::UnknownCompression { .. }) => UNSUPPORTED_COMPRESSION_TYPE,
            RefusalReason::Batch(BatchError::Decompression {
                error: crate::compression::DecompressError::TooLarge { .. },
                ..
            }) => MESSAGE_TOO_LARGE,
            RefusalReason::Batch(_) => CORRUPT_MESSAGE,
            RefusalReason::TooLarge { .. } => MESSAGE_TOO_LARGE,
            RefusalReason::Timestamp => INVALID_TIMESTAMP,
            RefusalReason::Unsupported(_) => UNSUPPORTED_COMPRESSION_TYPE,
            RefusalReason::NoBatch
            | RefusalReason::SeveralBatches
            | RefusalReason::BaseOffset(_)
            | RefusalReason::Count { .. }
            | RefusalReason::Control
            | RefusalReason::Sequence { .. }
            | RefusalReason::MissingKey => INVALID_RECORD,
        }
    }
}

impl From<RefusalReason> for BatchRefusal {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, record_errors: Vec::new() }
    }
}

impl From<BatchError> for BatchRefusal {
    fn from(error: BatchError) -> Self {
        RefusalReason::Batch(error).into()
    }
}

/// Checks what a client sent for one partition against `rules`: exactly one sound batch that may be appended.
///
/// Records are looked at, at the price of decompressing them, only for a compacted topic, for timestamp bounds, and
/// when `rules.deep` says so.
///
/// # Errors
/// The refusal of the first rule that is broken, in the order: no batch, magic, length, several batches, base offset,
/// size, CRC, count, control, sequence, codec, timestamp type, records.
pub fn validate_produce_batch(bytes: &[u8], rules: &ProduceRules) -> Result<BatchHeader, BatchRefusal> {
    if bytes.is_empty() {
        return Err(RefusalReason::NoBatch.into());
    }
    let header = BatchHeader::parse(bytes)?;
    let total = header.total_len();
    let next_magic = total.checked_add(MAGIC_AT).and_then(|at| bytes.get(at));
    if next_magic.is_some_and(|&magic| magic == MAGIC.cast_unsigned()) {
        return Err(RefusalReason::SeveralBatches.into());
    }
    if total != bytes.len() {
        return Err(header.length_mismatch(bytes.len()).into());
    }
    if header.base_offset != 0 {
        return Err(RefusalReason::BaseOffset(header.base_offset).into());
    }
    if total > rules.max_message_bytes {
        return Err(RefusalReason::TooLarge { size: total, max: rules.max_message_bytes }.into());
    }
    check_batch(bytes)?;
    check_header(&header, rules)?;
    let bounds = rules.timestamps.filter(|_| !rules.log_append_time);
    if rules.deep || rules.compacted || bounds.is_some() {
        check_records(&header, &bytes[HEADER_LEN..], rules, bounds)?;
    }
    Ok(header)
}

fn check_header(header: &BatchHeader, rules: &ProduceRules) -> Result<(), BatchRefusal> {
    let (count, last_offset_delta) = (header.record_count, header.last_offset_delta);
    if count <= 0 || last_offset_delta != count - 1 {
        return Err(RefusalReason::Count { count, last_offset_delta }.into());
    }
    if header.is_control() {
        return Err(RefusalReason::Control.into());
    }
    if header.producer_id >= 0 && header.base_sequence < 0 {
        let (producer_id, base_sequence) = (header.producer_id, header.base_sequence);
        return Err(RefusalReason::Sequence { producer_id, base_sequence }.into());
    }
    if header.compression()? == Compression::Zstd && !rules.zstd {
        return Err(RefusalReason::Unsupported(Compression::Zstd).into());
    }
    if header.timestamp_type() == TimestampType::LogAppendTime && !rules.log_append_time {
        return Err(RefusalReason::Timestamp.into());
    }
    Ok(())
}

fn check_records(
    header: &BatchHeader,
    content: &[u8],
    rules: &ProduceRules,
    bounds: Option<(i64, i64)>,
) -> Result<(), BatchRefusal> {
    let plain;
    let records = match header.compression()? {
        Compression::None => content,
        codec => {
            plain = decompress(header, codec, content, rules.max_uncompressed)?;
            &plain
        }
    };
    let (mut keyless, mut untimely, mut index) = (Vec::new(), Vec::new(), 0);
    walk_records(header, records, |range: Range| {
        if rules.compacted && range.key_len < 0 {
            keyless.push(RecordError { batch_index: index, message: "a compacted topic needs a key" });
        }
        let timestamp = header.base_timestamp.wrapping_add(range.timestamp_delta);
        if bounds.is_some_and(|(min, max)| timestamp != -1 && (timestamp < min || timestamp > max)) {
            untimely.push(RecordError { batch_index: index, message: "the timestamp is out of bounds" });
        }
        index += 1;
    })?;
    if !keyless.is_empty() {
        return Err(BatchRefusal { reason: RefusalReason::MissingKey, record_errors: keyless });
    }
    if !untimely.is_empty() {
        return Err(BatchRefusal { reason: RefusalReason::Timestamp, record_errors: untimely });
    }
    Ok(())
}
