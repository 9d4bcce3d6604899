//! Completed records in, the offset to commit out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Progress, SavedProgress};

/// An offset that may be committed: everything delivered below it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontier {
    /// The next offset to read after a restart.
    pub offset: i64,
    /// The leader epoch of the last record or batch below the offset, where it is known.
    pub leader_epoch: Option<i32>,
}

/// Names one delivery of one record. A ticket that was used is worth nothing afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: u32,
    /// The lane's name for the memory that the record keeps in use.
    pub(super) memory: u32,
    delivery: u64,
}

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Slot {
    /// Which delivery sits here; 0 when the slot is free.
    delivery: u64,
    offset: i64,
    /// What may be committed while this record is the oldest unfinished one.
    before: Option<Frontier>,
    older: u32,
    /// The next younger unfinished record, or the next free slot.
    younger: u32,
}

/// The delivered, unfinished records of one lane in delivery order.
///
/// Contiguity is judged over *deliveries*, never over offsets: a transaction marker, a compacted or a
/// filtered record leaves a hole that was never delivered and therefore cannot be waited for. Memory is that
/// of the unfinished records, completing costs a constant, and the frontier never moves backwards.
///
/// ```text
///   delivered   10   12   13        position = 14
///               |    |    `- before = 13
///               |    `------ before = 11
///               `----------- before = none: nothing of this lane is completed
/// ```
/// The frontier is `before` of the oldest unfinished record, or `position` when all are finished. Between two
/// unfinished records that follow each other everything delivered is completed: that is how
/// [`progress`](Self::progress) knows what is done above the frontier without having kept it.
#[derive(Debug)]
pub struct OffsetTracker {
    slots: Vec<Slot>,
    free: u32,
    oldest: u32,
    youngest: u32,
    unfinished: usize,
    deliveries: u64,
    /// What may be committed when everything delivered is completed.
    position: Option<Frontier>,
    last_processed: Option<i64>,
    /// Where the lane began to read.
    start: Option<i64>,
    /// What was completed before this lane, as far as it has not been passed yet.
    saved: VecDeque<Range<i64>>,
    /// Records of a newer epoch were not there when that was saved.
    saved_epoch: Option<i32>,
}

