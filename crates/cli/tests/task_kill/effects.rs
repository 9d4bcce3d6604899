//! What the workers did: a file each, a line for each task, written by one call before the task is done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub shard: i32,
    pub task: i64,
    pub token: i64,
    pub worker: String,
}

/// All lines so far.
pub struct Effects {
    folder: PathBuf,
    /// How far each file was read.
    read: BTreeMap<PathBuf, u64>,
    all: Vec<Effect>,
    tokens: BTreeSet<(i32, i64, i64)>,
    tasks: BTreeSet<(i32, i64)>,
}

impl Effects {
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            read: BTreeMap::new(),
            all: Vec::new(),
            tokens: BTreeSet::new(),
            tasks: BTreeSet::new(),
        }
    }

    /// Reads on, and answers how many tasks have an effect. No token has two.
    pub fn read_on(&mut self) -> u64 {
        for entry in std::fs::read_dir(&self.folder).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "effects") {
                continue;
            }
            let mut file = File::open(&path).unwrap();
            let from = self.read.entry(path).or_default();
            file.seek(SeekFrom::Start(*from)).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            let Some(whole) = bytes.iter().rposition(|&byte| byte == b'\n') else { continue };
            let text = std::str::from_utf8(&bytes[..whole]).unwrap();
            *from += whole as u64 + 1;
            text.lines().for_each(|line| self.add(line));
        }
        self.tasks.len() as u64
    }

    fn add(&mut self, line: &str) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        let (shard, task, token) =
            (word().parse().unwrap(), word().parse().unwrap(), word().parse().unwrap());
        let effect = Effect { shard, task, token, worker: word().to_owned() };
        assert!(self.tokens.insert((shard, task, token)), "a second effect under one token: {effect:?}");
        self.tasks.insert((shard, task));
        self.all.push(effect);
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn all(&self) -> &[Effect] {
        &self.all
    }

    pub fn has(&self, shard: i32, task: i64, token: i64) -> bool {
        self.tokens.contains(&(shard, task, token))
    }
}
