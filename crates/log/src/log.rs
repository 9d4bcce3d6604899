//! The owner's side of one partition's log (bodies follow).

use std::path::PathBuf;
use std::sync::Arc;

use crate::append::{Append, AppendOutcome};
use crate::config::{LogConfig, Timestamp};
use crate::error::LogError;
use crate::reader::LogReader;
use crate::report::RecoveryReport;
use crate::storage::Storage;
use crate::sync::{Forced, SyncTicket};

/// One partition's log, owned by its write actor.
#[derive(Debug)]
pub struct Log {
    reader: Arc<LogReader>,
}

impl Log {
    /// Opens the log in `dir`, creating it when it is missing, and recovers it. Everything below the log end is
    /// durable when this returns.
    ///
    /// # Errors
    /// [`LogError::Storage`], [`LogError::Config`].
    pub fn open(
        _storage: Arc<dyn Storage>,
        _dir: PathBuf,
        _config: LogConfig,
        _now: Timestamp,
    ) -> Result<(Self, RecoveryReport), LogError> {
        Err(LogError::Fenced)
    }

    /// The readers' side.
    #[must_use]
    pub fn reader(&self) -> Arc<LogReader> {
        Arc::clone(&self.reader)
    }

    /// Notes that this node leads the partition with `epoch` from the log end on; to be called once after `open`.
    ///
    /// # Errors
    /// [`LogError::StaleEpoch`].
    pub fn begin_epoch(&mut self, _epoch: i32) -> Result<(), LogError> {
        Err(LogError::Fenced)
    }

    /// Appends what is queued: sequences are checked and offsets given in order, then one write per file. Outcomes
    /// are in the order of the members. Nothing is durable yet.
    ///
    /// # Errors
    /// [`LogError::Storage`] fences the log: the whole group is to be answered with its code. [`LogError::Fenced`]
    /// from then on.
    pub fn append_group(
        &mut self,
        _group: Vec<Append>,
        _epoch: i32,
        _now: Timestamp,
    ) -> Result<Vec<AppendOutcome>, LogError> {
        Err(LogError::Fenced)
    }

    /// What must be forced so that everything appended so far is durable; `None` when all is, when the log is fenced,
    /// or while another ticket of this log is out (ask again after [`Log::synced`]).
    pub fn take_sync(&mut self) -> Option<SyncTicket> {
        None
    }

    /// Takes the proof of a forced ticket; returns the offset below which everything is durable. After a roll this
    /// also persists the mark (a few barriers), before any ack may be sent.
    ///
    /// # Errors
    /// [`LogError::Fenced`], [`LogError::Storage`]: the acks waiting for this ticket must be answered as failed.
    pub fn synced(&mut self, _forced: Forced) -> Result<i64, LogError> {
        Err(LogError::Fenced)
    }

    /// Refuses every later append and barrier; for an owner that learns of a failed barrier.
    pub fn fence(&mut self) {}

    /// Whether a storage call has failed, here or in a ticket.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        false
    }

    /// Everything below this is durable.
    #[must_use]
    pub fn barriered_up_to(&self) -> i64 {
        0
    }

    /// Persists "barriered up to" and the epoch list when they changed; call it at most every second.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn checkpoint(&mut self) -> Result<(), LogError> {
        Err(LogError::Fenced)
    }

    /// Removes whole old segments as the configuration says; returns how many went.
    ///
    /// # Errors
    /// [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn enforce_retention(&mut self, _now: Timestamp) -> Result<usize, LogError> {
        Err(LogError::Fenced)
    }

    /// Raises the log start to `before` (`DeleteRecords`) and removes segments wholly below it.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`], [`LogError::Storage`] (fences), [`LogError::Fenced`].
    pub fn delete_records(&mut self, _before: i64) -> Result<i64, LogError> {
        Err(LogError::Fenced)
    }

    /// Changes sizes and retention of a running log.
    ///
    /// # Errors
    /// [`LogError::Config`].
    pub fn set_config(&mut self, _config: LogConfig) -> Result<(), LogError> {
        Err(LogError::Fenced)
    }

    /// Forgets producers that were silent for longer than the configuration allows.
    pub fn expire_producers(&mut self, _now: Timestamp) {}

    /// Forces everything, writes mark and producer snapshot, gives back pre-sized space.
    ///
    /// # Errors
    /// [`LogError::Storage`], [`LogError::Fenced`]; what was durable before still is.
    pub fn close(self) -> Result<(), LogError> {
        Err(LogError::Fenced)
    }

    /// Drops everything from `offset` on (whole batches) and opens the log again.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`], [`LogError::Storage`], [`LogError::Fenced`].
    pub fn truncate_from(self, _offset: i64, _now: Timestamp) -> Result<Self, LogError> {
        Err(LogError::Fenced)
    }

    /// Removes all files of the log and its directory. Readers that hold slices finish them.
    ///
    /// # Errors
    /// [`LogError::Storage`].
    pub fn delete(self) -> Result<(), LogError> {
        Err(LogError::Fenced)
    }
}
