//! What librdkafka calls: rebalances are written down, log lines passed on, and nothing is decided.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;
use tramline_wire::TopicPartition;

/// What happened, in the order in which librdkafka told it.
#[derive(Debug)]
pub(crate) enum Recorded {
    Assigned { partitions: Vec<TopicPartition>, incremental: bool },
    Revoked { partitions: Vec<TopicPartition>, incremental: bool, lost: bool },
}

/// The context of the consumer.
#[derive(Debug, Default)]
pub(crate) struct Context {
    recorded: Mutex<VecDeque<Recorded>>,
    /// How many events librdkafka was served: a poll without a message may have met one, and more may follow.
    served: AtomicU64,
    closing: AtomicBool,
}

impl Context {
    pub(crate) fn take(&self) -> Option<Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn record(&self, what: Recorded) {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).push_back(what);
        self.count();
    }

    fn count(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether a revocation was written down that nobody has seen.
    pub(crate) fn revokes(&self) -> bool {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.iter().any(|what| matches!(what, Recorded::Revoked { .. }))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// From here on nobody looks at what is written down: partitions are given back at once.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.count();
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::error!(facility, "librdkafka: {message}"),
            RDKafkaLogLevel::Warning => tracing::warn!(facility, "librdkafka: {message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(facility, "librdkafka: {message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(facility, "librdkafka: {message}"),
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {
        self.count();
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.count();
        tracing::warn!(%error, reason, "librdkafka");
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let incremental = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let assigned = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let partitions = partitions(list);
        if self.is_closing() {
            // librdkafka takes any assignment for none while it closes.
            give_back(consumer, &partitions, incremental);
        } else if assigned {
            self.record(Recorded::Assigned { partitions, incremental });
        } else {
            let lost = consumer.assignment_lost();
            self.record(Recorded::Revoked { partitions, incremental, lost });
        }
    }

    /// Told of librdkafka's automatic commits only.
    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        self.count();
        if let Err(error) = result {
            tracing::warn!(%error, "librdkafka's own commit failed");
        }
    }
}

/// Gives partitions back to librdkafka, which may then go on with the rebalance.
pub(crate) fn give_back(consumer: &BaseConsumer<Context>, partitions: &[TopicPartition], incremental: bool) {
    let done =
        if incremental { consumer.incremental_unassign(&list(partitions)) } else { consumer.unassign() };
    if let Err(error) = done {
        tracing::warn!(%error, "partitions were not given back");
    }
}

/// Takes partitions over from where the list says, as the answer to librdkafka's assignment.
pub(crate) fn assign(
    consumer: &BaseConsumer<Context>,
    list: &TopicPartitionList,
    incremental: bool,
) -> KafkaResult<()> {
    if incremental { consumer.incremental_assign(list) } else { consumer.assign(list) }
}

/// Takes nothing of an assignment: librdkafka may go on.
pub(crate) fn decline(consumer: &BaseConsumer<Context>, incremental: bool) {
    if let Err(error) = assign(consumer, &TopicPartitionList::new(), incremental) {
        tracing::warn!(%error, "an assignment was not declined");
    }
}

/// rdkafka's list of these partitions, without offsets.
fn list(partitions: &[TopicPartition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for topic_partition in partitions {
        list.add_partition(&topic_partition.topic, topic_partition.partition);
    }
    list
}

fn partitions(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements().iter().map(|element| TopicPartition::new(element.topic(), element.partition())).collect()
}

impl Recorded {
    /// For what was written down when nobody carries it out any more.
    pub(crate) fn give_back(self, consumer: &BaseConsumer<Context>) {
        match self {
            Self::Assigned { incremental, .. } => decline(consumer, incremental),
            Self::Revoked { partitions, incremental, .. } => give_back(consumer, &partitions, incremental),
        }
    }
}
