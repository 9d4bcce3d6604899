//! What a lane says of itself to those who watch it.

use super::{HasOffset, Lane};

impl<R: HasOffset> Lane<R> {
    /// The record for which the lane waits because it may not run further ahead of it.
    #[must_use]
    pub fn held_back_by(&self) -> Option<i64> {
        self.tracker.oldest_unfinished().filter(|_| self.tracker.ahead() >= self.max_ahead)
    }

    /// The highest completed record offset; it may lie above the frontier.
    #[must_use]
    pub const fn last_processed(&self) -> Option<i64> {
        self.tracker.last_processed()
    }

    /// How many records wait in the queue.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.buffered.used()
    }

    /// How many records are out and not completed.
    #[must_use]
    pub const fn unfinished(&self) -> usize {
        self.tracker.unfinished()
    }

    /// The oldest record that is out and not completed.
    #[must_use]
    pub fn oldest_unfinished(&self) -> Option<i64> {
        self.tracker.oldest_unfinished()
    }

    /// How many records were handed out.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.tracker.delivered()
    }

    /// The offset after the last record that was handed out, or passed over behind it; none before any was.
    #[must_use]
    pub fn position(&self) -> Option<i64> {
        self.tracker.next_offset()
    }

    /// How many records were completed.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed
    }
}
