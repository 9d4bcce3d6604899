//! Dead letters: written before a task is buried, listed, published again.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tramline_client::{DeliveryError, ProducerRecord};
use tramline_core::claims::worker::Held;
use tramline_core::claims::{ClaimRecord, Kind, TaskMeta};
use tramline_wire::{Record, Str};

use crate::error::{PublishError, ReadError};
use crate::new_task::NewTask;
use crate::queue::Receipt;
use crate::replay;
use crate::shared::Shared;

const TASK: &str = "tl-task";
const TOKEN: &str = "tl-token";
const ATTEMPTS: &str = "tl-attempts";
const CAUSE: &str = "tl-cause";
const EARLIER_CAUSE: &str = "tl-earlier-cause";

/// How long a dead task that was published again keeps others of its name out: `retry` that was cut off may be repeated
/// within it.
const RETRY_WINDOW: Duration = Duration::from_secs(30 * 24 * 3600);

/// A task that will not be tried again by itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadTask {
    /// Its shard.
    pub shard: i32,
    /// Its name within the shard.
    pub task: i64,
    /// What was published.
    pub payload: Bytes,
    /// The key under which it kept its order.
    pub key: Option<Bytes>,
    /// How often it was begun.
    pub attempts: u32,
    /// Why it is dead, in words.
    pub cause: String,
    /// Why earlier attempts ended, the newest last.
    pub earlier_causes: Vec<String>,
    /// When it was found dead, milliseconds since 1970; 0 when its letter is gone.
    pub since: i64,
    headers: Vec<(Str, Bytes)>,
    meta: TaskMeta,
}

/// What became of one dead task that was to be published again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Retried {
    /// Its shard.
    pub shard: i32,
    /// Its old name.
    pub task: i64,
    /// Where it was published.
    pub outcome: Result<Receipt, PublishError>,
}

/// Writes the letter of a dead task: its record with what is known of its death.
pub(crate) async fn write(
    shared: &Shared,
    held: &Held,
    cause: &str,
    record: Option<&Record>,
) -> Result<(), DeliveryError> {
    let mut letter = ProducerRecord::to(shared.topics.dead.clone())
        .header(TASK, held.task.to_string())
        .header(TOKEN, held.token.to_string())
        .header(ATTEMPTS, held.attempt.to_string())
        .header(CAUSE, cause.to_owned());
    for earlier in &held.causes {
        letter = letter.header(EARLIER_CAUSE, earlier.clone());
    }
    if let Some(record) = record {
        for (name, value) in record.headers() {
            letter = match value {
                Some(value) => letter.header(name, Bytes::copy_from_slice(value)),
                None => letter.null_header(name),
            };
        }
        if let Some(key) = record.key_bytes() {
            letter = letter.key(key);
        }
        if let Some(value) = record.value_bytes() {
            letter = letter.value(value);
        }
    }
    shared.producer.send_batch(shared.topics.dead.clone(), held.shard, vec![letter]).await?;
    Ok(())
}

/// The dead that were not published again.
pub(crate) async fn list(shared: &Shared) -> Result<Vec<DeadTask>, ReadError> {
    let status = replay::status(shared).await?;
    let starts = shared.starts(&shared.topics.dead).await?;
    let ends = shared.ends(&shared.topics.dead).await?;
    let mut found: BTreeMap<(i32, i64), DeadTask> = BTreeMap::new();
    for shard in &status.shards {
        for &task in &shard.dead {
            found.insert((shard.shard, task), gone(shard.shard, task));
        }
    }
    let ranges = ends.iter().map(|(&shard, &end)| {
        let start = starts.get(&shard).copied().unwrap_or(0);
        (tramline_wire::TopicPartition::new(shared.topics.dead.clone(), shard), start, end)
    });
    replay::for_each(shared, ranges.collect(), |shard, record| {
        if let Some(task) = number(record, TASK)
            && let Some(dead) = found.get_mut(&(shard, task))
        {
            *dead = letter(shard, task, record);
        }
        Ok(())
    })
    .await?;
    Ok(found.into_values().collect())
}

/// A dead task without its letter.
fn gone(shard: i32, task: i64) -> DeadTask {
    DeadTask {
        shard,
        task,
        payload: Bytes::new(),
        key: None,
        attempts: 0,
        cause: "its letter is gone".into(),
        earlier_causes: Vec::new(),
        since: 0,
        headers: Vec::new(),
        meta: TaskMeta::plain(0),
    }
}

fn letter(shard: i32, task: i64, record: &Record) -> DeadTask {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let of_queue = |name: &str| name.starts_with("tl-");
    let earlier = record
        .headers()
        .filter(|(name, _)| **name == *EARLIER_CAUSE)
        .filter_map(|(_, value)| value.map(text));
    let kept = record.headers().filter(|(name, _)| !of_queue(name));
    DeadTask {
        shard,
        task,
        payload: record.value_bytes().unwrap_or_default(),
        key: record.key_bytes(),
        attempts: number(record, ATTEMPTS).and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(0),
        cause: record.header(CAUSE).flatten().map(text).unwrap_or_default(),
        earlier_causes: earlier.collect(),
        since: record.timestamp(),
        headers: kept
            .filter_map(|(name, value)| Some((Str::from(name.to_string()), Bytes::copy_from_slice(value?))))
            .collect(),
        meta: TaskMeta::of(record),
    }
}

fn number(record: &Record, name: &str) -> Option<i64> {
    std::str::from_utf8(record.header(name)??).ok()?.parse().ok()
}

/// Publishes the dead again, each under a name of its own so that repeating it does no harm, and writes that down.
pub(crate) async fn retry(shared: &Shared) -> Result<Vec<Retried>, ReadError> {
    let mut retried = Vec::new();
    for dead in list(shared).await? {
        let (shard, task) = (dead.shard, dead.task);
        let outcome =
            if dead.since == 0 { Err(PublishError::NoOffset) } else { publish_again(shared, dead).await };
        retried.push(Retried { shard, task, outcome });
    }
    Ok(retried)
}

async fn publish_again(shared: &Shared, dead: DeadTask) -> Result<Receipt, PublishError> {
    let name = format!("retry of {}/{}", dead.shard, dead.task);
    let mut again = NewTask::like(dead.payload, dead.meta).unique(name, RETRY_WINDOW);
    for (name, value) in dead.headers {
        again = again.header(name, value);
    }
    let written = shared.producer.send(again.into_record(&shared.topics.tasks)).await?.await?;
    let revived = ClaimRecord { task: dead.task, worker: "retry".into(), kind: Kind::Revived };
    let record = ProducerRecord::to(shared.topics.claims.clone()).value(revived.encode());
    shared.producer.send_batch(shared.topics.claims.clone(), dead.shard, vec![record]).await?;
    let task = written.offset.ok_or(PublishError::NoOffset)?;
    Ok(Receipt { shard: written.topic_partition.partition, task })
}
