//! A shard that a worker follows: its ledger, what waits to be folded, and what log time it probably is.

use alloc::collections::{BTreeSet, VecDeque};
use core::time::Duration;

use super::Ends;
use crate::claims::ledger::Ledger;
use crate::claims::record::ClaimRecord;
use crate::time::{Instant, Timestamp};

/// How long a worker waits at least for a task that is not due yet: the guess at log time may be a little ahead.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Shard {
    pub ledger: Ledger,
    /// Offset, append time and content of claims records that were read and not folded.
    pub waiting: VecDeque<(i64, Timestamp, Option<ClaimRecord>)>,
    pub taking: bool,
    /// Tasks that this worker tries, holds or settles.
    pub in_hand: BTreeSet<i64>,
    /// Whether it was looked for what is ours and not in hand.
    pub swept: bool,
    ends: Ends,
    /// A log time and when it was.
    clock: (Timestamp, Instant),
}

impl Shard {
    pub fn new(ledger: Ledger, ends: Ends, wall: Timestamp, now: Instant) -> Self {
        Self {
            clock: (wall.max(ledger.log_time()), now),
            ledger,
            waiting: VecDeque::new(),
            taking: true,
            in_hand: BTreeSet::new(),
            swept: false,
            ends,
        }
    }

    pub fn is_caught_up(&self) -> bool {
        self.ledger.claims_end() >= self.ends.claims && self.ledger.tasks_end() >= self.ends.tasks
    }

    /// Log time was `ledger.log_time()` a moment ago: true of what is read at the end of the log only.
    pub fn set_clock(&mut self, now: Instant) {
        self.clock = (self.ledger.log_time(), now);
    }

    /// The log time it probably is. Only decides whom to try.
    fn log_time(&self, now: Instant) -> Timestamp {
        let since = i64::try_from(now.saturating_since(self.clock.1).as_millis()).unwrap_or(i64::MAX);
        self.clock.0.saturating_add(since).max(self.ledger.log_time())
    }

    /// A task to try.
    pub fn pick(&mut self, random: Option<u64>, now: Instant) -> Option<i64> {
        if !self.taking || !self.is_caught_up() {
            return None;
        }
        let log_time = self.log_time(now);
        self.ledger.pick(log_time, random, &self.in_hand)
    }

    /// Whether there is nothing to take, as far as is known.
    pub fn is_dry(&mut self, now: Instant) -> bool {
        !self.taking || (self.is_caught_up() && self.pick(None, now).is_none())
    }

    /// When the next task can be taken that waits for its time.
    pub fn next_due(&self) -> Option<Instant> {
        if !self.taking || !self.is_caught_up() {
            return None;
        }
        let wait = self.ledger.next_due()?.saturating_sub(self.clock.0);
        let wait = Duration::from_millis(u64::try_from(wait).unwrap_or(0));
        Some(self.clock.1 + wait.max(SHORTEST_WAIT))
    }
}
