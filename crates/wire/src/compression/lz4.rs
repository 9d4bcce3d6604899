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

pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    read_limited(FrameDecoder::new(packed), limit, &mut out)?;
    Ok(out)
}
