//! Compaction: of each key only its newest record stays in the sealed part of a log.
//!
//! Three steps. [`Log::plan_compaction`] names the sealed, durable segments that are worth it; [`CompactionJob::run`]
//! writes them anew beside the old ones, on any thread, while the owner appends; [`Log::compacted`] puts the new files
//! in the place of the old. Each file changes in one rename, after the checkpoint says up to where gaps are no damage,
//! so a crash at any moment leaves for each segment the old content or the new, and both are right.
//!
//! Offsets never change: a batch keeps its place, its last offset and its producer. Tombstones stay for a while after the
//! first pass that met them; a batch without records stays while it holds the last sequence of its producer, and the last
//! batch of a pass always stays, so that readers get to its end.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tramline_wire::{BatchHeader, Record, RecordBatch};

use crate::checkpoint::Checkpoint;
use crate::config::{Compaction, Timestamp};
use crate::error::{LogError, ReadError, invalid};
use crate::log::Log;
use crate::retention::is_past;
use crate::segment::{Published, Segment};
use crate::segment_file::{Pinned, SegmentFiles};
use crate::storage::{OpenMode, Storage, StorageFile};

/// What a remembered key takes beside its bytes.
const KEY_OVERHEAD: usize = 48;
/// Segments that are replaced before readers get the new list: as many old files are held open for readers of the
/// list before.
const REPLACED_AT_ONCE: usize = 16;
/// Bytes collected before a write.
const WRITE_CHUNK: usize = 1024 * 1024;

/// The newest offset of each key.
type Keys = HashMap<Box<[u8]>, i64>;

/// The work of one pass, to be run on any thread that may block.
#[derive(Debug)]
pub struct CompactionJob {
    storage: Arc<dyn Storage>,
    files: Arc<SegmentFiles>,
    /// Sealed segments in order, the compacted ones first.
    segments: Vec<Arc<Segment>>,
    /// How many of them were compacted before.
    clean: usize,
    /// Where the segment after the last of them begins.
    end: i64,
    settings: Compaction,
    index_interval: u32,
    /// Base offsets of the batches that hold the last sequence of a producer.
    last_batches: HashSet<i64>,
    now: Timestamp,
}

/// New files beside the old ones, for [`Log::compacted`]. Dropped unused they are removed by the next start.
#[derive(Debug)]
#[must_use = "nothing changes before `Log::compacted`"]
pub struct Compacted {
    rewritten: Vec<Rewritten>,
    end: i64,
    report: CompactionReport,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Records that went.
    pub records_removed: u64,
    /// Bytes of segments before.
    pub bytes_before: u64,
    /// Bytes of the same segments after.
    pub bytes_after: u64,
}

#[derive(Debug)]
struct Rewritten {
    old: Arc<Segment>,
    /// `None` when nothing is left of it.
    new: Option<(PathBuf, Arc<Segment>)>,
}

/// What a batch comes to.
enum Fate {
    Stays,
    Thinner(Bytes),
    Goes,
}

impl Log {
    /// The next pass, when the settings ask for compaction and there is enough to do.
    #[must_use]
    pub fn plan_compaction(&self, now: Timestamp) -> Option<CompactionJob> {
        let settings = self.config.compaction?;
        if self.fence.is_set() {
            return None;
        }
        let all = self.reader.segments();
        let sealed = all.iter().take_while(|segment| {
            let published = segment.published();
            let may_go = !Arc::ptr_eq(segment, &self.active) && published.next_offset <= self.barriered;
            may_go
                && (settings.min_lag.is_zero()
                    || is_past(published.max_timestamp, Some(settings.min_lag), now))
        });
        let segments: Vec<Arc<Segment>> = sealed.cloned().collect();
        let end = all.get(segments.len())?.base_offset;
        let clean = segments.partition_point(|segment| segment.base_offset < self.persisted.clean);
        let bytes = |segments: &[Arc<Segment>]| segments.iter().map(|segment| segment.size()).sum::<u64>();
        let (dirty, total) = (bytes(&segments[clean..]), bytes(&segments));
        let is_due =
            |segment: &Arc<Segment>| is_past(segment.published().max_timestamp, Some(settings.max_lag), now);
        let worth_it = dirty as f64 >= total as f64 * settings.min_dirty_ratio;
        if dirty == 0 || !(worth_it || segments[clean..].first().is_some_and(is_due)) {
            return None;
        }
        Some(CompactionJob {
            storage: Arc::clone(&self.storage),
            files: Arc::clone(&self.files),
            segments,
            clean,
            end,
            settings,
            index_interval: self.config.index_interval_bytes,
            last_batches: self.producers.last_batches().collect(),
            now,
        })
    }

