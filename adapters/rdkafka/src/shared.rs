//! What the source, its events and its holds share: one lock over the consumer and what is read ahead, and who to wake.
//!
//! Everything is done under the lock, polling librdkafka included, so a record is never between librdkafka and the buffer
//! while a seek or a revocation empties both.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tramline_processor::{Committed, SourceBatch};
use tramline_wire::{Record, TopicPartition};

use crate::commit::InFlight;
use crate::config::Settings;
use crate::context::{Context, give_back};
use crate::error::SourceError;
use crate::start::Starting;

/// librdkafka is polled at least this often while anybody waits: its own wake-ups are edges, and an edge can be missed.
const BACKSTOP: Duration = Duration::from_millis(500);
/// The most records of one batch.
const MAX_BATCH: usize = 500;

pub(crate) struct Shared {
    pub me: Weak<Shared>,
    state: Mutex<State>,
    pub settings: Settings,
    /// librdkafka has something, or something else changed.
    pub changed: Arc<Notify>,
    /// Commits take turns.
    pub committing: tokio::sync::Mutex<()>,
}

pub(crate) struct State {
    /// None once it is closed.
    pub consumer: Option<Arc<BaseConsumer<Context>>>,
    pub partitions: BTreeMap<TopicPartition, Partition>,
    /// How many records of a partition are read ahead.
    pub read_ahead: usize,
    /// Who had its turn last.
    pub turn: Option<TopicPartition>,
    /// The assignment that librdkafka waits for.
    pub starting: Option<Starting>,
    pub events: VecDeque<Pending>,
    pub handles: usize,
    pub generation: i32,
    pub holds: BTreeMap<u64, Hold>,
    pub next_hold: u64,
    pub commit: Option<InFlight>,
    /// How many commits were sent.
    pub commits: u64,
    /// Why it does not go on. For good: the record after a gap must not follow in a next run.
    pub error: Option<SourceError>,
    /// Handed out since the last poll, with the offset after it.
    pub open: BTreeMap<TopicPartition, i64>,
}

/// One assigned partition.
pub(crate) struct Partition {
    pub generation: i32,
    /// Where librdkafka puts its records: not taking them holds the partition back without throwing anything away.
    pub queue: Option<PartitionQueue<Context>>,
    pub read: VecDeque<Record>,
    /// The least offset that may come next. What is below came already.
    pub next: i64,
    /// The least offset that may be committed: where the assignment began, then what was committed. Commits never move back.
    pub least: i64,
    /// What the group has committed, as far as is known.
    pub committed: Option<Committed>,
    pub paused: bool,
    /// Its revocation was announced: ours still, but nothing is handed out.
    pub withheld: bool,
}

/// A revocation that is not acknowledged.
pub(crate) struct Hold {
    pub partitions: Vec<TopicPartition>,
    pub incremental: bool,
    pub deadline: Instant,
}

/// An event before it is delivered.
pub(crate) enum Pending {
    Assigned { generation: i32, partitions: Vec<TopicPartition> },
    Revoked { id: u64, partitions: Vec<TopicPartition>, deadline: Instant },
    Lost { partitions: Vec<TopicPartition> },
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        consumer: Arc<BaseConsumer<Context>>,
        settings: Settings,
        changed: Arc<Notify>,
        read_ahead: usize,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            state: Mutex::new(State {
                consumer: Some(consumer),
                partitions: BTreeMap::new(),
                read_ahead,
                turn: None,
                starting: None,
                events: VecDeque::new(),
                handles: 0,
                generation: 0,
                holds: BTreeMap::new(),
                next_hold: 0,
                commit: None,
                commits: 0,
                error: None,
                open: BTreeMap::new(),
            }),
            settings,
            changed,
            committing: tokio::sync::Mutex::new(()),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls librdkafka until `look` finds something. Takes nothing that it does not return: safe to drop.
    pub(crate) async fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let backstop = BACKSTOP.min(self.settings.max_poll_interval / 3);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let until = {
                let mut state = self.lock();
                self.pump(&mut state);
                if let Some(found) = look(&mut state) {
                    return found;
                }
                let deadline = state.holds.values().map(|hold| hold.deadline).min();
                deadline.into_iter().chain([Instant::now() + backstop]).min()
            };
            let backstop = async {
                if let Some(until) = until {
                    tokio::time::sleep_until(until).await;
                }
            };
            tokio::select! {
                () = changed => {}
                () = backstop => {}
            }
        }
    }

    /// Acknowledges a revocation.
    pub(crate) fn release(&self, id: u64) {
        self.lock().release(id);
        self.changed.notify_waiters();
    }
}

impl State {
    /// The next batch of whoever's turn it is.
    pub(crate) fn take_batch(&mut self) -> Option<SourceBatch> {
        let is_ready = |(_, partition): &(&TopicPartition, &Partition)| {
            partition.is_open() && !partition.read.is_empty()
        };
        let mut ready = self.partitions.iter().filter(is_ready).map(|(tp, _)| tp);
        let first = ready.next()?;
        let next = match &self.turn {
            Some(turn) if first <= turn => ready.find(|tp| *tp > turn).unwrap_or(first),
            _ => first,
        };
        let topic_partition = next.clone();
        let partition = self.partitions.get_mut(&topic_partition)?;
        let most = partition.read.len().min(MAX_BATCH);
        let records: Vec<Record> = partition.read.drain(..most).collect();
        let (first_offset, next_offset) = (records.first()?.offset(), records.last()?.offset() + 1);
        let generation = partition.generation;
        self.open.insert(topic_partition.clone(), next_offset);
        self.turn = Some(topic_partition.clone());
        Some(SourceBatch {
            topic_partition,
            generation,
            records,
            first_offset,
            next_offset,
            leader_epoch: None,
        })
    }

    pub(crate) fn publish(&mut self, event: Pending) {
        if self.handles > 0 {
            self.events.push_back(event);
        }
    }

    /// Gives the partitions of a hold back to librdkafka, if they are still held.
    pub(crate) fn release(&mut self, id: u64) {
        let Some(hold) = self.holds.remove(&id) else { return };
        for topic_partition in &hold.partitions {
            self.forget(topic_partition);
        }
        if let Some(consumer) = &self.consumer {
            give_back(consumer, &hold.partitions, hold.incremental);
        }
    }

    pub(crate) fn forget(&mut self, topic_partition: &TopicPartition) {
        self.partitions.remove(topic_partition);
        self.open.remove(topic_partition);
    }
}

impl Partition {
    /// Whether records of it may be handed out.
    pub(crate) fn is_open(&self) -> bool {
        !self.paused && !self.withheld
    }
}
