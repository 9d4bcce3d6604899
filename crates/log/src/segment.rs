//! One segment: a file of batches, what of it is published, and how to find a batch in it.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use tramline_wire::batch::{BatchHeader, HEADER_LEN};
use tramline_wire::{RecordBatch, TopicPartition};

use crate::config::Timestamp;
use crate::error::{ReadError, invalid};
use crate::offset_index::OffsetIndex;
use crate::segment_file::SegmentFile;
use crate::storage::{StorageFile, read_exact_at, read_up_to};

/// No log reaches beyond it: what names a later offset is not ours, or damaged. Half of what a number can hold, so that no
/// sum of an offset and what follows it runs over.
pub(crate) const LAST_OFFSET: i64 = i64::MAX / 2;

/// Bytes read at once when batch headers are walked.
const WALK_BUFFER: usize = 4 * 1024;

/// Offsets of a segment that are lost, and the bytes in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) from: i64,
    pub(crate) next: i64,
    pub(crate) pos: u64,
    pub(crate) end: u64,
}

/// What readers may see of a segment; changed in one step.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) size: u64,
    pub(crate) next_offset: i64,
    pub(crate) max_timestamp: Timestamp,
    pub(crate) index: OffsetIndex,
}

impl Published {
    pub(crate) fn empty(base_offset: i64) -> Self {
        Self { size: 0, next_offset: base_offset, max_timestamp: -1, index: OffsetIndex::default() }
    }

    /// Adds the batch that stands at the end, `relative` to the segment's base offset.
    pub(crate) fn note(&mut self, header: &BatchHeader, relative: u32, interval: u32, always: bool) {
        let pos = u32::try_from(self.size).unwrap_or(u32::MAX);
        self.index.offer(relative, pos, self.max_timestamp, interval, always);
        self.size += header.total_len() as u64;
        self.next_offset = header.last_offset() + 1;
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
    }
}

/// One file of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base_offset: i64,
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) damage: Box<[Region]>,
    published: RwLock<Published>,
}

/// Whole batches of a segment that a read may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) pos: u64,
    pub(crate) len: usize,
    pub(crate) base_offset: i64,
    pub(crate) next_offset: i64,
}

/// The name of the segment file that begins at `base_offset`.
pub(crate) fn file_name(base_offset: i64) -> String {
    format!("{base_offset:020}.log")
}

/// The base offset in the name of a segment file; `None` for any other name.
pub(crate) fn base_offset_of(name: &str) -> Option<i64> {
    offset_in_name(name, ".log")
}

/// The offset in a name of twenty digits and `suffix`.
pub(crate) fn offset_in_name(name: &str, suffix: &str) -> Option<i64> {
    let digits = name.strip_suffix(suffix)?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|offset| *offset <= LAST_OFFSET)
}

