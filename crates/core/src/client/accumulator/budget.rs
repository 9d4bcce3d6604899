//! The memory that records may occupy between being accepted and being answered, handed out in the order it is asked for.

use alloc::collections::{BTreeMap, VecDeque};

/// A place in the queue for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Bounds bytes and records. Who finds no room queues, and nobody is served before those who came earlier.
///
/// A granted ticket owns its share until it is [redeemed](Self::redeem) or [cancelled](Self::cancel).
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    /// Below zero while more is held than the bound allows.
    free_bytes: i64,
    free_records: i64,
    next: u64,
    waiting: VecDeque<(Ticket, usize)>,
    granted: BTreeMap<Ticket, usize>,
    announced: VecDeque<Ticket>,
}

impl Budget {
    /// Room for this many bytes and records at once.
    #[must_use]
    pub fn new(max_bytes: usize, max_records: usize) -> Self {
        Self {
            max_bytes,
            free_bytes: signed(max_bytes),
            free_records: signed(max_records.max(1)),
            next: 0,
            waiting: VecDeque::new(),
            granted: BTreeMap::new(),
            announced: VecDeque::new(),
        }
    }

    /// The most bytes one record can ever get.
    #[must_use]
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Takes room for one record of `bytes` if there is room and nobody waits.
    pub fn try_take(&mut self, bytes: usize) -> bool {
        let fits = self.waiting.is_empty() && self.free_records > 0 && self.free_bytes >= signed(bytes);
        if fits {
            self.free_bytes -= signed(bytes);
            self.free_records -= 1;
        }
        fits
    }

    /// Takes room for many records at once, also beyond the bound: for a caller that already holds the records, so
    /// that refusing would save nothing.
    pub fn force_take(&mut self, bytes: usize, records: usize) {
        self.free_bytes -= signed(bytes);
        self.free_records -= signed(records);
    }

    /// Queues for room for one record of `bytes`.
    pub fn wait(&mut self, bytes: usize) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.push_back((ticket, bytes.min(self.max_bytes)));
        self.grant();
        ticket
    }

    /// Whether somebody waits: what is buffered should leave without waiting for more.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Uses a granted ticket up; false when it was not granted yet.
    pub fn redeem(&mut self, ticket: Ticket) -> bool {
        self.granted.remove(&ticket).is_some()
    }

    /// Whoever waited does not want it any more.
    pub fn cancel(&mut self, ticket: Ticket) {
        match self.granted.remove(&ticket) {
            Some(bytes) => self.give_back(bytes, 1),
            None => {
                self.waiting.retain(|(waiting, _)| *waiting != ticket);
                self.grant();
            }
        }
    }

    /// Room that is free again.
    pub fn give_back(&mut self, bytes: usize, records: usize) {
        self.free_bytes += signed(bytes);
        self.free_records += signed(records);
        self.grant();
    }

    fn grant(&mut self) {
        while let Some((ticket, bytes)) = self.waiting.front().copied() {
            if self.free_records <= 0 || self.free_bytes < signed(bytes) {
                return;
            }
            self.free_bytes -= signed(bytes);
            self.free_records -= 1;
            self.waiting.pop_front();
            self.granted.insert(ticket, bytes);
            self.announced.push_back(ticket);
        }
    }

    /// The next ticket that was granted since the last call.
    pub fn poll_granted(&mut self) -> Option<Ticket> {
        self.announced.pop_front()
    }
}

fn signed(amount: usize) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_served_in_order_and_nobody_overtakes() {
        let mut budget = Budget::new(100, 10);
        assert!(budget.try_take(80));
        let large = budget.wait(60);
        let small = budget.wait(10);
        assert!(!budget.try_take(1), "there is room for it, but others came first");
        assert_eq!(budget.poll_granted(), None);
        budget.give_back(80, 1);
        assert_eq!(budget.poll_granted(), Some(large));
        assert_eq!(budget.poll_granted(), Some(small));
        assert!(budget.redeem(large) && budget.redeem(small));
        assert!(!budget.redeem(small), "a ticket is used once");
        assert!(budget.try_take(30));
        assert!(!budget.try_take(1));
    }

    #[test]
    fn a_cancelled_ticket_gives_its_share_to_the_next() {
        let mut budget = Budget::new(100, 10);
        assert!(budget.try_take(100));
        let (first, second, third) = (budget.wait(90), budget.wait(50), budget.wait(50));
        budget.cancel(first);
        budget.give_back(100, 1);
        assert_eq!(budget.poll_granted(), Some(second));
        assert_eq!(budget.poll_granted(), Some(third));
        budget.cancel(second);
        assert!(budget.redeem(third));
        assert!(budget.try_take(50) && !budget.try_take(1));
    }

    #[test]
    fn records_are_bounded_beside_bytes() {
        let mut budget = Budget::new(100, 2);
        assert!(budget.try_take(1) && budget.try_take(1) && !budget.try_take(1));
    }

    #[test]
    fn what_is_held_beyond_the_bound_is_paid_back_before_anybody_is_served() {
        let mut budget = Budget::new(100, 10);
        budget.force_take(150, 3);
        let ticket = budget.wait(10);
        budget.give_back(50, 1);
        assert!(!budget.redeem(ticket));
        budget.give_back(100, 2);
        assert!(budget.redeem(ticket));
    }
}
