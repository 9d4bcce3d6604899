//! What can go wrong with a run, and what is told when it ends.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tramline_core::lanes::{LaneId, LaneOutcome, StopReason};
use tramline_wire::TopicPartition;

use crate::stats::RunStats;

/// Any error, as handlers and sources return them.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The settings of a run do not go together. Gives the source back.
pub struct ConfigError<S> {
    /// What is wrong.
    pub kind: ConfigErrorKind,
    /// The source, untouched.
    pub source: S,
}

impl<S> fmt::Debug for ConfigError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<S> fmt::Display for ConfigError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<S> Error for ConfigError<S> {}

/// What is wrong with the settings of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A setting is outside of its range.
    #[error("{setting}: {why}")]
    OutOfRange {
        /// The setter.
        setting: &'static str,
        /// What it must be.
        why: &'static str,
    },
    /// The source commits by itself whatever was handed out, processed or not, which would make the run's
    /// own commits worthless.
    #[error(
        "the consumer commits what it handed out, whether it was processed or not: use manual commits, turn \
         the automatic store off, or choose CommitPolicy::UserManaged"
    )]
    AutoCommit,
    /// A long-lived processor takes the records itself, one after the other.
    #[error(
        "key order and no order are for record and batch handlers; a processor of a whole lane has partition order"
    )]
    OrderingNeedsHandlers,
    /// A long-lived processor fails as a whole; only its lane, partition or run can be dealt with.
    #[error(
        "Retry, Skip and DeadLetter are for record and batch handlers; a processor of a whole lane fails as a whole"
    )]
    PolicyNeedsHandlers,
}

/// Why a run ended, when it did not fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunEndReason {
    /// It was asked to.
    #[default]
    Shutdown,
    /// The source was closed.
    SourceClosed,
    /// It failed; see the error.
    Failed,
}

/// What a run did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RunReport {
    /// Why it ended.
    pub reason: RunEndReason,
    /// How many lanes were started.
    pub lanes_started: u64,
    /// How many records were handed to processors.
    pub records_delivered: u64,
    /// How many of them were completed.
    pub records_completed: u64,
    /// How many records an earlier run had completed above the committed offset, so that they were passed over.
    pub records_already_done: u64,
    /// How often a partition could not be read on, retries included. See [`LaneReport::fetch_blocked`].
    pub fetch_failures: u64,
    /// How many records a processor dropped without completing them. They hold the frontier back.
    pub records_abandoned: u64,
    /// How many records (or batches) were handled again after a failure.
    pub retries: u64,
    /// How many records failed and were skipped. They count as completed.
    pub records_skipped: u64,
    /// How many records failed and were written elsewhere. They count as completed.
    pub records_dead_lettered: u64,
    /// How often a key was parked, see [`Park`](crate::Park). What is parked when a lane ends is not completed.
    pub keys_parked: u64,
    /// How many lanes failed, whatever was made of it.
    pub lane_failures: u64,
    /// How many commit requests worked.
    pub commits: u64,
    /// How many failed, retried ones included.
    pub commit_failures: u64,
    /// Progress that could not be committed: these partitions are read again from an older offset. The
    /// number is the offset that should have been committed.
    pub uncommitted: Vec<(TopicPartition, i64)>,
    /// Batches that came for an assignment that had gone, and were dropped.
    pub stale_batches: u64,
    /// The failures after the first one, in order; also those of handlers whose partition had been lost before
    /// they failed, which end no run, and that of the last commit when progress stayed uncommitted.
    pub further_failures: Vec<String>,
    /// The lanes that ended, in the order in which they did.
    pub lanes: Vec<LaneReport>,
}

/// What became of one lane.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaneReport {
    /// The lane.
    pub lane: LaneId,
    /// Why it stopped; none when its processor ended by itself.
    pub reason: Option<StopReason>,
    /// How far it got: everything below was completed.
    pub frontier: Option<i64>,
    /// The highest record it completed.
    pub last_processed: Option<i64>,
    /// From the request to stop to its end.
    pub stopped_in: Duration,
    /// How its processor ended.
    pub outcome: LaneOutcome,
    /// How it failed, if it did.
    pub failure: Option<String>,
    /// Why its partition could not be read on, if that was so at its end.
    pub fetch_blocked: Option<String>,
}

