//! One assigned partition: where it stands, what is buffered, whether it may be asked for.

use alloc::collections::VecDeque;
use core::time::Duration;

use bytes::Bytes;
use tramline_wire::batch::{BatchHeader, RecordBatch};
use tramline_wire::{Record, TopicPartition, Uuid};

use super::plan::Asked;
use super::types::{FetchError, FetcherConfig, OffsetReset, OffsetSpec, Position};
use crate::client::metadata::Leader;
use crate::time::Instant;

/// How often a leader may say "later" before metadata is asked for.
const PATIENCE: u32 = 3;

/// What a partition is waiting for.
#[derive(Debug)]
pub(super) enum Phase {
    /// Somebody is finding out where to start.
    Awaiting,
    /// The leader is to be asked where `spec` is. `reset` holds the position that was lost, when this is a reset.
    Lookup { spec: OffsetSpec, reset: Option<Option<i64>>, in_flight: bool },
    /// There is a position.
    Fetching,
    /// It stands still; the error has been handed out.
    Stopped(FetchError),
}

/// What follows the last buffered batch.
#[derive(Debug)]
pub(super) enum Tail {
    /// The next offset is not in the log.
    OutOfRange,
    /// Reading on is impossible.
    Error(FetchError),
}

/// One assigned partition.
#[derive(Debug)]
pub(super) struct Partition {
    pub topic_partition: TopicPartition,
    pub generation: i32,
    /// Changes with every assignment, seek and drop of buffered data: an answer to a request sent before is stale.
    pub epoch: u64,
    pub phase: Phase,
    /// The next offset to hand out.
    pub position: Position,
    /// The next offset to ask for: after everything that is buffered.
    pub fetch_offset: i64,
    /// The leader epoch of the last record before `fetch_offset`; `None` when unknown.
    pub fetch_epoch: Option<i32>,
    /// The leader epoch under which `fetch_offset` is known to be in the log.
    pub validated: Option<i32>,
    /// The leader is being asked whether it is.
    pub validating: bool,
    pub paused: bool,
    /// Its revocation was announced: ours still, but nothing is handed out.
    pub withheld: bool,
    pub leader: Option<Leader>,
    pub leader_stale: bool,
    pub topic_id: Uuid,
    pub high_watermark: Option<i64>,
    /// What to ask for; above the configured size while a batch that did not fit is asked for again.
    pub ask_bytes: usize,
    pub retry_at: Option<Instant>,
    pub attempts: u32,
    /// How often the place to read from was moved or cut since a record was last passed: a leader that does nothing else
    /// is asked with growing pauses.
    pub strays: u32,
    /// When it last got data, as a count of answers: the longest without comes first.
    pub served: u64,
    pub batches: VecDeque<Buffered>,
    pub open: Option<OpenBatch>,
    pub tail: Option<Tail>,
    pub buffered: usize,
}

/// A batch that waits to be handed out.
#[derive(Debug)]
pub(super) struct Buffered {
    pub header: BatchHeader,
    bytes: Bytes,
    /// Its records are passed over: their transaction was aborted.
    hidden: bool,
}

/// The batch being handed out record by record.
#[derive(Debug)]
pub(super) struct OpenBatch {
    batch: RecordBatch,
    next: usize,
    bytes: usize,
}

impl Partition {
    pub(super) fn new(
        topic_partition: TopicPartition,
        generation: i32,
        epoch: u64,
        config: &FetcherConfig,
    ) -> Self {
        Self {
            topic_partition,
            generation,
            epoch,
            phase: Phase::Awaiting,
            position: Position::at(-1),
            fetch_offset: -1,
            fetch_epoch: None,
            validated: None,
            validating: false,
            paused: false,
            withheld: false,
            leader: None,
            leader_stale: true,
            topic_id: Uuid::ZERO,
            high_watermark: None,
            ask_bytes: config.partition_max_bytes.min(config.max_bytes),
            retry_at: None,
            attempts: 0,
            strays: 0,
            served: 0,
            batches: VecDeque::new(),
            open: None,
            tail: None,
            buffered: 0,
        }
    }

    /// Whether a record, or an error, could be handed out now.
    pub(super) fn is_ready(&self) -> bool {
        self.may_hand_out()
            && matches!(self.phase, Phase::Fetching)
            && (self.open.is_some() || !self.batches.is_empty() || matches!(self.tail, Some(Tail::Error(_))))
    }