impl Segment {
    pub(crate) fn new(
        base_offset: i64,
        file: Arc<SegmentFile>,
        published: Published,
        damage: Vec<Region>,
    ) -> Self {
        let damage = damage.into_boxed_slice();
        Self { base_offset, file, damage, published: RwLock::new(published) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut Published)) {
        change(&mut self.published.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn next_offset(&self) -> i64 {
        self.published().next_offset
    }

    pub(crate) fn size(&self) -> u64 {
        self.published().size
    }

    /// The bytes of the batch at `pos`.
    pub(crate) fn read_batch(&self, pos: u64, header: &BatchHeader) -> Result<Bytes, ReadError> {
        let mut bytes = vec![0; header.total_len()];
        read_exact_at(&*self.file.open()?, &mut bytes, pos)?;
        Ok(bytes.into())
    }

    /// The batch at `pos` with its records.
    pub(crate) fn decode_batch(&self, pos: u64, header: &BatchHeader) -> Result<RecordBatch, ReadError> {
        RecordBatch::decode(TopicPartition::new("", 0), self.read_batch(pos, header)?).map_err(invalid)
    }

    /// `offset` relative to the base, clamped into what an index entry can hold.
    pub(crate) fn relative(&self, offset: i64) -> u32 {
        let relative = offset.saturating_sub(self.base_offset).max(0);
        u32::try_from(relative).unwrap_or(u32::MAX)
    }

    /// Whole batches from the one that holds `offset` on: all below `stop`, at most `max_bytes` of them, but a first
    /// one that is larger when `at_least_one` is set. `None` when there is nothing to give.
    pub(crate) fn extent(
        &self,
        offset: i64,
        max_bytes: usize,
        stop: i64,
        at_least_one: bool,
    ) -> Result<Option<Extent>, ReadError> {
        let ahead = self.damage.iter().find(|region| offset < region.next);
        if let Some(region) = ahead.filter(|region| offset >= region.from) {
            return Err(ReadError::Damaged { from: region.from, next: region.next });
        }
        let (start, end, end_offset) = {
            let published = self.published();
            let start = u64::from(published.index.floor(self.relative(offset)));
            match ahead {
                Some(region) => (start, region.pos, region.from),
                None => (start, published.size, published.next_offset),
            }
        };
        let mut walk = Walk::new(self, start, end)?;
        let Some((pos, first)) = walk.find(|header| header.last_offset() >= offset)? else {
            // A gap, and damage right behind it: to say "nothing yet" would keep a reader there for ever.
            return match ahead {
                Some(region) => Err(ReadError::Damaged { from: offset, next: region.next }),
                None => Ok(None),
            };
        };
        let first_len = first.total_len();
        if first.last_offset() >= stop || (first_len > max_bytes && !at_least_one) {
            return Ok(None);
        }
        let mut extent = Extent {
            pos,
            len: first_len,
            base_offset: first.base_offset,
            next_offset: first.last_offset() + 1,
        };
        let limit = end.min(pos.saturating_add(max_bytes as u64));
        if limit == end && stop >= end_offset {
            extent.len = usize::try_from(end - pos).unwrap_or(usize::MAX);
            extent.next_offset = end_offset;
            return Ok(Some(extent));
        }
        let jump = {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            u64::from(self.published().index.floor_both(self.relative(stop), limit))
        };
        let mut walk = Walk::new(self, if jump > pos && jump < end { jump } else { pos }, end)?;
        while let Some((at, header)) = walk.next()? {
            let after = at + header.total_len() as u64;
            let fits = after <= limit || at == pos;
            if header.last_offset() >= stop || !fits {
                // Everything before this batch goes out, whether it was walked or jumped over.
                if at > pos {
                    extent.len = usize::try_from(at - pos).unwrap_or(usize::MAX);
                    extent.next_offset = header.base_offset;
                }
                return Ok(Some(extent));
            }
            extent.len = usize::try_from(after - pos).unwrap_or(usize::MAX);
            extent.next_offset = header.last_offset() + 1;
        }
        Ok(Some(extent))
    }

    /// Calls `visit` for every sound batch header from the one that holds `offset` on, in order, until it returns
    /// `false`.
    pub(crate) fn for_each_header(
        &self,
        offset: i64,
        visit: impl FnMut(u64, &BatchHeader) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let start = self.published().index.floor(self.relative(offset));
        self.walk_from(u64::from(start), offset, visit)
    }

    /// As [`for_each_header`](Self::for_each_header), but batches older than `timestamp` that lie before all others may
    /// be left out.
    pub(crate) fn for_each_header_since(
        &self,
        timestamp: Timestamp,
        offset: i64,
        visit: impl FnMut(u64, &BatchHeader) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let start = {
            let index = &self.published().index;
            index.floor(self.relative(offset)).max(index.floor_of_time(timestamp))
        };
        self.walk_from(u64::from(start), offset, visit)
    }

    /// The largest timestamp of the batches from the one that holds `from` on that end below `limit`; -1 when there is
    /// none.
    pub(crate) fn max_timestamp(&self, from: i64, limit: i64) -> Result<Timestamp, ReadError> {
        let (start, mut max) = {
            let published = self.published();
            if from > self.base_offset {
                // What the index knows of times counts from the first batch on.
                (published.index.floor(self.relative(from)), -1)
            } else if published.next_offset <= limit {
                return Ok(published.max_timestamp);
            } else {
                published.index.floor_with_max(self.relative(limit))
            }
        };
        self.walk_from(u64::from(start), from, |_, header| {
            let below = header.last_offset() < limit;
            if below {
                max = max.max(header.max_timestamp);
            }
            Ok(below)
        })?;
        Ok(max)
    }

    fn walk_from(
        &self,
        start: u64,
        offset: i64,
        mut visit: impl FnMut(u64, &BatchHeader) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let size = self.size();
        let mut pos = start;
        let ends = self.damage.iter().map(|region| (region.pos, region.end)).chain([(size, size)]);
        for (end, resume) in ends {
            if end > pos {
                let mut walk = Walk::new(self, pos, end)?;
                while let Some((at, header)) = walk.next()? {
                    if header.last_offset() >= offset && !visit(at, &header)? {
                        return Ok(());
                    }
                }
            }
            pos = pos.max(resume);
        }
        Ok(())
    }
}

/// Steps from batch header to batch header inside sound, published bytes.
struct Walk {
    file: Arc<dyn StorageFile>,
    pos: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_pos: u64,
}

impl Walk {
    fn new(segment: &Segment, pos: u64, end: u64) -> io::Result<Self> {
        Ok(Self { file: segment.file.open()?, pos, end, buffer: Vec::new(), buffer_pos: 0 })
    }

    fn next(&mut self) -> Result<Option<(u64, BatchHeader)>, ReadError> {
        if self.pos >= self.end {
            return Ok(None);
        }
        let buffered = self.pos >= self.buffer_pos
            && self.pos + HEADER_LEN as u64 <= self.buffer_pos + self.buffer.len() as u64;
        if !buffered {
            self.buffer.resize(WALK_BUFFER, 0);
            let read = read_up_to(&*self.file, &mut self.buffer, self.pos)?;
            self.buffer.truncate(read);
            self.buffer_pos = self.pos;
        }
        let from = usize::try_from(self.pos - self.buffer_pos).unwrap_or(usize::MAX);
        // Published bytes were written or checked by this process: anything else means the file changed under us.
        let header = BatchHeader::parse(self.buffer.get(from..).unwrap_or_default())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let at = self.pos;
        self.pos += header.total_len() as u64;
        Ok(Some((at, header)))
    }

    fn find(
        &mut self,
        wanted: impl Fn(&BatchHeader) -> bool,
    ) -> Result<Option<(u64, BatchHeader)>, ReadError> {
        while let Some((at, header)) = self.next()? {
            if wanted(&header) {
                return Ok(Some((at, header)));
            }
        }
        Ok(None)
    }
}
