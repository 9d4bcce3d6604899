//! Settings of one log: sizes, retention, how much is checked at start.

use std::time::Duration;

/// Wall-clock milliseconds since 1970, as records carry them.
pub type Timestamp = i64;

/// How much of a log is read and checked when it is opened.
///
/// The checks always cover everything from the "barriered up to" mark on: only there can a crash have left torn
/// bytes. The choice is about sealed segments wholly below the mark, which a crash cannot have touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Sealed segments below the mark: their batch headers are walked (offsets, lengths, producers, epochs), the
    /// bodies are not read. Start stays fast with a large log; a body that rotted is noticed by whoever reads it,
    /// by its CRC. The default: a start must not take minutes because a log is old.
    #[default]
    Tail,
    /// Every byte of every segment is read and its CRC checked (a few seconds per GiB on a cold disk).
    Full,
}

/// When a log is compacted, and what compaction leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compaction {
    /// The share of the sealed bytes that must not have been compacted before it is worth the work. Default 0.5:
    /// at most half of the log is waste.
    pub min_dirty_ratio: f64,
    /// Records younger than this stay, whatever follows them. Default 0.
    pub min_lag: Duration,
    /// Records older than this are compacted even when the share is small. Default: no limit.
    pub max_lag: Duration,
    /// How long a tombstone stays after the first compaction that met it, so that slow readers see it. Default 24 hours.
    pub delete_retention: Duration,
    /// Bytes of keys to remember in one pass; more keys take more passes. A pass goes through at least one segment.
    /// Default 64 MiB.
    pub key_memory: usize,
}

impl Default for Compaction {
    fn default() -> Self {
        Self {
            min_dirty_ratio: 0.5,
            min_lag: Duration::ZERO,
            max_lag: Duration::MAX,
            delete_retention: Duration::from_secs(24 * 60 * 60),
            key_memory: 64 * 1024 * 1024,
        }
    }
}

/// Settings of one [`Log`](crate::Log).
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// Bytes after which a segment is sealed and a new one begun; also the largest batch taken. Default 512 MiB,
    /// at most `i32::MAX`. Retention works in whole segments.
    pub segment_bytes: u32,
    /// The file of the active segment is extended by this much at a time, so that most barriers have no new length
    /// to write. Default 4 MiB: large enough to be rare, small enough that reading the zeros at a start is cheap.
    pub presize_bytes: u32,
    /// One entry of the offset index per so many bytes. Default 16 KiB: an entry takes 16 bytes of memory, a lookup
    /// reads at most this much.
    pub index_interval_bytes: u32,
    /// Stamp batches with the append time (`message.timestamp.type=LogAppendTime`) in place of the producer's.
    /// Default `false`.
    pub log_append_time: bool,
    /// Whole segments are removed while the log is larger than this many bytes. Default `None`: no limit.
    pub retention_bytes: Option<u64>,
    /// Whole segments are removed when their newest timestamp is older than this. Default `None`: no limit. A segment
    /// in which no record has a timestamp has no age, and stays.
    pub retention: Option<Duration>,
    /// The active segment is sealed when its first batch is older than this, so that retention by age can reach its
    /// records. Default `None`: only a full segment is sealed.
    pub segment_age: Option<Duration>,
    /// Keep only the newest record of each key in what is sealed. Default `None`: no compaction.
    pub compaction: Option<Compaction>,
    /// A producer that was silent for this long is forgotten (its next batch is taken with any sequence).
    /// Default 24 hours.
    pub producer_expiration: Duration,
    /// How much is checked when the log is opened.
    pub recovery: RecoveryMode,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 512 * 1024 * 1024,
            presize_bytes: 4 * 1024 * 1024,
            index_interval_bytes: 16 * 1024,
            log_append_time: false,
            retention_bytes: None,
            retention: None,
            segment_age: None,
            compaction: None,
            producer_expiration: Duration::from_secs(24 * 60 * 60),
            recovery: RecoveryMode::default(),
        }
    }
}
