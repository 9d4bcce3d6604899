//! What to do about an error, and how long to wait before doing it again.

use core::time::Duration;

/// What a produce error asks of the client (the rows of Kafka's error table that concern producing).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProduceAction {
    /// Written before: success, though the offset is not told.
    AlreadyWritten,
    /// Send the same batch again after a backoff.
    Retry {
        /// Ask for metadata first: the leader is probably elsewhere, or the topic not there yet.
        refresh: bool,
    },
    /// Too large as one batch: send it as two, or refuse it when it is one record.
    Split,
    /// The sequence does not follow. Just retry unless it is the oldest unacknowledged batch; then start a new epoch.
    OutOfOrder,
    /// The broker does not know this producer's state any more: start a new epoch.
    NewEpoch,
    /// Not written, and it never will be: tell the caller.
    Refuse,
    /// Nothing this producer sends can succeed any more.
    Fatal,
}

/// The action for the error `code` (not 0) of a partition in a produce answer.
#[must_use]
pub const fn produce_action(code: i16) -> ProduceAction {
    match code {
        // UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID, LEADER_NOT_AVAILABLE,
        // NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, LISTENER_NOT_FOUND, FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR
        3 | 100 | 103 | 5 | 6 | 9 | 72 | 74 | 56 => ProduceAction::Retry { refresh: true },
        // CORRUPT_MESSAGE, REQUEST_TIMED_OUT, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS, NOT_ENOUGH_REPLICAS,
        // NOT_ENOUGH_REPLICAS_AFTER_APPEND, UNKNOWN_LEADER_EPOCH, THROTTLING_QUOTA_EXCEEDED
        2 | 7 | 13 | 14 | 19 | 20 | 75 | 89 => ProduceAction::Retry { refresh: false },
        // MESSAGE_TOO_LARGE
        10 => ProduceAction::Split,
        // OUT_OF_ORDER_SEQUENCE_NUMBER
        45 => ProduceAction::OutOfOrder,
        // DUPLICATE_SEQUENCE_NUMBER
        46 => ProduceAction::AlreadyWritten,
        // INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID
        47 | 59 => ProduceAction::NewEpoch,
        // CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, PRODUCER_FENCED
        31 | 35 | 53 | 90 => ProduceAction::Fatal,
        _ => ProduceAction::Refuse,
    }
}

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

    #[test]
    fn each_produce_error_has_its_action() {
        use ProduceAction::{AlreadyWritten, Fatal, NewEpoch, OutOfOrder, Refuse, Retry, Split};
        #[rustfmt::skip]
        let table = [
            (-1, Refuse), (2, Retry { refresh: false }), (3, Retry { refresh: true }), (6, Retry { refresh: true }),
            (7, Retry { refresh: false }), (10, Split), (17, Refuse), (19, Retry { refresh: false }), (29, Refuse),
            (31, Fatal), (45, OutOfOrder), (46, AlreadyWritten), (47, NewEpoch), (56, Retry { refresh: true }),
            (59, NewEpoch), (87, Refuse), (90, Fatal), (100, Retry { refresh: true }), (12345, Refuse),
        ];
        for (code, action) in table {
            assert_eq!(produce_action(code), action, "code {code}");
        }
    }
}
