//! What every lane of a run is doing, and the one reason why it is not doing more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tramline_core::lanes::{LaneId, LaneState, StopReason};

use crate::lane::{LaneShared, Registry, lock};

/// Shows the lanes of a run from outside. Cheap to clone; empty before the run and after it.
#[derive(Clone)]
pub struct Monitor {
    registry: Arc<Registry>,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

/// One lane at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneSnapshot {
    /// The lane.
    pub lane: LaneId,
    /// Where it stands.
    pub state: LaneState,
    /// How many records wait in its queue.
    pub queued: usize,
    /// The memory that those and the ones with its processor keep in use, in bytes.
    pub held_bytes: usize,
    /// How many are with its processor.
    pub unfinished: usize,
    /// How many were handed to its processor so far.
    pub delivered: u64,
    /// How many of them were completed.
    pub completed: u64,
    /// How many its processor dropped without completing them.
    pub abandoned: u64,
    /// The offset that may be committed.
    pub frontier: Option<i64>,
    /// The highest completed record.
    pub last_processed: Option<i64>,
    /// Whether the source was asked to pause the partition.
    pub paused: bool,
    /// Why it does not do more than it does.
    pub waiting_for: WaitingFor,
}

/// The one reason why a lane is not further; when several hold, the first of this list that is not plain work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitingFor {
    /// It stops, and what is left is being finished.
    Stopping {
        /// Why it stops.
        reason: StopReason,
        /// Whether the rest is dropped instead of finished.
        hurry: bool,
        /// The oldest record that is not finished.
        offset: Option<i64>,
        /// How long ago it was told to stop.
        since: Duration,
    },
    /// Commits fail; records go on.
    Commit {
        /// How many failed in a row.
        failures: u32,
        /// The last failure.
        error: String,
    },
    /// The source cannot read on in the partition; it is tried again from time to time.
    Fetch {
        /// Where the partition stands, when it has a position.
        offset: Option<i64>,
        /// What the source says.
        error: String,
        /// How long ago it said so first.
        since: Duration,
    },
    /// It may not run further ahead of this record, which is not finished
    /// ([`max_ahead`](crate::PartitionedBuilder::max_ahead)).
    Ahead {
        /// The oldest record that is not finished.
        offset: i64,
        /// For how long it has been seen unfinished.
        since: Duration,
    },
    /// Its queue or the run's memory is full, because this record is not finished.
    Full {
        /// The oldest record that is not finished.
        offset: Option<i64>,
        /// For how long it has been seen unfinished.
        since: Duration,
    },
    /// The processor works on this record.
    Handler {
        /// The oldest record that is not finished.
        offset: i64,
        /// For how long it has been seen unfinished: from its first await, or from the first snapshot.
        since: Duration,
    },
    /// Nothing to do: the source has no record for it.
    Records,
}

impl Monitor {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }

    /// Every lane, in the order in which they were started.
    #[must_use]
    pub fn snapshot(&self) -> Vec<LaneSnapshot> {
        let now = Instant::now();
        let commit_failing = lock(&self.registry.commit_failing).clone();
        let lanes: Vec<Arc<LaneShared>> = lock(&self.registry.lanes).values().cloned().collect();
        lanes.iter().map(|lane| snapshot(lane, now, commit_failing.as_ref())).collect()
    }
}

fn snapshot(lane: &LaneShared, now: Instant, commit_failing: Option<&(u32, String)>) -> LaneSnapshot {
    let mut cell = lane.cell();
    cell.note_working(now);
    let state = cell.lane.state();
    let paused = lane.paused.load(Ordering::Relaxed);
    let offset = cell.lane.oldest_unfinished();
    let since = cell.working.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(since));
    let trouble = cell.fetch_blocked.as_ref().filter(|_| cell.lane.queued() == 0 && offset.is_none());
    let held_back = cell.lane.held_back_by().filter(|_| cell.lane.queued() > 0);
    let waiting_for = match (cell.lane.stop_reason(), commit_failing, offset) {
        (Some(reason), _, _) => WaitingFor::Stopping {
            reason,
            hurry: state == LaneState::Cancelling,
            offset,
            since: cell.stop_asked.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked)),
        },
        (None, Some((failures, error)), _) => {
            WaitingFor::Commit { failures: *failures, error: error.clone() }
        }
        (None, None, None) if trouble.is_some() => {
            trouble.map_or(WaitingFor::Records, |trouble| WaitingFor::Fetch {
                offset: trouble.offset,
                error: trouble.error.clone(),
                since: now.saturating_duration_since(trouble.since),
            })
        }
        (None, None, Some(offset)) if held_back.is_some() => WaitingFor::Ahead { offset, since },
        (None, None, _) if paused || state == LaneState::Paused => WaitingFor::Full { offset, since },
        (None, None, Some(offset)) => WaitingFor::Handler { offset, since },
        (None, None, None) => WaitingFor::Records,
    };
    LaneSnapshot {
        lane: lane.id.clone(),
        state,
        queued: cell.lane.queued(),
        held_bytes: cell.lane.held_bytes(),
        unfinished: cell.lane.unfinished(),
        delivered: cell.lane.delivered(),
        completed: cell.lane.completed(),
        abandoned: cell.abandoned,
        frontier: cell.lane.frontier().map(|frontier| frontier.offset),
        last_processed: cell.lane.last_processed(),
        paused,
        waiting_for,
    }
}
