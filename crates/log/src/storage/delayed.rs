//! A storage whose barriers take a fixed time longer: a slow disk for benchmarks.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{DirEntry, OpenMode, Storage, StorageFile};

/// Another storage, with every barrier (`sync_data`, `sync_dir`) taking `delay` longer.
#[derive(Clone, Debug)]
pub struct DelayedStorage {
    inner: Arc<dyn Storage>,
    delay: Duration,
}

impl DelayedStorage {
    /// Lets every barrier of `inner` take `delay` longer.
    #[must_use]
    pub fn new(inner: Arc<dyn Storage>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Storage for DelayedStorage {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(DelayedFile { inner: self.inner.open(path, mode)?, delay: self.delay }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        std::thread::sleep(self.delay);
        self.inner.sync_dir(dir)
    }
}

#[derive(Debug)]
struct DelayedFile {
    inner: Arc<dyn StorageFile>,
    delay: Duration,
}

impl StorageFile for DelayedFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        self.inner.read_at(buf, pos)
    }

    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        self.inner.write_at(parts, pos)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(self.delay);
        self.inner.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.inner.try_lock()
    }

    fn as_std(&self) -> Option<&std::fs::File> {
        self.inner.as_std()
    }
}
