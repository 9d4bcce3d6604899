//! The file of a segment, which need not be open all the time.
//!
//! A log may have any number of sealed segments, and a process only so many open files. So of the sealed ones a few of
//! each log stay open, those opened last; the others are opened again when they are read. Whoever was given a file
//! keeps it, whatever is closed, renamed or removed meanwhile.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::storage::{OpenMode, Storage, StorageFile};

/// Files of sealed segments that stay open per log while nobody reads them.
const KEPT: usize = 2;

/// Where the files of one log come from, and which of the sealed ones are open.
#[derive(Debug)]
pub(crate) struct SegmentFiles {
    storage: Arc<dyn Storage>,
    /// Opened last comes last.
    open: Mutex<VecDeque<Weak<SegmentFile>>>,
}

/// The file of one segment.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    path: PathBuf,
    of: Arc<SegmentFiles>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<Arc<dyn StorageFile>>,
    /// While it is above zero the file stays open.
    pins: usize,
    /// The name is gone, or of another file by now: it must not be opened again.
    retired: bool,
}

/// Keeps a file open until it is dropped, also when its name goes meanwhile.
#[derive(Debug)]
pub(crate) struct Pinned(Arc<SegmentFile>);

impl Pinned {
    /// Ends it, and the file is not opened again.
    pub(crate) fn retire(self) {
        self.0.retire();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl SegmentFiles {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self { storage, open: Mutex::default() })
    }

    /// A file that was just opened and stays open until [`SegmentFile::unpin`]: that of a segment which is written to.
    pub(crate) fn written(self: &Arc<Self>, path: PathBuf, file: Arc<dyn StorageFile>) -> Arc<SegmentFile> {
        self.file(path, State { file: Some(file), pins: 1, retired: false })
    }

    /// A file that is not open.
    pub(crate) fn closed(self: &Arc<Self>, path: PathBuf) -> Arc<SegmentFile> {
        self.file(path, State { file: None, pins: 0, retired: false })
    }

    fn file(self: &Arc<Self>, path: PathBuf, state: State) -> Arc<SegmentFile> {
        Arc::new(SegmentFile { path, of: Arc::clone(self), state: Mutex::new(state) })
    }

    /// Remembers a file that is open without need, and closes the one that has been so for the longest time.
    fn opened(&self, file: &Arc<SegmentFile>) {
        let longest = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), &raw const **file));
            open.push_back(Arc::downgrade(file));
            if open.len() > KEPT { open.pop_front() } else { None }
        };
        // Outside of the lock: a file's own lock is taken before that of the list, never after it.
        if let Some(longest) = longest.and_then(|file| file.upgrade()) {
            longest.close();
        }
    }
}

impl SegmentFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    ///
    /// # Errors
    /// What the file system answers; `NotFound` when it was retired.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<Arc<dyn StorageFile>> {
        let mut state = self.state();
        if let Some(file) = &state.file {
            return Ok(Arc::clone(file));
        }
        let file = self.open_again(&mut state)?;
        drop(state);
        self.of.opened(self);
        Ok(file)
    }

    /// The file stays open until the result is dropped, and with it readable whatever becomes of its name.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn pin(self: &Arc<Self>) -> io::Result<Pinned> {
        self.keep_open()?;
        Ok(Pinned(Arc::clone(self)))
    }

    /// As [`pin`](Self::pin), until [`unpin`](Self::unpin).
    pub(crate) fn keep_open(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.file.is_none() {
            self.open_again(&mut state)?;
        }
        state.pins += 1;
        Ok(())
    }

    fn open_again(&self, state: &mut State) -> io::Result<Arc<dyn StorageFile>> {
        if state.retired {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = self.of.storage.open(&self.path, OpenMode::Existing)?;
        state.file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// The name is about to go, or has gone, to nobody or to another file. To be called when new readers do not get
    /// here any more.
    pub(crate) fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        if state.pins == 0 {
            state.file = None;
        }
    }

    /// The file may be closed from here on.
    pub(crate) fn unpin(self: &Arc<Self>) {
        let mut state = self.state();
        state.pins = state.pins.saturating_sub(1);
        if state.pins == 0 && state.retired {
            state.file = None;
        }
        let idle = state.pins == 0 && state.file.is_some();
        drop(state);
        if idle {
            self.of.opened(self);
        }
    }

    fn close(&self) {
        let mut state = self.state();
        if state.pins == 0 {
            state.file = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
