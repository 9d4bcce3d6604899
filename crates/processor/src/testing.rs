//! A log, a group and its members in memory: everything a run meets, on command and without a broker.
//!
//! [`MemoryLog`] holds partitions and committed offsets. Each [`MemorySource`] is one member that reads it;
//! its [`MemoryControl`] assigns and revokes partitions, loses them, makes commits fail or hang, and tells
//! what happened. Nothing here waits for wall-clock time, so tests run under tokio's paused clock.
//!
//! The source keeps every promise that [`Source`](crate::Source) asks for. What it does not model: fetches in
//! flight, sizes, and rebalances that a coordinator decides; a test says who owns what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tramline_wire::{
    BatchBuilder, Compression, Record, RecordBatch, Str, TopicPartition, set_base_offset_and_epoch,
};

use crate::source::{CommitErrorKind, CommitOffset};

mod control;
mod source;

pub use control::{MemoryControl, Revoking};
pub use source::{MemoryError, MemoryEvents, MemorySource};

/// Partitions with their records, and the offsets a group has committed. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct MemoryLog(Arc<LogShared>);

#[derive(Default)]
struct LogShared {
    state: Mutex<LogState>,
    /// Something was appended.
    appended: Notify,
}

#[derive(Default)]
struct LogState {
    partitions: BTreeMap<TopicPartition, Partition>,
    committed: BTreeMap<TopicPartition, MemoryOffset>,
    commits: Vec<MemoryCommit>,
    generation: i32,
    members: u64,
}

#[derive(Default)]
struct Partition {
    next_offset: i64,
    leader_epoch: Option<i32>,
    items: Vec<Item>,
}

/// What a group has committed.
#[derive(Clone, Debug, Default)]
struct MemoryOffset {
    offset: i64,
    leader_epoch: Option<i32>,
    metadata: String,
}

/// One offset: a record, or nothing a reader gets to see.
struct Item {
    offset: i64,
    leader_epoch: Option<i32>,
    record: Option<Record>,
}

/// One commit request that reached the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryCommit {
    /// Which member sent it, counted from 1 in the order in which they were made.
    pub member: u64,
    /// What it asked for.
    pub offsets: Vec<CommitOffset>,
    /// How it failed; `None` when the offsets are committed.
    pub failure: Option<CommitErrorKind>,
    /// When it was answered.
    pub at: Instant,
}

impl std::fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLog").finish_non_exhaustive()
    }
}

impl MemoryLog {
    /// A log without partitions; they appear when they are written to or assigned.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record and returns its offset.
    pub fn produce(&self, partition: &TopicPartition, key: Option<&[u8]>, value: Option<&[u8]>) -> i64 {
        let copy = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
        self.produce_record(partition, copy(key), copy(value), Vec::new())
    }

    /// Appends a record that shares the memory of these parts, and returns its offset.
    pub fn produce_record(
        &self,
        partition: &TopicPartition,
        key: Option<Bytes>,
        value: Option<Bytes>,
        headers: Vec<(Str, Option<Bytes>)>,
    ) -> i64 {
        let offset = {
            let mut state = self.state();
            let log = state.partitions.entry(partition.clone()).or_default();
            let (offset, leader_epoch) = (log.next_offset, log.leader_epoch);
            let record = Record::from_parts(partition.clone(), offset, -1, key, value, headers);
            log.items.push(Item { offset, leader_epoch, record: Some(record) });
            log.next_offset += 1;
            offset
        };
        self.0.appended.notify_waiters();
        offset
    }

    /// Appends records of these keys and values as one batch, whose memory they share as those of a broker do.
    ///
    /// # Panics
    /// When they do not fit into a batch.
    pub fn produce_batch(&self, partition: &TopicPartition, records: &[(&str, &[u8])]) {
        let mut builder = BatchBuilder::new(Compression::None);
        for (key, value) in records {
            builder.append(0, Some(key.as_bytes()), Some(value), &[]).expect("a batch that is not too large");
        }
        let mut bytes = builder.build().to_vec();
        {
            let mut state = self.state();
            let log = state.partitions.entry(partition.clone()).or_default();
            set_base_offset_and_epoch(&mut bytes, log.next_offset, log.leader_epoch.unwrap_or(-1));
            let batch = RecordBatch::decode(partition.clone(), bytes.into()).expect("a batch just built");
            let leader_epoch = log.leader_epoch;
            let items = batch.iter().map(|record| Item {
                offset: record.offset(),
                leader_epoch,
                record: Some(record),
            });
            log.items.extend(items);
            log.next_offset += records.len() as i64;
        }
        self.0.appended.notify_waiters();
    }

