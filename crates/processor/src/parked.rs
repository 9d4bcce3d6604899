//! Keys that stopped at a failed record: what is shown of them, and what may be done about each.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tramline_core::lanes::{JobId, LaneId};

use crate::dead_letter::DeadLetters;
use crate::error::BoxError;
use crate::lane::{LaneShared, lock};
use crate::monitor::Registry;
use crate::ordering::LaneKey;
use crate::policy::AnyDeadLetters;

/// Lists the parked keys of a run, and says what becomes of each; see [`Park`](crate::Park). From
/// [`Partitioned::parked`](crate::Partitioned::parked). Cheap to clone; empty before the run and after it.
#[derive(Clone)]
pub struct ParkedKeys {
    registry: Arc<Registry>,
}

/// Names a parked key: the lane, and the record at which the key stopped. Once that record is dealt with, the
/// id names nothing, so that what is said about it can never hit a later record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParkedId {
    /// The lane.
    pub lane: LaneId,
    /// The offset of the failed record, or of the first one of the failed batch.
    pub offset: i64,
}

/// A key that stopped at a record that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedKey {
    /// Names it.
    pub id: ParkedId,
    /// The failed record's key. In key order it is what is parked; in partition order all of the partition is,
    /// and without an order the record alone.
    pub key: LaneKey,
    /// How many records failed together: 1, or as many as the batch had.
    pub failed: usize,
    /// How many records wait behind them.
    pub waiting: usize,
    /// For how long it has been parked.
    pub since: Duration,
    /// How often it was handled; 0 when it only waited behind one that became a dead letter.
    pub attempts: u32,
    /// What the last attempt said.
    pub error: String,
    /// Whether it is just being written elsewhere.
    pub busy: bool,
}

/// Why nothing was done about a parked key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParkedError {
    /// No key is parked at this record: it was dealt with, is being handled again, or never failed.
    #[error("no key is parked at this record")]
    NotParked,
    /// The partition is not this lane's any more, or it stops. The record is unfinished, and comes again to
    /// whoever has the partition next.
    #[error("the lane is closed")]
    LaneClosed,
    /// It is just being written elsewhere.
    #[error("the key is just being dealt with")]
    Busy,
    /// A dead letter could not be written. Its record is still parked, with all that come after it.
    #[error("the dead letter for offset {offset} could not be written, after {written} others: {source}")]
    Write {
        /// The record.
        offset: i64,
        /// How many records were written before it. They count as completed.
        written: u64,
        /// Why.
        source: BoxError,
    },
}

impl ParkedError {
    /// Whether the same call may work later.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Busy | Self::Write { .. })
    }
}

impl ParkedKeys {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    /// Every parked key, by lane and offset.
    #[must_use]
    pub fn list(&self) -> Vec<ParkedKey> {
        let now = Instant::now();
        let lanes: Vec<Arc<LaneShared>> = lock(&self.registry.lanes).values().cloned().collect();
        lanes.iter().flat_map(|lane| lane.parked.list(lane, now)).collect()
    }

    /// Has the failed record handled again, with as many attempts as the policy gives a fresh one, and then
    /// those behind it in their order. Returns when it stands in line; when it fails again, it parks again
    /// under the same id. Cancel-safe: it may happen all the same.
    ///
    /// # Errors
    /// [`ParkedError::NotParked`], [`ParkedError::Busy`] or [`ParkedError::LaneClosed`].
    pub async fn resume(&self, id: &ParkedId) -> Result<(), ParkedError> {
        self.order(id, Command::Resume).await.map(drop)
    }

    /// Counts exactly the failed record (in a batch handler, the failed batch) as completed, and lets those
    /// behind it go on. Says how many records that were. Cancel-safe: it may happen all the same.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub async fn skip(&self, id: &ParkedId) -> Result<u64, ParkedError> {
        self.order(id, Command::Skip).await
    }

    /// Writes the failed record elsewhere, counts it as completed once that is acknowledged, and lets those
    /// behind it go on. When it cannot be written, it stays parked. Says how many records were written.
    /// Cancel-safe: it goes on all the same.
    ///
    /// # Errors
    /// As [`resume`](Self::resume), or [`ParkedError::Write`].
    pub async fn dead_letter(&self, id: &ParkedId, letters: impl DeadLetters) -> Result<u64, ParkedError> {
        self.order(id, Command::DeadLetter { letters: Arc::new(letters), all: false }).await
    }

    /// As [`dead_letter`](Self::dead_letter), for the failed record and then every one that waits behind it
    /// now, one after the other. The first that cannot be written stays parked, with all after it.
    ///
    /// # Errors
    /// As [`dead_letter`](Self::dead_letter).
    pub async fn dead_letter_all(
        &self,
        id: &ParkedId,
        letters: impl DeadLetters,
    ) -> Result<u64, ParkedError> {
        self.order(id, Command::DeadLetter { letters: Arc::new(letters), all: true }).await
    }

    async fn order(&self, id: &ParkedId, command: Command) -> Result<u64, ParkedError> {
        let lane = lock(&self.registry.lanes).values().find(|lane| lane.id == id.lane).cloned();
        let Some(lane) = lane else {
            return Err(ParkedError::LaneClosed);
        };
        let (reply, answer) = oneshot::channel();
        lane.parked.order(Order { offset: id.offset, command, reply })?;
        lane.wake.notify_one();
        answer.await.unwrap_or(Err(ParkedError::LaneClosed))
    }
}

