//! One replay of a queue's log up to the ends of now: how it stands, and every verdict on the way.

use std::collections::BTreeMap;

use tramline_client::{Consumer, StartOffset};
use tramline_core::claims::ledger::{Counts, State, Verdict};
use tramline_core::claims::worker::Ends;
use tramline_core::claims::{ClaimRecord, Ledger, TaskMeta};
use tramline_core::time::Timestamp;
use tramline_wire::{Record, TopicPartition};

use crate::error::ReadError;
use crate::shared::{Shared, wall_clock};
use crate::snapshots::{self, Stored};

/// A task that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimedTask {
    /// The task.
    pub task: i64,
    /// Who holds it.
    pub worker: String,
    /// Its token.
    pub token: i64,
    /// When it was claimed, by the broker's clock.
    pub since: Timestamp,
    /// When the lease runs out unless it is renewed, by the broker's clock.
    pub expires: Timestamp,
    /// The attempt this is.
    pub attempt: u32,
}

/// How one shard stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardStatus {
    /// Its number.
    pub shard: i32,
    /// How many tasks are where.
    pub state: State,
    /// What happened since the queue was made.
    pub counts: Counts,
    /// Tasks passed over because of their unique name.
    pub duplicates: u64,
    /// The oldest task that is neither done nor dead.
    pub first_open: Option<i64>,
    /// Who holds what.
    pub claimed: Vec<ClaimedTask>,
    /// The dead.
    pub dead: Vec<i64>,
    /// Where the replay ended in the tasks partition.
    pub tasks_end: i64,
    /// Where it ended in the claims partition.
    pub claims_end: i64,
    /// The shard's log time: the newest append time of its claims.
    pub log_time: Timestamp,
}

/// How a queue stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// Its shards by number.
    pub shards: Vec<ShardStatus>,
    /// The local time by which leases and delays were judged.
    pub now: Timestamp,
}

impl QueueStatus {
    /// All shards together.
    #[must_use]
    pub fn total(&self) -> State {
        let mut total = State::default();
        for State { ready, behind_key, claimed, delayed, done, dead, oldest } in
            self.shards.iter().map(|shard| shard.state)
        {
            total.ready += ready;
            total.behind_key += behind_key;
            total.claimed += claimed;
            total.delayed += delayed;
            total.done += done;
            total.dead += dead;
            total.oldest = total.oldest.into_iter().chain(oldest).min();
        }
        total
    }
}

/// One claims record and its verdict, from [`Queue::replay`](crate::Queue::replay).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReplayedRecord<'a> {
    /// The shard.
    pub shard: i32,
    /// The record's offset; of a claim that won, the token.
    pub offset: i64,
    /// When the broker appended it.
    pub appended: Timestamp,
    /// What it says; `None` when it cannot be read.
    pub record: Option<&'a ClaimRecord>,
    /// What it came to.
    pub verdict: &'a Verdict,
}

/// Where a shard's replay begins and how far it has to come.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub ledger: Ledger,
    pub snapshot: Option<Stored>,
    pub ends: Ends,
}

/// The newest snapshot of a shard, or the beginning of its log.
pub(crate) async fn beginning(shared: &Shared, shard: i32) -> Result<Beginning, ReadError> {
    let found = snapshots::newest(shared, shard).await?;
    let of = |places: BTreeMap<i32, i64>| places.get(&shard).copied().unwrap_or(0);
    let claims_start = of(shared.starts(&shared.topics.claims).await?);
    let tasks_start = of(shared.starts(&shared.topics.tasks).await?);
    // Claims first: whatever they name is among the tasks by then.
    let claims = of(shared.ends(&shared.topics.claims).await?);
    let tasks = of(shared.ends(&shared.topics.tasks).await?);
    let ends = Ends { tasks, claims };
    let (mut ledger, snapshot) = match found {
        Some((ledger, stored)) => (ledger, Some(stored)),
        None => (Ledger::new(tasks_start, claims_start), None),
    };
    if ledger.claims_end() < claims_start || (snapshot.is_none() && claims_start > 0) {
        return Err(ReadError::NoSnapshot { shard, start: claims_start });
    }
    // Where tasks were deleted that a snapshot did not cover, reading on is all that is left.
    ledger.tasks_read(tasks_start);
    Ok(Beginning { ledger, snapshot, ends })
}

/// How the queue stands.
pub(crate) async fn status(shared: &Shared) -> Result<QueueStatus, ReadError> {
    let mut beginnings = BTreeMap::new();
    for shard in shared.all_shards() {
        beginnings.insert(shard, beginning(shared, shard).await?);
    }
    fold(shared, beginnings, &mut |_| {}).await
}

