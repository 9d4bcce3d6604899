//! What the failure of a handler means: the choices as users write them, and one decision per failure.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tramline_core::lanes::{Backoff, OnFailure, ParkingConfig};

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
    /// The lane ends and starts again at its frontier after a while: what was not completed comes again, and
    /// without [`commit_metadata`](crate::PartitionedBuilder::commit_metadata) also what was completed above the
    /// frontier. The wait grows until the frontier moves. Other lanes go on.
    RestartLane(Backoff),
    /// Exactly the failed record (in a batch handler, the failed batch) counts as completed; the report tells
    /// how many there were.
    Skip,
    /// The failed record is written elsewhere, and counts as completed once that is acknowledged.
    DeadLetter(DeadLetterTo),
    /// The failed record is handled again, after a wait; then another policy decides. A record that cannot be
    /// decoded goes to that policy at once: its bytes will be the same.
    Retry(Retry),
    /// The failed record's key stops there, and other keys go on, until somebody decides.
    Park(Park),
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
    pub fn then(mut self, policy: impl Into<ErrorPolicy>) -> ErrorPolicy {
        self.then = Box::new(policy.into());
        ErrorPolicy::Retry(self)
    }
}

impl From<Retry> for ErrorPolicy {
    fn from(retry: Retry) -> Self {
        Self::Retry(retry)
    }
}

/// Parking a failed record with its later ones.
///
/// In key order the record's key is parked: its records wait in their order, and other keys go on. In partition
/// order the whole partition is, and without an order the record alone (in a batch handler, the batch). Through
/// [`ParkedKeys`](crate::ParkedKeys) a person or a program then has each handled again, skipped or written
/// elsewhere.
///
/// The frontier stays below parked records, so that they come again whatever happens: after a revocation, a
/// loss, a shutdown or a crash they are unfinished, and whoever has the partition next handles them. A drain
/// does not wait for them.
///
/// What is parked is bounded. When as many keys, or as many records, are parked as may be, the partition is
/// held back: nothing more of it is handed out, its queue fills, the source is paused. What was handed out by
/// then may still fail and is parked, too. With [`when_full`](Self::when_full) another policy decides about
/// keys that fail then. Records behind a parked one have no other place, so that their bound holds the
/// partition back in any case.
#[derive(Clone, Debug)]
pub struct Park {
    max_keys: usize,
    max_records: usize,
    when_full: Option<Box<ErrorPolicy>>,
}

impl Default for Park {
    fn default() -> Self {
        Self { max_keys: 100, max_records: 1_000, when_full: None }
    }
}

impl Park {
    /// At most 100 keys and 1,000 records of each partition; then the partition is held back.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many keys of each partition may be parked. More let a partition go on longer beside failures that
    /// nobody looks at, and grow what must be handled again after a crash.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// How many records of each partition may be parked, failed ones and those behind them. They are kept in
    /// memory; a small record of a large batch is copied for that, so that it does not keep its batch. What they
    /// keep counts among the [bytes of the run](crate::PartitionedBuilder::max_buffered_bytes), which may hold
    /// the partition back before this number does.
    #[must_use]
    pub fn max_records(mut self, records: usize) -> Self {
        self.max_records = records;
        self
    }

    /// What happens to a key that fails when no more may be parked, instead of holding the partition back; not
    /// a retry, and not parking.
    #[must_use]
    pub fn when_full(mut self, policy: ErrorPolicy) -> Self {
        self.when_full = Some(Box::new(policy));
        self
    }
}

