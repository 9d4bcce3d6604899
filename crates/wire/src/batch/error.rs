//! What can be wrong with a record batch.

use crate::compression::{Compression, DecompressError};

/// Why bytes are not a sound record batch. Every variant means that whoever made the bytes, or what
/// carried them, is at fault; only [`BatchError::Full`] speaks of the caller's own appends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer bytes than a batch header takes.
    #[error("a batch header takes {needed} bytes, {present} are there")]
    TooShort {
        /// The bytes a header takes.
        needed: usize,
        /// The bytes there are.
        present: usize,
    },
    /// Not magic 2: an old message set, or no batch at all.
    #[error("magic {magic} at base offset {base_offset}; only magic 2 is read")]
    WrongMagic {
        /// The magic byte found.
        magic: i8,
        /// What stands where the base offset belongs.
        base_offset: i64,
    },
    /// The length field is impossible, or disagrees with the bytes given.
    #[error("the batch at offset {base_offset} states a length field of {stated}; {present} bytes are there")]
    LengthMismatch {
        /// The batch's base offset.
        base_offset: i64,
        /// The length field; the whole batch would take 12 bytes more.
        stated: i32,
        /// The bytes there are, the 12 of the prefix included.
        present: usize,
    },
    /// The stored CRC-32C is not that of the bytes.
    #[error("the batch at offset {base_offset} stores CRC {stored:#010x}, its bytes give {computed:#010x}")]
    Crc {
        /// The batch's base offset.
        base_offset: i64,
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The header's record count is negative, or not the number of records that follow.
    #[error("the batch at offset {base_offset} states {stated} records, its content holds {found}")]
    RecordCount {
        /// The batch's base offset.
        base_offset: i64,
        /// The count in the header.
        stated: i32,
        /// The whole records found before the content ended or, one more than stated, before it should have.
        found: usize,
    },
    /// One record is malformed.
    #[error("record {index} of the batch at offset {base_offset}: {flaw}")]
    Record {
        /// The batch's base offset.
        base_offset: i64,
        /// The record's place in the batch, from 0.
        index: usize,
        /// What is wrong with it.
        flaw: RecordFlaw,
    },
    /// Compression ids 5 to 7 name no codec.
    #[error("the batch at offset {base_offset} names compression codec {id}, which does not exist")]
    UnknownCompression {
        /// The batch's base offset.
        base_offset: i64,
        /// The id in the attributes.
        id: u8,
    },
    /// The content is not what its codec writes, or grows past the limit.
    #[error("the {codec} content of the batch at offset {base_offset}: {error}")]
    Decompression {
        /// The batch's base offset.
        base_offset: i64,
        /// The codec.
        codec: Compression,
        /// What the codec said.
        error: DecompressError,
    },
    /// A builder cannot take the record: a batch and each part of it stay below 2 GiB.
    #[error(
        "a record of {record_bytes} bytes does not fit a batch of {batch_bytes} bytes (the limit is 2 GiB)"
    )]
    Full {
        /// What the record would have added.
        record_bytes: usize,
        /// The batch's size before it.
        batch_bytes: usize,
    },
}

impl BatchError {
    /// Whether the same bytes may be sound when they are asked for again: damage that a checksum or a length shows may
    /// have happened on the way. Everything else was made so.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Crc { .. } | Self::LengthMismatch { .. } | Self::TooShort { .. } => true,
            Self::WrongMagic { .. }
            | Self::RecordCount { .. }
            | Self::Record { .. }
            | Self::UnknownCompression { .. }
            | Self::Decompression { .. }
            | Self::Full { .. } => false,
        }
    }
}

/// What is wrong with one record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFlaw {
    /// A variable-length integer does not fit its type.
    #[error("a variable-length integer does not fit its type")]
    VarintOverflow,
    /// A length that may not be negative is, or is below -1 where -1 means null.
    #[error("a length of {0}")]
    NegativeLength(i32),
    /// A field or the record itself runs past the end of what holds it.
    #[error("it runs past the end of its bytes")]
    RunsPastEnd,
    /// Bytes are left after the last header.
    #[error("{0} bytes are left after its last header")]
    TrailingBytes(usize),
    /// Offset deltas rise strictly from at least 0 to at most the header's last offset delta.
    #[error("offset delta {delta}, which must be above {previous} and at most {last}")]
    OffsetDelta {
        /// The record's delta.
        delta: i32,
        /// The delta of the record before it, -1 for the first.
        previous: i32,
        /// The header's last offset delta.
        last: i32,
    },
}
