//! From how lanes and run ended to what the caller is told.

use std::any::Any;
use std::fmt;

use tokio::task::JoinError;
use tokio::time::Instant;
use tramline_core::lanes::{CommitRefusal, EndCause, LaneId, LaneNumber, RunEnd};

use super::{Driver, StartLane};
use crate::error::{BoxError, LaneCommitError, RunEndReason, RunError, RunReport};
use crate::lane::lock;
use crate::source::Source;

/// How a lane's processor failed.
pub(crate) enum LaneFailure {
    Handler {
        offset: Option<i64>,
        error: BoxError,
    },
    /// The record could not be decoded.
    Undecodable {
        offset: Option<i64>,
        error: BoxError,
    },
    Panicked(String),
    /// The record could not be written elsewhere after it failed for this cause.
    DeadLetter {
        offset: Option<i64>,
        error: BoxError,
        cause: String,
    },
    EndedEarly,
    OutOfOrder {
        offset: i64,
        expected: i64,
    },
}

impl fmt::Display for LaneFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler { error, .. } => write!(f, "{error}"),
            Self::Undecodable { error, .. } => write!(f, "cannot be decoded: {error}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::DeadLetter { error, cause, .. } => {
                write!(f, "no dead letter could be written: {error}; the record failed with: {cause}")
            }
            Self::EndedEarly => f.write_str("returned although the partition is still assigned"),
            Self::OutOfOrder { offset, expected } => write!(f, "offset {offset} came after {}", expected - 1),
        }
    }
}

impl LaneFailure {
    /// The failure of a task that did not return; none when it was dropped on purpose.
    pub(super) fn of(error: JoinError) -> Option<Self> {
        error.try_into_panic().ok().map(|payload| Self::Panicked(panic_message(payload.as_ref())))
    }
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

impl From<CommitRefusal> for LaneCommitError {
    fn from(refusal: CommitRefusal) -> Self {
        match refusal {
            CommitRefusal::NoGroup => Self::NoGroup,
            CommitRefusal::Failed => Self::Failed,
            CommitRefusal::Fenced => Self::Fenced,
            CommitRefusal::Unauthorised => Self::Unauthorised,
            _ => Self::LaneClosed,
        }
    }
}

impl<S: Source, L: StartLane> Driver<'_, S, L> {
    /// What the run comes to.
    pub(super) fn conclude(mut self, end: RunEnd) -> Result<RunReport, RunError> {
        let mut report = Box::new(std::mem::take(&mut self.report));
        report.reason = match end.cause {
            EndCause::Shutdown => RunEndReason::Shutdown,
            EndCause::SourceClosed => RunEndReason::SourceClosed,
            _ => RunEndReason::Failed,
        };
        report.stale_batches = end.stale_batches;
        lock(&self.shared.registry.totals).stale_batches = end.stale_batches;
        report.take(&self.shared.registry.stats(Instant::now()));
        report.uncommitted =
            end.uncommitted.iter().map(|(tp, frontier)| (tp.clone(), frontier.offset)).collect();
        report.lanes = self.ended.drain(..).collect();
        let timed_out: Vec<LaneId> =
            end.timed_out.iter().filter_map(|lane| self.timed_out.get(lane).cloned()).collect();
        let still_running =
            end.still_running.iter().filter_map(|lane| self.timed_out.get(lane).cloned()).collect();
        let cause = end.cause;
        for &also in &end.also {
            let further = self.failure(also, &timed_out, Vec::new(), Box::default());
            report.further_failures.extend(further.err().map(|error| error.to_string()));
        }
        let commits_fail = lock(&self.shared.registry.commit_failing).take();
        if let (Some((_, error)), false) = (commits_fail, report.uncommitted.is_empty()) {
            report.further_failures.push(format!("the last commit failed: {error}"));
        }
        self.failure(cause, &timed_out, still_running, report)
    }

    fn failure(
        &mut self,
        cause: EndCause,
        timed_out: &[LaneId],
        still_running: Vec<LaneId>,
        report: Box<RunReport>,
    ) -> Result<RunReport, RunError> {
        Err(match cause {
            EndCause::Shutdown | EndCause::SourceClosed => return Ok(*report),
            EndCause::StopTimeout => {
                RunError::StopTimeout { lanes: timed_out.to_vec(), still_running, report }
            }
            EndCause::SourceFailed => RunError::Source {
                source: self.source_error.take().unwrap_or_else(|| "no reason given".into()),
                report,
            },
            EndCause::SourceBroken => RunError::SourceContract {
                what: "a batch of an assignment that was not announced".to_owned(),
                report,
            },
            EndCause::CommitRefused => RunError::CommitRefused {
                source: match self.commit_error.take() {
                    Some(error) => Box::new(error),
                    None => "no reason given".into(),
                },
                report,
            },
            EndCause::LaneFailed(lane) | EndCause::LaneEndedEarly(lane) => self.lane_failure(lane, report),
            other => RunError::SourceContract {
                what: format!("an end this driver does not know: {other:?}"),
                report,
            },
        })
    }

    fn lane_failure(&mut self, number: LaneNumber, report: Box<RunReport>) -> RunError {
        match self.failures.remove(&number) {
            Some((lane, LaneFailure::Handler { offset, error })) => {
                RunError::Handler { lane, offset, source: error, report }
            }
            Some((lane, LaneFailure::Undecodable { offset, error })) => {
                RunError::Undecodable { lane, offset, source: error, report }
            }
            Some((lane, LaneFailure::DeadLetter { offset, error, cause })) => {
                RunError::DeadLetter { lane, offset, source: error, cause, report }
            }
            Some((lane, LaneFailure::Panicked(message))) => RunError::Panicked { lane, message, report },
            Some((lane, LaneFailure::OutOfOrder { offset, expected })) => RunError::SourceContract {
                what: format!("offset {offset} of {lane} came after {}", expected - 1),
                report,
            },
            Some((lane, LaneFailure::EndedEarly)) => RunError::EndedEarly { lane, report },
            None => RunError::SourceContract {
                what: format!("lane {} failed without a reason", number.0),
                report,
            },
        }
    }
}
