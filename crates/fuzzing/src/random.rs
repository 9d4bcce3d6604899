//! Seeded random numbers and mutations of bytes.

/// A seeded source of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

/// Numbers that lengths, counts and offsets are most often mistaken at.
const EDGES: [&[u8]; 9] = [
    &[0xff],
    &[0x7f, 0xff],
    &[0xff, 0xff],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xff; 8],
    &[0, 0, 0, 1],
];

impl Random {
    /// The same numbers for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The remainder is below a `usize`.
        (self.number() % bound.max(1) as u64) as usize
    }

    /// Mostly the bytes that lengths and counts are made of, so that decoders get far.
    pub fn byte(&mut self) -> u8 {
        match self.below(8) {
            0..3 => 0,
            3..6 => 1 + self.below(4) as u8,
            6 => 0xff,
            _ => self.number() as u8,
        }
    }

    /// Up to `longest` bytes.
    pub fn bytes(&mut self, longest: usize) -> Vec<u8> {
        (0..self.below(longest + 1)).map(|_| self.byte()).collect()
    }

    /// Changes a few places: bits, bytes, edges of numbers, what is cut out, put in, cut off or repeated.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(12)).min(bytes.len());
            match self.below(9) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.byte(),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..end)),
                4 => {
                    let fresh = self.bytes(24);
                    bytes.splice(at..at, fresh);
                }
                5 => {
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
                6 => {
                    let edge = EDGES[self.below(EDGES.len())];
                    let over = (at + edge.len()).min(bytes.len());
                    bytes.splice(at..over, edge.iter().copied());
                }
                7 => bytes[at..end].fill(0),
                _ => bytes[at..end].iter_mut().for_each(|byte| *byte = self.number() as u8),
            }
        }
    }
}
