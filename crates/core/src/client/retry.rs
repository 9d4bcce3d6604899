//! How long to wait before doing something again.

use core::time::Duration;

/// Waiting times that double from `initial` to `max`, each shortened or lengthened by up to a fifth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Waits `initial` first and `max` at most (before the fifth that jitter may add).
    #[must_use]
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, attempts: 0 }
    }

    /// The next wait. `jitter` is a random number from the driver; half of `u32::MAX` means none.
    pub fn next_wait(&mut self, jitter: u32) -> Duration {
        let doubled =
            self.initial.saturating_mul(1u32.checked_shl(self.attempts.min(31)).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        let wait = doubled.min(self.max);
        // 80 % to 120 %, in thousandths: a random u32 scaled to 0..=400.
        let thousandths = 800 + ((u64::from(jitter) * 401) >> 32) as u32;
        wait.saturating_mul(thousandths) / 1000
    }

    /// How often was waited since the last success.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Something succeeded: the next wait is the initial one.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_JITTER: u32 = u32::MAX / 2;

    #[test]
    fn waits_double_up_to_the_maximum_and_start_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let waits: std::vec::Vec<u128> = (0..6).map(|_| backoff.next_wait(NO_JITTER).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_wait(NO_JITTER).as_millis(), 100);
        for _ in 0..100 {
            assert!(backoff.next_wait(u32::MAX) <= Duration::from_millis(1200));
        }
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        let wait =
            |jitter| Backoff::new(Duration::from_millis(1000), Duration::from_secs(9)).next_wait(jitter);
        assert_eq!(wait(0), Duration::from_millis(800));
        assert_eq!(wait(u32::MAX), Duration::from_millis(1200));
    }
}
