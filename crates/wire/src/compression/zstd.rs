//! Zstandard: pure Rust by default, the C library with the feature `zstd`.

use super::{DecompressError, read_limited};

#[cfg(feature = "zstd")]
pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    zstd::stream::copy_encode(plain, out, 3)
}

#[cfg(feature = "zstd")]
pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(packed).map_err(DecompressError::malformed)?;
    read_limited(decoder, limit, &mut out)?;
    Ok(out)
}

#[cfg(not(feature = "zstd"))]
pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    ruzstd::encoding::compress(plain, out, ruzstd::encoding::CompressionLevel::Fastest);
    Ok(())
}

/// Reads every frame in turn, and passes over skippable ones, as the C library does.
#[cfg(not(feature = "zstd"))]
pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    let mut rest = packed;
    while !rest.is_empty() {
        if let Some(after) = super::after_skippable_frame(rest)? {
            rest = after;
            continue;
        }
        // A fresh decoder takes no memory for the window a frame states; a reused one would.
        let decoder =
            ruzstd::decoding::StreamingDecoder::new(&mut rest).map_err(DecompressError::malformed)?;
        read_limited(decoder, limit, &mut out)?;
    }
    Ok(out)
}
