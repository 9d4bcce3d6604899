//! Barriers apart from appends: a ticket says what must be forced, and only forcing it gives the proof.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::SyncError;
use crate::storage::{Storage, StorageFile};

/// Set once, by whoever sees a storage call fail; shared by a log and its tickets so that no later barrier is believed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fence(Arc<FenceState>);

#[derive(Debug, Default)]
struct FenceState {
    is_set: AtomicBool,
    /// The operating system reports a lost write to one caller only. Barriers of one log therefore never overlap:
    /// the second one must see the fence that the first one has set.
    forcing: Mutex<()>,
}

impl Fence {
    pub(crate) fn set(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    fn forcing(&self) -> MutexGuard<'_, ()> {
        self.0.forcing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every file and directory that must be forced so that all offsets below [`up_to`](Self::up_to) survive a power cut.
///
/// One is out at a time. Dropping it unforced, or a [`Forced`] unreported, loses nothing: the next ticket names the
/// same files again.
#[derive(Debug)]
#[must_use = "nothing is durable before `force`"]
pub struct SyncTicket {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    pub(crate) dirs: Vec<PathBuf>,
    pub(crate) up_to: i64,
    pub(crate) taken_at: u64,
    pub(crate) fence: Fence,
    pub(crate) in_flight: Arc<()>,
}

/// The proof that a ticket was forced, for [`Log::synced`](crate::Log::synced).
#[derive(Debug)]
#[must_use = "report it with `Log::synced`"]
pub struct Forced {
    pub(crate) up_to: i64,
    pub(crate) taken_at: u64,
    /// Ties this to the log it came from, and says that it is still on its way.
    pub(crate) in_flight: Arc<()>,
}

impl SyncTicket {
    /// The offset below which everything is durable after [`force`](Self::force).
    #[must_use]
    pub fn up_to(&self) -> i64 {
        self.up_to
    }

    /// How many barriers [`force`](Self::force) will issue.
    #[must_use]
    pub fn barriers(&self) -> usize {
        self.files.len() + self.dirs.len()
    }

    /// Issues the barriers; blocking, on any thread.
    ///
    /// # Errors
    /// [`SyncError`]: the log is fenced from then on, for appends as well as for barriers. There is no second try.
    pub fn force(self) -> Result<Forced, SyncError> {
        let _one_at_a_time = self.fence.forcing();
        for (path, file) in &self.files {
            self.barrier(path, || file.sync_data())?;
        }
        for dir in &self.dirs {
            self.barrier(dir, || self.storage.sync_dir(dir))?;
        }
        if self.fence.is_set() {
            return Err(SyncError::Fenced);
        }
        Ok(Forced { up_to: self.up_to, taken_at: self.taken_at, in_flight: Arc::clone(&self.in_flight) })
    }

    fn barrier(
        &self,
        path: &std::path::Path,
        call: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), SyncError> {
        if self.fence.is_set() {
            return Err(SyncError::Fenced);
        }
        call().map_err(|source| {
            self.fence.set();
            SyncError::Storage { path: path.to_path_buf(), source }
        })
    }
}

impl Forced {
    /// The offset below which everything is durable.
    #[must_use]
    pub fn up_to(&self) -> i64 {
        self.up_to
    }
}
