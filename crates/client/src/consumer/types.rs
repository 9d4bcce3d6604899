//! The values a consumer takes and gives: where to start, what to commit, who it is in its group.

use std::time::Duration;

use tramline_core::client::fetcher::{OffsetSpec, Position, Start};
use tramline_wire::{Record, Str};

/// Where reading of a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartOffset {
    /// The oldest record that is kept, which is not always offset 0.
    Earliest,
    /// The end at the moment of the first look: only records that arrive later are read.
    Latest,
    /// This offset.
    At(i64),
    /// The first record whose timestamp is this or later (milliseconds since 1970); the end when there is none.
    Timestamp(i64),
    /// The offset committed by the consumer's group; the reset policy decides when there is none.
    Committed,
}

impl StartOffset {
    pub(super) const fn for_fetcher(self) -> Start {
        match self {
            Self::Earliest => Start::Lookup(OffsetSpec::Earliest),
            Self::Latest => Start::Lookup(OffsetSpec::Latest),
            Self::Timestamp(at) => Start::Lookup(OffsetSpec::Timestamp(at)),
            Self::At(offset) => Start::Offset(Position::at(offset)),
            Self::Committed => Start::Awaiting,
        }
    }
}

/// An offset to commit or a committed one: the offset of the *next* record to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffsetAndMetadata {
    /// The next offset to read.
    pub offset: i64,
    /// The leader epoch of the last record before it.
    pub leader_epoch: Option<i32>,
    /// Free text that is kept beside the offset (Kafka's default limit is 4096 bytes).
    pub metadata: Str,
    /// Commit only while the partition is owned under the assignment of this generation. Without it, a commit made for an
    /// earlier assignment could move the group's offset of a partition that left and came back.
    pub generation: Option<i32>,
}

impl OffsetAndMetadata {
    /// `offset`, without leader epoch and metadata.
    #[must_use]
    pub const fn new(offset: i64) -> Self {
        Self { offset, leader_epoch: None, metadata: Str::new(), generation: None }
    }

    /// What to commit when `record` and everything before it is dealt with.
    #[must_use]
    pub fn after(record: &Record) -> Self {
        Self::new(record.offset() + 1).leader_epoch(record.leader_epoch())
    }

    /// Says under which leader epoch the last record before the offset was read.
    #[must_use]
    pub fn leader_epoch(mut self, leader_epoch: Option<i32>) -> Self {
        self.leader_epoch = leader_epoch.filter(|&epoch| epoch >= 0);
        self
    }

    /// Puts text beside the offset.
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Str>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Refuses the commit, before anything is sent, when the partition is not owned under the assignment of this
    /// generation any more.
    #[must_use]
    pub const fn assigned_in(mut self, generation: i32) -> Self {
        self.generation = Some(generation);
        self
    }
}

/// Who the consumer is in its group, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupMetadata {
    /// The group.
    pub group_id: Str,
    /// The generation of the group this consumer last joined; -1 when it is not a member.
    pub generation: i32,
    /// The id the coordinator gave this member; empty when it is not a member.
    pub member_id: Str,
    /// The static member's name, if it has one.
    pub instance_id: Option<Str>,
}

/// Who commits offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitMode {
    /// The program, by `commit`. Nothing is committed behind its back.
    #[default]
    Manual,
    /// The consumer, every `interval`, before a revocation is acknowledged and on `close`; at least once: never past what
    /// was handed out, never under another generation than the one it was handed out in. A commit that fails is logged,
    /// told as [`Event::CommitFailed`](super::Event::CommitFailed) and tried again after the interval.
    Auto {
        /// The shortest time between two commits, above zero. Kafka's default is 5 s. Longer gives fewer commits and more
        /// records again after a crash.
        interval: Duration,
        /// Whether a record counts as done when the program asks for the next one (`true`, Kafka's usual setting: right for
        /// a loop that is done with a record before it asks again, wrong for one that hands records on), or only when the
        /// program calls [`store_offset`](super::Consumer::store_offset) (`false`). With `true` the records handed out last do
        /// not count at `close`: nobody asked past them.
        store: bool,
    },
}
