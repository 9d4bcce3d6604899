//! Walking the bytes of a segment that nobody has vouched for yet: what is sound, torn or damaged.

use std::io;

use tramline_wire::BatchHeader;
use tramline_wire::batch::{HEADER_LEN, check_batch};

use crate::segment::{LAST_OFFSET, Published, Region};
use crate::storage::{StorageFile, read_up_to};

/// Bytes read at once when everything is checked; one read per batch would be a hundred times slower.
const CHECK_CHUNK: usize = 1024 * 1024;
/// Bytes read at once when only headers are looked at.
const HEADER_CHUNK: usize = 64 * 1024;

/// What a segment is measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    /// The offset in the file's name: that of its first batch.
    pub(crate) base_offset: i64,
    /// Where the next segment begins; nothing here may reach beyond.
    pub(crate) next_base: Option<i64>,
    /// Everything below was durable: what is bad there was damaged, not torn.
    pub(crate) mark: i64,
    /// Below, compaction may have taken batches away.
    pub(crate) compacted: i64,
    /// Whether to check the CRC of each batch.
    pub(crate) check_crc: bool,
    pub(crate) index_interval: u32,
}

/// What was found in a segment.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The sound batches: size, end offset, index.
    pub(crate) published: Published,
    pub(crate) damage: Vec<Region>,
    /// Leader epochs and their first offsets, in order.
    pub(crate) epochs: Vec<(i32, i64)>,
    pub(crate) batches: u64,
    /// Bytes after the last sound batch that are neither a batch nor zeros: `published.size..junk_end`.
    pub(crate) junk_end: Option<u64>,
}

enum Found {
    Batch(BatchHeader),
    /// Nothing but zeros, or the end of the file.
    End,
    Bad,
}

/// Walks a segment from its first byte.
///
/// A batch is believed when its length fits, its base offset is exactly the next one (so bytes of an earlier life of
/// the file are never taken for the continuation; in a compacted segment, which never grows again, it may lie further
/// on) and, if asked for, its CRC is right.
pub(crate) fn scan(file: &dyn StorageFile, expect: &Expect) -> io::Result<Scan> {
    let mut window = Window::new(file, if expect.check_crc { CHECK_CHUNK } else { HEADER_CHUNK })?;
    let mut scan = Scan {
        published: Published::empty(expect.base_offset),
        damage: Vec::new(),
        epochs: Vec::new(),
        batches: 0,
        junk_end: None,
    };
    loop {
        let pos = scan.published.size;
        let expected = scan.published.next_offset;
        match window.batch_at(pos, expected, expect)? {
            Found::Batch(header) => scan.note(&header, expect, false),
            Found::End => return Ok(scan),
            Found::Bad => {
                let below_mark = expected < expect.mark;
                let resumed = if below_mark { window.resume(pos, expected, expect)? } else { None };
                let Some((end, header)) = resumed else {
                    scan.junk_end = Some(window.last_byte_after(pos)?.unwrap_or(pos));
                    return Ok(scan);
                };
                scan.damage.push(Region { from: expected, next: header.base_offset, pos, end });
                scan.published.size = end;
                scan.note(&header, expect, true);
            }
        }
    }
}

impl Scan {
    fn note(&mut self, header: &BatchHeader, expect: &Expect, after_damage: bool) {
        let relative = u32::try_from(header.base_offset - expect.base_offset).unwrap_or(u32::MAX);
        self.published.note(header, relative, expect.index_interval, after_damage);
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < header.partition_leader_epoch) {
            self.epochs.push((header.partition_leader_epoch, header.base_offset));
        }
        self.batches += 1;
    }
}

