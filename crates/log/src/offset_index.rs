//! The sparse index of one segment: from an offset, or a time, to a batch boundary at or before it.

use crate::config::Timestamp;

/// Entries of one segment, ascending in both columns; grown on demand, at most one per interval of bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OffsetIndex {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Offset relative to the segment's base.
    relative: u32,
    /// The position of the batch that begins there.
    pos: u32,
    /// The largest timestamp of all batches before; it never falls, whatever order the records' times have.
    max_before: Timestamp,
}

impl OffsetIndex {
    /// Offers the batch at `pos`, before which `max_before` is the largest timestamp; it gets an entry when it is the
    /// first one, when `interval` bytes have passed since the last entry, or when `always` is set.
    pub(crate) fn offer(
        &mut self,
        relative: u32,
        pos: u32,
        max_before: Timestamp,
        interval: u32,
        always: bool,
    ) {
        let due = self.entries.last().is_none_or(|last| pos - last.pos >= interval);
        if due || always {
            self.entries.push(Entry { relative, pos, max_before });
        }
    }

    /// The farthest boundary before which every batch is older than `timestamp`; 0 when nothing is known.
    pub(crate) fn floor_of_time(&self, timestamp: Timestamp) -> u32 {
        self.before(self.entries.partition_point(|entry| entry.max_before < timestamp)).0
    }

    /// The farthest boundary whose batch does not begin beyond `relative`, and the largest timestamp before it.
    pub(crate) fn floor_with_max(&self, relative: u32) -> (u32, Timestamp) {
        self.before(self.entries.partition_point(|entry| entry.relative <= relative))
    }

    fn before(&self, after: usize) -> (u32, Timestamp) {
        after.checked_sub(1).map_or((0, -1), |at| (self.entries[at].pos, self.entries[at].max_before))
    }

    /// The position of a batch boundary at or before `relative`; 0 when nothing is known.
    pub(crate) fn floor(&self, relative: u32) -> u32 {
        self.floor_with_max(relative).0
    }

    /// The farthest batch boundary that is not beyond `pos` and whose batch does not begin beyond `relative`.
    pub(crate) fn floor_both(&self, relative: u32, pos: u32) -> u32 {
        self.before(self.entries.partition_point(|entry| entry.relative <= relative && entry.pos <= pos)).0
    }
}

#[cfg(test)]
mod tests {
    use super::OffsetIndex;

    #[test]
    fn a_lookup_lands_on_the_last_boundary_at_or_before_the_target() {
        let mut index = OffsetIndex::default();
        assert_eq!(index.floor(7), 0);
        for n in 0..100u32 {
            index.offer(n * 3, n * 100, i64::from(n) - 1, 250, false);
        }
        assert_eq!(index.entries.len(), 34, "one per 300 bytes, the first multiple of 100 past 250");
        assert_eq!(index.floor(0), 0);
        assert_eq!(index.floor(8), 0);
        assert_eq!(index.floor(9), 300);
        assert_eq!(index.floor(4000), 9900);
        assert_eq!(index.floor_both(4000, 899), 600);
        assert_eq!(index.floor_both(10, 9000), 300);
        assert_eq!(index.floor_with_max(10), (300, 2));
        assert_eq!(index.floor_of_time(3), 300, "the batches before it have times up to 2");
        assert_eq!(index.floor_of_time(2), 0);
        assert_eq!(index.floor_of_time(-1), 0);
    }
}
