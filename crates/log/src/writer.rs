//! Appending: sequences and offsets in order, one write per file, roll when a segment is full.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tramline_wire::BatchHeader;
use tramline_wire::batch::set_log_append_time;

use crate::append::{Append, AppendOutcome};
use crate::config::Timestamp;
use crate::error::{AppendError, LogError};
use crate::log::Log;
use crate::producer_state::Verdict;
use crate::recovery::snapshot_name;
use crate::retention::is_past;
use crate::segment::{Published, Segment, file_name};
use crate::storage::OpenMode;

/// Base offset, length and leader epoch: what the log writes over the sender's bytes. The CRC does not cover them.
const PLACED: usize = 16;
/// Snapshots kept: the newest, and one in case that it is damaged.
const SNAPSHOTS_KEPT: usize = 2;
/// Files that may wait for a barrier while further segments are begun: each is held open for it.
const DIRTY_KEPT: usize = 64;

/// Batches that have their offsets and go out with the next write.
#[derive(Debug)]
struct Pending {
    batches: Vec<Placed>,
    bytes: u64,
    next_offset: i64,
}

#[derive(Debug)]
struct Placed {
    head: [u8; PLACED],
    bytes: Bytes,
    base_offset: i64,
    max_timestamp: Timestamp,
}

impl Log {
    /// Appends what is queued: sequences are checked and offsets given in order, then one write per file. Outcomes
    /// are in the order of the members. Nothing is durable yet.
    ///
    /// # Errors
    /// [`LogError::Storage`] fences the log: the whole group is to be answered with its code, and some of it may be
    /// in the log. [`LogError::Fenced`] from then on. [`LogError::StaleEpoch`] when `epoch` is an old one.
    pub fn append_group(
        &mut self,
        group: Vec<Append>,
        epoch: i32,
        now: Timestamp,
    ) -> Result<Vec<AppendOutcome>, LogError> {
        self.check_fence()?;
        self.begin_epoch(epoch)?;
        let mut pending = Pending {
            batches: Vec::with_capacity(group.len()),
            bytes: 0,
            next_offset: self.reader.log_end(),
        };
        let mut outcomes = Vec::with_capacity(group.len());
        for append in group {
            outcomes.push(self.place(append, epoch, now, &mut pending)?);
        }
        self.flush(&mut pending, now)?;
        Ok(outcomes)
    }

    /// Decides about one batch and gives it its offsets.
    fn place(
        &mut self,
        append: Append,
        epoch: i32,
        now: Timestamp,
        pending: &mut Pending,
    ) -> Result<AppendOutcome, LogError> {
        let Append { mut bytes, header } = append;
        let segment_bytes = self.config.segment_bytes;
        if bytes.len() as u64 > u64::from(segment_bytes) {
            let refused = AppendError::LargerThanSegment { bytes: bytes.len(), segment_bytes };
            return Ok(AppendOutcome::Refused(refused));
        }
        match self.producers.check(&header) {
            Err(refused) => return Ok(AppendOutcome::Refused(refused)),
            Ok(Verdict::Duplicate(stored)) => {
                return Ok(AppendOutcome::Duplicate {
                    base_offset: stored.base_offset,
                    last_offset: stored.last_offset,
                    timestamp: stored.timestamp,
                });
            }
            Ok(Verdict::Append) => {}
        }
        let mut max_timestamp = header.max_timestamp;
        if self.config.log_append_time {
            let mut stamped = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            if let Err(error) = set_log_append_time(&mut stamped, now) {
                return Ok(AppendOutcome::Refused(error.into()));
            }
            bytes = stamped.freeze();
            max_timestamp = now;
        }
        let base_offset = pending.next_offset;
        let last_offset = base_offset + i64::from(header.last_offset_delta);
        if self.must_roll(bytes.len(), last_offset, now, pending) {
            self.flush(pending, now)?;
            self.roll()?;
        }
        self.producers.appended(&header, base_offset, max_timestamp, now);
        pending.next_offset = last_offset + 1;
        pending.bytes += bytes.len() as u64;
        let head = placed_head(&header, base_offset, epoch);
        pending.batches.push(Placed { head, bytes, base_offset, max_timestamp });
        let log_append_time = self.config.log_append_time.then_some(now);
        Ok(AppendOutcome::Appended { base_offset, last_offset, log_append_time })
    }

    fn must_roll(&self, bytes: usize, last_offset: i64, now: Timestamp, pending: &Pending) -> bool {
        let size = self.active.size() + pending.bytes;
        // Also one that has only been opened: its offsets must stay within reach of its base.
        let too_far = last_offset - self.active.base_offset > i64::from(i32::MAX);
        let is_new = pending.next_offset == self.active.base_offset;
        let aged = is_past(self.active_since, self.config.segment_age, now);
        !is_new && (too_far || aged || size + bytes as u64 > u64::from(self.config.segment_bytes))
    }

