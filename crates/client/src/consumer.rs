//! The consumer: records of assigned partitions, pulled; with a group, shared partitions and committed offsets.

mod auto_commit;
mod builder;
mod error;
mod events;
mod fetch_task;
mod group_task;
mod membership;
mod messages;
mod offset_task;
mod offsets;
mod shared;
mod types;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::time::Instant as TokioInstant;
use tramline_wire::{Record, Str, TopicPartition, Uuid};

pub use builder::ConsumerBuilder;
pub use error::{BuildConsumerError, CommitError, ConsumeError, OffsetsError, SeekError, StoreOffsetError};
pub use events::{Event, Events, Revocation};
pub use tramline_core::client::consumer_commits::CommitFailure;
pub use tramline_core::client::fetcher::{FetchError, Fetched, IsolationLevel, OffsetReset};
pub use tramline_core::group::assignor::Assignor;
pub use types::{CommitMode, GroupMetadata, OffsetAndMetadata, StartOffset};

use crate::ClientConfig;
use crate::cluster::{Cluster, jitter};
use builder::Settings;
use membership::Membership;
use shared::{Shared, Waiting};
use tramline_core::client::fetcher::OffsetSpec;

/// Reads records. Every method takes `&self`; there is one buffer, so records go to whoever asks first.
///
/// Records are pulled: nothing is handed out that was not asked for, and a position moves only when a record is handed
/// out (or something that never is: a control record, a compacted gap). Dropping any future of this type loses nothing.
///
/// Up to three connections are kept per broker: one for fetches, which wait for data; one for the group's joins and
/// heartbeats; one for everything else.
///
/// Dropping a consumer stops it at once. Its group notices after the session timeout; [`Consumer::close`] tells it.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    cluster: Cluster,
}

impl Consumer {
    /// Begins to describe a consumer of the cluster that `client` names.
    #[must_use]
    pub fn builder(client: ClientConfig) -> ConsumerBuilder {
        ConsumerBuilder::new(client)
    }

    async fn start(client: ClientConfig, mut settings: Settings) -> Result<Self, BuildConsumerError> {
        let cluster = Cluster::connect(client).await?;
        find_partitions(&cluster, &mut settings).await?;
        let assigned = std::mem::take(&mut settings.assigned);
        let subscribed = settings.subscribed.clone();
        let membership = settings.member(cluster.config()).map(Membership::new);
        let shares = membership.is_some();
        let shared = Shared::new(settings, membership, cluster.backoff());
        {
            let mut state = shared.lock();
            for (topic_partition, start) in assigned {
                state.fetcher.assign(topic_partition, -1, start.for_fetcher());
            }
        }
        tokio::spawn(fetch_task::run(Arc::clone(&shared), cluster.clone()));
        tokio::spawn(offset_task::run(Arc::clone(&shared), cluster.clone()));
        if shares {
            tokio::spawn(group_task::run(Arc::clone(&shared), cluster.clone(), subscribed));
        }
        Ok(Self { shared, cluster })
    }

    /// Waits for records and takes those of one partition: at most `max_poll_records`, in order, with the offset after
    /// everything that was passed. The partition's position moves to that offset.
    ///
    /// Cancel-safe: records leave the buffer only when this returns them.
    ///
    /// # Errors
    /// [`ConsumeError::Partition`] when one partition stands still (the others go on),
    /// [`ConsumeError::Group`] when the group refuses this consumer for good, [`ConsumeError::Closed`].
    pub async fn next_batch(&self) -> Result<Fetched, ConsumeError> {
        self.shared.wait_for(Shared::poll_batch).await
    }

    /// Waits for one record and takes it. The partition's position moves past it, and past the control records and gaps
    /// that follow it in its batch.
    ///
    /// Cancel-safe: the record leaves the buffer only when this returns it.
    ///
    /// # Errors
    /// As [`Consumer::next_batch`].
    pub async fn recv(&self) -> Result<Record, ConsumeError> {
        self.shared.wait_for(Shared::poll_record).await
    }

