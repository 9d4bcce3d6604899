//! Reading: what any number of threads do with a log while its owner appends.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use tramline_wire::RecordBatch;
use tramline_wire::batch::TimestampType;

use crate::config::Timestamp;
use crate::epochs::EpochList;
use crate::error::ReadError;
use crate::segment::Segment;
use crate::storage::FileRange;

/// The readers' side of a [`Log`](crate::Log); shared, never blocked by an append for longer than a list swap.
#[derive(Debug)]
pub struct LogReader {
    segments: RwLock<Arc<[Arc<Segment>]>>,
    log_start: AtomicI64,
    log_end: AtomicI64,
    epochs: RwLock<EpochList>,
}

/// Whole batches, in order, as ranges of files. Holding it keeps the files open, also when retention removes them.
#[derive(Clone, Debug)]
pub struct Slice {
    ranges: Vec<FileRange>,
    base_offset: i64,
    next_offset: i64,
    len: usize,
}

impl Slice {
    /// Files that one slice goes over at most, since it holds each open. What follows is there for the next read.
    pub const MAX_RANGES: usize = 16;

    /// The file ranges, in order: what `sendfile` would send.
    #[must_use]
    pub fn ranges(&self) -> &[FileRange] {
        &self.ranges
    }

    /// The bytes in all ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to read (now).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The base offset of the first batch, at or below the offset asked for; that offset when the slice is empty.
    #[must_use]
    pub fn base_offset(&self) -> i64 {
        self.base_offset
    }

    /// The offset after the last batch; the offset asked for when the slice is empty.
    #[must_use]
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// Reads all ranges into one piece of memory.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut out = vec![0; self.len];
        self.read_into(&mut out)?;
        Ok(out.into())
    }

    /// Reads all ranges, one after the other, into `out`.
    ///
    /// # Errors
    /// What the file system answers; `InvalidInput` when `out` is not exactly [`len`](Self::len) bytes long.
    pub fn read_into(&self, out: &mut [u8]) -> io::Result<()> {
        if out.len() != self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut rest = out;
        for range in &self.ranges {
            let (part, after) = rest.split_at_mut(range.len());
            range.read_into(part)?;
            rest = after;
        }
        Ok(())
    }
}

/// A record found by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOffset {
    /// The record's offset.
    pub offset: i64,
    /// Its timestamp.
    pub timestamp: Timestamp,
    /// The leader epoch of its batch.
    pub leader_epoch: i32,
}

impl LogReader {
    pub(crate) fn new(segments: Vec<Arc<Segment>>, start: i64, end: i64, epochs: EpochList) -> Self {
        Self {
            segments: RwLock::new(segments.into()),
            log_start: AtomicI64::new(start),
            log_end: AtomicI64::new(end),
            epochs: RwLock::new(epochs),
        }
    }

    /// The first offset that may be read.
    #[must_use]
    pub fn log_start(&self) -> i64 {
        self.log_start.load(Ordering::Acquire)
    }

    /// The offset the next record gets. What consumers may see ends at the high watermark, which the owner keeps.
    #[must_use]
    pub fn log_end(&self) -> i64 {
        self.log_end.load(Ordering::Acquire)
    }

