//! What a broker can be told: limits, defaults for topics and groups, and the address it advertises.

use std::time::Duration;

/// The settings of one broker. Every field has a default; the setters name unit, default and trade-off.
///
/// Checked once, by [`BrokerBuilder::start`](crate::BrokerBuilder::start).
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    pub(crate) advertised_host: Option<String>,
    pub(crate) advertised_port: Option<u16>,
    pub(crate) auto_create_topics: bool,
    pub(crate) default_partitions: i32,
    pub(crate) max_partitions: usize,
    pub(crate) lenient_replication_factor: bool,
    pub(crate) max_request_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) max_connection_memory: usize,
    pub(crate) max_parked_fetches: usize,
    pub(crate) idle_timeout: Duration,
    pub(crate) max_fetch_wait: Duration,
    pub(crate) max_fetch_bytes: usize,
    pub(crate) max_message_bytes: usize,
    pub(crate) mailbox_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) presize_bytes: u32,
    pub(crate) writer_threads: usize,
    pub(crate) committer_threads: usize,
    pub(crate) reader_threads: usize,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) background_sync_interval: Duration,
    pub(crate) retention: Option<Duration>,
    pub(crate) retention_bytes: Option<u64>,
    pub(crate) retention_check_interval: Duration,
    pub(crate) compaction_check_interval: Duration,
    pub(crate) group_log_bytes: u64,
    pub(crate) group_initial_rebalance_delay: Duration,
    pub(crate) group_min_session_timeout: Duration,
    pub(crate) group_max_session_timeout: Duration,
    pub(crate) group_max_size: usize,
    pub(crate) group_max_bytes: usize,
    pub(crate) offsets_retention: Duration,
    pub(crate) offsets_retention_check_interval: Duration,
    pub(crate) shutdown_timeout: Duration,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            advertised_host: None,
            advertised_port: None,
            auto_create_topics: true,
            default_partitions: 1,
            max_partitions: 10_000,
            lenient_replication_factor: false,
            max_request_bytes: 104_857_600,
            max_connections: 4096,
            max_connection_memory: 512 << 20,
            max_parked_fetches: 4096,
            idle_timeout: Duration::from_mins(10),
            max_fetch_wait: Duration::from_mins(1),
            max_fetch_bytes: 57_671_680,
            max_message_bytes: 1_048_588,
            mailbox_bytes: 32 << 20,
            segment_bytes: 1 << 30,
            presize_bytes: 4 << 20,
            writer_threads: 2,
            committer_threads: 4,
            reader_threads: 2,
            checkpoint_interval: Duration::from_secs(1),
            background_sync_interval: Duration::from_secs(10),
            retention: Some(Duration::from_hours(7 * 24)),
            retention_bytes: None,
            retention_check_interval: Duration::from_mins(5),
            compaction_check_interval: Duration::from_secs(15),
            group_log_bytes: 16 << 20,
            group_initial_rebalance_delay: Duration::ZERO,
            group_min_session_timeout: Duration::from_secs(1),
            group_max_session_timeout: Duration::from_mins(30),
            group_max_size: 10_000,
            group_max_bytes: 256 << 20,
            offsets_retention: Duration::from_hours(7 * 24),
            offsets_retention_check_interval: Duration::from_mins(10),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl BrokerConfig {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The host that clients are told to connect to. Default: the bound address. Needed when clients reach the
    /// broker by another name than it listens on.
    #[must_use]
    pub fn advertised_host(mut self, host: impl Into<String>) -> Self {
        self.advertised_host = Some(host.into());
        self
    }

    /// The port that clients are told to connect to. Default: the bound port.
    #[must_use]
    pub fn advertised_port(mut self, port: u16) -> Self {
        self.advertised_port = Some(port);
        self
    }

    /// Whether a topic that is asked for by name, and does not exist, is created. Default true. Off protects
    /// against misspelt names; clients then see `UNKNOWN_TOPIC_OR_PARTITION`.
    #[must_use]
    pub fn auto_create_topics(mut self, on: bool) -> Self {
        self.auto_create_topics = on;
        self
    }

    /// Partitions of a topic that is created without a number. Default 1.
    #[must_use]
    pub fn default_partitions(mut self, partitions: i32) -> Self {
        self.default_partitions = partitions;
        self
    }

    /// Partitions this broker holds at most, over all topics. Default 10,000. Each costs a mailbox and the open
    /// file it writes to, and up to two more after older segments were read.
    #[must_use]
    pub fn max_partitions(mut self, partitions: usize) -> Self {
        self.max_partitions = partitions;
        self
    }

    /// Whether a replication factor above 1 is accepted and treated as 1. Default false: refused with
    /// `INVALID_REPLICATION_FACTOR`, since there is one node and nobody should believe otherwise.
    #[must_use]
    pub fn lenient_replication_factor(mut self, on: bool) -> Self {
        self.lenient_replication_factor = on;
        self
    }

    /// The largest request frame in bytes. Default 104,857,600. A larger length closes the connection before
    /// anything is allocated for it.
    #[must_use]
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// Connections that may be open at once. Default 4096. One more is accepted and closed at once.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Bytes that connections may hold together for requests that are not whole or not answered yet, and for answers that
    /// were not taken. Default 512 MiB, and never less than two of the largest requests. Above it the connection is closed
    /// that has got on with nothing for the longest time; those that hold less than 64 KiB are not counted.
    #[must_use]
    pub fn max_connection_memory(mut self, bytes: usize) -> Self {
        self.max_connection_memory = bytes;
        self
    }

    /// What the setting comes to.
    pub(crate) fn connection_memory(&self) -> usize {
        self.max_connection_memory.max(self.max_request_bytes.saturating_mul(2))
    }

    /// Fetches that may wait for data at once. Default 4096. One more is answered at once with what there is.
    #[must_use]
    pub fn max_parked_fetches(mut self, fetches: usize) -> Self {
        self.max_parked_fetches = fetches;
        self
    }

    /// How long a connection may go without a complete request, or without taking an answer, before it is
    /// closed. Default 10 minutes.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// The longest time a fetch waits for data, whatever it asks for. Default 1 minute.
    #[must_use]
    pub fn max_fetch_wait(mut self, wait: Duration) -> Self {
        self.max_fetch_wait = wait;
        self
    }

    /// The most record bytes in one fetch answer, whatever the fetch asks for. Default 57,671,680. A first batch
    /// above it is still returned whole.
    #[must_use]
    pub fn max_fetch_bytes(mut self, bytes: usize) -> Self {
        self.max_fetch_bytes = bytes;
        self
    }

    /// The largest record batch in bytes, as sent, of a topic that does not say otherwise
    /// (`max.message.bytes`). Default 1,048,588.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Bytes of record batches that may wait to be written, per partition. Default 32 MiB. A full mailbox stops
    /// reading the connections that produce to it; one batch always fits.
    #[must_use]
    pub fn mailbox_bytes(mut self, bytes: usize) -> Self {
        self.mailbox_bytes = bytes;
        self
    }

    /// The size of a log segment file of a topic that does not say otherwise (`segment.bytes`). Default 1 GiB.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// By how much the file of an active segment is extended at a time. Default 4 MiB: rare enough that most barriers
    /// have no new length to write. Smaller values cost barriers, larger ones reading zeros at a start after a crash.
    #[must_use]
    pub fn presize_bytes(mut self, bytes: u32) -> Self {
        self.presize_bytes = bytes;
        self
    }

    /// Threads that write to logs; each partition belongs to one of them. Default 2.
    #[must_use]
    pub fn writer_threads(mut self, threads: usize) -> Self {
        self.writer_threads = threads;
        self
    }

    /// Files that are forced to the disk at the same time. Default 4.
    #[must_use]
    pub fn committer_threads(mut self, threads: usize) -> Self {
        self.committer_threads = threads;
        self
    }

    /// Threads that read from logs. Default 2.
    #[must_use]
    pub fn reader_threads(mut self, threads: usize) -> Self {
        self.reader_threads = threads;
        self
    }

    /// How long "barriered up to", and the state of producers, may lag behind on the disk. Default 1 second.
    /// What lies above it is scanned at the next start.
    #[must_use]
    pub fn checkpoint_interval(mut self, interval: Duration) -> Self {
        self.checkpoint_interval = interval;
        self
    }

    /// How long records of `acks=1` may wait for a barrier that no producer asks for. Default 10 seconds: what a power
    /// cut may take of them, and what a start after a crash has to scan.
    #[must_use]
    pub fn background_sync_interval(mut self, interval: Duration) -> Self {
        self.background_sync_interval = interval;
        self
    }

    /// How long records of a topic that does not say otherwise are kept (`retention.ms`), by their timestamps and in
    /// whole segments. `None`: for ever. Default 7 days, as in Kafka.
    #[must_use]
    pub fn retention(mut self, age: Option<Duration>) -> Self {
        self.retention = age;
        self
    }

    /// The bytes above which the oldest segments of a partition go, unless its topic says otherwise
    /// (`retention.bytes`). Default `None`: no limit.
    #[must_use]
    pub fn retention_bytes(mut self, bytes: Option<u64>) -> Self {
        self.retention_bytes = bytes;
        self
    }

    /// How often retention looks. Default 5 minutes. Smaller values hold limits more closely.
    #[must_use]
    pub fn retention_check_interval(mut self, interval: Duration) -> Self {
        self.retention_check_interval = interval;
        self
    }

    /// How often topics with `cleanup.policy=compact` are looked at. Default 15 s. What is worth a pass is a matter of
    /// the topic (`min.cleanable.dirty.ratio`, `min.compaction.lag.ms`, `max.compaction.lag.ms`).
    #[must_use]
    pub fn compaction_check_interval(mut self, interval: Duration) -> Self {
        self.compaction_check_interval = interval;
        self
    }

    /// The size from which the log of committed offsets and groups is written anew with what is still true of it.
    /// Default 16 MiB; it is also let grow to four times what it had after the last time. Smaller values start
    /// faster and write more.
    #[must_use]
    pub fn group_log_bytes(mut self, bytes: u64) -> Self {
        self.group_log_bytes = bytes;
        self
    }

    /// How long the first join of an empty group waits for more members. Default 0: a single reader starts at
    /// once; members that join together see a second rebalance.
    #[must_use]
    pub fn group_initial_rebalance_delay(mut self, delay: Duration) -> Self {
        self.group_initial_rebalance_delay = delay;
        self
    }

    /// The session timeouts that group members may ask for. Default 1 second to 30 minutes; others are refused
    /// with `INVALID_SESSION_TIMEOUT`.
    #[must_use]
    pub fn group_session_timeouts(mut self, min: Duration, max: Duration) -> Self {
        self.group_min_session_timeout = min;
        self.group_max_session_timeout = max;
        self
    }

    /// The most members of one group. Default 10,000.
    #[must_use]
    pub fn group_max_size(mut self, members: usize) -> Self {
        self.group_max_size = members;
        self
    }

    /// Bytes that the members of all groups and committed offsets may take together, about. Default 256 MiB. Above it new
    /// members are told to try again later and offsets of further partitions are refused; those that are there go on.
    #[must_use]
    pub fn group_max_bytes(mut self, bytes: usize) -> Self {
        self.group_max_bytes = bytes;
        self
    }

    /// How long committed offsets are kept that no member of their group reads from: since the group became empty, or
    /// since the commit where there is no group or its members do not read the topic. Default 7 days, as in Kafka
    /// (`offsets.retention.minutes`). Smaller values lose the place of a consumer that pauses for longer.
    #[must_use]
    pub fn offsets_retention(mut self, age: Duration) -> Self {
        self.offsets_retention = age;
        self
    }

    /// How often offsets that are kept too long are looked for. Default 10 minutes.
    #[must_use]
    pub fn offsets_retention_check_interval(mut self, interval: Duration) -> Self {
        self.offsets_retention_check_interval = interval;
        self
    }

    /// How long a shutdown waits for requests in flight before it closes their connections. Default 30 seconds.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// The first setting that makes no sense, by name, and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let positive = [
            ("default_partitions", self.default_partitions > 0),
            ("max_partitions", self.max_partitions > 0),
            ("max_connections", self.max_connections > 0),
            ("idle_timeout", !self.idle_timeout.is_zero()),
            ("max_fetch_bytes", self.max_fetch_bytes > 0),
            ("max_message_bytes", self.max_message_bytes > 0),
            ("mailbox_bytes", self.mailbox_bytes > 0),
            ("presize_bytes", self.presize_bytes > 0),
            ("background_sync_interval", !self.background_sync_interval.is_zero()),
            ("retention_check_interval", !self.retention_check_interval.is_zero()),
            ("compaction_check_interval", !self.compaction_check_interval.is_zero()),
            ("writer_threads", self.writer_threads > 0),
            ("committer_threads", self.committer_threads > 0),
            ("reader_threads", self.reader_threads > 0),
            ("group_max_size", self.group_max_size > 0),
            ("offsets_retention_check_interval", !self.offsets_retention_check_interval.is_zero()),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, positive)| !positive) {
            return Err((name, "must be above zero"));
        }
        if self.max_request_bytes < 1024 || self.max_request_bytes > i32::MAX as usize {
            return Err(("max_request_bytes", "must lie between 1,024 and 2,147,483,647"));
        }
        if self.segment_bytes < 4096 || self.segment_bytes > i32::MAX as u64 {
            return Err(("segment_bytes", "must lie between 4,096 and 2,147,483,647"));
        }
        if self.group_min_session_timeout > self.group_max_session_timeout {
            return Err(("group_session_timeouts", "the smallest is above the largest"));
        }
        if self.advertised_host.as_ref().is_some_and(String::is_empty) {
            return Err(("advertised_host", "is empty"));
        }
        Ok(())
    }
}
