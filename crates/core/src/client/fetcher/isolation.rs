//! What readers of committed records do not see: batches of transactions that were aborted.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::TopicPartition;
use tramline_wire::batch::{BatchError, BatchHeader, RecordBatch};
use tramline_wire::messages::fetch_response::AbortedTransaction;

use super::types::IsolationLevel;

/// The type of a transaction's end in the key of its control record: it was aborted.
const ABORT: [u8; 2] = [0, 0];

/// The aborted transactions of one partition in one answer, followed through its batches.
pub(super) struct Aborted {
    isolation: IsolationLevel,
    /// First offset and producer of those that begin later, in the order of the offsets.
    to_come: VecDeque<(i64, i64)>,
    /// The producers whose transaction was aborted and has not ended yet.
    active: BTreeSet<i64>,
}

impl Aborted {
    pub(super) fn new(isolation: IsolationLevel, listed: Option<Vec<AbortedTransaction>>) -> Self {
        let listed = listed.unwrap_or_default();
        let mut to_come: Vec<_> = listed.iter().map(|row| (row.first_offset, row.producer_id)).collect();
        // Some brokers list them in another order.
        to_come.sort_unstable();
        Self { isolation, to_come: to_come.into(), active: BTreeSet::new() }
    }

    /// Whether the records of the next batch are not to be seen.
    pub(super) fn hides(
        &mut self,
        topic_partition: &TopicPartition,
        header: &BatchHeader,
        bytes: &Bytes,
    ) -> Result<bool, BatchError> {
        if self.isolation != IsolationLevel::ReadCommitted || !header.has_producer() {
            return Ok(false);
        }
        while let Some((_, producer)) = self.to_come.pop_front_if(|(first, _)| *first <= header.last_offset())
        {
            self.active.insert(producer);
        }
        if !header.is_control() {
            return Ok(header.is_transactional() && self.active.contains(&header.producer_id));
        }
        let batch = RecordBatch::decode(topic_partition.clone(), bytes.clone())?;
        let key = batch.record(0).and_then(|record| record.key_bytes());
        if key.is_some_and(|key| key.get(2..4) == Some(&ABORT[..])) {
            self.active.remove(&header.producer_id);
        }
        Ok(false)
    }
}
