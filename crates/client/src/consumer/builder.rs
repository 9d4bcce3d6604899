//! The settings of a consumer and the checks on them.

use std::time::Duration;

use tramline_core::client::fetcher::{FetcherConfig, IsolationLevel, OffsetReset};
use tramline_core::group::member::MemberConfig;
use tramline_wire::{Str, TopicPartition};

use super::error::BuildConsumerError;
use super::types::{CommitMode, StartOffset};
use super::{Assignor, Consumer};
use crate::ClientConfig;

/// What a member of a group reads ahead unless told otherwise.
const GROUP_PREFETCH: usize = 16 << 20;
/// The smallest batch with a record: header, lengths, one empty record.
const SMALLEST_MAX_BYTES: usize = 68;

/// Collects the settings of a [`Consumer`]. Nothing is checked or sent before [`ConsumerBuilder::build`].
#[derive(Clone, Debug)]
pub struct ConsumerBuilder {
    pub(super) client: ClientConfig,
    pub(super) settings: Settings,
}

/// The checked settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub assigned: Vec<(TopicPartition, StartOffset)>,
    pub assigned_topics: Vec<(Str, StartOffset)>,
    pub subscribed: Vec<Str>,
    pub group: Option<Str>,
    pub instance_id: Option<Str>,
    pub assignors: Vec<Assignor>,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
    pub heartbeat_interval: Duration,
    pub max_poll_interval: Duration,
    pub commit_mode: CommitMode,
    pub commit_timeout: Duration,
    pub request_timeout: Duration,
    pub offset_reset: Option<OffsetReset>,
    pub prefetch: Option<usize>,
    pub fetcher: FetcherConfig,
}

impl ConsumerBuilder {
    pub(super) fn new(client: ClientConfig) -> Self {
        Self {
            settings: Settings {
                assigned: Vec::new(),
                assigned_topics: Vec::new(),
                subscribed: Vec::new(),
                group: None,
                instance_id: None,
                assignors: vec![Assignor::CooperativeSticky],
                session_timeout: Duration::from_secs(45),
                rebalance_timeout: Duration::from_secs(60),
                heartbeat_interval: Duration::from_secs(3),
                max_poll_interval: Duration::from_secs(300),
                commit_mode: CommitMode::Manual,
                commit_timeout: Duration::from_secs(60),
                request_timeout: client.request_timeout,
                offset_reset: None,
                prefetch: None,
                fetcher: FetcherConfig::default(),
            },
            client,
        }
    }

    /// Reads exactly these partitions, from these offsets. Positions are the program's to keep. May be called several
    /// times; excludes [`ConsumerBuilder::subscribe`].
    #[must_use]
    pub fn assign(mut self, partitions: impl IntoIterator<Item = (TopicPartition, StartOffset)>) -> Self {
        self.settings.assigned.extend(partitions);
        self
    }

    /// Reads every partition that `topic` has when the consumer is built, each from `start`. Positions are the program's
    /// to keep. Excludes [`ConsumerBuilder::subscribe`].
    #[must_use]
    pub fn assign_topic(mut self, topic: impl Into<Str>, start: StartOffset) -> Self {
        self.settings.assigned_topics.push((topic.into(), start));
        self
    }

    /// The group whose offsets are committed, and whose members share the subscribed topics.
    #[must_use]
    pub fn group(mut self, group: impl Into<Str>) -> Self {
        self.settings.group = Some(group.into());
        self
    }

