//! The owner's side of one partition's log: state, barriers, fencing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::checkpoint::{self, Checkpoint};
use crate::config::{LogConfig, Timestamp};
use crate::dirty::Dirty;
use crate::error::LogError;
use crate::producer_state::{ActiveProducer, ProducerState};
use crate::reader::LogReader;
use crate::recovery;
use crate::report::RecoveryReport;
use crate::segment::Segment;
use crate::segment_file::SegmentFiles;
use crate::storage::{Storage, write_atomic};
use crate::sync::{Fence, Forced, SyncTicket};

/// One partition's log, owned by its write actor: the only one who appends, rolls, removes and truncates.
#[derive(Debug)]
pub struct Log {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) dir: PathBuf,
    pub(crate) files: Arc<SegmentFiles>,
    pub(crate) config: LogConfig,
    pub(crate) reader: Arc<LogReader>,
    pub(crate) active: Arc<Segment>,
    /// When the first batch of the active segment was written; the far future while there is none.
    pub(crate) active_since: Timestamp,
    /// The length of the active file, which is ahead of its content.
    pub(crate) file_len: u64,
    pub(crate) producers: ProducerState,
    pub(crate) fence: Fence,
    pub(crate) dirty: Dirty,
    pub(crate) barriered: i64,
    /// What the checkpoint file says.
    pub(crate) persisted: Checkpoint,
    /// Offsets of the producer snapshots there are, ascending.
    pub(crate) snapshots: Vec<i64>,
    /// Alive while a ticket, or the proof of one, is out.
    pub(crate) in_flight: Weak<()>,
}

impl Log {
    /// Opens the log in `dir`, creating it when it is missing, and recovers it. Everything below the log end is
    /// durable when this returns.
    ///
    /// # Errors
    /// [`LogError::Storage`], [`LogError::Config`].
    pub fn open(
        storage: Arc<dyn Storage>,
        dir: PathBuf,
        config: LogConfig,
        now: Timestamp,
    ) -> Result<(Self, RecoveryReport), LogError> {
        check_config(&config)?;
        recovery::open(storage, dir, config, now)
    }

    /// The readers' side.
    #[must_use]
    pub fn reader(&self) -> Arc<LogReader> {
        Arc::clone(&self.reader)
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Changes sizes and retention of a running log.
    ///
    /// # Errors
    /// [`LogError::Config`].
    pub fn set_config(&mut self, config: LogConfig) -> Result<(), LogError> {
        check_config(&config)?;
        self.config = config;
        Ok(())
    }

    /// Notes that this node leads the partition with `epoch` from the log end on; to be called once after `open`.
    /// Persisted with the next [`checkpoint`](Self::checkpoint), and with the first batch.
    ///
    /// # Errors
    /// [`LogError::StaleEpoch`].
    pub fn begin_epoch(&mut self, epoch: i32) -> Result<(), LogError> {
        match self.reader.latest_epoch() {
            Some(latest) if epoch < latest => Err(LogError::StaleEpoch { epoch, latest }),
            _ => {
                self.reader.assign_epoch(epoch, self.reader.log_end());
                Ok(())
            }
        }
    }

    /// What must be forced so that everything appended so far is durable; `None` when all is, when the log is fenced,
    /// or while another ticket of this log is out (ask again after [`Log::synced`]).
    pub fn take_sync(&mut self) -> Option<SyncTicket> {
        let nothing_to_do = self.barriered == self.reader.log_end() && self.dirty.is_empty();
        if nothing_to_do || self.fence.is_set() || self.in_flight.strong_count() > 0 {
            return None;
        }
        Some(self.ticket())
    }

    pub(crate) fn ticket(&mut self) -> SyncTicket {
        let in_flight = Arc::new(());
        self.in_flight = Arc::downgrade(&in_flight);
        SyncTicket {
            storage: Arc::clone(&self.storage),
            files: self.dirty.files(),
            dirs: if self.dirty.has_dir() { vec![self.dir.clone()] } else { Vec::new() },
            up_to: self.reader.log_end(),
            taken_at: self.dirty.now(),
            fence: self.fence.clone(),
            in_flight,
        }
    }

    /// Takes the proof of a forced ticket; returns the offset below which everything is durable. After a roll this
    /// also persists the mark (a few barriers), before any ack may be sent.
    ///
    /// # Errors
    /// [`LogError::Fenced`], [`LogError::Storage`]: the acks waiting for this ticket must be answered as failed.
    pub fn synced(&mut self, forced: Forced) -> Result<i64, LogError> {
        self.check_fence()?;
        if !std::ptr::eq(self.in_flight.as_ptr(), Arc::as_ptr(&forced.in_flight)) {
            // Overtaken by a barrier this log issued itself, which has proven more.
            if forced.up_to <= self.barriered {
                return Ok(self.barriered);
            }
            return Err(LogError::Config("this barrier was not of the latest ticket of this log"));
        }
        self.barriered = self.barriered.max(forced.up_to);
        if self.dirty.forced(forced.taken_at) {
            self.checkpoint()?;
            self.prune_snapshots(forced.up_to)?;
        }
        Ok(self.barriered)
    }

    /// Refuses every later append and barrier; for an owner that learns of a failed barrier.
    pub fn fence(&mut self) {
        self.fence.set();
    }

    /// Whether a storage call has failed, here or in a ticket.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fence.is_set()
    }