    /// Writes what has its offsets, then shows it to readers.
    fn flush(&mut self, pending: &mut Pending, now: Timestamp) -> Result<(), LogError> {
        if pending.batches.is_empty() {
            return Ok(());
        }
        let active = Arc::clone(&self.active);
        let file = self.guard("opening", active.path(), active.file.open())?;
        let pos = active.size();
        let end = pos + pending.bytes;
        if end > self.file_len {
            let ahead = u64::from(self.config.segment_bytes).min(pos + u64::from(self.config.presize_bytes));
            let len = end.max(ahead);
            self.guard("extending", active.path(), file.set_len(len))?;
            self.file_len = len;
        }
        let parts: Vec<&[u8]> =
            pending.batches.iter().flat_map(|batch| [&batch.head[..], &batch.bytes[PLACED..]]).collect();
        self.guard("writing", active.path(), file.write_at(&parts, pos))?;
        self.dirty.file(active.path(), &file);
        self.active_since = self.active_since.min(now);
        active.publish(|published| {
            for batch in &pending.batches {
                let at = u32::try_from(published.size).unwrap_or(u32::MAX);
                let relative = active.relative(batch.base_offset);
                let interval = self.config.index_interval_bytes;
                published.index.offer(relative, at, published.max_timestamp, interval, false);
                published.size += batch.bytes.len() as u64;
                published.max_timestamp = published.max_timestamp.max(batch.max_timestamp);
            }
            published.next_offset = pending.next_offset;
        });
        // Last: whoever sees this end finds everything below it.
        self.reader.set_log_end(pending.next_offset);
        pending.batches.clear();
        pending.bytes = 0;
        Ok(())
    }

    /// Seals the active segment and begins a new one at the log end. The sealed file and the directory join the next
    /// ticket: a barrier that reached only the new file would promise too much.
    pub(crate) fn roll(&mut self) -> Result<(), LogError> {
        let sealed = Arc::clone(&self.active);
        let size = sealed.size();
        if self.dirty.file_count() >= DIRTY_KEPT {
            self.force_everything()?;
        }
        if self.file_len > size {
            let file = self.guard("opening", sealed.path(), sealed.file.open())?;
            self.guard("sealing", sealed.path(), file.set_len(size))?;
            self.dirty.file(sealed.path(), &file);
        }
        let base_offset = self.reader.log_end();
        self.write_snapshot(base_offset, false)?;
        let path = self.dir.join(file_name(base_offset));
        let file = self.guard("creating", &path, self.storage.open(&path, OpenMode::CreateNew))?;
        self.dirty.dir();
        self.dirty.rolled();
        let file = self.files.written(path, file);
        let segment = Segment::new(base_offset, file, Published::empty(base_offset), Vec::new());
        self.active = Arc::new(segment);
        sealed.file.unpin();
        self.active_since = Timestamp::MAX;
        self.file_len = 0;
        let mut segments = self.reader.segments().to_vec();
        segments.push(Arc::clone(&self.active));
        self.reader.replace_segments(segments);
        Ok(())
    }

    /// Writes the producers as they are after all batches below `offset`; forced here, or with the next ticket. A torn
    /// one is told by its CRC.
    pub(crate) fn write_snapshot(&mut self, offset: i64, force: bool) -> Result<(), LogError> {
        let path = self.dir.join(snapshot_name(offset));
        let content = self.producers.encode(offset);
        let file = self.guard("creating", &path, self.storage.open(&path, OpenMode::Truncate))?;
        self.guard("writing", &path, file.write_at(&[&content], 0))?;
        if self.snapshots.last() != Some(&offset) {
            self.snapshots.push(offset);
        }
        if !force {
            self.dirty.file(&path, &file);
            self.dirty.dir();
            return Ok(());
        }
        self.guard("syncing", &path, file.sync_data())?;
        self.guard("syncing", &self.dir, self.storage.sync_dir(&self.dir))?;
        self.dirty.forget(&path);
        self.prune_snapshots(offset)
    }

    /// Removes old snapshots. The newest one at or below `durable`, up to which snapshots have been forced, stays:
    /// with old segments gone it may be all that is known of a producer.
    pub(crate) fn prune_snapshots(&mut self, durable: i64) -> Result<(), LogError> {
        let forced = self.snapshots.partition_point(|offset| *offset <= durable);
        for _ in 0..forced.saturating_sub(SNAPSHOTS_KEPT) {
            let path = self.dir.join(snapshot_name(self.snapshots.remove(0)));
            self.guard("removing", &path, self.storage.remove(&path))?;
            self.dirty.forget(&path);
        }
        Ok(())
    }
}

fn placed_head(header: &BatchHeader, base_offset: i64, epoch: i32) -> [u8; PLACED] {
    let mut head = [0; PLACED];
    head[..8].copy_from_slice(&base_offset.to_be_bytes());
    head[8..12].copy_from_slice(&header.batch_length.to_be_bytes());
    head[12..].copy_from_slice(&epoch.to_be_bytes());
    head
}