    /// Appends `count` records without a key, whose values are their offsets as text.
    pub fn produce_many(&self, partition: &TopicPartition, count: usize) {
        for _ in 0..count {
            let offset = self.end(partition);
            self.produce(partition, None, Some(offset.to_string().as_bytes()));
        }
    }

    /// Appends `count` offsets that readers pass over: transaction markers, say, or filtered records.
    pub fn append_hidden(&self, partition: &TopicPartition, count: usize) {
        {
            let mut state = self.state();
            let log = state.partitions.entry(partition.clone()).or_default();
            for _ in 0..count {
                log.items.push(Item {
                    offset: log.next_offset,
                    leader_epoch: log.leader_epoch,
                    record: None,
                });
                log.next_offset += 1;
            }
        }
        self.0.appended.notify_waiters();
    }

    /// Forgets what lies below `offset`, as retention does, and the memory it used.
    pub fn delete_before(&self, partition: &TopicPartition, offset: i64) {
        if let Some(log) = self.state().partitions.get_mut(partition) {
            log.items.retain(|item| offset <= item.offset);
        }
    }

    /// Leaves a hole up to `offset`, as compaction does: nothing at all is there.
    pub fn skip_to(&self, partition: &TopicPartition, offset: i64) {
        let mut state = self.state();
        let log = state.partitions.entry(partition.clone()).or_default();
        log.next_offset = log.next_offset.max(offset);
    }

    /// Appends under this leader epoch from now on.
    pub fn set_leader_epoch(&self, partition: &TopicPartition, leader_epoch: i32) {
        self.state().partitions.entry(partition.clone()).or_default().leader_epoch = Some(leader_epoch);
    }

    /// The offset the next record will have.
    #[must_use]
    pub fn end(&self, partition: &TopicPartition) -> i64 {
        self.state().partitions.get(partition).map_or(0, |log| log.next_offset)
    }

    /// The committed offset.
    #[must_use]
    pub fn committed(&self, partition: &TopicPartition) -> Option<i64> {
        self.state().committed.get(partition).map(|committed| committed.offset)
    }

    /// The leader epoch committed beside the offset.
    #[must_use]
    pub fn committed_epoch(&self, partition: &TopicPartition) -> Option<i32> {
        self.state().committed.get(partition).and_then(|committed| committed.leader_epoch)
    }

    /// Sets the committed offset, as an administrator would.
    pub fn set_committed(&self, partition: &TopicPartition, offset: i64) {
        self.set_committed_with(partition, offset, "");
    }

    /// Sets the committed offset and the text beside it, as another client would.
    pub fn set_committed_with(&self, partition: &TopicPartition, offset: i64, metadata: &str) {
        let committed = MemoryOffset { offset, leader_epoch: None, metadata: metadata.to_owned() };
        self.state().committed.insert(partition.clone(), committed);
    }

    /// The text committed beside the offset.
    #[must_use]
    pub fn committed_metadata(&self, partition: &TopicPartition) -> Option<String> {
        self.state().committed.get(partition).map(|committed| committed.metadata.clone())
    }

    /// Every commit request in the order of their answers.
    #[must_use]
    pub fn commits(&self) -> Vec<MemoryCommit> {
        self.state().commits.clone()
    }

    /// The offsets of `partition` that were committed, one per commit that worked.
    #[must_use]
    pub fn commits_of(&self, partition: &TopicPartition) -> Vec<i64> {
        let state = self.state();
        let worked = state.commits.iter().filter(|commit| commit.failure.is_none());
        let offsets = worked.flat_map(|commit| &commit.offsets);
        offsets.filter(|offset| offset.topic_partition == *partition).map(|offset| offset.offset).collect()
    }
}

/// What a member is told to do wrong.
#[derive(Default)]
struct Faults {
    commits: Vec<CommitErrorKind>,
    commit_failing_partition: Option<TopicPartition>,
    commits_stalled: bool,
    commit_latency: Duration,
    poll: Option<String>,
    /// Partitions that cannot be read on, and why.
    blocked: BTreeMap<TopicPartition, String>,
}
