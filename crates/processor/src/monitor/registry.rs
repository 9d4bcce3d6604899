//! What a run and its lanes leave for a monitor to look at.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tokio::time::Instant;
use tramline_core::lanes::{HeldBack, LaneNumber, LaneState};
use tramline_wire::TopicPartition;

use super::{LaneSnapshot, WaitingFor, counted};
use crate::lane::{LaneShared, RunShared, lock};
use crate::stats::{PartitionStats, RunStats};

/// What a [`Monitor`](crate::Monitor) looks at.
#[derive(Default)]
pub(crate) struct Registry {
    /// The lanes that live.
    pub lanes: Mutex<BTreeMap<LaneNumber, Arc<LaneShared>>>,
    /// Partitions without a lane, because it failed.
    pub absent: Mutex<BTreeMap<TopicPartition, Absent>>,
    pub commit_failing: Mutex<Option<(u32, String)>>,
    /// What lanes counted that have ended, and what is counted for the run. Locked before `lanes` and a lane's
    /// cell, so that a lane that ends is found in exactly one of the two.
    pub totals: Mutex<RunStats>,
    pub processors: AtomicUsize,
    pub run: OnceLock<Weak<RunShared>>,
}

/// A partition whose lane failed, until it has one again or is not ours any more.
pub(crate) struct Absent {
    last: LaneSnapshot,
    why: HeldBack,
    at: Option<Instant>,
    error: String,
}

impl Absent {
    pub(crate) fn new(lane: &LaneShared, why: HeldBack, at: Option<Instant>, error: String) -> Self {
        let cell = lane.cell();
        let mut last = counted(lane.id.clone(), &cell);
        (last.state, last.unfinished, last.keys) = (LaneState::Stopped, 0, 0);
        (last.queued, last.held_bytes) = (0, 0);
        Self { last, why, at, error }
    }

    pub(crate) const fn is_restarting(&self) -> bool {
        matches!(self.why, HeldBack::Restart { .. })
    }

    /// The run stops: it gets no lane any more.
    pub(crate) const fn give_up(&mut self) {
        self.why = HeldBack::Stopped;
    }

    pub(crate) fn snapshot(&self, now: Instant) -> LaneSnapshot {
        let error = self.error.clone();
        let due = self.at.unwrap_or(now).saturating_duration_since(now);
        let waiting_for = match self.why {
            HeldBack::Restart { failures, .. } => WaitingFor::Restart { due, failures, error },
            _ => WaitingFor::Stopped { error },
        };
        LaneSnapshot { waiting_for, paused: true, ..self.last.clone() }
    }
}

/// Counts a processor for as long as it lives.
pub(crate) struct LiveProcessor(Arc<Registry>);

impl LiveProcessor {
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        registry.processors.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(registry))
    }
}

impl Drop for LiveProcessor {
    fn drop(&mut self) {
        self.0.processors.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Registry {
    /// The run begins.
    pub(crate) fn begin(&self, run: &Arc<RunShared>, max_buffered_bytes: usize) {
        // A registry has one run.
        let _ = self.run.set(Arc::downgrade(run));
        lock(&self.totals).max_buffered_bytes = max_buffered_bytes;
    }

    /// Counts something for a partition.
    pub(crate) fn count(&self, partition: &TopicPartition, count: impl FnOnce(&mut PartitionStats)) {
        let mut totals = lock(&self.totals);
        match totals.partitions.get_mut(partition) {
            Some(stats) => count(stats),
            None => count(totals.partitions.entry(partition.clone()).or_default()),
        }
    }

    /// Takes a lane that has ended out of those that live, and keeps what it counted.
    pub(crate) fn lane_ended(&self, lane: &LaneShared, failed: bool, now: Instant) {
        let mut totals = lock(&self.totals);
        let cell = lane.cell();
        let stats = totals.partitions.entry(lane.id.topic_partition.clone()).or_default();
        stats.add_lane(&cell, now);
        stats.lane_failures += u64::from(failed);
        if let (Some(reason), Some(asked)) = (cell.lane.stop_reason(), cell.stop_asked) {
            totals.stops.of(reason).note(now.saturating_duration_since(asked), 1);
        }
        drop(cell);
        lock(&self.lanes).remove(&lane.number);
    }

    /// The run is over, or was dropped.
    pub(crate) fn clear(&self) {
        lock(&self.lanes).clear();
        lock(&self.absent).clear();
        *lock(&self.commit_failing) = None;
    }

    pub(crate) fn stats(&self, now: Instant) -> RunStats {
        let totals = lock(&self.totals);
        let mut stats = totals.clone();
        for lane in lock(&self.lanes).values() {
            let cell = lane.cell();
            stats.lanes.count(cell.lane.state());
            stats.partitions.entry(lane.id.topic_partition.clone()).or_default().add_lane(&cell, now);
        }
        drop(totals);
        for absent in lock(&self.absent).values() {
            if absent.is_restarting() {
                stats.lanes.restarting += 1;
            } else {
                stats.lanes.stopped += 1;
            }
        }
        stats.processors = self.processors.load(Ordering::Relaxed);
        if let Some(run) = self.run.get().and_then(Weak::upgrade) {
            stats.buffered_bytes = lock(&run.bytes).used();
        }
        stats
    }
}
