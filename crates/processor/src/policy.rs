//! What the failure of a handler means: the choices as users write them, and one decision per failure.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tramline_core::lanes::{Backoff, OnFailure};

use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::error::{BoxError, ConfigErrorKind};

/// What the failure of a handler means: an error it returned, or a panic.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum ErrorPolicy {
    /// All lanes stop by the stop policy, what is completed is committed, and the run ends with the failure.
    #[default]
    StopRun,
    /// The lane ends, what it completed is committed, and its partition is paused for as long as it stays
    /// assigned. Other lanes go on. The failed record comes again with the next assignment.
    StopPartition,
    /// The lane ends and starts again at its frontier after a while: what was queued and not completed comes
    /// again, and in key order also what was completed above the frontier. The wait grows until the frontier
    /// moves. Other lanes go on.
    RestartLane(Backoff),
    /// Exactly the failed record (in a batch handler, the failed batch) counts as completed; the report tells
    /// how many there were.
    Skip,
    /// The failed record is written elsewhere, and counts as completed once that is acknowledged.
    DeadLetter(DeadLetterTo),
    /// The failed record is handled again, after a wait; then another policy decides.
    Retry(Retry),
}

impl ErrorPolicy {
    /// [`DeadLetter`](Self::DeadLetter) to these. When one cannot be written, the run stops.
    #[must_use]
    pub fn dead_letter(letters: impl DeadLetters) -> Self {
        Self::DeadLetter(DeadLetterTo { letters: Arc::new(letters), stop_partition: false })
    }

    /// As [`dead_letter`](Self::dead_letter), but a letter that cannot be written stops only its partition.
    #[must_use]
    pub fn dead_letter_or_stop_partition(letters: impl DeadLetters) -> Self {
        Self::DeadLetter(DeadLetterTo { letters: Arc::new(letters), stop_partition: true })
    }
}

/// Handling a failed record again.
///
/// In key order only the key waits, in partition order the partition does, and without an order nobody else.
/// When the lane stops, waiting ends: the record stays unfinished and comes again to whoever has the
/// partition next.
#[derive(Clone, Debug)]
pub struct Retry {
    attempts: u32,
    backoff: Backoff,
    then: Box<ErrorPolicy>,
}

impl Retry {
    /// Handles a record at most `attempts` times in all, with these waits in between. Then the run stops,
    /// unless [`then`](Self::then) says otherwise.
    #[must_use]
    pub fn new(attempts: u32, backoff: Backoff) -> Self {
        Self { attempts, backoff, then: Box::new(ErrorPolicy::StopRun) }
    }

    /// What happens when the last attempt failed; not another retry.
    #[must_use]
    pub fn then(mut self, policy: ErrorPolicy) -> ErrorPolicy {
        self.then = Box::new(policy);
        ErrorPolicy::Retry(self)
    }
}

impl From<Retry> for ErrorPolicy {
    fn from(retry: Retry) -> Self {
        Self::Retry(retry)
    }
}

/// Where dead letters go, from [`ErrorPolicy::dead_letter`].
#[derive(Clone)]
pub struct DeadLetterTo {
    letters: Arc<dyn AnyDeadLetters>,
    stop_partition: bool,
}

impl fmt::Debug for DeadLetterTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterTo").field("stop_partition", &self.stop_partition).finish_non_exhaustive()
    }
}

/// [`DeadLetters`] of any kind.
pub(crate) trait AnyDeadLetters: Send + Sync {
    fn write(&self, letter: DeadLetter) -> Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + '_>>;
}

impl<D: DeadLetters> AnyDeadLetters for D {
    fn write(&self, letter: DeadLetter) -> Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + '_>> {
        Box::pin(async move { DeadLetters::write(self, letter).await.map_err(Into::into) })
    }
}

/// What to do about one failure.
pub(crate) enum Decision {
    Again(Duration),
    Skip,
    Bury(Arc<dyn AnyDeadLetters>),
    Fail,
}

/// An [`ErrorPolicy`], checked and in the form in which it is asked.
#[derive(Clone)]
pub(crate) struct Policy {
    attempts: u32,
    backoff: Backoff,
    last: Last,
    /// What the failure of a lane means.
    pub on_failure: OnFailure,
}

#[derive(Clone)]
enum Last {
    Skip,
    Bury(Arc<dyn AnyDeadLetters>),
    Fail,
}

impl Policy {
    pub(crate) fn new(policy: ErrorPolicy) -> Result<Self, ConfigErrorKind> {
        let invalid = |why| Err(ConfigErrorKind::OutOfRange { setting: "on_error", why });
        let backoff_is_wrong = "the first wait must be longer than zero and the longest not below it";
        let (attempts, backoff, last) = match policy {
            ErrorPolicy::Retry(Retry { attempts: 0, .. }) => {
                return invalid("there must be at least 1 attempt");
            }
            ErrorPolicy::Retry(retry) if !retry.backoff.is_valid() => return invalid(backoff_is_wrong),
            ErrorPolicy::Retry(retry) => (retry.attempts, retry.backoff, *retry.then),
            other => (1, Backoff::default(), other),
        };
        let (last, on_failure) = match last {
            ErrorPolicy::Retry(_) => return invalid("a retry cannot be followed by a retry"),
            ErrorPolicy::RestartLane(backoff) if !backoff.is_valid() => return invalid(backoff_is_wrong),
            ErrorPolicy::StopRun => (Last::Fail, OnFailure::StopRun),
            ErrorPolicy::StopPartition => (Last::Fail, OnFailure::StopPartition),
            ErrorPolicy::RestartLane(backoff) => (Last::Fail, OnFailure::RestartLane(backoff)),
            ErrorPolicy::Skip => (Last::Skip, OnFailure::StopRun),
            ErrorPolicy::DeadLetter(DeadLetterTo { letters, stop_partition }) => {
                let on_failure = if stop_partition { OnFailure::StopPartition } else { OnFailure::StopRun };
                (Last::Bury(letters), on_failure)
            }
        };
        Ok(Self { attempts, backoff, last, on_failure })
    }

    /// Whether every failure of a handler is one of its lane.
    pub(crate) const fn always_fails(&self) -> bool {
        self.attempts == 1 && matches!(self.last, Last::Fail)
    }

    /// What to do when attempt number `attempts`, counted from 1, has failed.
    pub(crate) fn decide(&self, attempts: u32, random: u64) -> Decision {
        if attempts < self.attempts {
            return Decision::Again(self.backoff.delay(attempts, random));
        }
        match &self.last {
            Last::Skip => Decision::Skip,
            Last::Bury(letters) => Decision::Bury(Arc::clone(letters)),
            Last::Fail => Decision::Fail,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { attempts: 1, backoff: Backoff::default(), last: Last::Fail, on_failure: OnFailure::StopRun }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("attempts", &self.attempts)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}
