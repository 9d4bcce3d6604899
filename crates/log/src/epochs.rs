//! The leader-epoch list: which epoch began at which offset.

/// Epochs in ascending order with the offset at which each began; pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochList {
    entries: Vec<(i32, i64)>,
}

impl EpochList {
    /// Notes that `epoch` begins at `start`. Epochs that got no record before it are forgotten; one that is not
    /// newer than the latest changes nothing.
    pub fn assign(&mut self, epoch: i32, start: i64) {
        if epoch < 0 || self.latest().is_some_and(|latest| epoch <= latest) {
            return;
        }
        while self.entries.last().is_some_and(|(_, begun)| *begun >= start) {
            self.entries.pop();
        }
        self.entries.push((epoch, start));
    }

    /// The latest epoch.
    #[must_use]
    pub fn latest(&self) -> Option<i32> {
        self.entries.last().map(|(epoch, _)| *epoch)
    }

    /// The answer to `OffsetForLeaderEpoch`: an epoch and the offset at which it ended, `(-1, -1)` when unknown.
    #[must_use]
    pub fn end_of(&self, epoch: i32, log_end: i64) -> (i32, i64) {
        let Some(latest) = self.latest() else { return (-1, -1) };
        if epoch < 0 || epoch > latest {
            return (-1, -1);
        }
        if epoch == latest {
            return (latest, log_end);
        }
        let after = self.entries.partition_point(|(known, _)| *known <= epoch);
        let end = self.entries[after].1;
        match after.checked_sub(1) {
            Some(floor) => (self.entries[floor].0, end),
            None => (epoch, end),
        }
    }

    /// Forgets epochs that began after the log end `end`: their records are gone.
    pub(crate) fn cut(&mut self, end: i64) {
        self.entries.retain(|(_, start)| *start <= end);
    }

    pub(crate) fn entries(&self) -> &[(i32, i64)] {
        &self.entries
    }

    pub(crate) fn from_entries(entries: Vec<(i32, i64)>) -> Self {
        Self { entries }
    }
}

#[cfg(test)]
mod tests {
    use super::EpochList;

    #[test]
    fn the_end_of_an_epoch_is_the_start_of_the_next_one() {
        let mut epochs = EpochList::default();
        assert_eq!(epochs.end_of(0, 5), (-1, -1));
        epochs.assign(2, 0);
        epochs.assign(5, 10);
        epochs.assign(6, 20);
        assert_eq!(epochs.end_of(6, 33), (6, 33));
        assert_eq!(epochs.end_of(5, 33), (5, 20));
        assert_eq!(epochs.end_of(3, 33), (2, 10));
        assert_eq!(epochs.end_of(1, 33), (1, 0));
        assert_eq!(epochs.end_of(7, 33), (-1, -1));
        assert_eq!(epochs.end_of(-1, 33), (-1, -1));
    }

    #[test]
    fn an_epoch_that_got_no_record_leaves_no_trace() {
        let mut epochs = EpochList::default();
        epochs.assign(1, 0);
        epochs.assign(2, 10);
        epochs.assign(3, 10);
        assert_eq!(epochs.entries(), [(1, 0), (3, 10)]);
        epochs.assign(3, 12);
        epochs.assign(2, 14);
        assert_eq!(epochs.entries(), [(1, 0), (3, 10)]);
    }
}
