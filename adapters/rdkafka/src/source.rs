//! The source itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;
use tramline_processor::{
    CommitConfiguration, CommitError, CommitOffset, Committed, GroupMetadata, Source, SourceBatch,
};
use tramline_wire::TopicPartition;

use crate::close::closed;
use crate::config::{GroupHandle, Settings};
use crate::context::Context;
use crate::error::{BuildError, CloseError, SourceError};
use crate::events::RdkafkaEvents;
use crate::shared::Shared;

/// Records of a partition that are read ahead unless told otherwise.
const READ_AHEAD: usize = 1000;
/// How long a close is waited for.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// An rdkafka consumer whose partitions can be processed in lanes.
///
/// Somebody has to poll it, as every rdkafka consumer: a run does, also while handlers work and lanes drain. Between runs the
/// poll interval goes on, so close it or start the next run soon.
///
/// Dropping it closes it in the background, without waiting; [`RdkafkaSource::close`] waits.
pub struct RdkafkaSource {
    shared: Arc<Shared>,
}

impl fmt::Debug for RdkafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdkafkaSource").field("group", &self.shared.settings.group).finish_non_exhaustive()
    }
}

impl RdkafkaSource {
    /// A member of `group.id` that shares the partitions of these topics (or of those a regular expression names that
    /// begins with `^`). Every setting of librdkafka applies; `enable.auto.offset.store` and `auto.offset.reset` keep their
    /// meaning, but are carried out by this source.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn subscribe(config: &ClientConfig, topics: &[&str]) -> Result<Self, BuildError> {
        if topics.is_empty() {
            return Err(BuildError::NothingToRead);
        }
        let (source, consumer) = Self::new(config.clone())?;
        consumer.subscribe(topics)?;
        Ok(source)
    }

    /// Reads exactly these partitions, from these offsets; [`Offset::Stored`] is where the group committed. They are
    /// assigned once the brokers said where that is.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn assign(
        config: &ClientConfig,
        partitions: impl IntoIterator<Item = (TopicPartition, Offset)>,
    ) -> Result<Self, BuildError> {
        let wanted: Vec<_> = partitions.into_iter().collect();
        if wanted.is_empty() {
            return Err(BuildError::NothingToRead);
        }
        let (source, consumer) = Self::new(config.clone())?;
        source.shared.start(&mut source.shared.lock(), &consumer, wanted, false);
        Ok(source)
    }

    fn new(mut config: ClientConfig) -> Result<(Self, Arc<BaseConsumer<Context>>), BuildError> {
        let settings = Settings::take(&mut config)?;
        let changed = Arc::new(Notify::new());
        let mut consumer = BaseConsumer::from_config_and_context(&config, Context::default())?;
        let wake = Arc::clone(&changed);
        consumer.set_nonempty_callback(move || wake.notify_waiters());
        let consumer = Arc::new(consumer);
        let shared = Shared::new(Arc::clone(&consumer), settings, changed, READ_AHEAD);
        Ok((Self { shared }, consumer))
    }

    /// How many records of each partition are taken over from librdkafka before they are asked for. Default: 1000. They are
    /// what lanes go on with while a rebalance keeps librdkafka from fetching; what is fetched beyond them waits in
    /// librdkafka (`queued.max.messages.kbytes`), also for a partition that is paused.
    #[must_use]
    pub fn read_ahead(self, records: usize) -> Self {
        self.shared.lock().read_ahead = records.max(1);
        self
    }

    /// Gives rdkafka's description of this member, also while a run owns the source.
    #[must_use]
    pub fn group_handle(&self) -> GroupHandle {
        GroupHandle(Arc::downgrade(&self.shared))
    }

    /// Gives every partition up, leaves the group and closes. Waits for at most ten seconds.
    ///
    /// Cancel-safe: it goes on in the background.
    ///
    /// # Errors
    /// [`CloseError::TimedOut`]: librdkafka goes on by itself.
    pub async fn close(self) -> Result<(), CloseError> {
        closed(self.shared.shut(), CLOSE_PATIENCE).await
    }

    /// What was handed out and asked past counts as done, when librdkafka commits by itself and stores by itself.
    fn store_handed_out(&self) {
        let mut state = self.shared.lock();
        let open = std::mem::take(&mut state.open);
        if open.is_empty() || !(self.shared.settings.auto_commit && self.shared.settings.auto_store) {
            return;
        }
        let Some(consumer) = &state.consumer else { return };
        let offsets =
            open.into_iter().map(|(tp, next)| (tp.topic.to_string(), tp.partition, Offset::Offset(next)));
        let list: TopicPartitionList = offsets.collect();
        if let Err(error) = consumer.store_offsets(&list) {
            tracing::debug!(%error, "offsets were not stored");
        }
    }
}

impl Drop for RdkafkaSource {
    fn drop(&mut self) {
        drop(self.shared.shut());
    }
}

impl Source for RdkafkaSource {
    type Error = SourceError;
    type Events = RdkafkaEvents;

    async fn poll(&self) -> Result<Option<SourceBatch>, SourceError> {
        self.store_handed_out();
        let next = self.shared.wait(|state| {
            if state.consumer.is_none() {
                return Some(Ok(None));
            }
            // What came before an error is handed out first.
            state.take_batch().map(|batch| Ok(Some(batch))).or_else(|| state.error.clone().map(Err))
        });
        next.await
    }

    fn pause(&self, topic_partition: &TopicPartition) {
        if let Some(partition) = self.shared.lock().partitions.get_mut(topic_partition) {
            partition.paused = true;
        }
    }

    fn resume(&self, topic_partition: &TopicPartition) {
        if let Some(partition) = self.shared.lock().partitions.get_mut(topic_partition) {
            partition.paused = false;
        }
        self.shared.changed.notify_waiters();
    }

    fn seek(&self, topic_partition: &TopicPartition, offset: i64) {
        let mut state = self.shared.lock();
        let Some(partition) = state.partitions.get_mut(topic_partition).filter(|found| !found.withheld)
        else {
            return;
        };
        partition.read.clear();
        (partition.next, partition.least) = (offset, partition.least.min(offset));
        state.open.remove(topic_partition);
        let Some(consumer) = &state.consumer else { return };
        let TopicPartition { topic, partition } = topic_partition;
        // Without waiting: whatever was fetched before is out of date from the call on.
        if let Err(error) = consumer.seek(topic, *partition, Offset::Offset(offset), Duration::ZERO) {
            tracing::warn!(%error, %topic_partition, offset, "not set back");
        }
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        self.shared.commit(offsets).await
    }

    fn committed(&self, topic_partition: &TopicPartition) -> Option<Committed> {
        self.shared.lock().partitions.get(topic_partition)?.committed.clone()
    }

    fn events(&self) -> RdkafkaEvents {
        RdkafkaEvents::new(Arc::clone(&self.shared))
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        Some(self.shared.settings.commit_configuration())
    }

    /// The group and the instance's name. librdkafka keeps the generation (-1 here) and the member's id (empty) to itself;
    /// see [`RdkafkaSource::group_handle`].
    fn group_metadata(&self) -> Option<GroupMetadata> {
        Some(GroupMetadata {
            group_id: self.shared.settings.group.clone(),
            generation: -1,
            member_id: tramline_wire::Str::new(),
            instance_id: self.shared.settings.instance_id.clone(),
        })
    }
}
