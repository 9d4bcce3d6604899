//! The one reason why a lane is not further, in words.

use std::fmt;
use std::time::Duration;

use tramline_core::lanes::StopReason;

/// The one reason why a lane is not further; when several hold, the first of this list that is not plain work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitingFor {
    /// It stops, and what is left is being finished.
    Stopping {
        /// Why it stops.
        reason: StopReason,
        /// Whether the rest is dropped instead of finished.
        hurry: bool,
        /// The oldest record that is not finished.
        offset: Option<i64>,
        /// How long ago it was told to stop.
        since: Duration,
    },
    /// It failed, and is started again.
    Restart {
        /// When.
        due: Duration,
        /// How many times in a row it failed without progress in between.
        failures: u32,
        /// The last failure.
        error: String,
    },
    /// It failed, and its partition is not processed any more while it stays assigned.
    Stopped {
        /// The failure.
        error: String,
    },
    /// Commits fail; records go on.
    Commit {
        /// How many failed in a row.
        failures: u32,
        /// The last failure.
        error: String,
    },
    /// The source cannot read on in the partition; it is tried again from time to time.
    Fetch {
        /// Where the partition stands, when it has a position.
        offset: Option<i64>,
        /// What the source says.
        error: String,
        /// How long ago it said so first.
        since: Duration,
    },
    /// The oldest unfinished record failed, and is handled again.
    Retry {
        /// The record, or the first of the batch.
        offset: i64,
        /// Which attempt comes next, counted from 1.
        attempt: u32,
        /// How many there are in all.
        of: u32,
        /// When it comes.
        due: Duration,
        /// Why the last attempt failed.
        error: String,
    },
    /// The oldest unfinished record failed, and is being written elsewhere.
    DeadLetter {
        /// The record, or the first of the batch.
        offset: i64,
        /// For how long it has been seen unfinished.
        since: Duration,
        /// Why it failed.
        error: String,
    },
    /// Keys are parked, one of them at the oldest unfinished record: it waits for somebody to say what becomes
    /// of them.
    Parked {
        /// How many keys.
        keys: usize,
        /// How many records, those behind the failed ones included.
        records: usize,
        /// The oldest of them.
        oldest: i64,
        /// For how long that has been seen unfinished.
        since: Duration,
    },
    /// It may not run further ahead of this record, which is not finished
    /// ([`max_ahead`](crate::PartitionedBuilder::max_ahead)).
    Ahead {
        /// The oldest record that is not finished.
        offset: i64,
        /// For how long it has been seen unfinished.
        since: Duration,
    },
    /// Its queue or the run's memory is full, because this record is not finished.
    Full {
        /// The oldest record that is not finished; none when other lanes hold the memory.
        offset: Option<i64>,
        /// For how long it has been seen unfinished; without one, for how long the partition is paused.
        since: Duration,
    },
    /// In key order: one key's record holds the frontier back, while other keys go on.
    Key {
        /// The key, at most its first 64 bytes; none for records without one.
        key: Option<Vec<u8>>,
        /// The record, which is the oldest that is not finished.
        offset: i64,
        /// For how long it has been seen unfinished.
        since: Duration,
    },
    /// The processor works on this record.
    Handler {
        /// The oldest record that is not finished.
        offset: i64,
        /// For how long it has been seen unfinished: from its first await, or from the first snapshot.
        since: Duration,
    },
    /// Nothing to do: the source has no record for it.
    Records,
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping { reason, hurry, offset, since } => {
                f.write_str(if *hurry { "stopping at once" } else { "draining" })?;
                write!(f, " for {}, {}", Span(*since), why(*reason))?;
                offset.map_or(Ok(()), |offset| write!(f, "; offset {offset} is not finished"))
            }
            Self::Restart { due, failures, error } => {
                write!(f, "starts again in {} (failure {failures} in a row): {error}", Span(*due))
            }
            Self::Stopped { error } => write!(f, "stopped by its failure: {error}"),
            Self::Commit { failures, error } => {
                write!(f, "commits are failing ({failures} in a row): {error}")
            }
            Self::Retry { offset, attempt, of, due, error } => {
                write!(f, "retry of offset {offset} in {} (attempt {attempt} of {of}): {error}", Span(*due))
            }
            Self::DeadLetter { offset, since, error } => {
                write!(
                    f,
                    "writing offset {offset} as a dead letter, not finished for {}: {error}",
                    Span(*since)
                )
            }
            Self::Parked { keys, records, oldest, since } => {
                let (key, record) = (plural(*keys, "key"), plural(*records, "record"));
                write!(f, "{key} parked with {record}, the oldest at offset {oldest} for {}", Span(*since))
            }
            Self::Fetch { offset: Some(offset), error, since } => {
                write!(f, "cannot be read on at offset {offset} for {}: {error}", Span(*since))
            }
            Self::Fetch { offset: None, error, since } => {
                write!(f, "cannot be read on for {}: {error}", Span(*since))
            }
            Self::Ahead { offset, since } => {
                write!(f, "far enough ahead of offset {offset}, which is not finished for {}", Span(*since))
            }
            Self::Full { offset: Some(offset), since } => {
                write!(f, "full; offset {offset} is not finished for {}", Span(*since))
            }
            Self::Full { offset: None, since } => {
                write!(f, "paused for {}, because other lanes hold the run's memory", Span(*since))
            }
            Self::Key { key, offset, since } => {
                f.write_str("waiting for key ")?;
                match key {
                    Some(key) => write!(f, "\"{}\"", key.escape_ascii())?,
                    None => f.write_str("null")?,
                }
                write!(f, " at offset {offset}, not finished for {}", Span(*since))
            }
            Self::Handler { offset, since } => write!(f, "running offset {offset} for {}", Span(*since)),
            Self::Records => f.write_str("idle"),
        }
    }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