    /// Everything below this is durable.
    #[must_use]
    pub fn barriered_up_to(&self) -> i64 {
        self.barriered
    }

    /// Everything below this is known to be durable to the next start, whatever happens.
    #[must_use]
    pub fn checkpointed_up_to(&self) -> i64 {
        self.persisted.mark
    }

    /// Idempotent producers whose last batches are remembered.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Idempotent producers with their newest batch, by id.
    #[must_use]
    pub fn active_producers(&self) -> Vec<ActiveProducer> {
        self.producers.newest().collect()
    }

    /// Forgets producers that were silent for longer than the configuration allows.
    pub fn expire_producers(&mut self, now: Timestamp) {
        self.producers.expire(now, self.config.producer_expiration);
    }

    /// Persists "barriered up to", the log start and the epoch list when they changed; call it at most every second.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn checkpoint(&mut self) -> Result<(), LogError> {
        self.check_fence()?;
        self.persist(self.as_of_now())
    }

    /// What the checkpoint file should say.
    pub(crate) fn as_of_now(&self) -> Checkpoint {
        let mut epochs = self.reader.epochs();
        // An epoch that began above the mark may be cut away with its records.
        epochs.cut(self.barriered);
        let Checkpoint { compacted, clean, .. } = self.persisted;
        Checkpoint { log_start: self.reader.log_start(), mark: self.barriered, compacted, clean, epochs }
    }

    pub(crate) fn persist(&mut self, checkpoint: Checkpoint) -> Result<(), LogError> {
        if checkpoint != self.persisted {
            let path = self.dir.join(checkpoint::FILE_NAME);
            let written = write_atomic(&*self.storage, &path, &checkpoint.encode());
            self.guard("writing", &path, written)?;
            self.persisted = checkpoint;
        }
        Ok(())
    }

    pub(crate) fn check_fence(&self) -> Result<(), LogError> {
        if self.fence.is_set() { Err(LogError::Fenced) } else { Ok(()) }
    }

    /// A storage call that failed fences the log: what is on disk is unknown until it is opened again.
    pub(crate) fn guard<T>(
        &self,
        action: &'static str,
        path: &Path,
        result: io::Result<T>,
    ) -> Result<T, LogError> {
        result.map_err(|source| {
            self.fence.set();
            LogError::Storage { action, path: path.to_path_buf(), source }
        })
    }
}

fn check_config(config: &LogConfig) -> Result<(), LogError> {
    if i32::try_from(config.segment_bytes).is_err() || config.segment_bytes < 128 {
        return Err(LogError::Config("segment_bytes must be between 128 and 2147483647"));
    }
    if config.presize_bytes == 0 || config.index_interval_bytes == 0 {
        return Err(LogError::Config("presize_bytes and index_interval_bytes must not be zero"));
    }
    Ok(())
}
