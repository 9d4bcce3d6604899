//! Opening a log: from files nobody has vouched for to a [`Log`] whose every offset is durable.
//!
//! One rule decides what a bad batch means, its place relative to the mark ("barriered up to"). Below the mark it was
//! durable once, so it is damage: kept, reported, never filled by other records. At or above the mark no forced ack
//! depends on it, so it is what a crash leaves: cut, with the cut bytes kept aside. Because the mark is persisted
//! before the first forced ack after a roll, this is also right for the tail of a sealed segment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tramline_wire::batch::{BatchHeader, HEADER_LEN};

use crate::checkpoint::{self, Checkpoint};
use crate::config::{LogConfig, RecoveryMode, Timestamp};
use crate::dirty::Dirty;
use crate::error::LogError;
use crate::log::Log;
use crate::producer_state::ProducerState;
use crate::reader::LogReader;
use crate::report::{Damaged, RecoveryReport};
use crate::scan::{Expect, Scan, scan};
use crate::segment::{Published, Region, Segment, base_offset_of, file_name, offset_in_name};
use crate::segment_file::SegmentFiles;
use crate::storage::{OpenMode, Storage, StorageFile, read_file, read_up_to, write_atomic};
use crate::sync::Fence;

const COPY_CHUNK: usize = 1024 * 1024;
const CUT_ROUNDING: u64 = 4096;

/// A log that is being opened.
struct Recovery<'a> {
    storage: &'a Arc<dyn Storage>,
    dir: &'a Path,
    config: &'a LogConfig,
    /// What the checkpoint file says; the default when it is missing or damaged.
    persisted: Option<Checkpoint>,
    checkpoint: Checkpoint,
    bases: Vec<i64>,
    snapshots: Vec<i64>,
    files: Arc<SegmentFiles>,
    segments: Vec<Arc<Segment>>,
    report: RecoveryReport,
}

