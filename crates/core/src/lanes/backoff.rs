//! How long to wait before something that failed is tried again.

use core::time::Duration;

/// Waits that double from a first to a longest one.
///
/// With jitter, which is the default, each wait lies evenly spread between half of that and all of it, so that
/// what failed together is not tried again together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: bool,
}

impl Default for Backoff {
    /// From 100 ms to 5 s, with jitter.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }
}

impl Backoff {
    /// Waits from `first` to `longest`, with jitter.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: true }
    }

    /// The same wait every time, with jitter.
    #[must_use]
    pub const fn every(wait: Duration) -> Self {
        Self::new(wait, wait)
    }

    /// Waits the exact times.
    #[must_use]
    pub const fn without_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }

    /// Whether the first wait is longer than zero and the longest no shorter than that. Anything else would
    /// be a hot loop, or is a mistake.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.first.is_zero() && self.first <= self.longest
    }

    /// How long to wait after failure number `failures` in a row, counted from 1. `random` is any number.
    #[must_use]
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.longest);
        if !self.jitter {
            return full;
        }
        let half = full / 2;
        let span = u64::try_from((full - half).as_nanos()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_nanos(random % span)
    }
}

/// Numbers that look random, from a seed. Good enough to spread waits, and for nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// The numbers that follow from this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        // Odd step, then two rounds of mixing: every bit of the counter reaches every bit of the result.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_numbers_follow_from_the_seed_as_another_implementation_gives_them() {
        let draws = |seed| {
            let mut jitter = Jitter::new(seed);
            [jitter.draw(), jitter.draw(), jitter.draw()]
        };
        assert_eq!(draws(0), [0x4e17_cf67_001b_3979, 0x3b04_1d5b_6692_dd3d, 0xb804_fa07_f4a2_b79a]);
        assert_eq!(draws(1), [0x68cb_58c5_8e88_561b, 0xce99_87a8_5988_40f3, 0x71f5_f51a_35fc_82c5]);
    }

    #[test]
    fn t215_doubles_from_the_first_to_the_longest_wait() {
        let backoff = Backoff::default().without_jitter();
        let delays: Vec<u128> = (1..=8).map(|failures| backoff.delay(failures, 0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.delay(u32::MAX, 0), Duration::from_secs(5));
    }

    #[test]
    fn t215_with_jitter_every_wait_lies_between_half_and_all() {
        let (backoff, mut jitter) = (Backoff::default(), Jitter::new(1));
        for failures in 1..10 {
            let full = backoff.without_jitter().delay(failures, 0);
            let delays: Vec<Duration> = (0..200).map(|_| backoff.delay(failures, jitter.draw())).collect();
            assert!(delays.iter().all(|&delay| full / 2 <= delay && delay <= full));
            assert!(delays.iter().any(|&delay| delay < full * 6 / 10));
            assert!(delays.iter().any(|&delay| full * 9 / 10 < delay));
        }
    }

    #[test]
    fn t003_t004_no_wait_and_a_longest_below_the_first_are_not_valid() {
        assert!(Backoff::every(Duration::from_nanos(1)).is_valid());
        assert!(!Backoff::every(Duration::ZERO).is_valid());
        assert!(!Backoff::new(Duration::from_secs(2), Duration::from_secs(1)).is_valid());
    }
}