    /// The records one by one, without end; after [`Consumer::close`] the stream ends. With `prefetch(0)` the next fetch
    /// starts when the stream is polled with its buffer empty, that is, after the loop's body is done with the last one.
    #[must_use]
    pub fn stream(&self) -> Records<'_> {
        Records { consumer: self, waiting: None }
    }

    /// The offset of the next record of the partition to be handed out: the number to persist once everything handed out
    /// is dealt with. `None` when the partition is not assigned or its start is not known yet.
    #[must_use]
    pub fn position(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.shared.position(topic_partition)
    }

    /// The number to persist once `record` and everything before it in its partition is dealt with.
    #[must_use]
    pub fn position_after(record: &Record) -> i64 {
        record.offset() + 1
    }

    /// Moves the position. Whatever was buffered or is under way for the partition is never handed out.
    ///
    /// # Errors
    /// [`SeekError`]. That an offset is out of range is noticed by the next fetch.
    pub fn seek(&self, topic_partition: &TopicPartition, offset: i64) -> Result<(), SeekError> {
        self.seek_to(topic_partition, StartOffset::At(offset))
    }

    /// Moves the position to a named place, which is looked up before the next record is handed out.
    ///
    /// # Errors
    /// [`SeekError`].
    pub fn seek_to(&self, topic_partition: &TopicPartition, to: StartOffset) -> Result<(), SeekError> {
        self.shared.seek(topic_partition, to)
    }

    /// Hands out no further record of these partitions, from this moment on. What is buffered is kept. Partitions that
    /// are not assigned are passed over.
    pub fn pause<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) {
        self.shared.pause(&mut partitions.into_iter());
    }

    /// Goes on exactly where `pause` stopped; partitions that stand still after an error try again at their position.
    /// Partitions that are not assigned, or not paused, are passed over.
    pub fn resume<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) {
        self.shared.resume(&mut partitions.into_iter());
    }

    /// The partitions that are paused.
    #[must_use]
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.shared.paused()
    }

    /// The partitions that may be handed out, sorted. Those whose revocation is held are not among them.
    #[must_use]
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.shared.assignment()
    }

    /// Commits offsets for the consumer's group and waits for the answer. Retriable refusals are repeated until the
    /// commit timeout; two commits of one partition are never reordered. Partitions that are not owned are refused
    /// without asking (see also [`OffsetAndMetadata::assigned_in`]).
    ///
    /// Dropping the future does not take the commit back: it may be sent, and it keeps its place in the order.
    ///
    /// # Errors
    /// [`CommitError`] lists the partitions that failed; all others are committed.
    pub async fn commit(
        &self,
        offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndMetadata)>,
    ) -> Result<(), CommitError> {
        self.shared.commit(offsets.into_iter().collect()).await
    }

    /// Says that everything before `offset` is done: the next automatic commit takes it, every interval, before the
    /// partition is given up, and on [`close`](Self::close). For [`CommitMode::Auto`] with `store: false`. The offset
    /// stored last counts.
    ///
    /// # Errors
    /// [`StoreOffsetError`]: offsets are not stored by the program, the partition is not assigned (any more), or more
    /// was to be stored than was handed out.
    pub fn store_offset(
        &self,
        topic_partition: &TopicPartition,
        offset: OffsetAndMetadata,
    ) -> Result<(), StoreOffsetError> {
        self.shared.store_offset(topic_partition, offset)
    }

    /// The offsets the group has committed for these partitions; `None` for a partition without.
    ///
    /// # Errors
    /// [`OffsetsError`].
    pub async fn committed(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, OffsetsError> {
        self.shared.committed(&self.cluster, partitions).await
    }

    /// What the group has committed for an assigned partition as far as this consumer knows without asking: what it
    /// found when the partition was assigned, or has committed itself since.
    #[must_use]
    pub fn last_committed(&self, topic_partition: &TopicPartition) -> Option<OffsetAndMetadata> {
        self.shared.lock().last_committed(topic_partition)
    }

    /// The end of an assigned partition as the last fetch saw it; `None` before the first one.
    #[must_use]
    pub fn known_end(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.shared.lock().fetcher.high_watermark(topic_partition)
    }

    /// The id of a topic that is read, where the cluster has told one. A topic that is deleted and created again has
    /// another one.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Option<Uuid> {
        self.cluster.metadata().topics.get(topic).map(|topic| topic.id).filter(|id| !id.is_zero())
    }

    /// The oldest offset of each of these partitions.
    ///
    /// # Errors
    /// [`OffsetsError`].
    pub async fn beginning_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, OffsetsError> {
        self.shared.list_offsets(&self.cluster, partitions, OffsetSpec::Earliest).await
    }

    /// The end of each of these partitions: the offset the next record will have.
    ///
    /// # Errors
    /// [`OffsetsError`].
    pub async fn end_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, OffsetsError> {
        self.shared.list_offsets(&self.cluster, partitions, OffsetSpec::Latest).await
    }

    /// How many offsets lie between the position and the end the last fetch saw; `None` before the first one.
    #[must_use]
    pub fn lag(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.shared.lag(topic_partition)
    }

    /// The bytes of record batches that are buffered and not handed out yet.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.shared.buffered_bytes()
    }

    /// Who commits.
    #[must_use]
    pub fn commit_mode(&self) -> CommitMode {
        self.shared.settings.commit_mode
    }

    /// Who this consumer is in its group as of now; `None` without a group.
    #[must_use]
    pub fn group_metadata(&self) -> Option<GroupMetadata> {
        self.shared.group_metadata()
    }

    /// What happens to the partitions. While a handle exists, revocations wait for their token to be dropped.
    #[must_use]
    pub fn events(&self) -> Events {
        self.shared.events_taken();
        Events { shared: Arc::clone(&self.shared) }
    }

    /// Gives every partition up, as for a rebalance (a `Revoked` event first), and leaves the group. The consumer stays
    /// usable for questions; nothing is handed out.
    ///
    /// Cancel-safe: it goes on in the background.
    pub async fn unsubscribe(&self) {
        self.shared.unsubscribe().await;
    }

    /// Stops handing out records, gives every partition up (a `Revoked` event first, held like any other), answers the
    /// commits that were made, commits what counts as done when that is automatic, leaves the group and closes the connections. Waits no longer than the rebalance timeout
    /// for an [`Events`] handle whose owner does not release the revocation, and no longer than the request timeout for
    /// a coordinator that is gone: drop the handle first, or go on serving it. May be called again.
    ///
    /// Cancel-safe: it goes on in the background.
    pub async fn close(&self) {
        self.shared.close().await;
    }
}

