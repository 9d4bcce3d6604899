//! Where an assignment begins: asked of the brokers before librdkafka is told to fetch, on a thread that may wait.
//!
//! librdkafka would find the start by itself. But when the partition is given back before the answer, the answer that comes
//! too late still starts a timer, and half a second later the timer moves whoever has the partition then to that start:
//! records come twice, their commits move back, or (`auto.offset.reset=latest`) records are passed over. So librdkafka is
//! only ever given numbers, and what it does when a number is not in the log is to say so.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use tramline_processor::Committed;
use tramline_wire::TopicPartition;

use crate::config::Reset;
use crate::context::{Context, assign, decline};
use crate::error::SourceError;
use crate::pump::is_final;
use crate::shared::{Shared, State};

/// How long one question may take; a close waits for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Where each partition begins.
pub(crate) type Numbers = BTreeMap<TopicPartition, Start>;
type Answers = BTreeMap<TopicPartition, (Offset, String)>;

/// Where a partition begins, and what is committed, if anybody asked.
#[derive(Debug)]
pub(crate) struct Start {
    pub offset: i64,
    pub committed: Option<Committed>,
}

/// An assignment that librdkafka waits for.
#[derive(Debug)]
pub(crate) struct Starting {
    pub partitions: Vec<TopicPartition>,
    pub incremental: bool,
    /// Where each of them begins, or why nobody knows.
    pub found: Option<KafkaResult<Numbers>>,
}

impl Shared {
    /// Finds out where the partitions begin; [`Shared::begin`] goes on with it.
    pub(crate) fn start(
        &self,
        state: &mut State,
        consumer: &Arc<BaseConsumer<Context>>,
        wanted: Vec<(TopicPartition, Offset)>,
        incremental: bool,
    ) {
        let partitions = wanted.iter().map(|(topic_partition, _)| topic_partition.clone()).collect();
        let found = wanted.is_empty().then(|| Ok(Numbers::new()));
        state.starting = Some(Starting { partitions, incremental, found });
        if wanted.is_empty() {
            return;
        }
        let (shared, consumer, reset) = (self.me.clone(), Arc::clone(consumer), self.settings.reset);
        let thread = std::thread::Builder::new().name("rdkafka start".into());
        if let Err(error) = thread.spawn(move || find(&shared, consumer, &wanted, reset)) {
            tracing::error!(%error, "no thread to find the start of an assignment on");
            state.found(Err(KafkaError::Canceled));
        }
    }

    /// Carries out an assignment once its start is known. False when it is not yet.
    pub(crate) fn begin(&self, state: &mut State, consumer: &Arc<BaseConsumer<Context>>) -> bool {
        let Some(Starting { partitions, incremental, found }) = state.starting.take() else { return true };
        let taken = match found {
            None => {
                state.starting = Some(Starting { partitions, incremental, found });
                return false;
            }
            Some(Ok(numbers)) => {
                self.adopt(state, consumer, &numbers);
                let numbers = numbers.into_iter().map(|(tp, number)| (tp, Offset::Offset(number.offset)));
                assign(consumer, &list(numbers), incremental)
            }
            // The revocation is next, and librdkafka only takes back what it was given. It fetches nothing in between.
            Some(Err(_)) if consumer.context().revokes() => {
                assign(consumer, &list(partitions.into_iter().map(|tp| (tp, Offset::Stored))), incremental)
            }
            Some(Err(error)) => {
                decline(consumer, incremental);
                Err(error)
            }
        };
        if let Err(error) = taken {
            state.error = Some(SourceError::Assign(error));
        }
        true
    }
}

impl State {
    fn found(&mut self, found: KafkaResult<Numbers>) {
        if let Some(starting) = &mut self.starting {
            starting.found = Some(found);
        }
    }
}

