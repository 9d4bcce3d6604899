//! Partitions for records without a key: in turn, or one until its batch is full.

/// One partition after the other, from 0.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    next: u32,
}

impl RoundRobin {
    /// Starts at partition 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts at partition `first` modulo the count: producers that start together then do not all begin with the same.
    #[must_use]
    pub fn starting_at(first: u32) -> Self {
        Self { next: first }
    }

    /// The next partition of `count`. `None` when `count` is not positive.
    pub fn next_partition(&mut self, count: i32) -> Option<i32> {
        let unsigned = u32::try_from(count).ok().filter(|&count| count > 0)?;
        let partition = self.next % unsigned;
        self.next = self.next.wrapping_add(1);
        Some(partition.cast_signed())
    }
}

/// One partition until its batch is closed, then another at random: fewer and larger batches than in turn, and even
/// over time.
#[derive(Debug, Clone)]
pub struct Sticky {
    current: Option<i32>,
    random: u64,
}

impl Sticky {
    /// Starts with nothing chosen; `seed` decides the choices, so that producers should each have their own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { current: None, random: seed }
    }

    /// The partition of `count` to stay with. `None` when `count` is not positive.
    pub fn partition(&mut self, count: i32) -> Option<i32> {
        match self.current {
            Some(current) if current < count => Some(current),
            _ => {
                self.current = None;
                self.switch(count)
            }
        }
    }

    /// Leaves `closed`, the partition whose batch was closed, for another of `count`. Does nothing when the choice
    /// moved on already, as when two batches close at once.
    pub fn batch_closed(&mut self, closed: i32, count: i32) {
        if self.current == Some(closed) {
            self.switch(count);
        }
    }

    fn switch(&mut self, count: i32) -> Option<i32> {
        let unsigned = u64::try_from(count).ok().filter(|&count| count > 0)?;
        let chosen = match self.current.filter(|&current| current < count && count > 1) {
            None => self.draw(unsigned),
            Some(current) => {
                // One of the others: a draw among one less, moved past the one to leave.
                let draw = self.draw(unsigned - 1);
                if draw >= current { draw + 1 } else { draw }
            }
        };
        self.current = Some(chosen);
        self.current
    }

    /// A number below `bound`, which is at most 2^31, by SplitMix64.
    fn draw(&mut self, bound: u64) -> i32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) % bound) as i32
    }
}
