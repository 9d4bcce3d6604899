//! Handing out: records leave the buffer here, and positions move here and nowhere else.

use alloc::vec::Vec;

use tramline_wire::{Record, TopicPartition};

use super::Fetcher;
use super::partition::{Partition, Phase, Tail};
use super::types::{FetchError, Fetched};

impl Fetcher {
    /// The next chunk of one partition, at most `max_poll_records` long, or the error at which a partition stands still.
    /// Partitions take turns. `None` when there is nothing: the caller waits, and the fetcher has been told so.
    pub fn take_batch(&mut self) -> Option<Result<Fetched, FetchError>> {
        let most = self.config.max_poll_records;
        let taken = self.take_with(false, |partition, epoch| {
            let before = partition.position.offset;
            let mut records = Vec::new();
            while records.len() < most && partition.open_next(epoch) {
                records.extend(partition.next_record());
            }
            (partition.position.offset != before).then(|| Fetched {
                topic_partition: partition.topic_partition.clone(),
                generation: partition.generation,
                first_offset: before,
                records,
                next_offset: partition.position.offset,
                leader_epoch: partition.position.leader_epoch.unwrap_or(-1),
            })
        });
        self.demand = taken.is_none();
        taken
    }

    /// The next record, or the error at which a partition stands still. Stays with a partition until its batch is
    /// exhausted.
    pub fn take_record(&mut self) -> Option<Result<Record, FetchError>> {
        let taken =
            self.take_with(
                true,
                |partition, epoch| {
                    if partition.open_next(epoch) { partition.next_record() } else { None }
                },
            );
        self.demand = taken.is_none();
        taken
    }

    /// Whether, since the last call of this, taking has made room in the buffer, met an error, or found nothing: only then
    /// may [`Fetcher::poll_request`] have something new. True once.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news) || self.demand
    }

    /// Goes round the partitions that have something, after the one that had its turn last; `stay` begins with that one
    /// while it has an open batch.
    fn take_with<T>(
        &mut self,
        stay: bool,
        mut take: impl FnMut(&mut Partition, u64) -> Option<T>,
    ) -> Option<Result<T, FetchError>> {
        while let Some(topic_partition) = self.next_ready(stay) {
            let epoch = self.fresh_epoch();
            let Some(partition) = self.partitions.get_mut(&topic_partition) else { continue };
            let buffered = partition.buffered;
            let taken = take(partition, epoch).map(Ok);
            let taken = taken.or_else(|| stop_at_tail(partition, epoch).map(Err));
            partition.settle(self.config.offset_reset, epoch);
            self.news |= partition.buffered != buffered || !matches!(taken, Some(Ok(_)));
            self.turn = Some(topic_partition);
            if taken.is_some() {
                return taken;
            }
        }
        self.stopped_again().map(Err)
    }

    fn next_ready(&self, stay: bool) -> Option<TopicPartition> {
        let ready = |entry: &(&TopicPartition, &Partition)| entry.1.is_ready();
        let Some(turn) = &self.turn else {
            return self.partitions.iter().find(ready).map(|(tp, _)| tp.clone());
        };
        if stay && self.partitions.get(turn).is_some_and(|p| p.is_ready() && p.open.is_some()) {
            return Some(turn.clone());
        }
        let after = self.partitions.iter().skip_while(|(tp, _)| *tp <= turn).find(ready);
        after.or_else(|| self.partitions.iter().find(ready)).map(|(tp, _)| tp.clone())
    }

    /// The error of a partition that stands still, once more, when nothing else is left to read: a caller that passed
    /// over the first report must not wait for ever.
    fn stopped_again(&self) -> Option<FetchError> {
        let mut open = self.partitions.values().filter(|p| p.may_hand_out());
        let Some(Phase::Stopped(first)) = open.next().map(|p| &p.phase) else { return None };
        open.all(|p| matches!(p.phase, Phase::Stopped(_))).then(|| first.clone())
    }
}

/// When the buffer is exhausted and ends in an error: the partition stands still with it from here on.
fn stop_at_tail(partition: &mut Partition, epoch: u64) -> Option<FetchError> {
    if partition.open.is_some() || !partition.batches.is_empty() {
        return None;
    }
    match partition.tail.take() {
        Some(Tail::Error(error)) => {
            partition.discard(epoch);
            partition.phase = Phase::Stopped(error.clone());
            Some(error)
        }
        other => {
            partition.tail = other;
            None
        }
    }
}
