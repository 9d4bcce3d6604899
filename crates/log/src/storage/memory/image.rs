//! What a memory storage holds: contents and names, each live and durable, and what lies between the two.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// What a disk writes as one piece.
const SECTOR: usize = 512;

/// The bytes of a file; what lies between the data and the length reads as zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    data: Vec<u8>,
    pub(super) len: u64,
}

/// A change of a file.
#[derive(Clone, Debug)]
pub(super) enum FileOp {
    Write { pos: u64, data: Vec<u8> },
    SetLen(u64),
}

/// A file: as processes see it, as a power cut leaves it, and the changes in between, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) live: Content,
    durable: Content,
    unsynced: Vec<FileOp>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Dir,
}

/// A change of a directory.
#[derive(Clone, Debug)]
pub(super) enum DirOp {
    Put(String, Node),
    Remove(String),
    Rename(String, String),
}

/// A directory, in the same three parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Dir {
    pub(super) live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    unsynced: Vec<DirOp>,
}

/// All files and directories. Directories are known by their path; the empty path is the root.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) inodes: HashMap<u64, Inode>,
    pub(super) dirs: BTreeMap<PathBuf, Dir>,
    pub(super) next_inode: u64,
}

impl Content {
    pub(super) fn read(&self, buf: &mut [u8], pos: u64) -> usize {
        let left = usize::try_from(self.len.saturating_sub(pos)).unwrap_or(usize::MAX);
        let count = buf.len().min(left);
        let from = usize::try_from(pos).unwrap_or(usize::MAX).min(self.data.len());
        let held = count.min(self.data.len() - from);
        buf[..held].copy_from_slice(&self.data[from..from + held]);
        buf[held..count].fill(0);
        count
    }

    fn write(&mut self, pos: u64, data: &[u8]) {
        let from = usize::try_from(pos).unwrap_or(usize::MAX);
        let end = from + data.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[from..end].copy_from_slice(data);
        self.len = self.len.max(end as u64);
    }

    fn set_len(&mut self, len: u64) {
        self.data.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        self.len = len;
    }

    fn apply(&mut self, op: &FileOp) {
        match op {
            FileOp::Write { pos, data } => self.write(*pos, data),
            FileOp::SetLen(len) => self.set_len(*len),
        }
    }
}

impl Inode {
    pub(super) fn change(&mut self, op: FileOp) {
        self.live.apply(&op);
        self.unsynced.push(op);
    }

    pub(super) fn sync(&mut self) {
        for op in self.unsynced.drain(..) {
            self.durable.apply(&op);
        }
    }

    /// What a failed barrier does: the pages count as clean from now on although they were never written.
    pub(super) fn lose_unsynced(&mut self) {
        self.unsynced.clear();
    }

    fn settled(content: Content) -> Self {
        Self { live: content.clone(), durable: content, unsynced: Vec::new() }
    }

    fn torn(&self, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        for op in &self.unsynced {
            match (op, random.below(3)) {
                (_, 0) => {}
                (op, 1) => content.apply(op),
                (FileOp::Write { pos, data }, _) => tear(&mut content, *pos, data, random),
                (FileOp::SetLen(_), _) => {}
            }
        }
        content
    }
}

/// Writes a random choice of the sectors of `data`.
fn tear(content: &mut Content, pos: u64, data: &[u8], random: &mut Random) {
    let mut from = 0;
    while from < data.len() {
        let at = pos + from as u64;
        let to_boundary = SECTOR - usize::try_from(at % SECTOR as u64).unwrap_or(0);
        let end = data.len().min(from + to_boundary);
        if random.below(2) == 0 {
            content.write(at, &data[from..end]);
        }
        from = end;
    }
}

impl Dir {
    pub(super) fn change(&mut self, op: DirOp) {
        apply(&mut self.live, &op);
        self.unsynced.push(op);
    }

    pub(super) fn sync(&mut self) {
        for op in self.unsynced.drain(..) {
            apply(&mut self.durable, &op);
        }
    }

    pub(super) fn lose_unsynced(&mut self) {
        self.unsynced.clear();
    }

    /// Names reach the disk in the order of their changes: some first ones are there.
    fn torn(&self, random: &mut Random) -> BTreeMap<String, Node> {
        let mut names = self.durable.clone();
        let kept = random.below(self.unsynced.len() as u64 + 1);
        for op in self.unsynced.iter().take(usize::try_from(kept).unwrap_or(usize::MAX)) {
            apply(&mut names, op);
        }
        names
    }
}

fn apply(names: &mut BTreeMap<String, Node>, op: &DirOp) {
    match op {
        DirOp::Put(name, node) => {
            names.insert(name.clone(), *node);
        }
        DirOp::Remove(name) => {
            names.remove(name);
        }
        DirOp::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
    }
}

impl Image {
    pub(super) fn empty() -> Self {
        let dirs = BTreeMap::from([(PathBuf::new(), Dir::default())]);
        Self { inodes: HashMap::new(), dirs, next_inode: 1 }
    }

    /// What a power cut leaves: what was forced and, with `random`, some of what was not.
    pub(super) fn after_power_cut(&self, mut random: Option<Random>) -> Self {
        let mut image = Self::empty();
        image.next_inode = self.next_inode;
        let mut reachable = vec![PathBuf::new()];
        let mut files = BTreeSet::new();
        while let Some(path) = reachable.pop() {
            // A name may have outlived the directory behind it; it is empty then.
            let names = match (self.dirs.get(&path), &mut random) {
                (Some(dir), Some(random)) => dir.torn(random),
                (Some(dir), None) => dir.durable.clone(),
                (None, _) => BTreeMap::new(),
            };
            for (name, node) in &names {
                match node {
                    Node::Dir => reachable.push(path.join(name)),
                    Node::File(inode) => {
                        files.insert(*inode);
                    }
                }
            }
            image.dirs.insert(path, Dir { live: names.clone(), durable: names, unsynced: Vec::new() });
        }
        for inode in files {
            let content = match (&self.inodes[&inode], &mut random) {
                (file, Some(random)) => file.torn(random),
                (file, None) => file.durable.clone(),
            };
            image.inodes.insert(inode, Inode::settled(content));
        }
        image
    }

    pub(super) fn node(&self, path: &Path) -> Option<Node> {
        let (dir, name) = split(path)?;
        self.dirs.get(&dir)?.live.get(&name).copied()
    }
}

/// A path without root, dots and separators at its ends.
pub(super) fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, std::path::Component::Normal(_))).collect()
}

/// The directory and the name of a path; `None` for the root.
pub(super) fn split(path: &Path) -> Option<(PathBuf, String)> {
    let path = normal(path);
    let name = path.file_name()?.to_str()?.to_owned();
    Some((path.parent()?.to_path_buf(), name))
}

/// Numbers from a seed: the same seed, the same numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
