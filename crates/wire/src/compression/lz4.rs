//! The LZ4 frame format, by lz4_flex.

use std::io::{self, Write};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use super::{DecompressError, read_limited};

pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    encoder.write_all(plain)?;
    encoder.finish().map(|_| ()).map_err(io::Error::other)
}

/// Reads every frame in turn, and passes over skippable ones, as the C library does.
pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    let mut rest = packed;
    while !rest.is_empty() {
        if let Some(after) = super::after_skippable_frame(rest)? {
            rest = after;
            continue;
        }
        let before = rest.len();
        read_limited(FrameDecoder::new(&mut rest), limit, &mut out)?;
        if rest.len() == before {
            return Err(DecompressError::malformed("no lz4 frame"));
        }
    }
    Ok(out)
}
