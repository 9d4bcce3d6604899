//! The codecs of record batches: none, gzip, snappy, lz4, zstd.

mod gzip;
mod lz4;
mod snappy;
mod zstd;

use std::fmt;
use std::io::Read;
use std::str::FromStr;

/// How the records of a batch are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Gzip, level 6.
    Gzip,
    /// Snappy in xerial framing, as Java writes it; raw snappy is read too.
    Snappy,
    /// An LZ4 frame of independent 64 KiB blocks; every legal frame is read.
    Lz4,
    /// Zstandard, level 3 with the C library, its own fast level in pure Rust.
    Zstd,
}

impl Compression {
    /// Every codec, in the order of the ids.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec with this id in the attributes of a batch.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// The id in the attributes of a batch, 0 to 4.
    #[must_use]
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Kafka's name for it: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Appends the compressed form of `plain` to `out`.
    ///
    /// # Errors
    /// When the codec itself fails, which it has no reason to while writing to memory.
    pub fn compress(self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CompressError> {
        match self {
            Self::None => {
                out.extend_from_slice(plain);
                Ok(())
            }
            Self::Gzip => gzip::compress(plain, out),
            Self::Snappy => snappy::compress(plain, out).map_err(std::io::Error::other),
            Self::Lz4 => lz4::compress(plain, out),
            Self::Zstd => zstd::compress(plain, out),
        }
        .map_err(|reason| CompressError { codec: self, reason: reason.to_string() })
    }

    /// Decompresses `packed` into at most `limit` bytes.
    ///
    /// The output's memory grows as bytes appear; no stated size is trusted. On top comes what the codec works with:
    /// two blocks of at most 8 MiB for lz4; for zstd a window that grows with the output, but with the C library one
    /// as large as the frame states, up to 128 MiB.
    ///
    /// # Errors
    /// [`DecompressError::TooLarge`] when the output passes `limit`, [`DecompressError::Malformed`] when `packed` is
    /// not what the codec writes.
    pub fn decompress(self, packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
        match self {
            Self::None if packed.len() > limit => Err(DecompressError::TooLarge { limit }),
            Self::None => Ok(packed.to_vec()),
            Self::Gzip => gzip::decompress(packed, limit),
            Self::Snappy => snappy::decompress(packed, limit),
            Self::Lz4 => lz4::decompress(packed, limit),
            Self::Zstd => zstd::decompress(packed, limit),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no compression codec; there are none, gzip, snappy, lz4 and zstd")]
pub struct ParseCompressionError(String);

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(name: &str) -> Result<Self, ParseCompressionError> {
        let found = Self::ALL.into_iter().find(|codec| codec.name() == name);
        found.ok_or_else(|| ParseCompressionError(name.to_owned()))
    }
}

/// A codec failed to write to memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{codec} cannot compress: {reason}")]
pub struct CompressError {
    /// The codec.
    pub codec: Compression,
    /// What it said.
    pub reason: String,
}

/// Why compressed bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    /// The output passes the limit the reader set; nothing says the bytes are damaged.
    #[error("more than {limit} bytes after decompression")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The bytes are not what the codec writes.
    #[error("{reason}")]
    Malformed {
        /// What the codec said.
        reason: String,
    },
}

impl DecompressError {
    fn malformed(reason: impl fmt::Display) -> Self {
        Self::Malformed { reason: reason.to_string() }
    }
}

/// Reads `source` to its end into at most `limit` bytes, `out` included; the memory grows as the bytes appear.
fn read_limited(source: impl Read, limit: usize, out: &mut Vec<u8>) -> Result<(), DecompressError> {
    let room = limit.saturating_sub(out.len()) as u64 + 1;
    source.take(room).read_to_end(out).map_err(DecompressError::malformed)?;
    if out.len() > limit { Err(DecompressError::TooLarge { limit }) } else { Ok(()) }
}

/// What follows a skippable frame at the start of `packed`, which lz4 and zstd share; `None` when there is none.
fn after_skippable_frame(packed: &[u8]) -> Result<Option<&[u8]>, DecompressError> {
    let Some((magic, rest)) = packed.split_first_chunk() else { return Ok(None) };
    if u32::from_le_bytes(*magic) & 0xffff_fff0 != 0x184D_2A50 {
        return Ok(None);
    }
    let cut = || DecompressError::malformed("a skippable frame is cut short");
    let (len, rest) = rest.split_first_chunk().ok_or_else(cut)?;
    rest.get(u32::from_le_bytes(*len) as usize..).map(Some).ok_or_else(cut)
}
