//! A handle to a queue: opens it, publishes tasks, makes workers, tells how it stands.

use std::sync::Arc;

use tramline_client::producer::FlushError;
use tramline_client::{Admin, ClientConfig, Delivery, Producer, ProducerConfig, Spread};

use crate::dead::{self, DeadTask, Retried};
use crate::error::{OpenError, PublishError, ReadError};
use crate::new_task::NewTask;
use crate::replay::{self, QueueStatus, ReplayedRecord};
use crate::shared::Shared;
use crate::topics::{self, Plan, Topics};
use crate::worker::WorkerBuilder;

/// How many shards a new queue gets unless told otherwise.
const DEFAULT_SHARDS: i32 = 4;

/// Where a task was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt {
    /// The shard: the partition of the tasks topic.
    pub shard: i32,
    /// The task's name within it: the offset of its record.
    pub task: i64,
}

/// How a queue is opened, and made when there is none.
#[derive(Clone, Debug)]
pub struct QueueBuilder {
    client: ClientConfig,
    name: String,
    shards: i32,
    replication_factor: Option<i16>,
    results: bool,
    create: bool,
}

impl QueueBuilder {
    /// How many partitions tasks and claims get when the queue is made; one that exists keeps its own. Default 4. No more
    /// workers than shards work without reading what others read too.
    #[must_use]
    pub const fn shards(mut self, shards: i32) -> Self {
        self.shards = shards;
        self
    }

    /// How many brokers hold each partition when the queue is made. Default: the cluster's own.
    #[must_use]
    pub const fn replication_factor(mut self, replicas: i16) -> Self {
        self.replication_factor = Some(replicas);
        self
    }

    /// Whether the queue has a topic for the results of its handlers. Default: no.
    #[must_use]
    pub const fn results(mut self, results: bool) -> Self {
        self.results = results;
        self
    }

    /// Whether the queue is made when there is none. Default: yes.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Opens the queue: makes the topics that are missing, and checks those that are there.
    ///
    /// Cancel-safe: topics that were made stay.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(self) -> Result<Queue, OpenError> {
        if self.name.is_empty() {
            return Err(OpenError::NoName);
        }
        let topics = Topics::of(&self.name);
        let admin = Admin::new(self.client.clone());
        let plan = Plan {
            shards: self.shards.max(1),
            replication_factor: self.replication_factor,
            results: self.results,
            create: self.create,
        };
        let shards = topics::prepare(&admin, &topics, &plan).await?;
        // Forced and idempotent: a claim that was seen survives a power cut, and none is there twice. Task by task to
        // another shard, so that a few tasks reach a few workers.
        let config = ProducerConfig::new().spread(Spread::RoundRobin);
        let producer = Producer::new(self.client.clone(), config).await?;
        let shared = Shared {
            client: self.client,
            name: self.name,
            topics,
            shards,
            results: self.results,
            admin,
            producer,
        };
        Ok(Queue { shared: Arc::new(shared) })
    }
}

/// A task queue. Cheap to clone; all clones share one producer.
///
/// Dropping the last handle gives up tasks that [`Queue::enqueue`] accepted and that are not acknowledged; what
/// [`Queue::publish`] returned is written.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) shared: Arc<Shared>,
}

impl Queue {
    /// Opens the queue `name` on the cluster that `client` names, and makes it when there is none.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(client: ClientConfig, name: impl Into<String>) -> Result<Self, OpenError> {
        Self::builder(client, name).open().await
    }

    /// Begins to describe how the queue is opened.
    #[must_use]
    pub fn builder(client: ClientConfig, name: impl Into<String>) -> QueueBuilder {
        QueueBuilder {
            client,
            name: name.into(),
            shards: DEFAULT_SHARDS,
            replication_factor: None,
            results: false,
            create: true,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How many shards it has.
    #[must_use]
    pub fn shards(&self) -> i32 {
        self.shared.shards
    }

    /// Adds a task and waits until it is written.
    ///
    /// Not cancel-safe in the sense that a dropped future may have published the task; give it a
    /// [unique](NewTask::unique) name where that matters.
    ///
    /// # Errors
    /// [`PublishError`].
    pub async fn publish(&self, task: NewTask) -> Result<Receipt, PublishError> {
        let written = self.enqueue(task).await?.await?;
        let task = written.offset.ok_or(PublishError::NoOffset)?;
        Ok(Receipt { shard: written.topic_partition.partition, task })
    }

    /// Adds a task, and lets the caller wait for it beside others: the [`Delivery`] tells when it is written.
    ///
    /// Cancel-safe: dropped before it returns, nothing is published.
    ///
    /// # Errors
    /// [`PublishError::NotAccepted`].
    pub async fn enqueue(&self, task: NewTask) -> Result<Delivery, PublishError> {
        Ok(self.shared.producer.send(task.into_record(&self.shared.topics.tasks)).await?)
    }

    /// Waits until everything accepted is written or failed.
    ///
    /// # Errors
    /// Records failed since the last flush.
    pub async fn flush(&self) -> Result<(), FlushError> {
        self.shared.producer.flush().await
    }

    /// Begins to describe a worker.
    #[must_use]
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(Arc::clone(&self.shared))
    }

    /// How the queue stands, from one replay of its log up to the ends of now.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn status(&self) -> Result<QueueStatus, ReadError> {
        replay::status(&self.shared).await
    }

    /// Replays the claims that are kept, from the first one on, and shows each with its verdict, shard by shard in order.
    /// Claims that were deleted behind a snapshot are not shown; the snapshot stands for them.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn replay(&self, mut see: impl FnMut(ReplayedRecord<'_>)) -> Result<QueueStatus, ReadError> {
        replay::all(&self.shared, &mut see).await
    }

    /// The dead tasks that were not published again, with their letters.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn dead(&self) -> Result<Vec<DeadTask>, ReadError> {
        dead::list(&self.shared).await
    }

    /// Publishes every dead task again. Cut off half way, it can be repeated: a task that was published again is not
    /// there twice.
    ///
    /// # Errors
    /// [`ReadError`] when the dead cannot be listed; what fails for a single task is in the answer.
    pub async fn retry_dead(&self) -> Result<Vec<Retried>, ReadError> {
        dead::retry(&self.shared).await
    }
}
