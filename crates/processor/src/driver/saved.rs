//! Progress above the frontier: into the text of a commit, and out of it when a lane begins.

use std::sync::Arc;

use tramline_core::lanes::progress::{self, FoundAt, Unusable};
use tramline_core::lanes::{LaneId, LaneNumber, LaneOutcome, OnFailure, Progress, SavedProgress, Stopped};

use super::{Driver, LiveLane, StartLane};
use crate::source::{CommitOffset, Source, SourceBatch};

/// How much of a foreign text a warning shows.
const SHOWN: usize = 64;

impl<S: Source, L: StartLane> Driver<'_, S, L> {
    /// What may be committed for the lane now.
    pub(super) fn progress_of(&self, lane: &LiveLane) -> Option<Progress> {
        let cell = lane.shared.cell();
        if self.settings.commit_metadata {
            cell.lane.progress()
        } else {
            cell.lane.frontier().map(Progress::from)
        }
    }

    /// What may be committed for a lane that has ended; what the next one begins with is kept.
    pub(super) fn final_progress(
        &mut self,
        id: &LaneId,
        outcome: LaneOutcome,
        stopped: &Stopped,
    ) -> Option<Progress> {
        if !self.settings.commit_metadata {
            return stopped.final_frontier().map(Progress::from);
        }
        let progress = stopped.final_commit()?;
        let restarts = matches!(self.settings.policy.on_failure, OnFailure::RestartLane(_));
        if restarts && outcome == LaneOutcome::Failed {
            self.left_behind.insert(id.clone(), progress.clone().into());
        }
        Some(progress.clone())
    }

    pub(super) fn commit_offset(&self, (lane, progress): (LaneId, Progress)) -> CommitOffset {
        let limit = self.settings.max_commit_metadata_bytes;
        let text = if progress.done.is_empty() {
            String::new()
        } else {
            progress::encode(&progress, self.source.incarnation(&lane.topic_partition), limit)
        };
        CommitOffset::new(lane, &progress, text)
    }

    /// The lane's first batch has come: what was completed before is to be passed over.
    pub(super) fn begin_lane(&mut self, number: LaneNumber, batch: &SourceBatch) {
        let Some(live) = self.lanes.get_mut(&number) else {
            return;
        };
        let lane = Arc::clone(&live.shared);
        lane.cell().fetch_blocked = None;
        if std::mem::replace(&mut live.begun, true) || !self.settings.commit_metadata {
            return;
        }
        let left_behind = self.left_behind.remove(&lane.id);
        let Some(saved) = left_behind.or_else(|| self.committed_progress(&lane.id)) else {
            return;
        };
        let (base, begins) = (saved.base, batch.first_offset);
        if !lane.cell().lane.resume(saved, begins) {
            tracing::info!(lane = %lane.id, base, begins, "saved progress is for another offset");
        }
    }

    fn committed_progress(&self, id: &LaneId) -> Option<SavedProgress> {
        let tp = &id.topic_partition;
        let committed = self.source.committed(tp).filter(|committed| !committed.metadata.is_empty())?;
        let found = FoundAt {
            offset: committed.offset,
            incarnation: self.source.incarnation(tp),
            log_end: committed.log_end,
        };
        match progress::decode(&committed.metadata).and_then(|saved| saved.checked(found)) {
            Ok(saved) => Some(saved),
            Err(why @ (Unusable::Foreign | Unusable::OtherVersion)) => {
                let text: String = committed.metadata.chars().take(SHOWN).collect();
                tracing::warn!(lane = %id, text, %why, "the text beside the committed offset will be replaced");
                None
            }
            Err(why) => {
                tracing::warn!(lane = %id, %why, "saved progress is dropped");
                None
            }
        }
    }
}
