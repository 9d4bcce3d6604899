//! A limit with two marks: over at the high one, room again at the low one.

/// Counts what is held and says when to stop and when to go on taking more.
///
/// Two marks instead of one keep a full lane from toggling with every record. The amount that crosses the
/// high mark is taken all the same, so that one piece larger than the limit cannot block for ever.
#[derive(Clone, Debug)]
pub struct Budget {
    high: usize,
    low: usize,
    used: usize,
    over: bool,
}

impl Budget {
    /// A budget that is over at `high` and has room again at half of it.
    #[must_use]
    pub const fn new(high: usize) -> Self {
        Self::with_low(high, high / 2)
    }

    /// A budget that is over at `high` and has room again at `low`.
    #[must_use]
    pub const fn with_low(high: usize, low: usize) -> Self {
        Self { high, low, used: 0, over: false }
    }

    /// What is held now.
    #[must_use]
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Whether the high mark was reached and the low one not yet again.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Takes `amount` more. True at the moment the high mark is reached, once until there was room again.
    pub const fn take(&mut self, amount: usize) -> bool {
        self.used = self.used.saturating_add(amount);
        if self.over || self.used < self.high {
            return false;
        }
        self.over = true;
        true
    }

    /// Gives `amount` back. True at the moment there is room again, once until the next time it is over.
    pub const fn give_back(&mut self, amount: usize) -> bool {
        self.used = self.used.saturating_sub(amount);
        if !self.over || self.used > self.low {
            return false;
        }
        self.over = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t197_pauses_at_the_high_mark_and_resumes_at_the_low_one_with_one_toggle_per_cycle() {
        let mut budget = Budget::new(8);
        for _ in 0..3 {
            let overs = (0..8).filter(|_| budget.take(1)).count();
            assert_eq!(overs, 1);
            let rooms = (0..8).filter(|_| budget.give_back(1)).count();
            assert_eq!(rooms, 1);
        }
    }

    #[test]
    fn t191_a_budget_that_is_never_full_gives_no_signal() {
        let mut budget = Budget::new(8);
        for _ in 0..100 {
            assert!(!budget.take(7));
            assert!(!budget.give_back(7));
        }
    }

    #[test]
    fn a_budget_of_one_has_room_when_it_is_empty() {
        let mut budget = Budget::new(1);
        assert!(budget.take(1));
        assert!(budget.give_back(1));
        assert!(!budget.is_over());
    }

    #[test]
    fn one_piece_above_the_limit_is_taken_alone() {
        let mut budget = Budget::new(10);
        assert!(budget.take(1000));
        assert!(budget.is_over());
        assert_eq!(budget.used(), 1000);
        assert!(budget.give_back(1000));
        assert_eq!(budget.used(), 0);
    }
}
