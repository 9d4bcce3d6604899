//! The consumer as the run sees it: what happens to it is told, and nothing at or above the ends is handed out.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tramline::client::{ConsumeError, Consumer, Events};
use tramline::processor::{
    CommitConfiguration, CommitError, CommitOffset, GroupMetadata, Source, SourceBatch, SourceEvent,
    SourceEvents,
};
use tramline::wire::TopicPartition;

use super::ends::Ends;
use super::events::{Event, Journal};

/// A consumer whose changes are written down and whose records end at the ends.
pub struct Watched {
    consumer: Arc<Consumer>,
    ends: Option<Ends>,
    journal: Arc<Journal>,
    seen: Seen,
}

/// What was seen of the assignment, shared with who waits for the ends.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    was_assigned: bool,
    /// Something of these was handed to their lane since they were assigned.
    touched: BTreeSet<TopicPartition>,
    /// These are at their end, and stay paused.
    resting: BTreeSet<TopicPartition>,
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the group has given this member its share, be it nothing.
    pub fn was_assigned(&self) -> bool {
        self.state().was_assigned
    }

    /// Whether the lane of this partition was given nothing yet.
    pub fn is_untouched(&self, place: &TopicPartition) -> bool {
        !self.state().touched.contains(place)
    }
}

impl Watched {
    /// Reads from `consumer`, up to `ends` if there are any.
    pub fn new(consumer: Arc<Consumer>, ends: Option<Ends>, journal: Arc<Journal>) -> Self {
        Self { consumer, ends, journal, seen: Seen::default() }
    }

    /// What is seen of the assignment.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }

    /// The batch without what lies at or above the end of its partition; none when that is all of it.
    fn cut(&self, mut batch: SourceBatch) -> Option<SourceBatch> {
        let place = batch.topic_partition.clone();
        let end = self.ends.as_ref().map_or(i64::MAX, |ends| ends.of(&place));
        let mut state = self.seen.state();
        if batch.next_offset >= end {
            Source::pause(&*self.consumer, &place);
            state.resting.insert(place.clone());
            batch.records.retain(|record| record.offset() < end);
            batch.next_offset = end;
        }
        if batch.first_offset >= end {
            return None;
        }
        state.touched.insert(place);
        Some(batch)
    }
}

impl Source for Watched {
    type Error = ConsumeError;
    type Events = WatchedEvents;

    async fn poll(&self) -> Result<Option<SourceBatch>, ConsumeError> {
        loop {
            let Some(batch) = Source::poll(&*self.consumer).await? else { return Ok(None) };
            if let Some(batch) = self.cut(batch) {
                return Ok(Some(batch));
            }
        }
    }

    fn pause(&self, topic_partition: &TopicPartition) {
        Source::pause(&*self.consumer, topic_partition);
    }

    fn resume(&self, topic_partition: &TopicPartition) {
        if !self.seen.state().resting.contains(topic_partition) {
            Source::resume(&*self.consumer, topic_partition);
        }
    }

    fn seek(&self, topic_partition: &TopicPartition, offset: i64) {
        Source::seek(&*self.consumer, topic_partition, offset);
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        let told: Vec<(i32, i64)> =
            offsets.iter().map(|commit| (commit.topic_partition.partition, commit.offset)).collect();
        let committed = Source::commit(&*self.consumer, offsets).await;
        let failed = |partition: i32| match &committed {
            Ok(()) => false,
            Err(error) => {
                error.partitions.is_empty() || error.partitions.iter().any(|p| p.partition == partition)
            }
        };
        for (partition, offset) in told {
            if !failed(partition) {
                self.journal.write(&Event::Committed { partition, offset });
            }
        }
        committed
    }

    fn events(&self) -> WatchedEvents {
        WatchedEvents {
            events: self.consumer.events(),
            consumer: Arc::clone(&self.consumer),
            journal: Arc::clone(&self.journal),
            seen: self.seen.clone(),
        }
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        self.consumer.commit_configuration()
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        Source::group_metadata(&*self.consumer)
    }
}

/// The consumer's events, written down as they pass.
pub struct WatchedEvents {
    events: Events,
    consumer: Arc<Consumer>,
    journal: Arc<Journal>,
    seen: Seen,
}

impl WatchedEvents {
    fn note(&self, event: &SourceEvent) {
        let mut state = self.seen.state();
        let mut forget = |partitions: &[TopicPartition]| {
            for place in partitions {
                state.touched.remove(place);
                state.resting.remove(place);
            }
        };
        match event {
            SourceEvent::Assigned { generation, partitions } => {
                forget(partitions);
                state.was_assigned = true;
                drop(state);
                // One that was at rest under an earlier assignment is not at its end in this one.
                self.consumer.resume(partitions);
                if !partitions.is_empty() {
                    self.journal
                        .write(&Event::Assigned { generation: *generation, partitions: numbers(partitions) });
                }
            }
            SourceEvent::Revoked { partitions, .. } => {
                forget(partitions);
                drop(state);
                self.journal.write(&Event::Revoked { partitions: numbers(partitions) });
            }
            SourceEvent::Lost { partitions } => {
                forget(partitions);
                drop(state);
                self.journal.write(&Event::Lost { partitions: numbers(partitions) });
            }
            SourceEvent::SetBack { partitions, .. } => forget(partitions),
            _ => {}
        }
    }
}

fn numbers(partitions: &[TopicPartition]) -> Vec<i32> {
    partitions.iter().map(|place| place.partition).collect()
}

impl SourceEvents for WatchedEvents {
    async fn next(&mut self) -> Option<SourceEvent> {
        let event = SourceEvents::next(&mut self.events).await?;
        self.note(&event);
        Some(event)
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        let event = SourceEvents::try_next(&mut self.events)?;
        self.note(&event);
        Some(event)
    }
}
