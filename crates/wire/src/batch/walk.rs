//! The walk over concatenated batches, as a fetch response or a log segment holds them.

use bytes::Bytes;

use super::header::{MAGIC_AT, PREFIX_LEN};
use super::{BatchError, BatchHeader};

/// Walks the batches in `bytes`. Reads headers only: checksums and records are for whoever decodes the batch.
#[must_use]
pub fn batches(bytes: Bytes) -> Batches {
    Batches { rest: bytes, broken: false }
}

/// Iterator over concatenated batches; made by [`batches`].
///
/// A batch that is not all there ends the walk, since a response is cut at its size limit; see
/// [`remainder`](Self::remainder). An error ends it too.
#[derive(Debug, Clone)]
pub struct Batches {
    rest: Bytes,
    broken: bool,
}

/// What a walk has not handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remainder {
    /// Bytes not handed out.
    pub bytes: usize,
    /// Bytes the batch there takes in all, when its length field is there and possible.
    pub needed_bytes: Option<usize>,
    /// Base offset of the batch there, when that field is there.
    pub base_offset: Option<i64>,
}

impl Batches {
    /// What is left: after the walk ended without an error, the trailing fragment, or zero bytes.
    #[must_use]
    pub fn remainder(&self) -> Remainder {
        let length =
            self.rest.get(8..PREFIX_LEN).and_then(|b| b.first_chunk()).map(|b| i32::from_be_bytes(*b));
        Remainder {
            bytes: self.rest.len(),
            needed_bytes: length.and_then(|l| usize::try_from(l).ok()).map(|l| PREFIX_LEN + l),
            base_offset: self.rest.first_chunk().map(|b| i64::from_be_bytes(*b)),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<(BatchHeader, Bytes), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        let prefix: &[u8; PREFIX_LEN] = self.rest.first_chunk()?;
        let length = i32::from_be_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]);
        let total = usize::try_from(length).ok().map(|l| PREFIX_LEN + l);
        if let Some(total) = total
            && total > self.rest.len()
            && self.rest.get(MAGIC_AT).is_none_or(|&magic| magic == super::MAGIC.cast_unsigned())
        {
            return None;
        }
        match BatchHeader::parse(&self.rest) {
            Ok(header) => {
                let batch = self.rest.split_to(header.total_len());
                Some(Ok((header, batch)))
            }
            Err(error) => {
                self.broken = true;
                Some(Err(error))
            }
        }
    }
}

impl std::iter::FusedIterator for Batches {}