/// The same from the first claims that are kept, showing each.
pub(crate) async fn all(
    shared: &Shared,
    see: &mut impl FnMut(ReplayedRecord<'_>),
) -> Result<QueueStatus, ReadError> {
    let claims_starts = shared.starts(&shared.topics.claims).await?;
    let tasks_starts = shared.starts(&shared.topics.tasks).await?;
    let mut beginnings = BTreeMap::new();
    for shard in shared.all_shards() {
        let mut from = beginning(shared, shard).await?;
        let at = |starts: &BTreeMap<i32, i64>| starts.get(&shard).copied().unwrap_or(0);
        if at(&claims_starts) == 0 && at(&tasks_starts) == 0 {
            from.ledger = Ledger::new(0, 0);
        }
        beginnings.insert(shard, from);
    }
    fold(shared, beginnings, see).await
}

async fn fold(
    shared: &Shared,
    mut shards: BTreeMap<i32, Beginning>,
    see: &mut impl FnMut(ReplayedRecord<'_>),
) -> Result<QueueStatus, ReadError> {
    let topics = &shared.topics;
    let tasks = shards
        .iter()
        .map(|(&shard, from)| (topics.tasks_of(shard), from.ledger.tasks_end(), from.ends.tasks));
    for_each(shared, tasks.collect(), |shard, record| {
        if let Some(from) = shards.get_mut(&shard) {
            from.ledger.add_task(record.offset(), TaskMeta::of(record));
        }
        Ok(())
    })
    .await?;
    for from in shards.values_mut() {
        from.ledger.tasks_read(from.ends.tasks);
    }
    let claims = shards
        .iter()
        .map(|(&shard, from)| (topics.claims_of(shard), from.ledger.claims_end(), from.ends.claims));
    for_each(shared, claims.collect(), |shard, record| {
        let Some(from) = shards.get_mut(&shard) else { return Ok(()) };
        let said = ClaimRecord::decode(record.value().unwrap_or_default());
        let (offset, appended) = (record.offset(), record.timestamp());
        let verdict = from.ledger.apply(offset, appended, said.as_ref());
        let verdict = verdict.map_err(|behind| ReadError::UnknownTask { shard, task: behind.task })?;
        see(ReplayedRecord { shard, offset, appended, record: said.as_ref(), verdict: &verdict });
        Ok(())
    })
    .await?;
    let now = wall_clock();
    let shards = shards.into_iter().map(|(shard, from)| shard_status(shard, &from.ledger, now));
    Ok(QueueStatus { shards: shards.collect(), now })
}

/// Shows every record of these partitions, each between two offsets.
pub(crate) async fn for_each(
    shared: &Shared,
    ranges: Vec<(TopicPartition, i64, i64)>,
    mut see: impl FnMut(i32, &Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut open: Vec<_> = ranges.into_iter().filter(|(_, from, end)| from < end).collect();
    if open.is_empty() {
        return Ok(());
    }
    let from = open.iter().map(|(partition, from, _)| (partition.clone(), StartOffset::At(*from)));
    let reader = shared.reader(from).await?;
    let result = read_to_ends(&reader, &mut open, &mut see).await;
    reader.close().await;
    result
}

async fn read_to_ends(
    reader: &Consumer,
    open: &mut Vec<(TopicPartition, i64, i64)>,
    see: &mut impl FnMut(i32, &Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    while !open.is_empty() {
        let batch = reader.next_batch().await?;
        let Some(at) = open.iter().position(|(partition, ..)| *partition == batch.topic_partition) else {
            continue;
        };
        let end = open[at].2;
        for record in batch.records.iter().filter(|record| record.offset() < end) {
            see(batch.topic_partition.partition, record)?;
        }
        if batch.next_offset >= end {
            reader.pause([&batch.topic_partition]);
            open.swap_remove(at);
        }
    }
    Ok(())
}

fn shard_status(shard: i32, ledger: &Ledger, now: Timestamp) -> ShardStatus {
    let now = now.max(ledger.log_time());
    let claimed = ledger.all_open().filter_map(|(task, open)| {
        let lease = open.lease.as_ref().filter(|lease| now < lease.expires)?;
        Some(ClaimedTask {
            task,
            worker: lease.worker.to_string(),
            token: lease.token,
            since: lease.since,
            expires: lease.expires,
            attempt: open.attempts,
        })
    });
    ShardStatus {
        shard,
        state: ledger.state(now),
        counts: ledger.counts(),
        duplicates: ledger.duplicates(),
        first_open: ledger.all_open().next().map(|(task, _)| task),
        claimed: claimed.collect(),
        dead: ledger.dead().collect(),
        tasks_end: ledger.tasks_end(),
        claims_end: ledger.claims_end(),
        log_time: ledger.log_time(),
    }
}
