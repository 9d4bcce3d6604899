//! Keeps the log of offsets and groups small: what is still true is written anew, then what came before goes.
//!
//! Appends are held back until none is on its way, so that what is written anew is exactly what a replay of the log
//! would give. Then: a new segment, everything that is true, forced; after it the appends go on. When all of it is
//! durable the log start moves there, which removes the older segments. A crash at any moment leaves the old records,
//! or the old ones and some of the new which say the same, or the new ones.

use super::{GroupCoordinator, Report, State, encode};
use crate::partition::{Change, Failure, Submission, Written};

/// Bytes of records that go into one batch.
const BATCH_BYTES: usize = 512 << 10;
/// How many times its size after the last rewrite the log is let grow to.
const GROWTH: u64 = 4;

/// How far a rewrite has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewrite {
    Idle,
    /// Due once no append is on its way.
    Due,
    /// So many batches are not durable yet; the lowest offset of those that are.
    Writing {
        left: usize,
        base: i64,
        failed: bool,
    },
    /// What came before is being removed.
    Removing,
}

impl GroupCoordinator {
    /// Makes a rewrite due when the log has grown enough.
    pub(super) fn consider_rewrite(&self, state: &mut State) {
        let limit = self.rewrite_from.max(state.rewritten_bytes.saturating_mul(GROWTH));
        if state.rewrite == Rewrite::Idle && !state.stopped && self.log.reader.size_bytes() > limit {
            state.rewrite = Rewrite::Due;
            self.submit_ready(state);
        }
    }

    /// Submits everything that is true; no append is on its way.
    pub(super) fn begin_rewrite(&self, state: &mut State) {
        let (mut batches, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut all = state.machine.durable_records().into_iter().peekable();
        while let Some(record) = all.next() {
            bytes += record.key.len() + record.value.as_ref().map_or(0, bytes::Bytes::len);
            records.push(record);
            if bytes >= BATCH_BYTES || all.peek().is_none() {
                bytes = 0;
                match encode(std::mem::take(&mut records), (self.clock)()) {
                    Ok(batch) => batches.push(batch),
                    Err(reason) => {
                        tracing::error!(reason, "the log of offsets and groups cannot be written anew");
                        self.rewrite_over(state);
                        return;
                    }
                }
            }
        }
        self.change(Change::Seal, |_| Report::Sealed);
        state.rewrite = Rewrite::Writing { left: batches.len(), base: i64::MAX, failed: false };
        if batches.is_empty() {
            state.rewrite = Rewrite::Removing;
            self.change(Change::DeleteRecords { before: -1 }, |_| Report::Removed);
        }
        for batch in batches {
            let done = self.report(|result| Report::Rewritten(result.map(|written| written.base_offset)));
            self.engine.submit(&self.log, Submission::Append { batch, forced: true, done, room: None });
        }
    }

    /// A batch of the rewrite is durable, or will never be.
    pub(super) fn rewritten(&self, state: &mut State, result: Result<i64, Failure>) {
        let Rewrite::Writing { left, base, failed } = &mut state.rewrite else { return };
        *left -= 1;
        match result {
            Ok(offset) => *base = offset.min(*base),
            Err(_) => *failed = true,
        }
        match *left {
            0 if *failed => self.rewrite_over(state),
            0 => {
                let before = *base;
                state.rewrite = Rewrite::Removing;
                self.change(Change::DeleteRecords { before }, |_| Report::Removed);
            }
            _ => {}
        }
    }

    /// The next one may come when the log has grown again, whether this one worked or not.
    pub(super) fn rewrite_over(&self, state: &mut State) {
        state.rewrite = Rewrite::Idle;
        state.rewritten_bytes = self.log.reader.size_bytes();
        tracing::debug!(bytes = state.rewritten_bytes, "the log of offsets and groups was written anew");
    }

    fn change(&self, change: Change, report: fn(Result<Written, Failure>) -> Report) {
        let done = self.report(report);
        self.engine.submit(&self.log, Submission::Change { change, done });
    }
}
