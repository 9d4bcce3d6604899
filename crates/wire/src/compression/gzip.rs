//! Gzip, by flate2.

use std::io::{self, Write};

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use super::{DecompressError, read_limited};

pub(super) fn compress(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, flate2::Compression::new(6));
    encoder.write_all(plain)?;
    encoder.finish().map(|_| ())
}

pub(super) fn decompress(packed: &[u8], limit: usize) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    read_limited(MultiGzDecoder::new(packed), limit, &mut out)?;
    Ok(out)
}