impl RunReport {
    /// Takes what was counted.
    pub(crate) fn take(&mut self, stats: &RunStats) {
        let total = stats.total();
        self.lanes_started = total.lanes;
        self.records_delivered = total.records_delivered;
        self.records_completed = total.records_completed;
        self.records_abandoned = total.records_abandoned;
        self.records_already_done = total.records_already_done;
        self.fetch_failures = total.fetch_failures;
        self.retries = total.retries;
        self.records_skipped = total.records_skipped;
        self.records_dead_lettered = total.records_dead_lettered;
        self.keys_parked = total.keys_parked;
        self.lane_failures = total.lane_failures;
        (self.commits, self.commit_failures) = (stats.commits, stats.commit_failures);
    }
}

/// Why a run failed. Everything that was completed and could still be committed is committed by then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A handler or processor returned an error.
    #[error("the handler of {lane} failed{}: {source}", at(*.offset))]
    Handler {
        /// The lane.
        lane: LaneId,
        /// The record it failed on; none for a long-lived processor.
        offset: Option<i64>,
        /// Its error.
        source: BoxError,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// A record could not be decoded. It is not completed.
    #[error("a record of {lane}{} cannot be decoded: {source}", at(*.offset))]
    Undecodable {
        /// The lane.
        lane: LaneId,
        /// The record.
        offset: Option<i64>,
        /// What the decoder said.
        source: BoxError,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// A record failed, and could not be written elsewhere either. It is not completed.
    #[error("no dead letter could be written for {lane}{}: {source}; the record failed with: {cause}", at(*.offset))]
    DeadLetter {
        /// The lane.
        lane: LaneId,
        /// The record, or the first of the batch.
        offset: Option<i64>,
        /// Why it could not be written.
        source: BoxError,
        /// What the handler said.
        cause: String,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// A handler or processor panicked.
    #[error("the handler of {lane} panicked: {message}")]
    Panicked {
        /// The lane.
        lane: LaneId,
        /// What it said.
        message: String,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// A long-lived processor returned although its partition was still assigned.
    #[error("the processor of {lane} returned although its partition is still assigned")]
    EndedEarly {
        /// The lane.
        lane: LaneId,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// Lanes did not stop in time, so that one processor per partition could not be promised any more.
    #[error("{} lanes did not stop in time, {} of them still run", .lanes.len(), .still_running.len())]
    StopTimeout {
        /// The lanes that did not stop in time; their handlers were dropped.
        lanes: Vec<LaneId>,
        /// Those among them whose handlers could not be dropped, because they do not reach an await. They
        /// keep their records in memory.
        still_running: Vec<LaneId>,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// The source failed as a whole. What concerns one partition only (a record larger than the consumer takes,
    /// an offset that is not in the log any more and no reset policy, a damaged batch, a topic that may not be
    /// read) ends no run: that partition's lane waits and is tried again after one second, later after up to
    /// thirty, while the others go on. That a partition has no offset to begin at, and no reset policy says
    /// where, is a mistake in the settings and does end the run.
    #[error("the source failed: {source}")]
    Source {
        /// Its error.
        source: BoxError,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// The source broke its contract.
    #[error("the source broke its contract: {what}")]
    SourceContract {
        /// How.
        what: String,
        /// What the run did.
        report: Box<RunReport>,
    },
    /// The group refuses this client's commits.
    #[error("the group refuses commits: {source}")]
    CommitRefused {
        /// What it said.
        source: BoxError,
        /// What the run did.
        report: Box<RunReport>,
    },
}

fn at(offset: Option<i64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

impl RunError {
    /// What the run did until and after the failure.
    #[must_use]
    pub fn report(&self) -> &RunReport {
        match self {
            Self::Handler { report, .. }
            | Self::Undecodable { report, .. }
            | Self::Panicked { report, .. }
            | Self::EndedEarly { report, .. }
            | Self::DeadLetter { report, .. }
            | Self::StopTimeout { report, .. }
            | Self::Source { report, .. }
            | Self::SourceContract { report, .. }
            | Self::CommitRefused { report, .. } => report,
        }
    }
}

/// Why a lane's own commit was not done. The run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaneCommitError {
    /// The partition is not this lane's any more, or the run is over. Nothing was sent for this call.
    #[error("the lane is closed")]
    LaneClosed,
    /// The source has no group.
    #[error("the source has no group to commit to")]
    NoGroup,
    /// It failed several times in a way that may pass. The progress stays to be committed.
    #[error("the commit failed repeatedly")]
    Failed,
    /// The group does not know this member or generation any more.
    #[error("the group has fenced this member")]
    Fenced,
    /// This client may not commit to the group.
    #[error("not authorised to commit")]
    Unauthorised,
}

impl LaneCommitError {
    /// Whether the same call may work later.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Failed)
    }
}
