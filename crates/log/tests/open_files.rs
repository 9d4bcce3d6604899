//! A log of any number of segments holds few files open, and readers never meet a file that is not theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{NOW, append, append_bytes, assert_contiguous, force, memory, open, read_all, small};
use tramline_log::storage::{DirEntry, OpenMode};
use tramline_log::{Compaction, Log, LogConfig, LogReader, ReadError, Storage, StorageFile};
use tramline_wire::{BatchBuilder, Compression};

type Look = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Seen {
    open: AtomicUsize,
    most: AtomicUsize,
    /// Called before and after each rename and removal.
    look: Mutex<Option<Look>>,
    looking: AtomicBool,
}

/// Counts the files that are open.
#[derive(Clone)]
struct Counting {
    inner: Arc<dyn Storage>,
    seen: Arc<Seen>,
}

struct CountedFile {
    file: Arc<dyn StorageFile>,
    seen: Arc<Seen>,
}

impl Counting {
    fn new() -> Self {
        Self { inner: memory().shared(), seen: Arc::default() }
    }

    fn shared(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    fn open_now(&self) -> usize {
        self.seen.open.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.seen.most.swap(self.open_now(), Ordering::SeqCst)
    }

    fn around<T>(&self, call: impl FnOnce() -> T) -> T {
        self.seen.look();
        let result = call();
        self.seen.look();
        result
    }
}

impl Seen {
    fn look(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            if let Some(look) = &*self.look.lock().unwrap() {
                look();
            }
            self.looking.store(false, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counting").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CountedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountedFile").finish_non_exhaustive()
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Storage for Counting {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.inner.open(path, mode)?;
        let open = self.seen.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.seen.most.fetch_max(open, Ordering::SeqCst);
        Ok(Arc::new(CountedFile { file, seen: Arc::clone(&self.seen) }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around(|| self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around(|| self.inner.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
}

impl StorageFile for CountedFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        self.file.read_at(buf, pos)
    }

    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        self.file.write_at(parts, pos)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// Files that are open while nobody reads: the active one and a few that were read last.
const IDLE: usize = 3;
/// Files that wait for a barrier, of which nobody asks for one.
const UNFORCED: usize = 70;

/// A segment for each batch.
fn tiny() -> LogConfig {
    LogConfig { segment_bytes: 128, presize_bytes: 64, ..small() }
}

#[test]
fn b143_thousands_of_rolls_leave_few_files_open_also_while_reading_and_after_a_start() {
    const ROLLS: i64 = 3_000;
    let storage = Counting::new();
    let (mut log, _) = open(&storage.shared(), &tiny());
    for n in 0..ROLLS {
        assert_eq!(append(&mut log, &["a value of thirty-three bytes ..."]), n);
    }
    let reader = log.reader();
    assert!(reader.segment_count() as i64 > ROLLS - 2);
    assert!(storage.most() <= UNFORCED, "{} files were open at once", storage.most());
    force(&mut log);
    assert!(storage.open_now() <= IDLE, "{} files are open", storage.open_now());
    storage.most();
    assert_contiguous(&read_all(&reader, 1000), 0);
    // A slice of a thousand bytes goes over a dozen segments, and holds each open.
    assert!(storage.most() <= IDLE + 16);
    assert!(storage.open_now() <= IDLE);
    drop((log, reader));
    assert_eq!(storage.open_now(), 0);
    storage.most();
    let (log, report) = open(&storage.shared(), &tiny());
    assert_eq!((report.log_end, report.damaged.len()), (ROLLS, 0));
    assert!(storage.most() <= IDLE + 2);
    assert!(storage.open_now() <= IDLE);
    assert_contiguous(&read_all(&log.reader(), 1000), 0);
}

/// The newest value of each key, and that every offset leads on to the end.
fn newest(reader: &LogReader) -> Vec<(i64, String)> {
    let mut at = reader.log_start();
    let mut found = Vec::new();
    while at < reader.log_end() {
        let slice = reader.read(at, 300, i64::MAX, true).unwrap();
        assert!(!slice.is_empty(), "a reader stands still at {at}");
        found.extend(common::decode(slice.read().unwrap()).into_iter().filter(|(offset, _)| *offset >= at));
        at = slice.next_offset();
    }
    found
}

fn compacting() -> LogConfig {
    let eager = Compaction { min_dirty_ratio: 0.0, ..Compaction::default() };
    LogConfig { compaction: Some(eager), segment_bytes: 400, presize_bytes: 64, ..small() }
}

fn compact(log: &mut Log) -> u64 {
    let job = log.plan_compaction(NOW).expect("there is something to do");
    let done = job.run(|| true).unwrap().expect("nobody told it to stop");
    log.compacted(done).unwrap().records_removed
}

#[test]
fn readers_in_the_middle_of_a_pass_get_the_old_content_or_the_new_and_few_files_are_open() {
    let storage = Counting::new();
    let (mut log, _) = open(&storage.shared(), &compacting());
    for n in 0..600 {
        let mut builder = BatchBuilder::new(Compression::None);
        let (key, value) = (format!("key {n}"), format!("value {n}"));
        builder.append(NOW, Some(b"same"), Some(b"the newest of this key stays"), &[]).unwrap();
        builder.append(NOW, Some(key.as_bytes()), Some(value.as_bytes()), &[]).unwrap();
        append_bytes(&mut log, builder.build()).unwrap();
    }
    force(&mut log);
    let reader = log.reader();
    let before = newest(&reader);
    assert_eq!(before.len(), 1200);
    let looks = Arc::new(AtomicUsize::new(0));
    let look = {
        let (reader, looks) = (Arc::clone(&reader), Arc::clone(&looks));
        move || {
            looks.fetch_add(1, Ordering::SeqCst);
            let now = newest(&reader);
            assert_eq!(now.last(), before.last());
            assert!(now.iter().all(|(offset, value)| before[*offset as usize] == (*offset, value.clone())));
        }
    };
    storage.most();
    *storage.seen.look.lock().unwrap() = Some(Box::new(look));
    assert!(compact(&mut log) > 500);
    *storage.seen.look.lock().unwrap() = None;
    assert!(looks.load(Ordering::SeqCst) > 100);
    assert!(storage.most() <= 40, "{} files were open at once", storage.most());
    assert!(storage.open_now() <= IDLE);
    assert!(newest(&reader).len() < 700);
}

/// The names of a deleted log are given to another one while somebody still reads by the first.
#[test]
fn a_reader_of_a_deleted_log_never_reads_the_files_of_its_successor() {
    let storage = Counting::new();
    let (mut log, _) = open(&storage.shared(), &tiny());
    for _ in 0..10 {
        append(&mut log, &["old content of thirty-four bytes ."]);
    }
    force(&mut log);
    let old = log.reader();
    let held = old.read(2, 10, i64::MAX, true).unwrap();
    log.delete().unwrap();
    let (mut log, _) = open(&storage.shared(), &tiny());
    for _ in 0..10 {
        append(&mut log, &["new content of thirty-four bytes ."]);
    }
    for offset in 0..8 {
        let read = old.read(offset, 10, i64::MAX, true);
        assert!(matches!(read, Err(ReadError::Storage(_))), "{offset}: {read:?}");
    }
    let text = "old content of thirty-four bytes .".to_owned();
    assert_eq!(common::decode(held.read().unwrap()), [(2, text)], "who holds a slice finishes it");
}
