//! A small seeded generator: member ids and jitter without a source of randomness inside the machines.

use alloc::format;
use core::time::Duration;

use tramline_wire::Str;

/// Characters of a client's name that go into an id.
const LONGEST_PREFIX: usize = 255;

/// A stream of numbers that depends on nothing but its seed. Not for secrets.
#[derive(Clone, Debug)]
pub struct Seeded {
    high: u64,
    low: u64,
}

impl Seeded {
    /// The stream that begins with `seed`. For ids that must be unique across restarts, pass random bytes.
    #[must_use]
    pub fn new(seed: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(seed);
        Self { high: (bits >> 64) as u64, low: bits as u64 }
    }

    /// The stream that begins with a small number, for tests.
    #[must_use]
    pub fn from_number(seed: u64) -> Self {
        Self { high: seed, low: !seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        // Two Weyl sequences of different odd steps, each mixed as splitmix64 does: the pair has a period
        // of 2^64 and two streams of different seeds do not fall into step.
        self.high = self.high.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.low = self.low.wrapping_add(0xd1b5_4a32_d192_ed03);
        mix(self.high) ^ mix(self.low).rotate_left(32)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// `duration`, a fifth more or less.
    pub fn jittered(&mut self, duration: Duration) -> Duration {
        let spread = duration / 5;
        let width = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX / 2).saturating_mul(2);
        (duration - spread).saturating_add(Duration::from_nanos(self.below(width.saturating_add(1))))
    }

    /// `prefix-UUID`, the form of Kafka's member ids. Of a long prefix the beginning: a leader is told the ids of all.
    pub(crate) fn member_id(&mut self, prefix: &str) -> Str {
        let end = prefix.char_indices().nth(LONGEST_PREFIX).map_or(prefix.len(), |(end, _)| end);
        let prefix = &prefix[..end];
        let bits = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let (a, b, c) = ((bits >> 96) as u32, (bits >> 80) as u16, (bits >> 64) as u16);
        let (d, e) = ((bits >> 48) as u16, (bits as u64) & 0xffff_ffff_ffff);
        Str::from(format!("{prefix}-{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}"))
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn equal_seeds_give_equal_ids_and_ids_do_not_repeat() {
        let (mut one, mut two) = (Seeded::from_number(7), Seeded::from_number(7));
        let mut seen = BTreeSet::new();
        for _ in 0..1_000 {
            let id = one.member_id("client");
            assert_eq!(id, two.member_id("client"));
            assert_eq!(id.len(), "client".len() + 37);
            assert!(seen.insert(id));
        }
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        let mut seeded = Seeded::new([9; 16]);
        for _ in 0..1_000 {
            let duration = seeded.jittered(Duration::from_millis(100));
            assert!(duration >= Duration::from_millis(80) && duration <= Duration::from_millis(120));
        }
    }
}
