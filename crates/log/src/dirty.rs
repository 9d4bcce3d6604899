//! What has been written and not yet forced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::StorageFile;

/// Files and the directory that the next barrier must include, each with the moment of its last change. A change made
/// after a ticket was taken stays for the next one.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    clock: u64,
    files: Vec<(PathBuf, Arc<dyn StorageFile>, u64)>,
    dir: Option<u64>,
    /// A segment was sealed, and the mark must be persisted before the next ack.
    rolled: Option<u64>,
}

impl Dirty {
    pub(crate) fn file(&mut self, path: &Path, file: &Arc<dyn StorageFile>) {
        self.clock += 1;
        match self.files.iter_mut().find(|(known, _, _)| known == path) {
            Some(entry) => entry.2 = self.clock,
            None => self.files.push((path.to_path_buf(), Arc::clone(file), self.clock)),
        }
    }

    pub(crate) fn dir(&mut self) {
        self.clock += 1;
        self.dir = Some(self.clock);
    }

    pub(crate) fn rolled(&mut self) {
        self.clock += 1;
        self.rolled = Some(self.clock);
    }

    /// A removed file need not be forced.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.files.retain(|(known, _, _)| known != path);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dir.is_none()
    }

    pub(crate) fn file_count(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    pub(crate) fn files(&self) -> Vec<(PathBuf, Arc<dyn StorageFile>)> {
        self.files.iter().map(|(path, file, _)| (path.clone(), Arc::clone(file))).collect()
    }

    pub(crate) fn has_dir(&self) -> bool {
        self.dir.is_some()
    }

    /// Drops what was forced by a ticket taken at `taken_at`; returns whether a roll was among it.
    pub(crate) fn forced(&mut self, taken_at: u64) -> bool {
        self.files.retain(|(_, _, changed)| *changed > taken_at);
        self.dir = self.dir.filter(|changed| *changed > taken_at);
        let rolled = self.rolled.is_some_and(|changed| changed <= taken_at);
        self.rolled = self.rolled.filter(|changed| *changed > taken_at);
        rolled
    }
}
