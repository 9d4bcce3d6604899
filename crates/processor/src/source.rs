//! Where records come from: the trait a consumer implements to be processed in lanes.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;
use tramline_core::lanes::{CommitFailureKind, LaneId, Pinned, Progress};
use tramline_wire::{Record, Str, TopicPartition};

/// A consumer of partitions.
///
/// What a run relies on:
/// - records of one partition come in growing offset order, one partition per batch;
/// - an [`SourceEvent::Assigned`] can be taken from the events before the first batch of that assignment is
///   handed out, and no batch of a partition is handed out after its revocation or loss was announced;
/// - every batch names the generation that [`SourceEvent::Assigned`] named for its partition;
/// - `pause` holds from the next batch on and loses nothing; `seek` makes everything older invisible;
/// - a partition that [`fetch_blocked`](Source::fetch_blocked) names is tried again when it is resumed;
/// - a revoked partition stays ours until its [`RevocationHold`] is dropped or the deadline passes;
/// - two commits are never reordered.
pub trait Source: Send + Sync + 'static {
    /// What ends the run when the source cannot go on.
    type Error: Error + Send + Sync + 'static;
    /// The stream of assignment changes.
    type Events: SourceEvents;

    /// The next batch; `None` when the source is closed and there will be no more.
    ///
    /// Must be cancel-safe: a dropped future takes no record with it.
    fn poll(&self) -> impl Future<Output = Result<Option<SourceBatch>, Self::Error>> + Send;

    /// Hands out no more of the partition, from the next batch on.
    fn pause(&self, topic_partition: &TopicPartition);

    /// Goes on with the partition exactly where `pause` stopped it.
    fn resume(&self, topic_partition: &TopicPartition);

    /// Moves the partition's position. A partition that is not assigned is passed over.
    fn seek(&self, topic_partition: &TopicPartition, offset: i64);

    /// The partitions that are paused, before a run begins. They stay paused: a run resumes only what it paused
    /// itself. Default: none.
    fn paused(&self) -> Vec<TopicPartition> {
        Vec::new()
    }

    /// What the group is known to have committed for a partition that is assigned, where reading began; newer
    /// when it was committed through this source since. Asked when the first batch of a lane has come, and must
    /// not wait. Default: nothing is known, so that records completed above the committed offset run again.
    fn committed(&self, topic_partition: &TopicPartition) -> Option<Committed> {
        let _ = topic_partition;
        None
    }

    /// The partition that cannot be read on, when that is all that `error` of [`poll`](Self::poll) says: the run
    /// goes on then, and that partition's lane shows it and is tried again. Default: every error ends the run.
    fn fetch_blocked(error: &Self::Error) -> Option<FetchBlocked> {
        let _ = error;
        None
    }

    /// A mark of the topic behind the name, other than that of a topic that was deleted and created again;
    /// `None` when the source cannot tell. Default: it cannot.
    fn incarnation(&self, topic_partition: &TopicPartition) -> Option<u32> {
        let _ = topic_partition;
        None
    }

    /// Commits to the group. Dropping the future need not take the commit back.
    fn commit(&self, offsets: Vec<CommitOffset>) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// The changes of the assignment, beginning with what is assigned already.
    fn events(&self) -> Self::Events;

    /// Who else commits, and whether there is a group at all. `None` when the source cannot tell: then nothing
    /// is refused, and commits are tried. A wrapper gives what it wraps says.
    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        None
    }

    /// Who the source is in its group as of now; `None` without a group.
    fn group_metadata(&self) -> Option<GroupMetadata>;
}

/// The changes of a source's assignment, in the order in which they happened.
pub trait SourceEvents: Send {
    /// The next change; `None` when there will be no more. Must be cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<SourceEvent>> + Send;

    /// The next change if there is one already.
    fn try_next(&mut self) -> Option<SourceEvent>;
}

/// A change of what a source owns.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceEvent {
    /// These partitions are ours from now on.
    Assigned {
        /// The generation that gave them to us; any fixed number without a group.
        generation: i32,
        /// The new partitions, without those we kept.
        partitions: Vec<TopicPartition>,
    },
    /// These partitions are to be given up.
    Revoked {
        /// The partitions.
        partitions: Vec<TopicPartition>,
        /// When they are gone in any case; `None` when they stay until the hold is dropped.
        deadline: Option<Instant>,
        /// Keeps them ours.
        hold: RevocationHold,
    },
    /// These partitions are gone already.
    Lost {
        /// The partitions.
        partitions: Vec<TopicPartition>,
    },
    /// These partitions are ours, but their offsets begin anew, lower than before: the log was cut, or the topic was deleted
    /// and made again. Nothing that was done of them counts any more.
    SetBack {
        /// The generation in which they are ours.
        generation: i32,
        /// The partitions.
        partitions: Vec<TopicPartition>,
    },
}

/// Keeps revoked partitions ours until it is dropped.
pub struct RevocationHold(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send>);