impl Default for OffsetTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl OffsetTracker {
    /// A tracker that knows of no record.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            oldest: NONE,
            youngest: NONE,
            unfinished: 0,
            deliveries: 0,
            position: None,
            last_processed: None,
            start: None,
            saved: VecDeque::new(),
            saved_epoch: None,
        }
    }

    /// Notes where reading begins; the first call counts.
    pub const fn begin(&mut self, first_offset: i64) {
        if self.start.is_none() {
            self.start = Some(first_offset);
        }
    }

    /// Takes what an earlier lane had completed. To be called before anything is delivered.
    pub fn resume(&mut self, saved: SavedProgress) {
        self.saved = saved.done.into();
        self.saved_epoch = saved.newest_epoch;
    }

    /// Whether the record at `offset`, the next one to be delivered, was completed by an earlier lane.
    pub fn is_done(&mut self, offset: i64, leader_epoch: Option<i32>) -> bool {
        while self.saved.front().is_some_and(|range| range.end <= offset) {
            self.saved.pop_front();
        }
        if self.saved.front().is_none_or(|range| offset < range.start) {
            return false;
        }
        if let (Some(saved), Some(now)) = (self.saved_epoch, leader_epoch)
            && saved < now
        {
            // The log was cut and written anew from here on.
            self.saved.clear();
            return false;
        }
        true
    }

    /// Notes that the record at `offset` is handed to a processor.
    ///
    /// Offsets must grow; the caller compares with [`next_offset`](Self::next_offset) first.
    pub fn deliver(&mut self, offset: i64, leader_epoch: Option<i32>) -> Ticket {
        self.deliveries += 1;
        let slot = Slot {
            delivery: self.deliveries,
            offset,
            before: self.position,
            older: self.youngest,
            younger: NONE,
        };
        let place = self.place(slot);
        match self.youngest {
            NONE => self.oldest = place,
            youngest => self.slots[youngest as usize].younger = place,
        }
        self.youngest = place;
        self.unfinished += 1;
        self.position = Some(Frontier { offset: offset.saturating_add(1), leader_epoch });
        Ticket { slot: place, memory: NONE, delivery: self.deliveries }
    }

    fn place(&mut self, slot: Slot) -> u32 {
        if self.free == NONE {
            let place =
                u32::try_from(self.slots.len()).expect("fewer records in flight than memory can hold");
            self.slots.push(slot);
            return place;
        }
        let place = self.free;
        self.free = self.slots[place as usize].younger;
        self.slots[place as usize] = slot;
        place
    }

    /// Notes that everything up to `next_offset` was looked at: what lies between the last delivered record
    /// and that offset is a marker, compacted or filtered, and need not be read again.
    pub fn traverse(&mut self, next_offset: i64, leader_epoch: Option<i32>) {
        if self.position.is_none_or(|position| position.offset < next_offset) {
            self.position = Some(Frontier { offset: next_offset, leader_epoch });
        }
    }

    /// Notes that a delivered record is completed. False when the ticket was used before.
    pub fn complete(&mut self, ticket: Ticket) -> bool {
        let place = ticket.slot as usize;
        let Some(slot) = self.slots.get(place).filter(|slot| slot.delivery == ticket.delivery) else {
            return false;
        };
        let (offset, older, younger) = (slot.offset, slot.older, slot.younger);
        match older {
            NONE => self.oldest = younger,
            older => self.slots[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.slots[younger as usize].older = older,
        }
        self.slots[place].delivery = 0;
        self.slots[place].younger = self.free;
        self.free = ticket.slot;
        self.unfinished -= 1;
        self.last_processed = self.last_processed.max(Some(offset));
        true
    }

    /// The offset that may be committed; none until the first record is completed.
    #[must_use]
    pub fn frontier(&self) -> Option<Frontier> {
        match self.oldest {
            NONE => self.position,
            oldest => self.slots[oldest as usize].before,
        }
    }

    /// The frontier with everything that is completed above it. Also before the first record in line is
    /// completed, when others are: the offset is where the lane began then.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        let done = self.done();
        let begun = || {
            let offset = self.start.filter(|_| !done.is_empty())?;
            Some(Frontier { offset, leader_epoch: None })
        };
        let frontier = self.frontier().or_else(begun)?;
        let newest_epoch = self.position.and_then(|position| position.leader_epoch).max(self.saved_epoch);
        Some(Progress { frontier, done, newest_epoch })
    }

    fn done(&self) -> Vec<Range<i64>> {
        let mut done: Vec<Range<i64>> = Vec::new();
        let mut add = |from: i64, until: i64| match done.last_mut() {
            _ if until <= from => {}
            Some(last) if from <= last.end => last.end = until.max(last.end),
            _ => done.push(from..until),
        };
        let mut at = self.oldest;
        while at != NONE {
            let slot = &self.slots[at as usize];
            let next = match slot.younger {
                NONE => self.position,
                younger => self.slots[younger as usize].before,
            };
            let after = slot.offset.saturating_add(1);
            add(after, next.map_or(after, |next| next.offset));
            at = slot.younger;
        }
        let passed = self.position.map_or(i64::MIN, |position| position.offset);
        for range in &self.saved {
            add(range.start.max(passed), range.end);
        }
        done
    }

    /// Where to read again to get every unfinished record.
    #[must_use]
    pub fn resume_at(&self, unfinished: i64) -> i64 {
        self.frontier()
            .map(|frontier| frontier.offset)
            .or(self.start)
            .map_or(unfinished, |at| at.min(unfinished))
    }

    /// How many records were delivered after the oldest unfinished one.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        match self.oldest {
            NONE => 0,
            oldest => self.deliveries - self.slots[oldest as usize].delivery,
        }
    }

    /// The lowest offset a further delivery may have; none when any is fine.
    #[must_use]
    pub fn next_offset(&self) -> Option<i64> {
        self.position.map(|position| position.offset)
    }

    /// The oldest record that was delivered and is not completed.
    #[must_use]
    pub fn oldest_unfinished(&self) -> Option<i64> {
        (self.oldest != NONE).then(|| self.slots[self.oldest as usize].offset)
    }

    /// How many records were delivered and are not completed.
    #[must_use]
    pub const fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// The highest record offset that was completed; it may lie above the frontier.
    #[must_use]
    pub const fn last_processed(&self) -> Option<i64> {
        self.last_processed
    }

    /// How many records were ever delivered.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.deliveries
    }
}

#[cfg(test)]
mod tests;
