//! The records of tasks: kept in memory within a budget, read again when they are not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tramline_client::{ConsumeError, Consumer, FetchError, StartOffset};
use tramline_wire::Record;

use crate::error::ReadError;
use crate::shared::Shared;

/// Enough for one record and its neighbours.
const READ_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Kept {
    records: BTreeMap<(i32, i64), Record>,
    /// Oldest first; what is not in `records` any more is skipped.
    order: VecDeque<(i32, i64)>,
    bytes: usize,
}

impl Kept {
    fn put(&mut self, shard: i32, record: &Record, budget: usize) {
        let place = (shard, record.offset());
        if self.records.contains_key(&place) {
            return;
        }
        // A record keeps its whole batch alive; a copy keeps itself.
        let record = record.detached();
        self.bytes += record.pinned_bytes();
        self.records.insert(place, record);
        self.order.push_back(place);
        while self.bytes > budget {
            let Some(oldest) = self.order.pop_front() else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, place: (i32, i64)) {
        if let Some(record) = self.records.remove(&place) {
            self.bytes -= record.pinned_bytes();
        }
    }
}

#[derive(Debug)]
pub(super) struct Payloads {
    shared: Arc<Shared>,
    budget: usize,
    kept: Mutex<Kept>,
    /// Reads single records; made when the first one is missing.
    reader: tokio::sync::Mutex<Option<Consumer>>,
}

impl Payloads {
    pub fn new(shared: Arc<Shared>, budget: usize) -> Self {
        Self { shared, budget, kept: Mutex::default(), reader: tokio::sync::Mutex::default() }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A panic between two lines of `put` leaves at most a wrong sum.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn keep(&self, shard: i32, record: &Record) {
        self.kept().put(shard, record, self.budget);
    }

    /// The task is settled: nobody asks for it again.
    pub fn forget(&self, shard: i32, task: i64) {
        self.kept().remove((shard, task));
    }

    /// The record of a task; `None` when it is gone from the log.
    pub async fn get(&self, shard: i32, task: i64) -> Result<Option<Record>, ReadError> {
        if let Some(record) = self.kept().records.get(&(shard, task)) {
            return Ok(Some(record.clone()));
        }
        let mut reader = self.reader.lock().await;
        // Taken out while it is used: one that was left half way is not used again.
        let consumer = match reader.take() {
            Some(consumer) => consumer,
            None => self.open().await?,
        };
        let found = self.read(&consumer, shard, task).await?;
        *reader = Some(consumer);
        Ok(found)
    }

    async fn open(&self) -> Result<Consumer, ReadError> {
        let topics = &self.shared.topics;
        let all = self.shared.all_shards().map(|shard| (topics.tasks_of(shard), StartOffset::Earliest));
        let builder = Consumer::builder(self.shared.client.clone()).assign(all);
        let consumer = builder.max_partition_fetch_bytes(READ_BYTES).build().await?;
        let all: Vec<_> = self.shared.all_shards().map(|shard| topics.tasks_of(shard)).collect();
        consumer.pause(&all);
        Ok(consumer)
    }

    async fn read(&self, consumer: &Consumer, shard: i32, task: i64) -> Result<Option<Record>, ReadError> {
        let partition = self.shared.topics.tasks_of(shard);
        consumer.seek(&partition, task)?;
        consumer.resume([&partition]);
        let batch = loop {
            match consumer.next_batch().await {
                Ok(batch) if batch.topic_partition == partition => break batch.records,
                Ok(_) => {}
                Err(ConsumeError::Partition(FetchError::OffsetOutOfRange { .. })) => break Vec::new(),
                Err(error) => return Err(error.into()),
            }
        };
        consumer.pause([&partition]);
        let mut kept = self.kept();
        for record in &batch {
            kept.put(shard, record, self.budget);
        }
        Ok(batch.into_iter().find(|record| record.offset() == task))
    }
}
