//! Which segments may go: a pure function.

use std::time::Duration;

use crate::config::{LogConfig, Timestamp};

/// What retention looks at of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentFacts {
    pub(crate) bytes: u64,
    pub(crate) max_timestamp: Timestamp,
    /// Sealed and durable: only such a segment may go.
    pub(crate) removable: bool,
}

/// How many of the oldest segments are to be removed.
pub(crate) fn expired(segments: &[SegmentFacts], config: &LogConfig, now: Timestamp) -> usize {
    let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut count = 0;
    for segment in segments {
        let too_large = config.retention_bytes.is_some_and(|limit| total > limit);
        if !segment.removable || !(too_large || is_old(segment.max_timestamp, config, now)) {
            break;
        }
        total -= segment.bytes;
        count += 1;
    }
    count
}

/// Whether the newest record of a segment is past its time.
pub(crate) fn is_old(max_timestamp: Timestamp, config: &LogConfig, now: Timestamp) -> bool {
    // Without a timestamp nothing is known of the age.
    max_timestamp >= 0 && is_past(max_timestamp, config.retention, now)
}

/// Whether `since` is longer ago than `age`.
pub(crate) fn is_past(since: Timestamp, age: Option<Duration>, now: Timestamp) -> bool {
    age.is_some_and(|age| now.saturating_sub(since) > i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{SegmentFacts, expired};
    use crate::config::LogConfig;

    fn facts(removable: usize) -> Vec<SegmentFacts> {
        (0..4)
            .map(|n| SegmentFacts {
                bytes: 100,
                max_timestamp: n * 1000,
                removable: (n as usize) < removable,
            })
            .collect()
    }

    #[test]
    fn without_a_limit_everything_stays() {
        assert_eq!(expired(&facts(4), &LogConfig::default(), i64::MAX), 0);
    }

    #[test]
    fn the_oldest_go_until_the_rest_fits() {
        let config = LogConfig { retention_bytes: Some(200), ..LogConfig::default() };
        assert_eq!(expired(&facts(3), &config, 0), 2);
        assert_eq!(expired(&facts(1), &config, 0), 1);
    }

    #[test]
    fn records_without_a_time_are_of_no_age() {
        let config = LogConfig { retention: Some(Duration::ZERO), ..LogConfig::default() };
        let timeless = SegmentFacts { bytes: 1, max_timestamp: -1, removable: true };
        assert_eq!(expired(&[timeless], &config, i64::MAX), 0);
    }

    #[test]
    fn what_is_too_old_goes_but_never_past_what_may_go() {
        let config = LogConfig { retention: Some(Duration::from_millis(1500)), ..LogConfig::default() };
        assert_eq!(expired(&facts(3), &config, 2501), 2);
        assert_eq!(expired(&facts(3), &config, 1_000_000), 3);
    }
}
