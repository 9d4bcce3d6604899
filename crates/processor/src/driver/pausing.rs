//! Which partitions the source is asked to pause, and those it cannot read on.

use std::error::Error;

use tokio::time::Instant;
use tramline_core::lanes::LaneNumber;
use tramline_wire::TopicPartition;

use super::{Driver, StartLane};
use crate::lane::{FetchTrouble, lock};
use crate::source::{FetchBlocked, Source};

impl<S: Source, L: StartLane> Driver<'_, S, L> {
    pub(super) fn set_paused(&mut self, partition: &TopicPartition, paused: bool) {
        if !self.paused_before.contains(partition) {
            if paused {
                self.source.pause(partition);
            } else {
                self.source.resume(partition);
            }
        }
        if let Some(lane) = self.current.get(partition).and_then(|number| self.lanes.get(number)) {
            lane.shared.set_paused(paused, Instant::now());
        }
    }

    /// A partition that comes back later comes back unpaused.
    pub(super) fn forget_pauses(&mut self, gone: &[TopicPartition]) {
        for partition in gone {
            self.paused_before.remove(partition);
        }
    }

    pub(super) fn handle_holds_nothing(&mut self, number: LaneNumber) {
        // It may have been given more meanwhile.
        let nothing = |lane: &super::LiveLane| lane.shared.cell().lane.held_bytes() == 0;
        if lock(&self.shared.bytes).is_over() && self.lanes.get(&number).is_some_and(nothing) {
            self.run.handle_lane_holds_nothing(number);
        }
    }

    /// The source cannot read on in one partition.
    pub(super) fn handle_fetch_blocked(&mut self, blocked: &FetchBlocked, error: &impl Error) {
        let partition = &blocked.topic_partition;
        self.shared.registry.count(partition, |stats| stats.fetch_failures += 1);
        let error = error.to_string();
        if let Some(lane) = self.current.get(partition).and_then(|number| self.lanes.get(number)) {
            let mut cell = lane.shared.cell();
            let known = cell.fetch_blocked.as_ref().filter(|known| known.error == error);
            let since = known.map_or_else(Instant::now, |known| known.since);
            if known.is_none() {
                tracing::warn!(lane = %lane.shared.id, offset = blocked.offset, error, "cannot be read on");
            }
            cell.fetch_blocked = Some(FetchTrouble { offset: blocked.offset, error, since });
        } else {
            tracing::warn!(%partition, offset = blocked.offset, error, "cannot be read on");
        }
        let now = self.now();
        self.run.handle_fetch_blocked(now, partition);
    }
}
