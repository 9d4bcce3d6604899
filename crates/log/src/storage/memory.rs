//! Storage in memory that can lose power, tear writes and fail any call: what crash tests run on.
//!
//! It keeps two images, of contents and of names: the live one, which every call sees, and the durable one, which a
//! power cut leaves. Nothing moves from the first to the second but by `sync_data` (contents and length of one file)
//! and `sync_dir` (names in one directory). That is stricter than most file systems, on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DirEntry, OpenMode, Storage, StorageFile};
use image::{DirOp, FileOp, Image, Inode, Node, Random, normal, split};

mod image;

/// What a call does, for counting and failing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// A directory that did not exist.
    CreateDir,
    /// An open that creates or empties a file.
    Create,
    /// An open that changes nothing.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A change of length.
    SetLen,
    /// A barrier of a file.
    SyncData,
    /// A barrier of a directory.
    SyncDir,
    /// A list of names.
    List,
    /// A question for a length.
    Len,
    /// A rename.
    Rename,
    /// A removal of a file or directory.
    Remove,
}

impl CallKind {
    /// Whether the call changes something, or what of it is durable.
    #[must_use]
    pub fn is_effect(self) -> bool {
        !matches!(self, Self::Open | Self::Read | Self::List | Self::Len)
    }
}

/// A file system in memory; clones are the same one.
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    image: Image,
    counts: BTreeMap<CallKind, u64>,
    effects: u64,
    crash_at: Option<u64>,
    faults: Vec<Fault>,
    locked: BTreeSet<u64>,
    trace: Option<Vec<(CallKind, PathBuf)>>,
}

#[derive(Debug)]
struct Fault {
    /// `None`: any effect.
    kind: Option<CallKind>,
    countdown: u64,
    error: io::ErrorKind,
}

enum Fate {
    Proceed,
    /// The call fails; a write reaches the live image in part, as a real one may.
    Fail(io::Error),
    /// The power goes off during this call: what it wrote may be in flight.
    PowerCut,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::of(Image::empty())
    }
}

impl MemoryStorage {
    /// An empty file system that holds its root only.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This file system behind the handle the log wants.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    fn of(image: Image) -> Self {
        let state = State {
            image,
            counts: BTreeMap::new(),
            effects: 0,
            crash_at: None,
            faults: Vec::new(),
            locked: BTreeSet::new(),
            trace: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Calls of one kind so far.
    #[must_use]
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.state().counts.get(&kind).copied().unwrap_or(0)
    }

    /// Calls so far that changed something or made something durable; `crash_at` and `fail_effect` count these.
    #[must_use]
    pub fn effects(&self) -> u64 {
        self.state().effects
    }

    /// From the `n`-th effect on (counted from the first one ever, from 1) every call of any kind fails. What that
    /// effect would have written is in flight, as far as [`torn_image`](Self::torn_image) is concerned.
    pub fn crash_at(&self, n: u64) {
        self.state().crash_at = Some(n);
    }

