//! Seeded hashes of record keys: one over a sample, one over every byte.

/// What tells two keys apart: nothing at all is another key than no bytes.
pub(super) type KeyBytes<'a> = Option<&'a [u8]>;

/// The most bytes the sampled hash reads.
const SAMPLED: usize = 64;
/// Keeps the two hashes of one key apart.
const FULL: u64 = 0x5bd1_e995_97f4_a7c5;

/// Hashes keys under a secret seed.
///
/// Keys come from whoever may produce, so that an unseeded hash, or one that skips bytes, can be met with keys
/// made to collide. The sampled hash costs the same for a long key as for a short one and is good enough
/// until keys are found that collide in it; the full hash reads everything and is for those.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHasher {
    seed: (u64, u64),
    /// The bits of each hash that count: all, except where a test wants keys to collide.
    mask: u64,
}

impl KeyHasher {
    pub(super) const fn new(seed: (u64, u64)) -> Self {
        Self { seed, mask: u64::MAX }
    }

    /// One whose hashes agree in all but these bits.
    #[cfg(test)]
    pub(super) const fn with_mask(mut self, mask: u64) -> Self {
        self.mask = mask;
        self
    }

    /// Over the length and at most 64 bytes, spread evenly from the first to the last.
    pub(super) fn sampled(self, key: KeyBytes<'_>) -> u64 {
        match key {
            Some(key) if SAMPLED < key.len() => {
                let mut state = State::new(self.seed.0, self.seed.1);
                let words = SAMPLED / 8;
                for word in 0..words {
                    let at = word * (key.len() - 8) / (words - 1);
                    state.absorb(little_endian(&key[at..at + 8]));
                }
                state.finish(key.len() as u64) & self.mask
            }
            _ => Self::over_all(key, self.seed) & self.mask,
        }
    }

    /// Over every byte.
    pub(super) fn full(self, key: KeyBytes<'_>) -> u64 {
        Self::over_all(key, (self.seed.0 ^ FULL, self.seed.1 ^ FULL)) & self.mask
    }

    fn over_all(key: KeyBytes<'_>, seed: (u64, u64)) -> u64 {
        let mut state = State::new(seed.0, seed.1);
        let Some(key) = key else {
            return state.finish(u64::MAX);
        };
        let mut words = key.chunks_exact(8);
        for word in &mut words {
            state.absorb(little_endian(word));
        }
        if !words.remainder().is_empty() {
            state.absorb(little_endian(words.remainder()));
        }
        state.finish(key.len() as u64)
    }
}

/// Up to eight bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The rounds of SipHash-1-3 over whole words; the length is the last of them.
struct State([u64; 4]);

impl State {
    const fn new(k0: u64, k1: u64) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }

    const fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    const fn finish(mut self, length: u64) -> u64 {
        self.absorb(length);
        self.0[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;
    use std::vec;

    use super::*;

    #[test]
    fn hashes_are_those_of_another_implementation() {
        let hasher = KeyHasher::new((0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210));
        let key =
            |length: usize| (0..length).map(|at| (at * 7 + 3).to_le_bytes()[0]).collect::<vec::Vec<u8>>();
        let keys: vec::Vec<Option<vec::Vec<u8>>> =
            [None].into_iter().chain([0, 1, 7, 8, 9, 64, 65, 1000].map(|length| Some(key(length)))).collect();
        let expected = [
            (0x95eb_b91e_b0fc_1a24, 0x61c1_ff51_2447_9eb3),
            (0xf4b3_fee3_9780_2911, 0xcb14_1efa_d4e0_f3e2),
            (0xce54_1e8e_48bd_7a26, 0x1d41_c9bd_3133_fa93),
            (0x7fa0_abe7_d2e9_554c, 0xb4d0_bbbb_3e51_5285),
            (0x0de3_a257_f9f6_8bab, 0xbebc_10c5_f60e_ee3a),
            (0xd056_2254_9a59_5b50, 0x3642_62a3_9169_17ed),
            (0x603a_b01c_f0f2_55ec, 0x8d62_b3a2_a81d_c071),
            (0xd04e_657c_f084_b6ce, 0x5249_7436_bef8_aec1),
            (0x3e8b_943e_77cd_214e, 0xe21b_0055_d2ef_6f62),
        ];
        for (key, expected) in keys.iter().zip(expected) {
            let key = key.as_deref();
            assert_eq!((hasher.sampled(key), hasher.full(key)), expected, "{:?} bytes", key.map(<[u8]>::len));
        }
    }

    #[test]
    fn null_empty_and_zero_bytes_differ() {
        let hasher = KeyHasher::new((1, 2));
        let keys: [KeyBytes<'_>; 5] = [None, Some(b""), Some(b"\0"), Some(b"\0\0"), Some(&[0; 8])];
        let hashes: BTreeSet<u64> = keys.into_iter().map(|key| hasher.sampled(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }

    #[test]
    fn another_seed_gives_other_hashes() {
        let key: KeyBytes<'_> = Some(b"ann");
        assert_ne!(KeyHasher::new((1, 2)).sampled(key), KeyHasher::new((1, 3)).sampled(key));
        assert_ne!(KeyHasher::new((1, 2)).sampled(key), KeyHasher::new((2, 2)).sampled(key));
    }

    #[test]
    fn the_sample_reads_both_ends_and_the_length_and_the_full_hash_everything() {
        let hasher = KeyHasher::new((7, 9));
        let key = vec![b'k'; 1000];
        let changed = |at: usize| {
            let mut other = key.clone();
            other[at] = b'x';
            other
        };
        assert_ne!(hasher.sampled(Some(&key)), hasher.sampled(Some(&changed(0))));
        assert_ne!(hasher.sampled(Some(&key)), hasher.sampled(Some(&changed(999))));
        assert_ne!(hasher.sampled(Some(&key)), hasher.sampled(Some(&key[..999])));
        assert_eq!(hasher.sampled(Some(&key)), hasher.sampled(Some(&changed(50))), "between two samples");
        assert!((0..1000).all(|at| hasher.full(Some(&key)) != hasher.full(Some(&changed(at)))));
    }

    #[test]
    fn ordinary_keys_spread_over_a_power_of_two() {
        let hasher = KeyHasher::new((3, 5));
        let mut buckets = vec![0_u32; 256];
        for number in 0..25_600 {
            let key = format!("user-{number:08}");
            buckets[usize::try_from(hasher.sampled(Some(key.as_bytes())) % 256).unwrap()] += 1;
        }
        assert!(buckets.iter().all(|&count| (50..=150).contains(&count)), "{buckets:?}");
    }
}