/// Asks until there is an answer, or nobody wants to know any more.
fn find(
    shared: &Weak<Shared>,
    consumer: Arc<BaseConsumer<Context>>,
    wanted: &[(TopicPartition, Offset)],
    reset: Reset,
) {
    let found = loop {
        match numbers(&consumer, wanted, reset) {
            Err(error) if !error.rdkafka_error_code().is_some_and(is_final) => {
                tracing::debug!(%error, "the start of an assignment is not known yet");
                let context = consumer.context();
                if context.is_closing() || context.revokes() {
                    break Err(error);
                }
                std::thread::sleep(PAUSE);
            }
            found => break found,
        }
    };
    // Before anybody is told: a close that follows waits for whoever has the consumer.
    drop(consumer);
    let Some(shared) = shared.upgrade() else { return };
    shared.lock().found(found);
    shared.changed.notify_waiters();
}

/// The number that each wanted start stands for.
fn numbers(
    consumer: &BaseConsumer<Context>,
    wanted: &[(TopicPartition, Offset)],
    reset: Reset,
) -> KafkaResult<Numbers> {
    let ask = |offset: Offset| {
        if consumer.context().is_closing() {
            return Err(KafkaError::Canceled);
        }
        let all = wanted.iter().map(|(tp, _)| (tp.clone(), offset));
        read(consumer.offsets_for_times(list(all), PATIENCE)?)
    };
    let is_stored = |offset: &Offset| matches!(offset, Offset::Stored | Offset::Invalid);
    let stored: Vec<_> = wanted.iter().filter(|(_, offset)| is_stored(offset)).cloned().collect();
    let committed = match stored.is_empty() {
        true => Answers::new(),
        false => read(consumer.committed_offsets(list(stored), PATIENCE)?)?,
    };
    let (first, end) = (ask(Offset::Beginning)?, ask(Offset::End)?);
    let number = |of: &Answers, tp: &TopicPartition| match of.get(tp) {
        Some((Offset::Offset(number), _)) => Ok(*number),
        _ => Err(KafkaError::OffsetFetch(RDKafkaErrorCode::PartitionEOF)),
    };
    let mut numbers = Numbers::new();
    for (topic_partition, offset) in wanted {
        let (first, end) = (number(&first, topic_partition)?, number(&end, topic_partition)?);
        let start = match offset {
            Offset::Beginning => Some(first),
            Offset::End => Some(end),
            Offset::OffsetTail(records) => Some(first.max(end.saturating_sub(*records))),
            Offset::Offset(number) => Some(*number),
            Offset::Stored | Offset::Invalid => number(&committed, topic_partition).ok(),
        };
        let start = match start.filter(|start| *start >= first) {
            Some(start) => start,
            None => {
                if let Some(gone) = start {
                    tracing::warn!(%topic_partition, gone, first, ?reset, "the start is not in the log any more");
                }
                match reset {
                    Reset::Earliest => first,
                    Reset::Latest => end,
                    Reset::Refuse => return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::AutoOffsetReset)),
                }
            }
        };
        let committed = match committed.get(topic_partition) {
            Some((Offset::Offset(offset), text)) => Some(Committed::new(*offset, text).log_end(Some(end))),
            _ => None,
        };
        numbers.insert(topic_partition.clone(), Start { offset: start, committed });
    }
    Ok(numbers)
}

/// What was answered, unless a partition failed.
fn read(answer: TopicPartitionList) -> KafkaResult<Answers> {
    let each = answer.elements();
    let each = each.iter().map(|element| {
        element.error()?;
        // rdkafka panics over what is no text; ours is.
        let text = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned())).unwrap_or_default();
        Ok((TopicPartition::new(element.topic(), element.partition()), (element.offset(), text)))
    });
    each.collect()
}

fn list(partitions: impl IntoIterator<Item = (TopicPartition, Offset)>) -> TopicPartitionList {
    partitions.into_iter().map(|(tp, offset)| (tp.topic.to_string(), tp.partition, offset)).collect()
}
