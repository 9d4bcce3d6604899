//! The power goes off at every single storage call of a broker's life, and everything it promised is there.
//!
//! The story: records were acknowledged as durable while a sealed segment, a new file's name or the list of topics
//! was still in the page cache; the power went, and acknowledged records were gone, or came back twice, or a group's
//! committed offset lay above the end of its log. The handlers, write actors, committer and coordinator here are the
//! real ones; only threads and sockets are missing. That the check would notice is shown by a storage that lies: for
//! each kind of barrier, one that reports success without doing anything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod ledger;
}

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::ledger::{DIR, Hand, Ledger};
use tramline_log::storage::{DirEntry, MemoryStorage, OpenMode};
use tramline_log::{Storage, StorageFile};

/// Which barriers do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    /// The file that is being appended to.
    ActiveSegment,
    /// A file that a roll has sealed.
    SealedSegment,
    /// The names in a partition's directory.
    PartitionDirectory,
    /// The names in the broker's directory.
    DataDirectory,
    /// The content of the broker's own two files.
    Catalogue,
    /// Offsets and groups, of which the data's barriers say nothing.
    OffsetsLog,
}

#[derive(Debug)]
struct Lying {
    inner: MemoryStorage,
    lie: Lie,
}

#[derive(Debug)]
struct LyingFile {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    storage: MemoryStorage,
    lie: Lie,
}

fn is_partition(dir: &Path) -> bool {
    dir.parent() == Some(Path::new(DIR))
}

fn is_offsets(path: &Path) -> bool {
    path.to_string_lossy().contains("__consumer_offsets")
}

impl Storage for Lying {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.inner.open(path, mode)?;
        Ok(Arc::new(LyingFile { file, path: path.into(), storage: self.inner.clone(), lie: self.lie }))
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
        let skipped = match self.lie {
            Lie::PartitionDirectory => is_partition(dir) && !is_offsets(dir),
            Lie::DataDirectory => dir == Path::new(DIR),
            _ => false,
        };
        if skipped { Ok(()) } else { self.inner.sync_dir(dir) }
    }
}

impl LyingFile {
    /// Whether a later segment stands beside this one.
    fn is_sealed(&self) -> bool {
        let Some(dir) = self.path.parent() else { return false };
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names = self.storage.list(dir).unwrap_or_default();
        names.iter().any(|entry| entry.name.ends_with(".log") && entry.name > name)
    }
}

impl StorageFile for LyingFile {
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
        let segment = self.path.extension().is_some_and(|extension| extension == "log");
        let in_root = self.path.parent() == Some(Path::new(DIR));
        let skipped = match self.lie {
            Lie::ActiveSegment => segment && !is_offsets(&self.path) && !self.is_sealed(),
            Lie::SealedSegment => segment && self.is_sealed(),
            Lie::Catalogue => in_root,
            Lie::OffsetsLog => segment && is_offsets(&self.path),
            Lie::None | Lie::PartitionDirectory | Lie::DataDirectory => false,
        };
        if skipped { Ok(()) } else { self.file.sync_data() }
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// What was promised before the power went at effect `n`, and the storage as it was then.
fn live_until(n: u64, lie: Lie) -> (Ledger, MemoryStorage) {
    let storage = MemoryStorage::new();
    storage.crash_at(n);
    let mut ledger = Ledger::default();
    if let Ok(hand) = Hand::open(Arc::new(Lying { inner: storage.clone(), lie })) {
        ledger.run(&hand);
        let _ = hand.broker.shutdown();
    }
    (ledger, storage)
}

fn effects() -> u64 {
    let (ledger, storage) = live_until(u64::MAX, Lie::None);
    assert_eq!(ledger.codes.keys().copied().collect::<Vec<_>>(), [0], "the workload itself goes through");
    assert!(ledger.sent.iter().all(|sent| sent.offset.is_some()));
    storage.effects()
}

fn check(ledger: &Ledger, image: &MemoryStorage, weak: bool) -> Option<String> {
    match Hand::open(image.shared()) {
        Ok(hand) => ledger.violation(&hand, weak),
        Err(error) => Some(format!("it does not start: {error}")),
    }
}

#[test]
fn every_promise_survives_a_power_cut_at_every_storage_call() {
    for n in 1..=effects() {
        let (ledger, storage) = live_until(n, Lie::None);
        let story = |what: &str, violation| format!("power cut at effect {n}, {what}: {violation}");
        for seed in [0, n] {
            let (what, image) = match seed {
                0 => ("nothing but what was forced".to_owned(), storage.durable_image()),
                seed => (format!("torn with seed {seed}"), storage.torn_image(seed)),
            };
            let violation = check(&ledger, &image, false);
            assert!(violation.is_none(), "{}", story(&what, violation.unwrap_or_default()));
        }
        let violation = check(&ledger, &storage.after_kill(), true);
        assert!(violation.is_none(), "{}", story("a killed process", violation.unwrap_or_default()));
    }
}

#[test]
fn b137_a_second_power_cut_during_recovery_changes_nothing() {
    let effects = effects();
    for n in (1..=effects).step_by(29) {
        let (ledger, storage) = live_until(n, Lie::None);
        let first = storage.torn_image(n);
        let whole = first.after_kill();
        drop(Hand::open(whole.shared()));
        for again in 1..=whole.effects() {
            let image = first.after_kill();
            image.crash_at(again);
            drop(Hand::open(image.shared()));
            let violation = check(&ledger, &image.torn_image(again), false);
            assert!(
                violation.is_none(),
                "cut at {n} and at {again} of the recovery: {}",
                violation.unwrap_or_default()
            );
        }
    }
}

#[test]
fn b212_leaving_out_any_kind_of_barrier_is_noticed() {
    let effects = effects();
    let lies = [
        Lie::ActiveSegment,
        Lie::SealedSegment,
        Lie::PartitionDirectory,
        Lie::DataDirectory,
        Lie::Catalogue,
        Lie::OffsetsLog,
    ];
    for lie in lies {
        let noticed = (1..=effects).find_map(|n| {
            let (ledger, storage) = live_until(n, lie);
            check(&ledger, &storage.durable_image(), false).map(|violation| (n, violation))
        });
        match noticed {
            Some((n, violation)) => println!("{lie:?}: noticed at effect {n}: {violation}"),
            None => panic!("{lie:?}: nobody noticed"),
        }
    }
}