/// Buffered reads of a file that may jump forward.
struct Window<'a> {
    file: &'a dyn StorageFile,
    len: u64,
    chunk: usize,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn StorageFile, chunk: usize) -> io::Result<Self> {
        Ok(Self { file, len: file.len()?, chunk, buffer: Vec::new(), start: 0 })
    }

    /// The bytes `pos..pos + wanted`, fewer at the end of the file.
    fn get(&mut self, pos: u64, wanted: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.len.saturating_sub(pos)).unwrap_or(usize::MAX);
        let wanted = wanted.min(left);
        let held = self.start..self.start + self.buffer.len() as u64;
        if !held.contains(&pos) || pos + wanted as u64 > held.end {
            self.buffer.resize(wanted.max(self.chunk).min(left), 0);
            let read = read_up_to(self.file, &mut self.buffer, pos)?;
            self.buffer.truncate(read);
            self.start = pos;
        }
        let from = usize::try_from(pos - self.start).unwrap_or(usize::MAX);
        let end = (from + wanted).min(self.buffer.len());
        Ok(self.buffer.get(from..end).unwrap_or_default())
    }

    fn batch_at(&mut self, pos: u64, expected: i64, expect: &Expect) -> io::Result<Found> {
        if pos >= self.len {
            return Ok(Found::End);
        }
        let head = self.get(pos, HEADER_LEN)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(if self.last_byte_after(pos)?.is_none() { Found::End } else { Found::Bad });
        }
        match self.sound(pos, expect.check_crc, expect)? {
            Some(header) if header.base_offset == expected => Ok(Found::Batch(header)),
            Some(header) if header.base_offset > expected && header.base_offset < expect.compacted => {
                Ok(Found::Batch(header))
            }
            _ => Ok(Found::Bad),
        }
    }

    /// The header at `pos` when a whole batch may stand there, whatever its offset.
    fn sound(&mut self, pos: u64, check_crc: bool, expect: &Expect) -> io::Result<Option<BatchHeader>> {
        let Ok(header) = BatchHeader::parse(self.get(pos, HEADER_LEN)?) else { return Ok(None) };
        let fits = header.total_len() as u64 <= self.len - pos
            && header.last_offset_delta >= 0
            && (0..=LAST_OFFSET).contains(&header.base_offset)
            && expect.next_base.is_none_or(|next| header.last_offset() < next);
        if !fits {
            return Ok(None);
        }
        if check_crc && check_batch(self.get(pos, header.total_len())?).is_err() {
            return Ok(None);
        }
        Ok(Some(header))
    }

    /// The first batch after the bad one at `pos` that is beyond doubt: always by its CRC.
    fn resume(&mut self, pos: u64, expected: i64, expect: &Expect) -> io::Result<Option<(u64, BatchHeader)>> {
        // Where the bad batch says it ends, if it says so credibly; else byte by byte.
        if let Ok(bad) = BatchHeader::parse(self.get(pos, HEADER_LEN)?) {
            let after = pos + bad.total_len() as u64;
            if after < self.len
                && let Some(header) = self.sound(after, true, expect)?
                && header.base_offset >= expected
            {
                return Ok(Some((after, header)));
            }
        }
        for at in pos + 1..self.len.saturating_sub(HEADER_LEN as u64 - 1) {
            let candidate = BatchHeader::parse(self.get(at, HEADER_LEN)?);
            if candidate.is_ok_and(|header| header.base_offset >= expected)
                && let Some(header) = self.sound(at, true, expect)?
            {
                return Ok(Some((at, header)));
            }
        }
        Ok(None)
    }

    /// The end of the last byte at or after `pos` that is not zero.
    fn last_byte_after(&mut self, pos: u64) -> io::Result<Option<u64>> {
        let mut at = pos;
        let mut last = None;
        while at < self.len {
            let chunk = self.get(at, CHECK_CHUNK)?;
            if let Some(index) = chunk.iter().rposition(|byte| *byte != 0) {
                last = Some(at + index as u64 + 1);
            }
            if chunk.is_empty() {
                break;
            }
            at += chunk.len() as u64;
        }
        Ok(last)
    }
}