    /// Puts the files of a pass in place of the old ones. Segments that retention removed meanwhile are passed over.
    /// A few barriers, on this thread.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn compacted(&mut self, done: Compacted) -> Result<CompactionReport, LogError> {
        self.check_fence()?;
        // The log may have been cut meanwhile.
        let end = done.end.min(self.barriered);
        let now = self.as_of_now();
        self.persist(Checkpoint { compacted: now.compacted.max(end), ..now })?;
        let mut segments = self.reader.segments().to_vec();
        let mut pinned = Vec::new();
        for Rewritten { old, new } in done.rewritten {
            if pinned.len() == REPLACED_AT_ONCE {
                self.reader.replace_segments(segments.clone());
                pinned.drain(..).for_each(Pinned::retire);
            }
            let Some(at) = segments.iter().position(|segment| Arc::ptr_eq(segment, &old)) else {
                if let Some((written, _)) = new {
                    self.guard("removing", &written, self.storage.remove(&written))?;
                }
                continue;
            };
            self.dirty.forget(old.path());
            match new {
                Some((written, segment)) => {
                    // Who reads by the list before must not find the new content under the old positions.
                    pinned.push(self.guard("opening", old.path(), old.file.pin())?);
                    self.guard("renaming", &written, self.storage.rename(&written, old.path()))?;
                    segments[at] = segment;
                }
                None => {
                    pinned.push(self.guard("opening", old.path(), old.file.pin())?);
                    self.guard("removing", old.path(), self.storage.remove(old.path()))?;
                    segments.remove(at);
                }
            }
        }
        self.reader.replace_segments(segments);
        pinned.into_iter().for_each(Pinned::retire);
        self.guard("syncing", &self.dir, self.storage.sync_dir(&self.dir))?;
        let now = self.as_of_now();
        self.persist(Checkpoint { clean: now.clean.max(end), ..now })?;
        Ok(done.report)
    }
}

impl CompactionJob {
    /// Reads the sealed segments and writes the new ones, each durable when this returns. Long; blocks. `go_on` is asked
    /// before each batch; once it says no, what was written is removed and there is no result.
    ///
    /// # Errors
    /// What the file system answers, or what is wrong with a stored batch. The log is as it was; what was written so far
    /// is removed when the file system allows it, and by the next start otherwise.
    pub fn run(self, go_on: impl Fn() -> bool) -> Result<Option<Compacted>, ReadError> {
        let (keys, count) = self.newest_of_each_key(&go_on)?;
        let end = self.segments.get(count).map_or(self.end, |segment| segment.base_offset);
        let mut done = Compacted { rewritten: Vec::new(), end, report: CompactionReport::default() };
        for (n, segment) in self.segments[..count].iter().enumerate() {
            let is_last = n + 1 == count;
            // What is damaged stays as evidence.
            if !segment.damage.is_empty() {
                continue;
            }
            let Some(_pinned) = pin_if_there(segment)? else { continue };
            match self.rewrite(segment, &keys, is_last, &go_on, &mut done.report) {
                Ok(rewritten) => done.rewritten.extend(rewritten),
                Err(error) => {
                    self.remove_what_was_written(&done);
                    return Err(error);
                }
            }
            if !go_on() {
                self.remove_what_was_written(&done);
                return Ok(None);
            }
        }
        Ok(Some(done))
    }

    fn remove_what_was_written(&self, done: &Compacted) {
        for (path, _) in done.rewritten.iter().filter_map(|rewritten| rewritten.new.as_ref()) {
            // Whoever asked has a better reason to stop than this; the next start removes it.
            let _ = self.storage.remove(path);
        }
    }

    /// The newest offset of each key in the segments that are not compacted, and how many segments the pass goes
    /// through. Keys of a segment that came too late for that are remembered all the same: they too hide older ones.
    fn newest_of_each_key(&self, go_on: &impl Fn() -> bool) -> Result<(Keys, usize), ReadError> {
        let mut keys = Keys::new();
        let mut memory = 0;
        for (n, segment) in self.segments.iter().enumerate().skip(self.clean) {
            let mut full = false;
            let Some(_pinned) = pin_if_there(segment)? else { continue };
            segment.for_each_header(segment.base_offset, |pos, header| {
                for record in &segment.decode_batch(pos, header)? {
                    let Some(key) = record.key().filter(|_| !record.is_control()) else { continue };
                    match keys.get_mut(key) {
                        Some(newest) => *newest = record.offset(),
                        None => {
                            memory += key.len() + KEY_OVERHEAD;
                            keys.insert(key.into(), record.offset());
                        }
                    }
                }
                full = memory > self.settings.key_memory && n > self.clean;
                Ok(!full && go_on())
            })?;
            if full {
                return Ok((keys, n));
            }
        }
        Ok((keys, self.segments.len()))
    }