    pub(super) fn may_hand_out(&self) -> bool {
        !self.paused && !self.withheld
    }

    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| at > now)
    }

    /// The leader, when it is known and not known to be wrong.
    pub(super) fn usable_leader(&self) -> Option<Leader> {
        if self.leader_stale { None } else { self.leader }
    }

    pub(super) fn position(&self) -> Option<Position> {
        match self.phase {
            Phase::Fetching => Some(self.position),
            Phase::Stopped(_) => (self.position.offset >= 0).then_some(self.position),
            Phase::Awaiting | Phase::Lookup { .. } => None,
        }
    }

    /// Forgets what is buffered; what is under way becomes stale under `epoch`.
    pub(super) fn discard(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.batches.clear();
        self.open = None;
        self.tail = None;
        self.buffered = 0;
        self.fetch_offset = self.position.offset;
        self.fetch_epoch = self.position.leader_epoch;
        self.validating = false;
        self.retry_at = None;
        self.attempts = 0;
    }

    pub(super) fn stand_at(&mut self, position: Position) {
        self.position = position;
        self.fetch_offset = position.offset;
        self.fetch_epoch = position.leader_epoch;
        self.validated = None;
        self.validating = false;
        self.phase = Phase::Fetching;
    }

    /// The leader answered without an error: the offset it was asked for is in its log.
    pub(super) fn served_by(&mut self, asked: &Asked) {
        self.retry_at = None;
        self.attempts = 0;
        if asked.leader_epoch >= 0 {
            self.validated = Some(asked.leader_epoch);
        }
    }

    /// The leader says: later. When it says so for long, somebody else may know better (a leader that has not heard of its
    /// epoch yet soon has; one whose cluster was set back never will).
    pub(super) fn ask_again(&mut self, now: Instant, config: &FetcherConfig) {
        self.leader_stale |= self.attempts >= PATIENCE;
        self.back_off(now, config);
    }

    pub(super) fn back_off(&mut self, now: Instant, config: &FetcherConfig) {
        let factor = 1u32.checked_shl(self.attempts.min(16)).unwrap_or(u32::MAX);
        let pause: Duration = config.retry_backoff.saturating_mul(factor).min(config.retry_backoff_max);
        self.attempts = self.attempts.saturating_add(1);
        self.retry_at = Some(now + pause);
    }

    /// The place to read from was moved or cut, by a leader's word and not by ours. The first time reading goes on at once.
    pub(super) fn strayed(&mut self, now: Instant, config: &FetcherConfig) {
        if self.strays > 0 {
            self.attempts = self.strays - 1;
            self.back_off(now, config);
        }
        self.strays = self.strays.saturating_add(1);
    }

    pub(super) fn push(&mut self, header: BatchHeader, bytes: Bytes, hidden: bool) {
        self.buffered += bytes.len();
        self.fetch_offset = header.last_offset().saturating_add(1);
        self.fetch_epoch = known_epoch(&header);
        self.batches.push_back(Buffered { header, bytes, hidden });
    }

    /// Drops what is buffered at and after `end`, where the log was cut. What is under way becomes stale under `epoch`.
    pub(super) fn cut(&mut self, end: i64, epoch: u64) {
        self.epoch = epoch;
        self.validating = false;
        self.tail = None;
        let lost = |header: &BatchHeader| header.last_offset() >= end;
        if let Some(open) = self.open.take_if(|open| lost(open.batch.header())) {
            self.buffered -= open.bytes;
        }
        while let Some(last) = self.batches.pop_back_if(|last| lost(&last.header)) {
            self.buffered -= last.bytes.len();
        }
        let last = self.batches.back().map(|last| last.header);
        let last = last.or_else(|| self.open.as_ref().map(|open| *open.batch.header()));
        (self.fetch_offset, self.fetch_epoch) = match last {
            Some(header) => (header.last_offset().saturating_add(1), known_epoch(&header)),
            None => (self.position.offset, self.position.leader_epoch),
        };
    }

    /// Applies the reset policy once everything before the lost offset has been handed out.
    pub(super) fn settle(&mut self, reset: OffsetReset, epoch: u64) {
        if !matches!(self.tail, Some(Tail::OutOfRange)) || self.open.is_some() || !self.batches.is_empty() {
            return;
        }
        let offset = self.position.offset;
        let spec = match reset {
            OffsetReset::Earliest => OffsetSpec::Earliest,
            OffsetReset::Latest => OffsetSpec::Latest,
            OffsetReset::None => {
                let topic_partition = self.topic_partition.clone();
                self.tail = Some(Tail::Error(FetchError::OffsetOutOfRange { topic_partition, offset }));
                return;
            }
        };
        self.discard(epoch);
        self.phase = Phase::Lookup { spec, reset: Some(Some(offset)), in_flight: false };
    }

    /// Makes the next batch with records the open one. Passes what is never handed out: control batches, batches that
    /// compaction emptied, records below the position.
    ///
    /// Whether there is an open batch with a record left; if not, the buffer is exhausted. A damaged batch empties the
    /// buffer under `epoch` and leaves its error at the end.
    pub(super) fn open_next(&mut self, epoch: u64) -> bool {
        loop {
            if let Some(open) = &self.open {
                if open.next < open.batch.len() {
                    return true;
                }
                self.finish_open();
            }
            let Some(Buffered { header, bytes, hidden }) = self.batches.pop_front() else { return false };
            let len = bytes.len();
            if hidden || header.is_control() {
                self.buffered -= len;
                self.pass(&header);
                continue;
            }
            match RecordBatch::decode(self.topic_partition.clone(), bytes) {
                Ok(batch) => {
                    let next = batch.len() - batch.iter_from(self.position.offset).len();
                    self.open = Some(OpenBatch { batch, next, bytes: len });
                }
                Err(source) => {
                    let topic_partition = self.topic_partition.clone();
                    self.discard(epoch);
                    let offset = self.position.offset;
                    self.tail = Some(Tail::Error(FetchError::Corrupt { topic_partition, offset, source }));
                    return false;
                }
            }
        }
    }

    /// The next record of the open batch; the position moves past it, or past the whole batch with its last record.
    pub(super) fn next_record(&mut self) -> Option<Record> {
        let open = self.open.as_mut()?;
        let record = open.batch.record(open.next)?;
        open.next += 1;
        self.strays = 0;
        if open.next == open.batch.len() {
            self.finish_open();
        } else {
            self.position =
                Position { offset: record.offset().saturating_add(1), leader_epoch: record.leader_epoch() };
        }
        Some(record)
    }

    fn finish_open(&mut self) {
        if let Some(open) = self.open.take() {
            self.buffered -= open.bytes;
            self.pass(open.batch.header());
        }
    }

    fn pass(&mut self, header: &BatchHeader) {
        let after = header.last_offset().saturating_add(1);
        if after > self.position.offset {
            self.strays = 0;
            self.position = Position { offset: after, leader_epoch: known_epoch(header) };
        }
    }
}

fn known_epoch(header: &BatchHeader) -> Option<i32> {
    Some(header.partition_leader_epoch).filter(|&epoch| epoch >= 0)
}
