//! What opening a log found out: proven, cut, damaged.

use std::fmt;

/// Offsets that are lost although they were durable once, and the bytes that stand in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The first offset that is lost.
    pub from: i64,
    /// The first offset after them that is there again.
    pub next: i64,
    /// The bytes in their place; they are kept.
    pub bytes: u64,
}

/// What opening a log found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The first offset of the log.
    pub log_start: i64,
    /// The offset the next record gets.
    pub log_end: i64,
    /// Everything below was known to be durable before the log was opened ("barriered up to").
    pub mark: i64,
    /// Whether the log had been closed cleanly.
    pub clean: bool,
    /// Segments there are.
    pub segments: usize,
    /// Batches whose CRC was checked and found right.
    pub proven_batches: u64,
    /// Batches below the mark of which only the header was looked at.
    pub trusted_batches: u64,
    /// Bytes that a crash left behind the last whole batch; they are kept in `.cut` files beside the segment.
    pub cut_bytes: u64,
    /// The offset at which the log was cut, when it was.
    pub cut_at: Option<i64>,
    /// What is lost although it was durable once.
    pub damaged: Vec<Damaged>,
    /// Idempotent producers whose last batches are known.
    pub producers: usize,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offsets {}..{}", self.log_start, self.log_end)?;
        write!(f, ", {} batches proven, {} trusted", self.proven_batches, self.trusted_batches)?;
        match self.cut_at {
            Some(offset) => write!(f, ", {} bytes cut at offset {offset}", self.cut_bytes)?,
            None => f.write_str(", nothing cut")?,
        }
        let lost: i64 = self.damaged.iter().map(|damage| damage.next - damage.from).sum();
        match self.damaged.first() {
            Some(first) => write!(f, ", DAMAGED: {lost} offsets lost, the first at {}", first.from),
            None => f.write_str(", nothing damaged"),
        }
    }
}