impl From<Park> for ErrorPolicy {
    fn from(park: Park) -> Self {
        Self::Park(park)
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
    Park,
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
    /// How much may be parked.
    pub parking: ParkingConfig,
}

#[derive(Clone)]
enum Last {
    Skip,
    Bury(Arc<dyn AnyDeadLetters>),
    Fail,
    Park { when_full: Option<Box<Last>> },
}

impl Last {
    fn decision(&self, parking_is_full: bool) -> Decision {
        match self {
            Self::Skip => Decision::Skip,
            Self::Bury(letters) => Decision::Bury(Arc::clone(letters)),
            Self::Fail => Decision::Fail,
            Self::Park { when_full: Some(last) } if parking_is_full => last.decision(parking_is_full),
            Self::Park { .. } => Decision::Park,
        }
    }
}

const BACKOFF_IS_WRONG: &str = "the first wait must be longer than zero and the longest not below it";

const fn invalid(why: &'static str) -> ConfigErrorKind {
    ConfigErrorKind::OutOfRange { setting: "on_error", why }
}

/// What a failure comes to in the end, and what the failure of a lane means.
fn last(policy: ErrorPolicy) -> Result<(Last, OnFailure), ConfigErrorKind> {
    Ok(match policy {
        ErrorPolicy::Retry(_) => return Err(invalid("a retry comes first, and only once")),
        ErrorPolicy::RestartLane(backoff) if !backoff.is_valid() => return Err(invalid(BACKOFF_IS_WRONG)),
        ErrorPolicy::StopRun => (Last::Fail, OnFailure::StopRun),
        ErrorPolicy::StopPartition => (Last::Fail, OnFailure::StopPartition),
        ErrorPolicy::RestartLane(backoff) => (Last::Fail, OnFailure::RestartLane(backoff)),
        ErrorPolicy::Skip => (Last::Skip, OnFailure::StopRun),
        ErrorPolicy::DeadLetter(DeadLetterTo { letters, stop_partition }) => {
            let on_failure = if stop_partition { OnFailure::StopPartition } else { OnFailure::StopRun };
            (Last::Bury(letters), on_failure)
        }
        ErrorPolicy::Park(Park { max_keys: 0, .. } | Park { max_records: 0, .. }) => {
            return Err(invalid("at least 1 key and 1 record must be allowed to be parked"));
        }
        ErrorPolicy::Park(Park { when_full, .. }) => match when_full.map(|policy| *policy) {
            None => (Last::Park { when_full: None }, OnFailure::StopRun),
            Some(ErrorPolicy::Park(_)) => {
                return Err(invalid("what happens when no more may be parked cannot be parking"));
            }
            Some(policy) => {
                let (last, on_failure) = last(policy)?;
                (Last::Park { when_full: Some(Box::new(last)) }, on_failure)
            }
        },
    })
}

impl Policy {
    pub(crate) fn new(policy: ErrorPolicy) -> Result<Self, ConfigErrorKind> {
        let (attempts, backoff, then) = match policy {
            ErrorPolicy::Retry(Retry { attempts: 0, .. }) => {
                return Err(invalid("there must be at least 1 attempt"));
            }
            ErrorPolicy::Retry(retry) if !retry.backoff.is_valid() => return Err(invalid(BACKOFF_IS_WRONG)),
            ErrorPolicy::Retry(retry) => (retry.attempts, retry.backoff, *retry.then),
            other => (1, Backoff::default(), other),
        };
        let parking = match &then {
            ErrorPolicy::Park(park) => ParkingConfig {
                max_keys: park.max_keys,
                max_records: park.max_records,
                holds_back: park.when_full.is_none(),
            },
            _ => ParkingConfig::default(),
        };
        let (last, on_failure) = last(then)?;
        Ok(Self { attempts, backoff, last, on_failure, parking })
    }

    /// Whether every failure of a handler is one of its lane.
    pub(crate) const fn always_fails(&self) -> bool {
        self.attempts == 1 && matches!(self.last, Last::Fail)
    }

    /// How often a record is handled in all, before what comes last.
    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What to do when attempt number `attempts`, counted from 1, has failed; `pointless` when another one
    /// would fail the same way.
    pub(crate) fn decide(
        &self,
        attempts: u32,
        random: u64,
        pointless: bool,
        parking_is_full: bool,
    ) -> Decision {
        if attempts < self.attempts && !pointless {
            return Decision::Again(self.backoff.delay(attempts, random));
        }
        self.last.decision(parking_is_full)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 1,
            backoff: Backoff::default(),
            last: Last::Fail,
            on_failure: OnFailure::StopRun,
            parking: ParkingConfig::default(),
        }
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