impl fmt::Debug for ParkedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedKeys").finish_non_exhaustive()
    }
}

pub(crate) enum Command {
    Resume,
    Skip,
    DeadLetter { letters: Arc<dyn AnyDeadLetters>, all: bool },
}

/// What a lane is to do about a parked key.
pub(crate) struct Order {
    pub offset: i64,
    pub command: Command,
    pub reply: oneshot::Sender<Result<u64, ParkedError>>,
}

/// What a lane shows of a parked key.
pub(crate) struct Entry {
    pub job: JobId,
    pub key: LaneKey,
    pub failed: usize,
    pub behind: usize,
    pub since: Instant,
    pub attempts: u32,
    pub error: String,
    pub busy: bool,
    /// Whether all of the lane waits behind it, also what is queued.
    pub whole_lane: bool,
}

/// How much of a lane is parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParkedCounts {
    pub keys: usize,
    pub records: usize,
    /// The oldest record that failed.
    pub oldest: Option<i64>,
}

/// The parked keys of one lane, as its dispatcher keeps them up to date and others see them.
#[derive(Default)]
pub(crate) struct ParkedLane {
    state: Mutex<State>,
    ordered: AtomicBool,
}

#[derive(Default)]
struct State {
    closed: bool,
    keys: BTreeMap<i64, Entry>,
    orders: Vec<Order>,
}

impl ParkedLane {
    pub(crate) fn counts(&self) -> ParkedCounts {
        let state = lock(&self.state);
        ParkedCounts {
            keys: state.keys.len(),
            records: state.keys.values().map(|entry| entry.failed + entry.behind).sum(),
            oldest: state.keys.first_key_value().map(|(&offset, _)| offset),
        }
    }

    fn list(&self, lane: &LaneShared, now: Instant) -> Vec<ParkedKey> {
        let queued = lane.cell().lane.queued();
        let state = lock(&self.state);
        let shown = state.keys.iter().map(|(&offset, entry)| ParkedKey {
            id: ParkedId { lane: lane.id.clone(), offset },
            key: entry.key.clone(),
            failed: entry.failed,
            waiting: entry.behind + if entry.whole_lane { queued } else { 0 },
            since: now.saturating_duration_since(entry.since),
            attempts: entry.attempts,
            error: entry.error.clone(),
            busy: entry.busy,
        });
        shown.collect()
    }

    fn order(&self, order: Order) -> Result<(), ParkedError> {
        let mut state = lock(&self.state);
        match state.keys.get(&order.offset) {
            _ if state.closed => return Err(ParkedError::LaneClosed),
            None => return Err(ParkedError::NotParked),
            Some(entry) if entry.busy => return Err(ParkedError::Busy),
            Some(_) => state.orders.push(order),
        }
        self.ordered.store(true, Ordering::Release);
        Ok(())
    }

    /// What was ordered since. Costs one load when that is nothing.
    pub(crate) fn take_orders(&self) -> Vec<Order> {
        if !self.ordered.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        self.ordered.store(false, Ordering::Release);
        mem::take(&mut state.orders)
    }

    pub(crate) fn show(&self, offset: i64, entry: Entry) {
        lock(&self.state).keys.insert(offset, entry);
    }

    pub(crate) fn hide(&self, offset: i64) -> Option<Entry> {
        lock(&self.state).keys.remove(&offset)
    }

    pub(crate) fn with(&self, offset: i64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = lock(&self.state).keys.get_mut(&offset) {
            change(entry);
        }
    }

    /// Counts anew what waits behind each.
    pub(crate) fn recount(&self, behind: impl Fn(JobId) -> usize) {
        for entry in lock(&self.state).keys.values_mut() {
            entry.behind = behind(entry.job);
        }
    }

    /// Nothing can be done about the lane's keys any more. Whoever waits is told.
    pub(crate) fn close(&self) {
        let (keys, orders) = {
            let mut state = lock(&self.state);
            state.closed = true;
            (mem::take(&mut state.keys), mem::take(&mut state.orders))
        };
        // Answers are dropped, which says that the lane is closed.
        drop((keys, orders));
    }
}
