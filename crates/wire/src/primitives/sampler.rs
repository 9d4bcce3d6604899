//! Random values for tests: a reader that invents what it reads, so that each decoder is also a generator.

use bytes::Bytes;

use super::{DecodeError, Reader};

/// A seeded source of values that favours the small and the extreme ones.
#[derive(Debug, Clone)]
pub(crate) struct Sampler(u64);

impl Sampler {
    /// The next 64 random bits (splitmix64).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A source that gives the same values for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        match self.below(4) {
            0 => bytes[N - 1] = self.below(4) as u8,
            1 => bytes = [0xff; N],
            _ => bytes.iter_mut().for_each(|byte| *byte = self.next() as u8),
        }
        bytes
    }

    pub(super) fn length(&mut self) -> Option<usize> {
        match self.below(16) {
            0..4 => None,
            4 => Some(0),
            more => Some(more % 4),
        }
    }

    pub(super) fn bytes(&mut self, length: usize) -> Bytes {
        const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-._ ";
        // Now and then long enough to be referenced by the writer instead of copied.
        let length = if length == 3 && self.below(8) == 0 { 1024 + self.below(2000) } else { length };
        (0..length).map(|_| ALPHABET[self.below(ALPHABET.len())]).collect()
    }
}

impl Reader {
    /// A reader that invents what it reads.
    pub(crate) fn sampling(seed: u64) -> Self {
        let mut reader = Self::new(Bytes::new());
        reader.sampler = Some(Sampler::new(seed));
        reader
    }
}

/// Gives each of the first tag numbers a chance; those the struct does not have are skipped as ever.
pub(super) fn tags(
    reader: &mut Reader,
    mut field: impl FnMut(u32, &mut Reader) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    for tag in 0..6 {
        if reader.sampler.as_mut().is_some_and(|sampler| sampler.below(2) == 0) {
            field(tag, reader)?;
        }
    }
    Ok(())
}
