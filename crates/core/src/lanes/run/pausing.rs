//! When partitions are paused, and when nothing is read at all.

use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::TopicPartition;

use super::{Effect, LanePhase, Partition, Phase, Run};
use crate::lanes::{Backoff, LaneNumber};
use crate::time::Instant;

/// A partition that could not be read on is tried again after this, then after twice as long, and so on.
const FETCH_RETRY: Duration = Duration::from_secs(1);
const FETCH_RETRY_MAX: Duration = Duration::from_secs(30);

/// A partition that cannot be read on.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    /// When it is tried again.
    pub until: Option<Instant>,
    /// How often it was tried in vain since the last batch.
    attempts: u32,
}

impl<B> Run<B> {
    /// Whether the source may be asked for a batch.
    #[must_use]
    pub fn wants_batches(&self) -> bool {
        self.phase == Phase::Running && !(self.config.await_capacity && self.awaits_capacity())
    }

    fn awaits_capacity(&self) -> bool {
        let running =
            |lane: LaneNumber| self.lanes.get(&lane).is_some_and(|entry| entry.phase == LanePhase::Running);
        self.partitions
            .values()
            .any(|partition| (partition.full || partition.over_bytes) && partition.lane.is_some_and(running))
    }

    /// Whether the source was asked to pause the partition.
    #[must_use]
    pub fn is_paused(&self, partition: &TopicPartition) -> bool {
        self.partitions.get(partition).is_some_and(|partition| partition.paused)
    }

    /// The batch just delivered filled the lane.
    pub fn handle_lane_full(&mut self, lane: LaneNumber) {
        self.with_partition(lane, |partition| partition.full = true);
    }

    /// The lane took nothing of the batch just delivered, which starts at `first_offset`: its processor has
    /// ended, and the news of that is on its way.
    pub fn handle_lane_refused(&mut self, lane: LaneNumber, first_offset: i64) {
        self.with_partition(lane, |partition| partition.rewind(first_offset));
    }

    /// The lane has room again. The driver looks whether that still holds before it says so: the lane may
    /// have been filled again since it gave the signal.
    pub fn handle_lane_room(&mut self, lane: LaneNumber) {
        self.with_partition(lane, |partition| partition.full = false);
    }

    /// All lanes together hold more bytes than they should, and this lane was just given more.
    pub fn handle_bytes_over(&mut self, lane: LaneNumber) {
        self.with_partition(lane, |partition| partition.over_bytes = true);
    }

    /// The lane holds no bytes any more: whatever others hold, it may be given a batch.
    pub fn handle_lane_holds_nothing(&mut self, lane: LaneNumber) {
        self.with_partition(lane, |partition| partition.over_bytes = false);
    }

    /// There is room for more bytes again.
    pub fn handle_bytes_room(&mut self) {
        for tp in self.partitions.keys().cloned().collect::<Vec<_>>() {
            if let Some(partition) = self.partitions.get_mut(&tp) {
                partition.over_bytes = false;
            }
            self.set_pause(&tp);
        }
    }

    fn with_partition(&mut self, lane: LaneNumber, change: impl FnOnce(&mut Partition<B>)) {
        let Some(tp) = self.lanes.get(&lane).map(|entry| entry.id.topic_partition.clone()) else {
            return;
        };
        if let Some(partition) = self.partitions.get_mut(&tp).filter(|partition| partition.lane == Some(lane))
        {
            change(partition);
            self.set_pause(&tp);
        }
    }

    /// Brings the source's pause in line with what the run wants for the partition.
    pub(super) fn set_pause(&mut self, tp: &TopicPartition) {
        let Some(partition) = self.partitions.get_mut(tp) else {
            return;
        };
        let full = !self.config.await_capacity && (partition.full || partition.over_bytes);
        let wanted = full
            || !partition.parked.is_empty()
            || partition.failures.hold_back()
            || partition.blocked.until.is_some();
        if wanted == partition.paused || self.phase != Phase::Running {
            return;
        }
        partition.paused = wanted;
        let tp = tp.clone();
        self.effects.push_back(if wanted { Effect::Pause(tp) } else { Effect::Resume(tp) });
    }

    /// The source cannot read on in the partition. It is left alone for a while and then tried again; the others
    /// go on.
    pub fn handle_fetch_blocked(&mut self, now: Instant, tp: &TopicPartition) {
        let random = self.jitter.draw();
        if let Some(partition) = self.partitions.get_mut(tp).filter(|_| self.phase == Phase::Running) {
            let blocked = &mut partition.blocked;
            blocked.attempts = blocked.attempts.saturating_add(1);
            blocked.until =
                Some(now + Backoff::new(FETCH_RETRY, FETCH_RETRY_MAX).delay(blocked.attempts, random));
            self.set_pause(tp);
        }
    }

    pub(super) fn retry_fetches(&mut self, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        let is_due = |partition: &Partition<B>| partition.blocked.until.is_some_and(|until| until <= now);
        let due: Vec<TopicPartition> = self
            .partitions
            .iter()
            .filter(|(_, partition)| is_due(partition))
            .map(|(tp, _)| tp.clone())
            .collect();
        for tp in due {
            if let Some(partition) = self.partitions.get_mut(&tp) {
                partition.blocked.until = None;
            }
            self.set_pause(&tp);
        }
    }
}
