//! What goes into an append and what comes out of it.

use bytes::Bytes;
use tramline_wire::{BatchHeader, check_batch};

use crate::config::Timestamp;
use crate::error::AppendError;

/// A batch whose bytes have been checked and that may be appended; only the checks make one.
#[derive(Clone, Debug)]
pub struct Append {
    pub(crate) bytes: Bytes,
    pub(crate) header: BatchHeader,
}

impl Append {
    /// Checks that `bytes` are exactly one sound batch (length, magic, CRC, counts). Needs nothing of the log, so
    /// callers do this on their own thread, before the batch is queued.
    ///
    /// # Errors
    /// [`AppendError::Corrupt`] and [`AppendError::Invalid`].
    pub fn check(bytes: Bytes) -> Result<Self, AppendError> {
        let header = check_batch(&bytes)?;
        Self::from_checked(bytes, header)
    }

    /// Takes a batch whose CRC has just been checked by someone else, who has this `header` from it.
    ///
    /// # Errors
    /// [`AppendError::Invalid`] when counts, sequences or the length make no sense.
    pub fn from_checked(bytes: Bytes, header: BatchHeader) -> Result<Self, AppendError> {
        if header.total_len() != bytes.len() {
            return Err(AppendError::Invalid("the header is not that of these bytes"));
        }
        if header.record_count <= 0
            || i64::from(header.last_offset_delta) + 1 != i64::from(header.record_count)
        {
            return Err(AppendError::Invalid("the record count does not match the offset deltas"));
        }
        if header.has_producer() && !header.is_control() && header.base_sequence < 0 {
            return Err(AppendError::Invalid("a producer id without a sequence"));
        }
        Ok(Self { bytes, header })
    }

    /// The header as it was sent.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The bytes as they were sent.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// What became of one member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It is in the log (written, not yet durable).
    Appended {
        /// The offset of its first record.
        base_offset: i64,
        /// The offset of its last record.
        last_offset: i64,
        /// The append time, when the log stamps it, else `None`.
        log_append_time: Option<Timestamp>,
    },
    /// It was in the log already; nothing was written. Its barrier may not be done yet.
    Duplicate {
        /// The offset its first record got the first time.
        base_offset: i64,
        /// The offset its last record got the first time.
        last_offset: i64,
        /// The largest timestamp stored with it.
        timestamp: Timestamp,
    },
    /// It was not appended; the others were.
    Refused(AppendError),
}