    /// Whether the power went off.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.state().is_off()
    }

    /// Lets the `nth` call of `kind` from now on (from 1) fail with `error`, once.
    ///
    /// A failed write has written half. A failed barrier has lost what it should have forced: it stays visible and
    /// will never be durable, and the next barrier will claim success, as on a real system.
    pub fn fail(&self, kind: CallKind, nth: u64, error: io::ErrorKind) {
        self.state().faults.push(Fault { kind: Some(kind), countdown: nth, error });
    }

    /// As [`fail`](Self::fail) for the `nth` effect of any kind.
    pub fn fail_effect(&self, nth: u64, error: io::ErrorKind) {
        self.state().faults.push(Fault { kind: None, countdown: nth, error });
    }

    /// Notes every effect from now on, for [`trace`](Self::trace).
    pub fn start_trace(&self) {
        self.state().trace = Some(Vec::new());
    }

    /// The effects since `start_trace`, with their paths, in order.
    #[must_use]
    pub fn trace(&self) -> Vec<(CallKind, PathBuf)> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// A fresh file system that holds what a power cut now leaves: only what was forced.
    #[must_use]
    pub fn durable_image(&self) -> Self {
        Self::of(self.state().image.after_power_cut(None))
    }

    /// As [`durable_image`](Self::durable_image), plus some of what was not forced, chosen by `seed`: sectors of
    /// writes, changes of length, the first of the changed names.
    #[must_use]
    pub fn torn_image(&self, seed: u64) -> Self {
        Self::of(self.state().image.after_power_cut(Some(Random::new(seed))))
    }

    /// A file system in the state in which the end of a process leaves it: everything written is visible, what was
    /// not forced still is not durable.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        Self::of(self.state().image.clone())
    }

    /// Flips bits of one byte of a file, in both images: a disk that rots.
    ///
    /// # Errors
    /// `NotFound` when there is no such file, `UnexpectedEof` when it is shorter.
    pub fn corrupt(&self, path: &Path, pos: u64, mask: u8) -> io::Result<()> {
        let mut state = self.state();
        let Some(Node::File(inode)) = state.image.node(path) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let file = state.inode(inode);
        let mut byte = [0];
        if file.live.read(&mut byte, pos) == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.change(FileOp::Write { pos, data: vec![byte[0] ^ mask] });
        file.sync();
        Ok(())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn power_lost() -> io::Error {
    io::Error::other("the power is off")
}

impl State {
    fn is_off(&self) -> bool {
        self.crash_at.is_some_and(|at| self.effects >= at)
    }

    /// Counts a call and decides what becomes of it.
    fn enter(&mut self, kind: CallKind, path: &Path) -> Fate {
        if self.is_off() {
            return Fate::Fail(power_lost());
        }
        *self.counts.entry(kind).or_insert(0) += 1;
        if kind.is_effect() {
            self.effects += 1;
            if let Some(trace) = &mut self.trace {
                trace.push((kind, path.to_path_buf()));
            }
            if self.is_off() {
                return Fate::PowerCut;
            }
        }
        let mut struck = None;
        for fault in &mut self.faults {
            let matches = fault.kind.map_or(kind.is_effect(), |wanted| wanted == kind);
            if matches && fault.countdown > 0 {
                fault.countdown -= 1;
                if fault.countdown == 0 {
                    struck = Some(fault.error);
                }
            }
        }
        match struck {
            Some(error) => Fate::Fail(io::Error::new(error, "a fault was asked for")),
            None => Fate::Proceed,
        }
    }

    /// [`enter`](Self::enter) for calls that do nothing when they fail.
    fn enter_or_fail(&mut self, kind: CallKind, path: &Path) -> io::Result<()> {
        match self.enter(kind, path) {
            Fate::Proceed => Ok(()),
            Fate::Fail(error) => Err(error),
            Fate::PowerCut => Err(power_lost()),
        }
    }

    /// Handles outlive names, so an inode is never dropped.
    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.image.inodes.entry(inode).or_default()
    }

    fn change_dir(&mut self, dir: &Path, op: DirOp) -> io::Result<()> {
        self.image.dirs.get_mut(dir).ok_or(io::ErrorKind::NotFound)?.change(op);
        Ok(())
    }
}