    /// Shares the partitions of these topics with the other members of the group. Excludes [`ConsumerBuilder::assign`].
    #[must_use]
    pub fn subscribe<T: Into<Str>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.settings.subscribed.extend(topics.into_iter().map(Into::into));
        self
    }

    /// A name that survives restarts (static membership): a member that comes back under it within the session timeout
    /// gets its partitions back without a rebalance. Two live members with one name fence each other. Default: none.
    #[must_use]
    pub fn instance_id(mut self, instance_id: impl Into<Str>) -> Self {
        self.settings.instance_id = Some(instance_id.into());
        self
    }

    /// The ways of sharing partitions this member supports, the preferred one first. Default: cooperative-sticky alone,
    /// which moves partitions without stopping the others. A group agrees on one that all its members list; to join a
    /// group of members with Kafka's default list, give range as well (all then rebalance eagerly until every member
    /// supports cooperative-sticky).
    #[must_use]
    pub fn assignors(mut self, assignors: impl IntoIterator<Item = Assignor>) -> Self {
        self.settings.assignors = assignors.into_iter().collect();
        self
    }

    /// How long the group waits for a heartbeat before it takes the partitions away. Default: 45 s. Shorter finds dead
    /// members sooner and throws slow ones out; the broker has limits of its own (6 s to 30 min in Kafka's defaults).
    #[must_use]
    pub fn session_timeout(mut self, session_timeout: Duration) -> Self {
        self.settings.session_timeout = session_timeout;
        self
    }

    /// How long the group waits for its members to give up partitions and rejoin. Default: 60 s. It bounds how long a
    /// [`Revocation`](super::Revocation) can be held.
    #[must_use]
    pub fn rebalance_timeout(mut self, rebalance_timeout: Duration) -> Self {
        self.settings.rebalance_timeout = rebalance_timeout;
        self
    }

    /// The time between heartbeats. Default: 3 s. At most a third of the session timeout is sensible.
    #[must_use]
    pub fn heartbeat_interval(mut self, heartbeat_interval: Duration) -> Self {
        self.settings.heartbeat_interval = heartbeat_interval;
        self
    }

    /// How long the program may go without asking for records before its partitions are lost to the group; it rejoins at
    /// the next poll. Waiting for records counts as asking. Default: 300 s.
    #[must_use]
    pub fn max_poll_interval(mut self, max_poll_interval: Duration) -> Self {
        self.settings.max_poll_interval = max_poll_interval;
        self
    }

    /// Who commits. Default: [`CommitMode::Manual`].
    #[must_use]
    pub fn commit_mode(mut self, commit_mode: CommitMode) -> Self {
        self.settings.commit_mode = commit_mode;
        self
    }

    /// How long a commit, and any other question to the cluster, is repeated before it fails. Default: 60 s.
    #[must_use]
    pub fn commit_timeout(mut self, commit_timeout: Duration) -> Self {
        self.settings.commit_timeout = commit_timeout;
        self
    }

    /// What to do when a position is not in the log, or when nothing is committed. Default: `None` (an error) with
    /// self-kept positions, `Latest` in a group, as in Kafka.
    #[must_use]
    pub fn offset_reset(mut self, offset_reset: OffsetReset) -> Self {
        self.settings.offset_reset = Some(offset_reset);
        self
    }

    /// What is seen of transactions. Default: every record, as in Kafka. With
    /// [`ReadCommitted`](IsolationLevel::ReadCommitted) nothing is read past the oldest transaction that is still open, and
    /// ends ([`end_offsets`](Consumer::end_offsets), [`lag`](Consumer::lag)) are counted up to there.
    #[must_use]
    pub fn isolation_level(mut self, isolation_level: IsolationLevel) -> Self {
        self.settings.fetcher.isolation_level = isolation_level;
        self
    }

    /// Whether brokers are told only what changed since the last fetch (fetch sessions), where they can. Default: yes. Off,
    /// every fetch names every partition: larger requests, and nothing for a broker to remember.
    #[must_use]
    pub fn fetch_sessions(mut self, fetch_sessions: bool) -> Self {
        self.settings.fetcher.fetch_sessions = fetch_sessions;
        self
    }

    /// Bytes to read ahead of the program. 0 asks for more only when the program has polled an empty buffer, so that
    /// nothing is read that nobody waits for. Default: 0 with self-kept positions, 16 MiB in a group.
    #[must_use]
    pub fn prefetch(mut self, bytes: usize) -> Self {
        self.settings.prefetch = Some(bytes);
        self
    }

    /// The reader's own limit for one record batch, in bytes. A larger one is not handed out but reported with the limit it
    /// would need. Default: 50 MiB. A broker sends a batch whole even when it exceeds what was asked for, so this is
    /// the limit for what is accepted, not for what arrives.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.settings.fetcher.max_bytes = bytes;
        self
    }

    /// What a whole response should not exceed, in bytes. Default: 50 MiB.
    #[must_use]
    pub fn fetch_max_bytes(mut self, bytes: usize) -> Self {
        self.settings.fetcher.fetch_max_bytes = bytes;
        self
    }

    /// What one partition's part of a response should not exceed, in bytes. Default: 1 MiB.
    #[must_use]
    pub fn max_partition_fetch_bytes(mut self, bytes: usize) -> Self {
        self.settings.fetcher.partition_max_bytes = bytes;
        self
    }

    /// The bytes for which a broker should wait before it answers. Default: 1. More gives fewer, larger answers.
    #[must_use]
    pub fn fetch_min_bytes(mut self, bytes: usize) -> Self {
        self.settings.fetcher.min_bytes = bytes;
        self
    }

    /// How long a broker may wait for that many bytes. Default: 500 ms. A partition that is assigned, sought or resumed
    /// meanwhile is asked for when the answer is in.
    #[must_use]
    pub fn fetch_max_wait(mut self, wait: Duration) -> Self {
        self.settings.fetcher.max_wait = wait;
        self
    }

    /// Most records in one [`Fetched`](super::Fetched). Default: 500.
    #[must_use]
    pub fn max_poll_records(mut self, records: usize) -> Self {
        self.settings.fetcher.max_poll_records = records;
        self
    }

    /// Checks the settings and starts the consumer's tasks on the current tokio runtime. In a group, it joins in the
    /// background.
    ///
    /// # Errors
    /// [`BuildConsumerError`]: contradicting settings, or an unreachable cluster when
    /// [`ConsumerBuilder::assign_topic`] needs to know a topic's partitions.
    pub async fn build(mut self) -> Result<Consumer, BuildConsumerError> {
        self.settings.complete(&self.client);
        self.settings.check()?;
        Consumer::start(self.client, self.settings).await
    }
}