/// The directory that holds the name of `dir`.
pub(crate) fn parent_of(dir: &Path) -> PathBuf {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

pub(crate) fn snapshot_name(offset: i64) -> String {
    format!("{offset:020}.snapshot")
}

/// Opens and recovers the log in `dir`.
pub(crate) fn open(
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    config: LogConfig,
    now: Timestamp,
) -> Result<(Log, RecoveryReport), LogError> {
    let mut recovery = Recovery {
        storage: &storage,
        dir: &dir,
        config: &config,
        persisted: None,
        checkpoint: Checkpoint::default(),
        bases: Vec::new(),
        snapshots: Vec::new(),
        files: SegmentFiles::new(Arc::clone(&storage)),
        segments: Vec::new(),
        report: RecoveryReport::default(),
    };
    recovery.look_around()?;
    recovery.verify_segments()?;
    recovery.close_gaps();
    recovery.settle_the_end()?;
    let mut producers = recovery.replay_producers(now)?;
    producers.expire(now, config.producer_expiration);
    recovery.make_durable()?;

    let Recovery { checkpoint, files, segments, snapshots, mut report, .. } = recovery;
    // `settle_the_end` leaves at least one segment.
    let active = Arc::clone(&segments[segments.len() - 1]);
    active.file.keep_open().map_err(|source| failed("opening", active.path(), source))?;
    let file_len = active.file.open().and_then(|file| file.len());
    let file_len = file_len.map_err(|source| failed("measuring", active.path(), source))?;
    let active_since = first_written(&active, now)?;
    report.producers = producers.len();
    report.segments = segments.len();
    let reader = LogReader::new(segments, report.log_start, report.log_end, checkpoint.epochs.clone());
    let barriered = report.log_end;
    let log = Log {
        storage,
        dir,
        files,
        config,
        reader: Arc::new(reader),
        active,
        active_since,
        file_len,
        producers,
        fence: Fence::default(),
        dirty: Dirty::default(),
        barriered,
        persisted: checkpoint,
        snapshots,
        in_flight: Weak::new(),
    };
    Ok((log, report))
}

/// When the first batch of a segment was written, as far as its timestamp tells: never in the future.
fn first_written(segment: &Segment, now: Timestamp) -> Result<Timestamp, LogError> {
    let mut first = Timestamp::MAX;
    let found = segment.for_each_header(segment.base_offset, |_, header| {
        first = if header.max_timestamp < 0 { now } else { header.max_timestamp.min(now) };
        Ok(false)
    });
    found.map_err(|error| failed("reading", segment.path(), io::Error::other(error)))?;
    Ok(first)
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> LogError {
    LogError::Storage { action, path: path.to_path_buf(), source }
}

impl Recovery<'_> {
    /// Lists the directory, reads the checkpoint, removes what retention had already given up.
    fn look_around(&mut self) -> Result<(), LogError> {
        let listed = match self.storage.list(self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.storage.create_dir_all(self.dir).map_err(|e| failed("creating", self.dir, e))?;
                Vec::new()
            }
            listed => listed.map_err(|e| failed("listing", self.dir, e))?,
        };
        // Always, not only when it was just created: the process that created it may have died before this.
        let parent = parent_of(self.dir);
        self.storage.sync_dir(&parent).map_err(|e| failed("syncing", &parent, e))?;
        for entry in listed {
            if let Some(base) = base_offset_of(&entry.name) {
                self.bases.push(base);
            } else if let Some(offset) = offset_in_name(&entry.name, ".snapshot") {
                self.snapshots.push(offset);
            } else if Path::new(&entry.name).extension().is_some_and(|suffix| suffix == "tmp") {
                self.remove(&entry.name)?;
            }
        }
        self.bases.sort_unstable();
        self.snapshots.sort_unstable();
        let path = self.dir.join(checkpoint::FILE_NAME);
        let bytes = read_file(&**self.storage, &path).map_err(|e| failed("reading", &path, e))?;
        self.persisted = bytes.and_then(|bytes| Checkpoint::decode(&bytes));
        let first = self.bases.first().copied().unwrap_or(0);
        self.checkpoint = self.persisted.clone().unwrap_or_else(|| {
            // Nothing says how far compaction has come: its gaps must not pass for damage, nor be cut away.
            let sealed = self.bases.last().copied().filter(|_| self.config.compaction.is_some());
            Checkpoint { log_start: first, compacted: sealed.unwrap_or(0), ..Default::default() }
        });
        self.report.mark = self.checkpoint.mark;
        while self.bases.len() > 1 && self.bases[1] <= self.checkpoint.log_start {
            let base = self.bases.remove(0);
            self.remove(&file_name(base))?;
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), LogError> {
        let path = self.dir.join(name);
        self.storage.remove(&path).map_err(|e| failed("removing", &path, e))
    }

    /// Walks every segment in order, up to the place where the log has to be cut.
    fn verify_segments(&mut self) -> Result<(), LogError> {
        let (from, compacted) = (self.checkpoint.log_start, self.checkpoint.compacted);
        let lost_before = |first: &i64| *first > from && *first > compacted;
        if let Some(first) = self.bases.first().copied().filter(lost_before) {
            self.report.damaged.push(Damaged { from, next: first, bytes: 0 });
            self.checkpoint.log_start = first;
        }
        let mark = self.checkpoint.mark;
        let bases = self.bases.clone();
        for (n, base) in bases.iter().copied().enumerate() {
            let next_base = bases.get(n + 1).copied();
            let path = self.dir.join(file_name(base));
            let file =
                self.storage.open(&path, OpenMode::Existing).map_err(|e| failed("opening", &path, e))?;
            let below_mark = next_base.is_some_and(|next| next <= mark);
            let check_crc = self.config.recovery == RecoveryMode::Full || !below_mark;
            let index_interval = self.config.index_interval_bytes;
            let expect = Expect { base_offset: base, next_base, mark, compacted, check_crc, index_interval };
            let mut scan = scan(&*file, &expect).map_err(|e| failed("reading", &path, e))?;
            self.count(&scan, check_crc);
            let end = scan.published.next_offset;
            let covers_all = match next_base {
                Some(next) if end < next => next <= compacted && self.any_begins(&bases[n + 1..])?,
                Some(_) => true,
                None => end >= mark,
            };
            // Behind its last offset a sealed segment has nothing to say: junk there cuts none of those that follow.
            let is_full = next_base.is_some_and(|next| end >= next);
            let whole = covers_all && (scan.junk_end.is_none() || is_full);
            let torn = !whole && end >= mark;
            let torn_bytes = scan.junk_end.map_or(0, |junk| junk - scan.published.size);
            if !whole && !torn {
                // Lost below the mark up to the next segment, or in the last one up to the mark.
                let region = Region {
                    from: end,
                    next: next_base.unwrap_or(mark),
                    pos: scan.published.size,
                    end: scan.published.size + torn_bytes,
                };
                scan.damage.push(region);
                scan.published.next_offset = region.next;
            }
            self.report_damage(&scan);
            let file = self.files.closed(path);
            let segment = Arc::new(Segment::new(base, file, scan.published, scan.damage));
            self.segments.push(Arc::clone(&segment));
            if torn {
                self.cut(&segment, torn_bytes, &bases[n + 1..])?;
                break;
            }
        }
        Ok(())
    }

    /// Whether a batch stands in any of these segments. Compaction keeps the last batch of what it goes through, so that a
    /// gap with nothing behind it is none of its gaps.
    fn any_begins(&self, bases: &[i64]) -> Result<bool, LogError> {
        for base in bases {
            let path = self.dir.join(file_name(*base));
            let mut head = [0; HEADER_LEN];
            let read = self
                .storage
                .open(&path, OpenMode::ReadOnly)
                .and_then(|file| read_up_to(&*file, &mut head, 0));
            let read = read.map_err(|e| failed("reading", &path, e))?;
            if BatchHeader::parse(&head[..read]).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compaction leaves no gap without a batch behind it, and only a walk tells whether there is a sound one: a gap that
    /// was taken for one of compaction's, with nothing behind it, is a loss.
    fn close_gaps(&mut self) {
        let mut behind = false;
        for n in (0..self.segments.len()).rev() {
            let (segment, next) = (&self.segments[n], self.segments.get(n + 1).map(|next| next.base_offset));
            let published = segment.published().clone();
            let gap = next.filter(|next| !behind && published.next_offset < *next);
            behind |= published.size > 0;
            let Some(next) = gap else { continue };
            let (from, size) = (published.next_offset, published.size);
            let region = Region { from, next, pos: size, end: size };
            let damage = segment.damage.iter().copied().chain([region]).collect();
            let published = Published { next_offset: next, ..published };
            let file = Arc::clone(&segment.file);
            self.segments[n] = Arc::new(Segment::new(segment.base_offset, file, published, damage));
            self.report.damaged.push(Damaged { from, next, bytes: 0 });
        }
    }

    fn count(&mut self, scan: &Scan, checked: bool) {
        let batches =
            if checked { &mut self.report.proven_batches } else { &mut self.report.trusted_batches };
        *batches += scan.batches;
        for (epoch, start) in &scan.epochs {
            self.checkpoint.epochs.assign(*epoch, *start);
        }
    }

    fn report_damage(&mut self, scan: &Scan) {
        let lost = scan.damage.iter().filter(|region| region.next > region.from);
        self.report.damaged.extend(lost.map(|region| Damaged {
            from: region.from,
            next: region.next,
            bytes: region.end - region.pos,
        }));
    }

    /// Ends the log at the end of `segment`. What follows is moved aside first, durably, then the segment is cut,
    /// durably: bytes of today must never be found again behind batches that are written tomorrow.
    fn cut(&mut self, segment: &Segment, torn_bytes: u64, later: &[i64]) -> Result<(), LogError> {
        let size = segment.size();
        let file = segment.file.open().map_err(|e| failed("opening", segment.path(), e))?;
        self.report.cut_at = Some(segment.next_offset());
        self.report.cut_bytes += torn_bytes;
        if torn_bytes > 0 {
            // With some of the zeros behind: they may belong to the last of the cut batches.
            let file_len = file.len().map_err(|e| failed("measuring", segment.path(), e))?;
            let torn_bytes = torn_bytes.next_multiple_of(CUT_ROUNDING).min(file_len - size);
            let path = self.free_name(&format!("{:020}.cut", segment.next_offset()))?;
            self.copy_aside(&*file, size, torn_bytes, &path)
                .map_err(|e| failed("keeping cut bytes in", &path, e))?;
        }
        for base in later {
            let from = self.dir.join(file_name(*base));
            let file =
                self.storage.open(&from, OpenMode::ReadOnly).map_err(|e| failed("opening", &from, e))?;
            self.report.cut_bytes += file.len().map_err(|e| failed("measuring", &from, e))?;
            let to = self.free_name(&format!("{base:020}.log.cut"))?;
            self.storage.rename(&from, &to).map_err(|e| failed("moving aside", &from, e))?;
        }
        self.storage.sync_dir(self.dir).map_err(|e| failed("syncing", self.dir, e))?;
        file.set_len(size).map_err(|e| failed("cutting", segment.path(), e))?;
        file.sync_data().map_err(|e| failed("syncing", segment.path(), e))
    }

    fn copy_aside(&self, from: &dyn StorageFile, mut pos: u64, len: u64, to: &Path) -> io::Result<()> {
        let copy = self.storage.open(to, OpenMode::CreateNew)?;
        let mut written = 0;
        let mut buffer = vec![0; COPY_CHUNK];
        while written < len {
            let wanted = COPY_CHUNK.min(usize::try_from(len - written).unwrap_or(COPY_CHUNK));
            let read = read_up_to(from, &mut buffer[..wanted], pos)?;
            if read == 0 {
                break;
            }
            copy.write_at(&[&buffer[..read]], written)?;
            pos += read as u64;
            written += read as u64;
        }
        copy.sync_data()
    }

    /// `name`, with a number behind it when the name is taken.
    fn free_name(&self, name: &str) -> Result<PathBuf, LogError> {
        let taken = self.storage.list(self.dir).map_err(|e| failed("listing", self.dir, e))?;
        let is_taken = |wanted: &str| taken.iter().any(|entry| entry.name == wanted);
        let mut candidate = name.to_owned();
        let mut n = 1;
        while is_taken(&candidate) {
            candidate = format!("{name}.{n}");
            n += 1;
        }
        Ok(self.dir.join(candidate))
    }

    /// Makes sure that there is a segment to append to and that no offset below the mark is given out again.
    fn settle_the_end(&mut self) -> Result<(), LogError> {
        let start = self.checkpoint.log_start;
        let mark = self.checkpoint.mark;
        let end = self.segments.last().map_or(start, |segment| segment.next_offset()).max(start);
        if self.segments.is_empty() && mark > start {
            self.report.damaged.push(Damaged { from: start, next: mark, bytes: 0 });
        }
        let end = end.max(mark);
        let can_go_on = self.segments.last().is_some_and(|segment| {
            let size = segment.size();
            segment.next_offset() == end && !segment.damage.iter().any(|region| region.pos == size)
        });
        if !can_go_on {
            let path = self.dir.join(file_name(end));
            self.storage.open(&path, OpenMode::CreateNew).map_err(|e| failed("creating", &path, e))?;
            let segment = Segment::new(end, self.files.closed(path), Published::empty(end), Vec::new());
            self.segments.push(Arc::new(segment));
        }
        self.report.log_start = start;
        self.report.log_end = end;
        self.report.clean = self.report.cut_at.is_none() && end == mark && self.persisted.is_some();
        Ok(())
    }

    /// The newest sound snapshot that does not speak of offsets that were cut, plus every batch after it.
    fn replay_producers(&mut self, now: Timestamp) -> Result<ProducerState, LogError> {
        let end = self.report.log_end;
        while let Some(beyond) = self.snapshots.pop_if(|offset| *offset > end) {
            self.remove(&snapshot_name(beyond))?;
        }
        let mut state = ProducerState::default();
        let mut from = i64::MIN;
        for offset in self.snapshots.iter().rev().copied() {
            let path = self.dir.join(snapshot_name(offset));
            let bytes = read_file(&**self.storage, &path).map_err(|e| failed("reading", &path, e))?;
            if let Some(sound) = bytes.and_then(|bytes| ProducerState::decode(&bytes, offset)) {
                (state, from) = (sound, offset);
                break;
            }
        }
        for segment in self.segments.iter().filter(|segment| segment.next_offset() > from) {
            segment
                .for_each_header(from, |_, header| {
                    state.appended(header, header.base_offset, header.max_timestamp, now);
                    Ok(true)
                })
                .map_err(|error| failed("reading", segment.path(), io::Error::other(error)))?;
        }
        Ok(state)
    }

    /// Forces what was found: it may have been in the page cache only, and readers are about to see it.
    fn make_durable(&mut self) -> Result<(), LogError> {
        let mark = self.checkpoint.mark;
        for segment in self.segments.iter().filter(|segment| segment.next_offset() > mark) {
            let file = segment.file.open().map_err(|e| failed("opening", segment.path(), e))?;
            file.sync_data().map_err(|e| failed("syncing", segment.path(), e))?;
        }
        self.storage.sync_dir(self.dir).map_err(|e| failed("syncing", self.dir, e))?;
        self.checkpoint.mark = self.report.log_end;
        self.checkpoint.epochs.cut(self.report.log_end);
        if self.persisted.as_ref() != Some(&self.checkpoint) {
            let path = self.dir.join(checkpoint::FILE_NAME);
            write_atomic(&**self.storage, &path, &self.checkpoint.encode())
                .map_err(|e| failed("writing", &path, e))?;
        }
        Ok(())
    }
}
