//! Snapshots in the queue's snapshots topic: written in parts, read back as the newest whole one.

use std::collections::BTreeMap;

use bytes::Bytes;
use tramline_client::{DeliveryError, ProducerRecord, StartOffset};
use tramline_core::claims::snapshot::VERSION;
use tramline_core::claims::{Ledger, Snapshot};
use tramline_wire::Record;

use crate::error::ReadError;
use crate::shared::Shared;

/// Below what brokers take as one record.
const PART_BYTES: usize = 512 << 10;

const CLAIMS: &str = "tl-claims";
const PART: &str = "tl-part";
const PARTS: &str = "tl-parts";

/// A snapshot that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The offset of its first part in the snapshots partition.
    pub first: i64,
    /// The claims from here on are not in it.
    pub claims: i64,
    /// The tasks below are not needed by it.
    pub first_needed: i64,
}

/// Writes a snapshot.
pub(crate) async fn write(shared: &Shared, shard: i32, snapshot: &Snapshot) -> Result<Stored, DeliveryError> {
    let parts: Vec<Bytes> = (0..snapshot.bytes.len())
        .step_by(PART_BYTES)
        .map(|from| snapshot.bytes.slice(from..snapshot.bytes.len().min(from + PART_BYTES)))
        .collect();
    let mut first = None;
    for (number, part) in parts.iter().enumerate() {
        let record = ProducerRecord::to(shared.topics.snapshots.clone())
            .value(part.clone())
            .header(CLAIMS, snapshot.claims.to_string())
            .header(PART, number.to_string())
            .header(PARTS, parts.len().to_string());
        let offset = shared.producer.send_batch(shared.topics.snapshots.clone(), shard, vec![record]).await?;
        first = first.or(offset);
    }
    Ok(Stored { first: first.unwrap_or(0), claims: snapshot.claims, first_needed: snapshot.first_needed })
}

/// Deletes snapshots older than `previous`, and, unless the history is to be kept, claims and tasks that nothing from it on
/// needs. Failing is harmless: the next snapshot does it.
pub(crate) async fn trim(shared: &Shared, shard: i32, previous: Stored, keep_history: bool) {
    let topics = &shared.topics;
    let snapshots = [(&topics.snapshots, previous.first)];
    let history = [(&topics.claims, previous.claims), (&topics.tasks, previous.first_needed)];
    let history = history.into_iter().filter(|_| !keep_history);
    for (topic, before) in snapshots.into_iter().chain(history) {
        match shared.admin.delete_records(topic.clone(), BTreeMap::from([(shard, before)])).await {
            Ok(answer) => {
                if let Some(Err(refusal)) = answer.get(&shard) {
                    tracing::warn!(%topic, shard, before, %refusal, "old records were not deleted");
                }
            }
            Err(error) => tracing::warn!(%topic, shard, before, %error, "old records were not deleted"),
        }
    }
}

/// The newest whole snapshot of a shard that this version can read.
pub(crate) async fn newest(shared: &Shared, shard: i32) -> Result<Option<(Ledger, Stored)>, ReadError> {
    let partition = shared.topics.snapshots_of(shard);
    let end = shared.ends(&shared.topics.snapshots).await?.get(&shard).copied().unwrap_or(0);
    let start = shared.starts(&shared.topics.snapshots).await?.get(&shard).copied().unwrap_or(0);
    if start >= end {
        return Ok(None);
    }
    let reader = shared.reader([(partition.clone(), StartOffset::At(start))]).await?;
    let mut found = Parts::default();
    while reader.position(&partition).is_none_or(|position| position < end) {
        for record in reader.next_batch().await?.records {
            found.add(&record);
        }
    }
    reader.close().await;
    let newest = found.whole.into_iter().max_by_key(|(claims, _)| *claims);
    let Some((claims, (first, bytes))) = newest else { return Ok(None) };
    let mut ledger = Ledger::restore(&bytes).map_err(|source| ReadError::Snapshot { shard, source })?;
    let first_needed = ledger.snapshot().first_needed;
    Ok(Some((ledger, Stored { first, claims, first_needed })))
}

/// Snapshots by the offset they were taken at. Parts of one offset are the same from every author.
#[derive(Default)]
struct Parts {
    partial: BTreeMap<i64, (i64, BTreeMap<usize, Bytes>)>,
    whole: BTreeMap<i64, (i64, Vec<u8>)>,
}

impl Parts {
    fn add(&mut self, record: &Record) {
        let number = |name| {
            let text = record.header(name).flatten().and_then(|value| std::str::from_utf8(value).ok());
            text.and_then(|text| text.parse::<i64>().ok())
        };
        let (Some(claims), Some(part), Some(parts)) = (number(CLAIMS), number(PART), number(PARTS)) else {
            return;
        };
        let Some(bytes) = record.value_bytes() else { return };
        if part == 0 && bytes.first() != Some(&VERSION) {
            tracing::warn!(offset = record.offset(), "passed over a snapshot of another version");
            return;
        }
        let (Ok(part), Ok(parts)) = (usize::try_from(part), usize::try_from(parts)) else { return };
        let (first, have) = self.partial.entry(claims).or_insert_with(|| (record.offset(), BTreeMap::new()));
        have.insert(part, bytes);
        if (0..parts).all(|part| have.contains_key(&part)) {
            let bytes = (0..parts).filter_map(|part| have.get(&part)).flatten().copied().collect();
            self.whole.insert(claims, (*first, bytes));
            self.partial.remove(&claims);
        }
    }
}