const fn why(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Revoke => "the group takes the partition",
        StopReason::Lost => "the partition was lost",
        StopReason::Shutdown => "the run ends",
        // The only one left; the enum may grow.
        _ => "a handler failed",
    }
}

/// A duration as people say it: one decimal below a minute.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.as_secs();
        match secs {
            0 if self.0.subsec_millis() < 100 => write!(f, "{} ms", self.0.as_millis()),
            0..60 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            60..3600 => write!(f, "{} min {} s", secs / 60, secs % 60),
            _ => write!(f, "{} h {} min", secs / 3600, secs % 3600 / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_can_read_every_reason() {
        let secs = Duration::from_secs;
        let error = || "connection refused".to_owned();
        let told = [
            (WaitingFor::Records, "idle"),
            (
                WaitingFor::Fetch { offset: Some(7), error: error(), since: secs(9) },
                "cannot be read on at offset 7 for 9.0 s: connection refused",
            ),
            (
                WaitingFor::Ahead { offset: 7, since: secs(9) },
                "far enough ahead of offset 7, which is not finished for 9.0 s",
            ),
            (WaitingFor::Handler { offset: 7, since: secs(3) }, "running offset 7 for 3.0 s"),
            (
                WaitingFor::Full { offset: Some(7), since: secs(61) },
                "full; offset 7 is not finished for 1 min 1 s",
            ),
            (
                WaitingFor::Key { key: Some(b"ab\n".to_vec()), offset: 7, since: secs(3660) },
                "waiting for key \"ab\\n\" at offset 7, not finished for 1 h 1 min",
            ),
            (
                WaitingFor::Key { key: None, offset: 7, since: Duration::from_millis(20) },
                "waiting for key null at offset 7, not finished for 20 ms",
            ),
            (
                WaitingFor::Retry {
                    offset: 42,
                    attempt: 2,
                    of: 5,
                    due: Duration::from_millis(1200),
                    error: error(),
                },
                "retry of offset 42 in 1.2 s (attempt 2 of 5): connection refused",
            ),
            (
                WaitingFor::DeadLetter { offset: 42, since: secs(1), error: error() },
                "writing offset 42 as a dead letter, not finished for 1.0 s: connection refused",
            ),
            (
                WaitingFor::Parked { keys: 2, records: 1, oldest: 7, since: secs(8) },
                "2 keys parked with 1 record, the oldest at offset 7 for 8.0 s",
            ),
            (
                WaitingFor::Commit { failures: 3, error: error() },
                "commits are failing (3 in a row): connection refused",
            ),
            (
                WaitingFor::Restart { due: secs(5), failures: 2, error: error() },
                "starts again in 5.0 s (failure 2 in a row): connection refused",
            ),
            (WaitingFor::Stopped { error: error() }, "stopped by its failure: connection refused"),
            (
                WaitingFor::Stopping {
                    reason: StopReason::Revoke,
                    hurry: false,
                    offset: Some(1),
                    since: secs(2),
                },
                "draining for 2.0 s, the group takes the partition; offset 1 is not finished",
            ),
            (
                WaitingFor::Stopping { reason: StopReason::Lost, hurry: true, offset: None, since: secs(0) },
                "stopping at once for 0 ms, the partition was lost",
            ),
        ];
        for (reason, text) in told {
            assert_eq!(reason.to_string(), text);
        }
    }
}
