//! What every lane of a run is doing, the one reason why it is not doing more, and what was counted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tramline_core::lanes::{LaneId, LaneState};

use crate::lane::{Cell, LaneShared, Oldest, lock};
use crate::parked::ParkedCounts;
use crate::stats::RunStats;

mod reason;
mod registry;
mod watch;

pub use reason::WaitingFor;
pub(crate) use registry::{Absent, LiveProcessor, Registry};
pub(crate) use watch::{LOOK_EVERY, Watch};

/// Shows the lanes of a run from outside. Cheap to clone; shows no lane before the run and after it.
#[derive(Clone)]
pub struct Monitor {
    registry: Arc<Registry>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

/// One lane at one moment. Its numbers are its own; those of a partition over all its lanes are
/// [`PartitionStats`](crate::PartitionStats).
///
/// Displays as one line: `orders-3: retry of offset 42 in 1.2 s (attempt 2 of 5): connection refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneSnapshot {
    /// The lane.
    pub lane: LaneId,
    /// Where it stands; [`LaneState::Stopped`] for one that failed and waits to be started again, or will not
    /// be while the partition stays assigned.
    pub state: LaneState,
    /// How many records wait in its queue.
    pub queued: usize,
    /// The memory that those and the ones with its processor keep in use, in bytes.
    pub held_bytes: usize,
    /// How many are with its processor.
    pub unfinished: usize,
    /// How many different keys those have, in key order.
    pub keys: usize,
    /// How many of them are parked, with those behind them.
    pub parked: usize,
    /// How many keys that are.
    pub parked_keys: usize,
    /// How many were handed to its processor so far.
    pub delivered: u64,
    /// How many of them were completed.
    pub completed: u64,
    /// How many its processor dropped without completing them.
    pub abandoned: u64,
    /// The offset that may be committed.
    pub frontier: Option<i64>,
    /// The offset after the last record that was handed to its processor, or passed over behind it.
    pub position: Option<i64>,
    /// The highest completed record.
    pub last_processed: Option<i64>,
    /// The oldest record that is not finished, and for how long it has been seen so: from its first await, or
    /// from the first snapshot.
    pub oldest_unfinished: Option<(i64, Duration)>,
    /// Whether the source was asked to pause the partition.
    pub paused: bool,
    /// Why it does not do more than it does.
    pub waiting_for: WaitingFor,
}

impl LaneSnapshot {
    /// How many offsets lie between the frontier and what was handed out: what is done again at most when the
    /// process dies now. Zero while nothing may be committed yet.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        match (self.frontier, self.position) {
            (Some(frontier), Some(position)) => u64::try_from(position - frontier).unwrap_or(0),
            _ => 0,
        }
    }
}

impl fmt::Display for LaneSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.lane.topic_partition, self.waiting_for)
    }
}

impl Monitor {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    /// Every lane, in the order in which they were started; then the partitions whose lane failed and that
    /// have none at the moment.
    #[must_use]
    pub fn snapshot(&self) -> Vec<LaneSnapshot> {
        self.registry.snapshot(Instant::now())
    }

    /// What was counted since the run began, also after it has ended. Always there, without any feature.
    #[must_use]
    pub fn stats(&self) -> RunStats {
        self.registry.stats(Instant::now())
    }
}

impl Registry {
    pub(crate) fn snapshot(&self, now: Instant) -> Vec<LaneSnapshot> {
        let commit_failing = lock(&self.commit_failing).clone();
        let lanes: Vec<Arc<LaneShared>> = lock(&self.lanes).values().cloned().collect();
        let mut all: Vec<LaneSnapshot> =
            lanes.iter().map(|lane| snapshot(lane, now, commit_failing.as_ref())).collect();
        all.extend(lock(&self.absent).values().map(|absent| absent.snapshot(now)));
        all
    }
}

fn snapshot(lane: &LaneShared, now: Instant, commit_failing: Option<&(u32, String)>) -> LaneSnapshot {
    let parked = lane.parked.counts();
    let mut cell = lane.cell();
    cell.note_working(now);
    let since = cell.working.map(|(offset, since)| (offset, now.saturating_duration_since(since)));
    LaneSnapshot {
        waiting_for: waiting_for(&cell, now, since, parked, commit_failing),
        parked: parked.records,
        parked_keys: parked.keys,
        oldest_unfinished: since,
        paused: cell.paused_since.is_some(),
        ..counted(lane.id.clone(), &cell)
    }
}

/// What needs no clock.
fn counted(lane: LaneId, cell: &Cell) -> LaneSnapshot {
    LaneSnapshot {
        lane,
        state: cell.lane.state(),
        queued: cell.lane.queued(),
        held_bytes: cell.lane.held_bytes(),
        unfinished: cell.lane.unfinished(),
        keys: cell.keys,
        parked: 0,
        parked_keys: 0,
        delivered: cell.lane.delivered(),
        completed: cell.lane.completed(),
        abandoned: cell.abandoned,
        frontier: cell.lane.frontier().map(|frontier| frontier.offset),
        position: cell.lane.position(),
        last_processed: cell.lane.last_processed(),
        oldest_unfinished: None,
        paused: false,
        waiting_for: WaitingFor::Records,
    }
}

fn waiting_for(
    cell: &Cell,
    now: Instant,
    working: Option<(i64, Duration)>,
    parked: ParkedCounts,
    commit_failing: Option<&(u32, String)>,
) -> WaitingFor {
    let state = cell.lane.state();
    let offset = working.map(|(offset, _)| offset);
    if let Some(reason) = cell.lane.stop_reason() {
        let hurry = state == LaneState::Cancelling;
        let since = cell.stop_asked.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        return WaitingFor::Stopping { reason, hurry, offset, since };
    }
    if let Some((failures, error)) = commit_failing.filter(|_| cell.lane.frontier().is_some()) {
        return WaitingFor::Commit { failures: *failures, error: error.clone() };
    }
    let full = cell.paused_since.is_some() || state == LaneState::Paused;
    let Some((offset, since)) = working else {
        if let Some(trouble) = cell.fetch_blocked.as_ref().filter(|_| cell.lane.queued() == 0) {
            let since = now.saturating_duration_since(trouble.since);
            return WaitingFor::Fetch { offset: trouble.offset, error: trouble.error.clone(), since };
        }
        let since = cell.paused_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        return if full { WaitingFor::Full { offset, since } } else { WaitingFor::Records };
    };
    if parked.oldest == Some(offset) {
        return WaitingFor::Parked { keys: parked.keys, records: parked.records, oldest: offset, since };
    }
    let known = cell.oldest.as_ref().filter(|(of, _)| *of == offset).map(|(_, oldest)| oldest);
    match known {
        Some(Oldest::Resting { until, attempt, of, error }) => WaitingFor::Retry {
            offset,
            attempt: *attempt,
            of: *of,
            due: until.saturating_duration_since(now),
            error: error.clone(),
        },
        Some(Oldest::Buried { error }) => WaitingFor::DeadLetter { offset, since, error: error.clone() },
        _ if cell.lane.queued() > 0 && cell.lane.held_back_by().is_some() => {
            WaitingFor::Ahead { offset, since }
        }
        _ if full => WaitingFor::Full { offset: Some(offset), since },
        // One key among several: whatever else goes on, the frontier waits for it.
        Some(Oldest::Keyed { is_null }) if cell.lane.last_processed() > Some(offset) || cell.keys > 1 => {
            WaitingFor::Key { key: (!is_null).then(|| cell.oldest_key.clone()), offset, since }
        }
        _ => WaitingFor::Handler { offset, since },
    }
}
