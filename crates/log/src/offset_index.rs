//! The sparse offset index of one segment: from an offset to a batch boundary at or before it.

/// Entries of one segment, ascending in both columns; grown on demand, at most one per interval of bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OffsetIndex {
    /// Offset relative to the segment's base, and the position of the batch that begins there.
    entries: Vec<(u32, u32)>,
}

impl OffsetIndex {
    /// Offers the batch at `pos`; it gets an entry when it is the first one, when `interval` bytes have passed since
    /// the last entry, or when `always` is set.
    pub(crate) fn offer(&mut self, relative: u32, pos: u32, interval: u32, always: bool) {
        let due = self.entries.last().is_none_or(|(_, last)| pos - last >= interval);
        if due || always {
            self.entries.push((relative, pos));
        }
    }

    /// The position of a batch boundary at or before `relative`; 0 when nothing is known.
    pub(crate) fn floor(&self, relative: u32) -> u32 {
        let after = self.entries.partition_point(|(known, _)| *known <= relative);
        after.checked_sub(1).map_or(0, |at| self.entries[at].1)
    }

    /// The farthest batch boundary that is not beyond `pos` and whose batch does not begin beyond `relative`.
    pub(crate) fn floor_both(&self, relative: u32, pos: u32) -> u32 {
        let after = self.entries.partition_point(|(known, at)| *known <= relative && *at <= pos);
        after.checked_sub(1).map_or(0, |at| self.entries[at].1)
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
            index.offer(n * 3, n * 100, 250, false);
        }
        assert_eq!(index.entries.len(), 34, "one per 300 bytes, the first multiple of 100 past 250");
        assert_eq!(index.floor(0), 0);
        assert_eq!(index.floor(8), 0);
        assert_eq!(index.floor(9), 300);
        assert_eq!(index.floor(4000), 9900);
        assert_eq!(index.floor_both(4000, 899), 600);
        assert_eq!(index.floor_both(10, 9000), 300);
    }
}
