//! Snappy, by snap, in the framing of the xerial library that Java clients use.
//!
//! Layout: 16 bytes of magic and versions, then blocks, each a 4-byte big-endian length and that many bytes of raw
//! snappy. Other clients write one raw snappy block without any framing.

use super::DecompressError;

/// Magic, then version and lowest compatible version as Java's library writes them.
const XERIAL_HEADER: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
const XERIAL_MAGIC_LEN: usize = 8;

/// Uncompressed bytes a block holds, as in Java's library.
const BLOCK_LEN: usize = 32 * 1024;

/// How far raw snappy can blow up: a 3-byte element copies 64 bytes at most.
const MAX_RATIO: usize = 22;

pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> Result<(), snap::Error> {
    out.extend_from_slice(&XERIAL_HEADER);
    let mut encoder = snap::raw::Encoder::new();
    for block in plain.chunks(BLOCK_LEN) {
        let start = out.len();
        out.resize(start + 4 + snap::raw::max_compress_len(block.len()), 0);
        let written = encoder.compress(block, &mut out[start + 4..])?;
        out.truncate(start + 4 + written);
        // A block of 32 KiB never grows to 4 GiB.
        out[start..start + 4].copy_from_slice(&(written as u32).to_be_bytes());
    }
    Ok(())
}

pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    if !packed.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_LEN]) {
        append_block(packed, limit, &mut out)?;
        return Ok(out);
    }
    let mut rest = packed
        .get(XERIAL_HEADER.len()..)
        .ok_or_else(|| DecompressError::malformed("the xerial header is cut short"))?;
    while !rest.is_empty() {
        let (length, after) = rest
            .split_first_chunk()
            .ok_or_else(|| DecompressError::malformed("the length of a xerial block is cut short"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, after) = after
            .split_at_checked(length)
            .ok_or_else(|| DecompressError::malformed("a xerial block is cut short"))?;
        append_block(block, limit, &mut out)?;
        rest = after;
    }
    Ok(out)
}

/// Appends the content of one raw snappy block. Raw snappy states its size in front; a size that so few bytes cannot
/// give is refused before any memory is taken for it.
fn append_block(block: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), DecompressError> {
    let stated = snap::raw::decompress_len(block).map_err(DecompressError::malformed)?;
    if stated > block.len().saturating_mul(MAX_RATIO) {
        return Err(DecompressError::malformed("a snappy block states more bytes than it can hold"));
    }
    let start = out.len();
    if stated > limit.saturating_sub(start) {
        return Err(DecompressError::TooLarge { limit });
    }
    out.resize(start + stated, 0);
    let written =
        snap::raw::Decoder::new().decompress(block, &mut out[start..]).map_err(DecompressError::malformed)?;
    out.truncate(start + written);
    Ok(())
}
