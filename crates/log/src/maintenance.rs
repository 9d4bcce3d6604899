//! What the owner does besides appending: retention, truncation, a clean close, removal.

use std::io;
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::config::Timestamp;
use crate::error::LogError;
use crate::log::Log;
use crate::recovery::{parent_of, snapshot_name};
use crate::retention::{SegmentFacts, expired, is_old, is_past};
use crate::segment::Segment;

impl Log {
    /// Removes whole old segments as the configuration says; returns how many went. A segment that is full of old
    /// records but still active is sealed first and goes once it is durable.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn enforce_retention(&mut self, now: Timestamp) -> Result<usize, LogError> {
        self.check_fence()?;
        let newest = self.active.published().max_timestamp;
        let aged = is_past(self.active_since, self.config.segment_age, now);
        if self.active.size() > 0 && (aged || is_old(newest, &self.config, now)) {
            self.roll()?;
        }
        let segments = self.reader.segments();
        let facts: Vec<SegmentFacts> = segments
            .iter()
            .map(|segment| {
                let published = segment.published();
                SegmentFacts {
                    bytes: published.size,
                    max_timestamp: published.max_timestamp,
                    removable: !Arc::ptr_eq(segment, &self.active) && published.next_offset <= self.barriered,
                }
            })
            .collect();
        let count = expired(&facts, &self.config, now);
        match segments.get(count) {
            Some(first_kept) if count > 0 => self.advance_start(first_kept.base_offset),
            _ => Ok(0),
        }
    }

    /// Seals the active segment, when there is anything in it, so that everything before the log end can be removed
    /// in whole segments.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn seal_active(&mut self) -> Result<(), LogError> {
        self.check_fence()?;
        if self.active.size() > 0 { self.roll() } else { Ok(()) }
    }

    /// Raises the log start to `before` (`DeleteRecords`), which the owner keeps at or below the high watermark, and
    /// removes segments wholly below it. Returns the log start.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`], [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn delete_records(&mut self, before: i64) -> Result<i64, LogError> {
        self.check_fence()?;
        let (start, end) = (self.reader.log_start(), self.reader.log_end());
        if before > end || before < 0 {
            return Err(LogError::OutOfRange { offset: before, start, end });
        }
        if before > start {
            // A log start beyond what is durable could lie beyond the log end after a power cut.
            if before > self.barriered {
                self.force_everything()?;
            }
            self.advance_start(before)?;
        }
        Ok(self.reader.log_start())
    }

    /// The order matters: readers first, then the promise on disk, then the files. A crash in between leaves files
    /// below the log start, which the next start removes; never a hole.
    fn advance_start(&mut self, start: i64) -> Result<usize, LogError> {
        // The last trace of producers whose batches go.
        self.write_snapshot(self.reader.log_end(), true)?;
        let segments = self.reader.segments();
        let is_kept =
            |segment: &Arc<Segment>| Arc::ptr_eq(segment, &self.active) || segment.next_offset() > start;
        let kept: Vec<Arc<Segment>> = segments.iter().filter(|segment| is_kept(segment)).cloned().collect();
        let gone: Vec<Arc<Segment>> = segments.iter().filter(|segment| !is_kept(segment)).cloned().collect();
        self.reader.set_log_start(start);
        self.reader.replace_segments(kept);
        gone.iter().for_each(|segment| segment.file.retire());
        self.checkpoint()?;
        for segment in &gone {
            self.guard("removing", segment.path(), self.storage.remove(segment.path()))?;
            self.dirty.forget(segment.path());
        }
        if !gone.is_empty() {
            self.dirty.dir();
        }
        Ok(gone.len())
    }

    /// A barrier on this thread, whatever else is in flight.
    pub(crate) fn force_everything(&mut self) -> Result<(), LogError> {
        let forced = self.ticket().force().map_err(|error| match error {
            crate::error::SyncError::Storage { path, source } => {
                LogError::Storage { action: "syncing", path, source }
            }
            crate::error::SyncError::Fenced => LogError::Fenced,
        })?;
        self.synced(forced).map(drop)
    }

    /// Forces everything, writes mark and producer snapshot, gives back pre-sized space. A ticket that is out should
    /// be reported first.
    ///
    /// # Errors
    /// [`LogError::Storage`], [`LogError::Fenced`]; what was durable before still is.
    pub fn close(mut self) -> Result<(), LogError> {
        self.check_fence()?;
        let size = self.active.size();
        if self.file_len > size {
            let file = self.guard("opening", self.active.path(), self.active.file.open())?;
            self.guard("giving back space of", self.active.path(), file.set_len(size))?;
            self.dirty.file(self.active.path(), &file);
        }
        self.force_everything()?;
        self.write_snapshot(self.reader.log_end(), true)?;
        self.checkpoint()
    }

    /// Drops everything from the batch that holds `offset` on and opens the log again; the freed offsets are given
    /// out anew. Readers of the old log must not be used any more.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`], [`LogError::Storage`], [`LogError::Fenced`].
    pub fn truncate_from(self, offset: i64, now: Timestamp) -> Result<Self, LogError> {
        let mut log = self;
        log.check_fence()?;
        let (start, end) = (log.reader.log_start(), log.reader.log_end());
        if offset < start || offset > end {
            return Err(LogError::OutOfRange { offset, start, end });
        }
        log.force_everything()?;
        let segments = log.reader.segments();
        let first = segments.partition_point(|segment| segment.base_offset <= offset).saturating_sub(1);
        let cut = Arc::clone(&segments[first]);
        let mut place = (cut.size(), offset.min(cut.next_offset()));
        let found = cut.for_each_header(offset, |pos, header| {
            place = (pos, header.base_offset);
            Ok(false)
        });
        found.map_err(|error| LogError::Storage {
            action: "reading",
            path: cut.path().to_path_buf(),
            source: io::Error::other(error),
        })?;
        let (size, new_end) = place;
        // First the mark: what is about to go must not be missed as damage.
        let mut epochs = log.reader.epochs();
        epochs.cut(new_end);
        let before = &log.persisted;
        let (compacted, clean) = (before.compacted.min(new_end), before.clean.min(new_end));
        let log_start = start.min(new_end);
        log.persist(Checkpoint { log_start, mark: new_end, compacted, clean, epochs })?;
        for segment in segments[first + 1..].iter().rev() {
            log.guard("removing", segment.path(), log.storage.remove(segment.path()))?;
        }
        for beyond in log.snapshots.iter().filter(|snapshot| **snapshot > new_end) {
            let path = log.dir.join(snapshot_name(*beyond));
            log.guard("removing", &path, log.storage.remove(&path))?;
        }
        let file = log.guard("opening", cut.path(), cut.file.open())?;
        log.guard("cutting", cut.path(), file.set_len(size))?;
        log.guard("syncing", cut.path(), file.sync_data())?;
        log.guard("syncing", &log.dir, log.storage.sync_dir(&log.dir))?;
        Ok(Self::open(log.storage, log.dir, log.config, now)?.0)
    }

    /// To be called before the files of the log are removed: who reads from here on finds none, also not what
    /// another log then puts under the same names.
    pub fn retire(&self) {
        self.fence.set();
        self.reader.segments().iter().for_each(|segment| segment.file.retire());
    }

    /// Removes all files of the log and its directory, durably. Readers that hold slices finish them.
    ///
    /// # Errors
    /// [`LogError::Storage`]; some files may be left, and a second attempt needs the log to be opened again.
    pub fn delete(self) -> Result<(), LogError> {
        self.retire();
        let listed = self.guard("listing", &self.dir, self.storage.list(&self.dir))?;
        for entry in listed {
            let path = self.dir.join(&entry.name);
            self.guard("removing", &path, self.storage.remove(&path))?;
        }
        self.guard("removing", &self.dir, self.storage.remove_dir(&self.dir))?;
        let parent = parent_of(&self.dir);
        self.guard("syncing", &parent, self.storage.sync_dir(&parent))
    }
}
