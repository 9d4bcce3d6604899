//! Tells, as events, of lanes that do not move: when the reason changes, and not more than a few at a time.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use tramline_wire::TopicPartition;

use super::{LaneSnapshot, WaitingFor};

/// How often the lanes are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A record that is not finished for so long is worth telling.
const LONG: Duration = Duration::from_secs(10);
/// How many lanes are told of by name at one look.
const TOLD_AT_ONCE: usize = 16;

/// What was told of a lane last.
type Told = (Discriminant<WaitingFor>, Option<i64>);

/// What was told of which lanes.
#[derive(Default)]
pub(crate) struct Watch {
    told: HashMap<TopicPartition, Told>,
}

impl Watch {
    /// Looks at every lane, and tells of those whose reason has changed.
    pub(crate) fn look(&mut self, lanes: &[LaneSnapshot]) {
        let mut told = HashMap::new();
        let mut more = 0_usize;
        let mut left = TOLD_AT_ONCE;
        let mut may_tell = || {
            let may = left > 0;
            left = left.saturating_sub(1);
            more += usize::from(!may);
            may
        };
        for lane in lanes {
            let partition = &lane.lane.topic_partition;
            let before = self.told.remove(partition);
            if !is_worth_telling(lane) {
                if before.is_some() && may_tell() {
                    tracing::info!(lane = %lane.lane, frontier = ?lane.frontier, "lane moves again");
                }
                continue;
            }
            let now = (discriminant(&lane.waiting_for), lane.oldest_unfinished.map(|(offset, _)| offset));
            if before != Some(now) && may_tell() {
                let frontier = lane.frontier;
                tracing::warn!(lane = %lane.lane, ?frontier, reason = %lane.waiting_for, "lane does not move");
            }
            told.insert(partition.clone(), now);
        }
        self.told = told;
        if more > 0 {
            tracing::warn!(lanes = more, "more lanes changed than are told of one by one");
        }
    }
}

/// Whether a person should look: anything but plain work, a full queue that empties, and a drain in time.
fn is_worth_telling(lane: &LaneSnapshot) -> bool {
    match &lane.waiting_for {
        WaitingFor::Records => false,
        WaitingFor::Handler { .. } | WaitingFor::Key { .. } | WaitingFor::DeadLetter { .. } => {
            lane.oldest_unfinished.is_some_and(|(_, since)| since >= LONG)
        }
        WaitingFor::Full { since, .. } | WaitingFor::Stopping { since, .. } => *since >= LONG,
        _ => true,
    }
}