impl RevocationHold {
    /// A hold that ends when `token` is dropped.
    #[must_use]
    pub fn new(token: impl Send + 'static) -> Self {
        Self(Box::new(token))
    }
}

impl fmt::Debug for RevocationHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RevocationHold")
    }
}

/// Records of one partition in offset order, with what was looked at to find them.
#[derive(Clone, Debug)]
pub struct SourceBatch {
    /// The partition of all the records.
    pub topic_partition: TopicPartition,
    /// The generation of the assignment under which they were read.
    pub generation: i32,
    /// The records; may be empty when everything looked at was a marker, compacted or filtered.
    pub records: Vec<Record>,
    /// The first offset looked at; with no better knowledge that of the first record, or `next_offset`.
    pub first_offset: i64,
    /// The offset after the last one looked at: where reading goes on.
    pub next_offset: i64,
    /// The leader epoch of the last batch looked at, where it is known.
    pub leader_epoch: Option<i32>,
}

impl SourceBatch {
    /// The memory that the records keep in use, in bytes; a record batch they share counts once.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.pinned().iter().map(|pinned| pinned.bytes).sum()
    }

    /// The memory that the records keep in use, batch by batch.
    pub(crate) fn pinned(&self) -> Vec<Pinned> {
        let mut all: Vec<Pinned> = Vec::new();
        let mut before: Option<&Record> = None;
        for record in &self.records {
            match all.last_mut() {
                Some(last) if before.is_some_and(|before| before.same_batch(record)) => last.records += 1,
                _ => all.push(Pinned { records: 1, bytes: record.pinned_bytes() }),
            }
            before = Some(record);
        }
        all
    }
}

/// What a group has committed for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// The text beside it.
    pub metadata: String,
    /// The end of the partition, where it is known.
    pub log_end: Option<i64>,
}

impl Committed {
    /// `offset` and the text beside it; nothing known of the partition's end.
    pub fn new(offset: i64, metadata: impl Into<String>) -> Self {
        Self { offset, metadata: metadata.into(), log_end: None }
    }

    /// With the end of the partition: a text that speaks of offsets beyond it is not believed.
    #[must_use]
    pub const fn log_end(mut self, log_end: Option<i64>) -> Self {
        self.log_end = log_end;
        self
    }
}

/// A partition that cannot be read on for now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchBlocked {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// Where it stands; none when it has no position.
    pub offset: Option<i64>,
}

impl FetchBlocked {
    /// `topic_partition` cannot be read on at `offset`.
    #[must_use]
    pub const fn new(topic_partition: TopicPartition, offset: Option<i64>) -> Self {
        Self { topic_partition, offset }
    }
}

/// An offset to commit for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The generation of the assignment the progress was made under: refuse it when the partition was
    /// assigned anew since.
    pub generation: i32,
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record below it, where it is known.
    pub leader_epoch: Option<i32>,
    /// The text to keep beside it; ASCII, often empty.
    pub metadata: String,
}

impl CommitOffset {
    pub(crate) fn new(lane: LaneId, progress: &Progress, metadata: String) -> Self {
        Self {
            topic_partition: lane.topic_partition,
            generation: lane.generation,
            offset: progress.frontier.offset,
            leader_epoch: progress.frontier.leader_epoch,
            metadata,
        }
    }
}

/// A commit that failed, in whole or for some partitions.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct CommitError {
    /// Whether it may work later, and who it concerns if not.
    pub kind: CommitErrorKind,
    /// The partitions that failed; empty means all that were asked for.
    pub partitions: Vec<TopicPartition>,
    /// What the source says.
    pub reason: Arc<dyn Error + Send + Sync>,
}

impl CommitError {
    /// A failure of the whole request.
    pub fn new(kind: CommitErrorKind, reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, partitions: Vec::new(), reason: Arc::from(reason.into()) }
    }

    /// Whether the same commit may work later.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        self.kind == CommitErrorKind::Retriable
    }
}

/// What kind of failure a commit met: retriable, fenced, unauthorised, or a text that is too long.
pub type CommitErrorKind = CommitFailureKind;

/// How offsets of a source are committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitConfiguration {
    /// Whether the source commits by itself.
    pub auto_commit: bool,
    /// Whether what it commits counts as done when it is handed out.
    pub auto_store: bool,
    /// The group; without one nothing can be committed, and progress is only tracked.
    pub group: Option<Str>,
}

impl CommitConfiguration {
    /// Whether the group's offsets move with what is handed out, processed or not.
    #[must_use]
    pub const fn commits_unprocessed(&self) -> bool {
        self.auto_commit && self.auto_store && self.group.is_some()
    }
}

/// Who a source is in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// The group.
    pub group_id: Str,
    /// The group's generation this member last joined.
    pub generation: i32,
    /// The member's id.
    pub member_id: Str,
    /// The static member's name, if it has one.
    pub instance_id: Option<Str>,
}