/// Replaces topics that are read whole by their partitions.
async fn find_partitions(cluster: &Cluster, settings: &mut Settings) -> Result<(), BuildConsumerError> {
    if settings.assigned_topics.is_empty() {
        return Ok(());
    }
    let topics: Vec<Str> = settings.assigned_topics.iter().map(|(topic, _)| topic.clone()).collect();
    let until = TokioInstant::now() + cluster.config().connect_timeout;
    let mut backoff = cluster.backoff();
    let view = loop {
        let view = cluster.refresh(Some(&topics), false).await?;
        let Some(missing) = topics.iter().find(|topic| view.partition_count(topic).is_none()) else {
            break view;
        };
        let again = TokioInstant::now() + backoff.next_wait(jitter());
        if again >= until {
            return Err(BuildConsumerError::UnknownTopic(missing.clone()));
        }
        tokio::time::sleep_until(again).await;
    };
    for (topic, start) in std::mem::take(&mut settings.assigned_topics) {
        let partitions = view.topics.get(&topic).into_iter().flat_map(|topic| &topic.partitions);
        let whole = partitions.map(|row| (TopicPartition::new(&topic, row.partition), start));
        settings.assigned.extend(whole);
    }
    Ok(())
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.dropped();
    }
}

/// The records of a consumer as a [`Stream`], from [`Consumer::stream`]. Dropping it loses nothing.
#[derive(Debug)]
pub struct Records<'a> {
    consumer: &'a Consumer,
    /// While it waits, the program counts as polling.
    waiting: Option<Waiting<'a>>,
}

impl Stream for Records<'_> {
    type Item = Result<Record, ConsumeError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let consumer = self.consumer;
        let polled = consumer.shared.poll_record(cx);
        if polled.is_ready() {
            self.waiting = None;
        } else if self.waiting.is_none() {
            self.waiting = Some(consumer.shared.waiting());
        }
        match polled {
            Poll::Ready(Err(ConsumeError::Closed)) => Poll::Ready(None),
            Poll::Ready(item) => Poll::Ready(Some(item)),
            Poll::Pending => Poll::Pending,
        }
    }
}