    fn rewrite(
        &self,
        old: &Arc<Segment>,
        keys: &Keys,
        is_last: bool,
        go_on: &impl Fn() -> bool,
        report: &mut CompactionReport,
    ) -> Result<Option<Rewritten>, ReadError> {
        let last_base = is_last.then(|| last_batch(old)).transpose()?.flatten();
        let fate_of = |batch: &RecordBatch| {
            let base = batch.header().base_offset;
            self.fate(batch, keys, last_base == Some(base) || self.last_batches.contains(&base))
        };
        // Most of what was compacted before stays as it is, and is not to be written again.
        let mut changes = false;
        old.for_each_header(old.base_offset, |pos, header| {
            changes = !matches!(fate_of(&old.decode_batch(pos, header)?)?.0, Fate::Stays);
            Ok(!changes && go_on())
        })?;
        if !changes {
            return Ok(None);
        }
        let path = old.path().with_extension("tmp");
        let file = self.storage.open(&path, OpenMode::Truncate)?;
        let mut out = Output::new(old.base_offset, file, self.index_interval);
        let mut removed = 0;
        let walked = old.for_each_header(old.base_offset, |pos, header| {
            let (fate, gone) = fate_of(&old.decode_batch(pos, header)?)?;
            removed += gone;
            match fate {
                Fate::Stays => out.push(&old.read_batch(pos, header)?, header)?,
                Fate::Thinner(bytes) => out.push(&bytes, &parse(&bytes)?)?,
                Fate::Goes => {}
            }
            Ok(go_on())
        });
        let finished = walked.and_then(|()| out.finish().map_err(ReadError::from));
        let published = match finished {
            Ok(published) if go_on() => published,
            not_needed => {
                self.storage.remove(&path)?;
                return not_needed.map(|_| None);
            }
        };
        report.records_removed += removed;
        report.bytes_before += old.size();
        report.bytes_after += published.size;
        if published.size == 0 {
            self.storage.remove(&path)?;
            return Ok(Some(Rewritten { old: Arc::clone(old), new: None }));
        }
        // Not open: before it has its name nobody can read it.
        let file = self.files.closed(old.path().to_path_buf());
        let segment = Segment::new(old.base_offset, file, published, Vec::new());
        Ok(Some(Rewritten { old: Arc::clone(old), new: Some((path, Arc::new(segment))) }))
    }

    /// What becomes of a batch, and how many of its records go.
    fn fate(&self, batch: &RecordBatch, keys: &Keys, stays: bool) -> Result<(Fate, u64), ReadError> {
        let header = batch.header();
        if header.is_control() {
            return Ok((Fate::Stays, 0));
        }
        let tombstones_go = header.has_delete_horizon() && header.base_timestamp <= self.now;
        let keeps = |record: &Record| {
            // A record without a key has no successor and no identity: such a topic has no room for it.
            record.key().is_some_and(|key| {
                let is_newest = keys.get(key).is_none_or(|newest| *newest <= record.offset());
                is_newest && !(tombstones_go && record.value().is_none())
            })
        };
        let (mut kept, mut tombstones) = (0, false);
        for record in batch.iter().filter(keeps) {
            kept += 1;
            tombstones |= record.value().is_none();
        }
        let gone = (batch.len() - kept) as u64;
        if kept == 0 && !stays {
            return Ok((Fate::Goes, gone));
        }
        let first_met = tombstones && !header.has_delete_horizon();
        if gone == 0 && !first_met {
            return Ok((Fate::Stays, 0));
        }
        let retention = i64::try_from(self.settings.delete_retention.as_millis()).unwrap_or(i64::MAX);
        let horizon = first_met.then(|| self.now.saturating_add(retention));
        let bytes = batch.thinned(keeps, horizon).map_err(invalid)?;
        Ok((Fate::Thinner(bytes), gone))
    }
}

/// A segment that is being written.
struct Output {
    file: Arc<dyn StorageFile>,
    base_offset: i64,
    index_interval: u32,
    published: Published,
    waiting: Vec<u8>,
    written: u64,
}

impl Output {
    fn new(base_offset: i64, file: Arc<dyn StorageFile>, index_interval: u32) -> Self {
        let published = Published::empty(base_offset);
        Self { file, base_offset, index_interval, published, waiting: Vec::new(), written: 0 }
    }

    fn push(&mut self, bytes: &[u8], header: &BatchHeader) -> io::Result<()> {
        let relative = u32::try_from(header.base_offset - self.base_offset).unwrap_or(u32::MAX);
        self.published.note(header, relative, self.index_interval, false);
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= WRITE_CHUNK { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_at(&[&self.waiting], self.written)?;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Published> {
        self.write()?;
        self.file.sync_data()?;
        Ok(self.published.clone())
    }
}

/// Holds the file of a segment open; `None` when retention has removed it since the pass was planned.
fn pin_if_there(segment: &Segment) -> Result<Option<Pinned>, ReadError> {
    match segment.file.pin() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        pinned => Ok(Some(pinned?)),
    }
}

fn parse(bytes: &[u8]) -> Result<BatchHeader, ReadError> {
    BatchHeader::parse(bytes).map_err(invalid)
}

/// The base offset of a segment's last batch.
fn last_batch(segment: &Segment) -> Result<Option<i64>, ReadError> {
    let mut last = None;
    segment.for_each_header(segment.base_offset, |_, header| {
        last = Some(header.base_offset);
        Ok(true)
    })?;
    Ok(last)
}