fn place(path: &Path) -> io::Result<(PathBuf, String)> {
    split(path).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Storage for MemoryStorage {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        let mut path = PathBuf::new();
        for part in &normal(dir) {
            let parent = path.clone();
            path.push(part);
            match state.image.node(&path) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
                None => {
                    state.enter_or_fail(CallKind::CreateDir, &path)?;
                    let (_, name) = place(&path)?;
                    state.change_dir(&parent, DirOp::Put(name, Node::Dir))?;
                    state.image.dirs.insert(path.clone(), image::Dir::default());
                }
            }
        }
        Ok(())
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let (dir, name) = place(path)?;
        let mut state = self.state();
        let known = state.image.node(path);
        let inode = match (known, mode) {
            (Some(Node::Dir), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(Node::File(_)), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Existing | OpenMode::ReadOnly) => {
                state.enter_or_fail(CallKind::Open, path)?;
                return Err(io::ErrorKind::NotFound.into());
            }
            (Some(Node::File(inode)), OpenMode::Truncate) => {
                state.enter_or_fail(CallKind::Create, path)?;
                state.inode(inode).change(FileOp::SetLen(0));
                inode
            }
            (Some(Node::File(inode)), _) => {
                state.enter_or_fail(CallKind::Open, path)?;
                inode
            }
            (None, _) => {
                state.enter_or_fail(CallKind::Create, path)?;
                let inode = state.image.next_inode;
                state.image.next_inode += 1;
                state.image.inodes.insert(inode, Inode::default());
                state.change_dir(&dir, DirOp::Put(name, Node::File(inode)))?;
                inode
            }
        };
        drop(state);
        let path = normal(path);
        let has_lock = AtomicBool::new(false);
        Ok(Arc::new(MemoryFile { state: Arc::clone(&self.state), inode, path, has_lock }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut state = self.state();
        state.enter_or_fail(CallKind::List, dir)?;
        let names = &state.image.dirs.get(&normal(dir)).ok_or(io::ErrorKind::NotFound)?.live;
        let entry =
            |(name, node): (&String, &Node)| DirEntry { name: name.clone(), is_dir: *node == Node::Dir };
        Ok(names.iter().map(entry).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (place(from)?, place(to)?);
        let mut state = self.state();
        state.enter_or_fail(CallKind::Rename, to)?;
        let Some(Node::File(inode)) = state.image.node(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if from_dir == to_dir {
            return state.change_dir(&from_dir, DirOp::Rename(from_name, to_name));
        }
        state.change_dir(&to_dir, DirOp::Put(to_name, Node::File(inode)))?;
        state.change_dir(&from_dir, DirOp::Remove(from_name))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = place(path)?;
        let mut state = self.state();
        state.enter_or_fail(CallKind::Remove, path)?;
        match state.image.node(path) {
            Some(Node::File(_)) => state.change_dir(&dir, DirOp::Remove(name)),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let (parent, name) = place(dir)?;
        let path = normal(dir);
        let mut state = self.state();
        state.enter_or_fail(CallKind::Remove, dir)?;
        let known = state.image.dirs.get(&path).ok_or(io::ErrorKind::NotFound)?;
        if !known.live.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.image.dirs.remove(&path);
        state.change_dir(&parent, DirOp::Remove(name))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        let fate = state.enter(CallKind::SyncDir, dir);
        let is_off = state.is_off();
        let known = state.image.dirs.get_mut(&normal(dir)).ok_or(io::ErrorKind::NotFound)?;
        match fate {
            Fate::Proceed => {
                known.sync();
                Ok(())
            }
            Fate::Fail(error) => {
                if !is_off {
                    known.lose_unsynced();
                }
                Err(error)
            }
            Fate::PowerCut => Err(power_lost()),
        }
    }
}

#[derive(Debug)]
struct MemoryFile {
    state: Arc<Mutex<State>>,
    inode: u64,
    path: PathBuf,
    has_lock: AtomicBool,
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        let mut state = lock(&self.state);
        state.enter_or_fail(CallKind::Read, &self.path)?;
        Ok(state.inode(self.inode).live.read(buf, pos))
    }

    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        let mut data = parts.concat();
        let mut state = lock(&self.state);
        let fate = state.enter(CallKind::Write, &self.path);
        let answer = match fate {
            Fate::Proceed => Ok(()),
            Fate::PowerCut => Err(power_lost()),
            Fate::Fail(error) if state.is_off() => return Err(error),
            Fate::Fail(error) => {
                data.truncate(data.len() / 2);
                Err(error)
            }
        };
        state.inode(self.inode).change(FileOp::Write { pos, data });
        answer
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.enter_or_fail(CallKind::SetLen, &self.path)?;
        state.inode(self.inode).change(FileOp::SetLen(len));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = lock(&self.state);
        state.enter_or_fail(CallKind::Len, &self.path)?;
        Ok(state.inode(self.inode).live.len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        match state.enter(CallKind::SyncData, &self.path) {
            Fate::Proceed => {
                state.inode(self.inode).sync();
                Ok(())
            }
            Fate::Fail(error) if state.is_off() => Err(error),
            Fate::Fail(error) => {
                state.inode(self.inode).lose_unsynced();
                Err(error)
            }
            Fate::PowerCut => Err(power_lost()),
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        let taken = lock(&self.state).locked.insert(self.inode);
        if taken {
            self.has_lock.store(true, Ordering::SeqCst);
        }
        Ok(taken || self.has_lock.load(Ordering::SeqCst))
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if self.has_lock.load(Ordering::SeqCst) {
            lock(&self.state).locked.remove(&self.inode);
        }
    }
}

#[cfg(test)]
mod tests;