impl Settings {
    /// Fills in the defaults that depend on other settings.
    fn complete(&mut self, client: &ClientConfig) {
        let shares = !self.subscribed.is_empty();
        self.fetcher.prefetch_bytes = self.prefetch.unwrap_or(if shares { GROUP_PREFETCH } else { 0 });
        let reset = if shares { OffsetReset::Latest } else { OffsetReset::None };
        self.fetcher.offset_reset = self.offset_reset.unwrap_or(reset);
        self.fetcher.retry_backoff = client.retry_backoff;
        self.fetcher.retry_backoff_max = client.retry_backoff_max;
    }

    fn check(&self) -> Result<(), BuildConsumerError> {
        let assigns = !self.assigned.is_empty() || !self.assigned_topics.is_empty();
        if assigns != self.subscribed.is_empty() {
            return Err(BuildConsumerError::NothingToRead);
        }
        let starts = self.assigned.iter().map(|(_, start)| start);
        let starts = starts.chain(self.assigned_topics.iter().map(|(_, start)| start));
        if self.group.is_none() {
            if !self.subscribed.is_empty() {
                return Err(BuildConsumerError::NeedsGroup("subscribe"));
            }
            if starts.clone().any(|start| *start == StartOffset::Committed) {
                return Err(BuildConsumerError::NeedsGroup("StartOffset::Committed"));
            }
            if self.commit_mode != CommitMode::Manual {
                return Err(BuildConsumerError::NeedsGroup("CommitMode::Auto"));
            }
        }
        let negative = starts.clone().any(|start| matches!(start, StartOffset::At(offset) if *offset < 0));
        let fetcher = &self.fetcher;
        let rules = [
            (negative, "assign", "there are no negative offsets"),
            (self.group.as_ref().is_some_and(|group| group.is_empty()), "group", "the name is empty"),
            (self.assignors.is_empty(), "assignors", "at least one is needed"),
            (self.session_timeout.is_zero(), "session_timeout", "must be above zero"),
            (self.rebalance_timeout.is_zero(), "rebalance_timeout", "must be above zero"),
            (self.heartbeat_interval.is_zero(), "heartbeat_interval", "must be above zero"),
            (
                self.heartbeat_interval >= self.session_timeout,
                "heartbeat_interval",
                "must be below the session timeout",
            ),
            (self.max_poll_interval.is_zero(), "max_poll_interval", "must be above zero"),
            (
                fetcher.max_bytes < SMALLEST_MAX_BYTES,
                "max_bytes",
                "below the size of the smallest record batch",
            ),
            (fetcher.partition_max_bytes == 0, "max_partition_fetch_bytes", "must be above zero"),
            (fetcher.fetch_max_bytes == 0, "fetch_max_bytes", "must be above zero"),
            (
                fetcher.min_bytes == 0,
                "fetch_min_bytes",
                "must be above zero: brokers would answer at once, for ever",
            ),
            (fetcher.max_poll_records == 0, "max_poll_records", "must be above zero"),
            (
                matches!(self.commit_mode, CommitMode::Auto { interval, .. } if interval.is_zero()),
                "commit_mode",
                "the interval must be above zero",
            ),
        ];
        match rules.into_iter().find(|(broken, _, _)| *broken) {
            Some((_, setting, why)) => Err(BuildConsumerError::InvalidSetting { setting, why }),
            None => Ok(()),
        }
    }

    pub(super) fn member(&self, client: &ClientConfig) -> Option<MemberConfig> {
        let group = self.group.clone().filter(|_| !self.subscribed.is_empty())?;
        let mut config = MemberConfig::new(group);
        config.instance_id.clone_from(&self.instance_id);
        config.session_timeout = self.session_timeout;
        config.rebalance_timeout = self.rebalance_timeout;
        config.heartbeat_interval = self.heartbeat_interval;
        config.assignors.clone_from(&self.assignors);
        config.request_timeout = client.request_timeout;
        config.retry_backoff = client.retry_backoff;
        config.retry_backoff_max = client.retry_backoff_max;
        Some(config)
    }
}
