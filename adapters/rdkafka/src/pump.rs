//! Polling librdkafka: what happened is carried out, what was fetched is read ahead, what is overdue is given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::Offset;
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::Instant;
use tramline_wire::TopicPartition;

use crate::context::{Context, Recorded, give_back};
use crate::error::SourceError;
use crate::record::record;
use crate::shared::{Hold, Partition, Pending, Shared, State};
use crate::start::Numbers;

/// How many events are served before the caller has another look.
const MAX_EVENTS: usize = 1000;

impl Shared {
    /// Lets librdkafka work, and takes what it has. Never waits.
    pub(crate) fn pump(&self, state: &mut State) {
        let Some(consumer) = state.consumer.clone() else { return };
        let before = state.events.len();
        for _ in 0..MAX_EVENTS {
            let served = consumer.context().served();
            match consumer.poll(Duration::ZERO) {
                // No partition is assigned before its records have a queue of their own; if one comes, it is the next.
                Some(Ok(message)) => state.take_stray(&message),
                Some(Err(error)) => state.take_error(None, error),
                None if consumer.context().served() == served => break,
                None => {}
            }
            self.carry_out(state, &consumer);
        }
        self.carry_out(state, &consumer);
        state.check_holds();
        state.read_on();
        if state.events.len() != before {
            self.changed.notify_waiters();
        }
    }

    /// Carries out what the callbacks wrote down.
    fn carry_out(&self, state: &mut State, consumer: &Arc<BaseConsumer<Context>>) {
        while self.begin(state, consumer) {
            let Some(what) = consumer.context().take() else { break };
            match what {
                Recorded::Assigned { partitions, incremental } => {
                    let stored = partitions.into_iter().map(|tp| (tp, Offset::Stored)).collect();
                    self.start(state, consumer, stored, incremental);
                }
                Recorded::Revoked { partitions, incremental, lost } => {
                    self.revoked(state, consumer, partitions, incremental, lost);
                }
            }
        }
    }

    /// Makes the partitions known, each with a queue of its own, before librdkafka begins to fetch them.
    pub(crate) fn adopt(
        &self,
        state: &mut State,
        consumer: &Arc<BaseConsumer<Context>>,
        partitions: &Numbers,
    ) {
        if partitions.is_empty() {
            return;
        }
        state.generation += 1;
        let generation = state.generation;
        for (topic_partition, start) in partitions {
            let queue = consumer.split_partition_queue(&topic_partition.topic, topic_partition.partition);
            let queue = queue.map(|mut queue| {
                let changed = Arc::clone(&self.changed);
                queue.set_nonempty_callback(move || changed.notify_waiters());
                queue
            });
            let read = VecDeque::new();
            let partition = Partition {
                generation,
                queue,
                read,
                next: start.offset,
                least: start.offset,
                committed: start.committed.clone(),
                paused: false,
                withheld: false,
            };
            state.partitions.insert(topic_partition.clone(), partition);
        }
        state.publish(Pending::Assigned { generation, partitions: partitions.keys().cloned().collect() });
    }

    fn revoked(
        &self,
        state: &mut State,
        consumer: &BaseConsumer<Context>,
        partitions: Vec<TopicPartition>,
        incremental: bool,
        lost: bool,
    ) {
        // What was given back before it began, nobody knows of.
        let known: Vec<_> =
            partitions.iter().filter(|tp| state.partitions.contains_key(*tp)).cloned().collect();
        for topic_partition in &partitions {
            if let Some(partition) = state.partitions.get_mut(topic_partition) {
                partition.withheld = true;
                partition.read.clear();
                partition.queue = None;
            }
        }
        if lost || state.handles == 0 || known.is_empty() {
            if lost && !known.is_empty() {
                state.publish(Pending::Lost { partitions: known });
            }
            for topic_partition in &partitions {
                state.forget(topic_partition);
            }
            give_back(consumer, &partitions, incremental);
            return;
        }
        state.next_hold += 1;
        let id = state.next_hold;
        let deadline = Instant::now() + self.settings.revocation_window();
        state.holds.insert(id, Hold { partitions, incremental, deadline });
        state.publish(Pending::Revoked { id, partitions: known, deadline });
    }
}

impl State {
    /// Ends holds that are overdue.
    fn check_holds(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        let now = Instant::now();
        let over: Vec<u64> =
            self.holds.iter().filter(|(_, hold)| hold.deadline <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.release(id);
        }
    }

    /// Takes records from the partitions' queues, as far as they are read ahead.
    fn read_on(&mut self) {
        if self.error.is_some() {
            return;
        }
        let mut errors = Vec::new();
        for (topic_partition, partition) in &mut self.partitions {
            let Some(queue) = partition.queue.take() else { continue };
            while partition.read.len() < self.read_ahead {
                match queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        if let Err(error) = partition.take(topic_partition, &message) {
                            self.error = Some(error);
                            break;
                        }
                    }
                    Some(Err(error)) => errors.push((topic_partition.clone(), error)),
                    None => break,
                }
            }
            partition.queue = Some(queue);
        }
        for (topic_partition, error) in errors {
            self.take_error(Some(topic_partition), error);
        }
    }

    /// A message that came past its partition's queue.
    fn take_stray(&mut self, message: &BorrowedMessage<'_>) {
        let topic_partition = TopicPartition::new(message.topic(), message.partition());
        let Some(partition) =
            self.partitions.get_mut(&topic_partition).filter(|partition| !partition.withheld)
        else {
            return;
        };
        if let Err(error) = partition.take(&topic_partition, message) {
            self.error = Some(error);
        }
    }

    /// Keeps what ends the run, and logs what librdkafka mends by itself.
    fn take_error(&mut self, topic_partition: Option<TopicPartition>, error: KafkaError) {
        if matches!(error, KafkaError::PartitionEOF(_)) {
            return;
        }
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        if is_fatal || error.rdkafka_error_code().is_some_and(is_final) {
            self.error = Some(match topic_partition {
                Some(topic_partition) => SourceError::Partition { topic_partition, source: error },
                None => SourceError::Consumer(error),
            });
        } else {
            tracing::warn!(%error, ?topic_partition, "librdkafka goes on after an error");
        }
    }
}

impl Partition {
    fn take(
        &mut self,
        topic_partition: &TopicPartition,
        message: &BorrowedMessage<'_>,
    ) -> Result<(), SourceError> {
        if message.offset() < self.next {
            return Ok(());
        }
        self.read.push_back(record(topic_partition, message)?);
        self.next = message.offset() + 1;
        Ok(())
    }
}

/// Whether librdkafka would only meet the same error again.
pub(crate) const fn is_final(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::InconsistentGroupProtocol
            | RDKafkaErrorCode::InvalidGroupId
            | RDKafkaErrorCode::InvalidSessionTimeout
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::AutoOffsetReset
    )
}