    /// Bytes in all segments.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.segments().iter().map(|segment| segment.size()).sum()
    }

    /// Segments there are.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments().len()
    }

    /// Whole batches from the one that holds `offset` on, across segments: all of them below `limit`, together at
    /// most `max_bytes`. With `at_least_one` a first batch larger than `max_bytes` is given all the same. Empty when
    /// nothing below `limit` is there (yet), or when the first batch does not fit.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] below the log start and above the log end; [`ReadError::Damaged`] when `offset`
    /// itself is lost (damage further on only ends the slice before it); [`ReadError::Storage`].
    pub fn read(
        &self,
        offset: i64,
        max_bytes: usize,
        limit: i64,
        at_least_one: bool,
    ) -> Result<Slice, ReadError> {
        self.with_segments(|end, segments| {
            self.read_in(segments, end, offset, max_bytes, limit, at_least_one)
        })
    }

    /// Runs `read` with the log end and the segments, and again when a file has gone because the list is an old one by
    /// now.
    fn with_segments<T>(
        &self,
        read: impl Fn(i64, &[Arc<Segment>]) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            // The end before the list: a segment that the end speaks of is in the list by then.
            let end = self.log_end();
            let segments = self.segments();
            match read(end, &segments) {
                Err(ReadError::Storage(error))
                    if error.kind() == io::ErrorKind::NotFound
                        && !Arc::ptr_eq(&segments, &self.segments()) => {}
                result => return result,
            }
        }
    }

    fn read_in(
        &self,
        segments: &[Arc<Segment>],
        end: i64,
        offset: i64,
        max_bytes: usize,
        limit: i64,
        at_least_one: bool,
    ) -> Result<Slice, ReadError> {
        let start = self.log_start();
        if offset < start || offset > end {
            return Err(ReadError::OutOfRange { offset, start, end });
        }
        let stop = limit.min(end);
        let mut slice = Slice { ranges: Vec::new(), base_offset: offset, next_offset: offset, len: 0 };
        // Compaction may have removed the segment that began at or before the offset.
        let first = segments.partition_point(|segment| segment.base_offset <= offset).saturating_sub(1);
        for segment in &segments[first..] {
            let forced = at_least_one && slice.is_empty();
            let left = max_bytes.saturating_sub(slice.len);
            let enough_files = slice.ranges.len() == Slice::MAX_RANGES;
            if slice.next_offset >= stop || (left == 0 && !forced) || enough_files {
                break;
            }
            // Before the extent, so that a batch published in between cannot look like the end of a sealed segment.
            let segment_end = segment.next_offset();
            match segment.extent(slice.next_offset, left, stop, forced) {
                Ok(Some(extent)) => {
                    if slice.is_empty() {
                        slice.base_offset = extent.base_offset;
                    }
                    slice.len += extent.len;
                    slice.next_offset = extent.next_offset;
                    slice.ranges.push(FileRange::new(segment.file.open()?, extent.pos, extent.len));
                }
                // A segment that lost all of its batches ends nothing.
                Ok(None) if slice.next_offset < segment_end && segment.size() > 0 => break,
                Ok(None) => {}
                Err(ReadError::Damaged { .. }) if !slice.is_empty() => break,
                Err(error) => return Err(error),
            }
            if slice.next_offset < segment_end && segment.size() > 0 {
                break;
            }
        }
        Ok(slice)
    }

    /// The first record, by offset, whose own timestamp is at or after `timestamp`, below `limit`.
    ///
    /// # Errors
    /// [`ReadError::Storage`], also (as `InvalidData`) when a stored batch cannot be taken apart.
    pub fn offset_for_time(
        &self,
        timestamp: Timestamp,
        limit: i64,
    ) -> Result<Option<TimedOffset>, ReadError> {
        self.with_segments(|_, segments| self.offset_for_time_in(segments, timestamp, limit))
    }

    fn offset_for_time_in(
        &self,
        segments: &[Arc<Segment>],
        timestamp: Timestamp,
        limit: i64,
    ) -> Result<Option<TimedOffset>, ReadError> {
        let from = self.log_start();
        let mut found = None;
        for segment in segments {
            if segment.published().max_timestamp < timestamp || segment.next_offset() <= from {
                continue;
            }
            segment.for_each_header_since(timestamp, from, |pos, header| {
                if header.base_offset >= limit {
                    return Ok(false);
                }
                if header.max_timestamp >= timestamp {
                    let batch = segment.decode_batch(pos, header)?;
                    found = first_at(&batch, timestamp, from.max(header.base_offset), limit);
                }
                Ok(found.is_none())
            })?;
            if found.is_some() {
                break;
            }
        }
        Ok(found)
    }

    /// The first record with the largest timestamp of the log, below `limit`.
    ///
    /// # Errors
    /// As [`LogReader::offset_for_time`].
    pub fn max_timestamp(&self, limit: i64) -> Result<Option<TimedOffset>, ReadError> {
        let max = self.with_segments(|_, segments| {
            let from = self.log_start();
            let mut max = -1;
            for segment in segments.iter().filter(|segment| segment.next_offset() > from) {
                max = max.max(segment.max_timestamp(from, limit)?);
            }
            Ok(max)
        })?;
        self.offset_for_time(max, limit)
    }

    /// The answer to `OffsetForLeaderEpoch`: the largest known epoch not above `epoch` and where it ended; `(-1, -1)`
    /// when the question cannot be answered.
    #[must_use]
    pub fn epoch_end(&self, epoch: i32) -> (i32, i64) {
        self.epochs().end_of(epoch, self.log_end())
    }

    /// The latest leader epoch this log has seen.
    #[must_use]
    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs().latest()
    }

    pub(crate) fn segments(&self) -> Arc<[Arc<Segment>]> {
        Arc::clone(&self.segments.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace_segments(&self, segments: Vec<Arc<Segment>>) {
        *self.segments.write().unwrap_or_else(PoisonError::into_inner) = segments.into();
    }

    pub(crate) fn set_log_end(&self, end: i64) {
        self.log_end.store(end, Ordering::Release);
    }

    pub(crate) fn set_log_start(&self, start: i64) {
        self.log_start.store(start, Ordering::Release);
    }

    pub(crate) fn epochs(&self) -> EpochList {
        self.epochs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn assign_epoch(&self, epoch: i32, start: i64) {
        self.epochs.write().unwrap_or_else(PoisonError::into_inner).assign(epoch, start);
    }
}

fn first_at(batch: &RecordBatch, timestamp: Timestamp, from: i64, limit: i64) -> Option<TimedOffset> {
    let header = batch.header();
    let leader_epoch = header.partition_leader_epoch;
    let stamped = header.timestamp_type() == TimestampType::LogAppendTime;
    for record in batch {
        let own = if stamped { header.max_timestamp } else { record.timestamp() };
        if own >= timestamp && (from..limit).contains(&record.offset()) {
            return Some(TimedOffset { offset: record.offset(), timestamp: own, leader_epoch });
        }
    }
    None
}
