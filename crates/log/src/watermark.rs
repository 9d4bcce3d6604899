//! The high watermark rule: which offsets consumers may see, and whose acks must wait for a barrier.

use std::collections::VecDeque;

/// Decides the high watermark of one partition; pure, owned by whoever owns the [`Log`](crate::Log).
///
/// The high watermark is the base offset of the oldest `acks=all` batch whose barrier is not done, else the log end.
/// So nobody can consume a record whose producer may yet be told that it failed, and records of weaker acks are not
/// held back by a barrier nobody asked for. It never moves backwards, and not at all after [`fence`](Self::fence).
#[derive(Clone, Debug)]
pub struct DurabilityGate {
    log_end: i64,
    barriered: i64,
    high_watermark: i64,
    fenced: bool,
    /// `acks=all` batches whose barrier is not done: base offset and the offset after the last one, ascending.
    waiting: VecDeque<(i64, i64)>,
}

impl DurabilityGate {
    /// The gate of a log that was just opened: everything below `log_end` is durable, as [`Log::open`] leaves it.
    ///
    /// [`Log::open`]: crate::Log::open
    #[must_use]
    pub fn new(log_end: i64) -> Self {
        Self { log_end, barriered: log_end, high_watermark: log_end, fenced: false, waiting: VecDeque::new() }
    }

    /// Offsets `base..next` were appended; `forced` when someone waits for their barrier (`acks=all`).
    pub fn appended(&mut self, base: i64, next: i64, forced: bool) {
        debug_assert!(base >= self.log_end && next > base, "appends come in offset order");
        self.log_end = next;
        if forced {
            self.waiting.push_back((base, next));
        }
        self.advance();
    }

    /// A barrier is done: everything below `up_to` is durable.
    pub fn barriered(&mut self, up_to: i64) {
        if self.fenced {
            return;
        }
        self.barriered = self.barriered.max(up_to);
        while self.waiting.front().is_some_and(|(_, next)| *next <= self.barriered) {
            self.waiting.pop_front();
        }
        self.advance();
    }

    /// A write or a barrier failed: the high watermark stays where it is for good.
    pub fn fence(&mut self) {
        self.fenced = true;
    }

    /// Whether an ack for a batch that ends before `next` may be sent with the promise of `acks=all`.
    ///
    /// Also asked for a deduplicated retry: the barrier of the batch it repeats may not be done yet, and may never
    /// have been asked for when the first attempt came with weaker acks.
    #[must_use]
    pub fn is_durable(&self, next: i64) -> bool {
        next <= self.barriered
    }

    /// Whether someone waits for a barrier (duplicates that wait are known to the caller only).
    #[must_use]
    pub fn needs_barrier(&self) -> bool {
        !self.fenced && !self.waiting.is_empty()
    }

    /// Consumers see offsets below this.
    #[must_use]
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// Everything below this is durable.
    #[must_use]
    pub fn barriered_up_to(&self) -> i64 {
        self.barriered
    }

    /// Whether a write or a barrier has failed.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    fn advance(&mut self) {
        if !self.fenced {
            let visible = self.waiting.front().map_or(self.log_end, |(base, _)| *base);
            self.high_watermark = self.high_watermark.max(visible);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DurabilityGate;

    #[test]
    fn records_of_weak_acks_are_seen_at_once() {
        let mut gate = DurabilityGate::new(10);
        gate.appended(10, 15, false);
        assert_eq!(gate.high_watermark(), 15);
        assert!(!gate.needs_barrier());
        assert!(!gate.is_durable(15));
    }

    #[test]
    fn a_forced_batch_hides_itself_and_all_after_it_until_its_barrier() {
        let mut gate = DurabilityGate::new(0);
        gate.appended(0, 2, false);
        gate.appended(2, 5, true);
        gate.appended(5, 9, false);
        gate.appended(9, 11, true);
        assert_eq!(gate.high_watermark(), 2);
        gate.barriered(9);
        assert_eq!(gate.high_watermark(), 9);
        gate.barriered(11);
        assert_eq!(gate.high_watermark(), 11);
    }

    #[test]
    fn a_barrier_that_ends_inside_a_forced_batch_does_not_release_it() {
        let mut gate = DurabilityGate::new(0);
        gate.appended(0, 5, true);
        gate.barriered(3);
        assert_eq!(gate.high_watermark(), 0);
        assert!(gate.needs_barrier());
    }

    #[test]
    fn a_retry_of_a_batch_without_barrier_must_wait_and_does_not_move_the_watermark_back() {
        let mut gate = DurabilityGate::new(0);
        gate.appended(0, 5, false);
        assert_eq!(gate.high_watermark(), 5);
        assert!(!gate.is_durable(5), "the retry asks for more than the first attempt did");
        gate.barriered(5);
        assert!(gate.is_durable(5));
    }

    #[test]
    fn after_a_fence_the_watermark_stays_whatever_is_reported_later() {
        let mut gate = DurabilityGate::new(0);
        gate.appended(0, 5, true);
        gate.fence();
        gate.barriered(5);
        gate.appended(5, 6, false);
        assert_eq!(gate.high_watermark(), 0);
        assert!(!gate.is_durable(5));
    }
}
