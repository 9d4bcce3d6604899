//! What the node knows by name and must not forget: its identity, its topics. Two small text files, each replaced in
//! one step and closed by a checksum.
//!
//! `broker`: cluster id, node id, leader epoch, end of the producer ids handed out.
//! `topics`: one line a topic: name, id, partitions, settings. A topic being deleted stays listed as such until its
//! directories are gone, so that a crash in between can neither revive nor orphan it.
//! A file that does not prove itself stops the start; nothing is ever removed because of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tramline_log::storage::{Storage, read_file, write_atomic};
use tramline_wire::{Str, Uuid};

use crate::error::StartError;

const BROKER_FILE: &str = "broker";
const TOPICS_FILE: &str = "topics";
const BROKER_HEAD: &str = "tramline broker 1";
const TOPICS_HEAD: &str = "tramline topics 1";

/// Who this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster_id: Str,
    pub(crate) node_id: i32,
    /// Grows by one at every start, before anything is served.
    pub(crate) leader_epoch: i32,
    /// Every producer id below this may have been handed out.
    pub(crate) producer_ids_end: i64,
}

/// One topic as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicEntry {
    pub(crate) name: Str,
    pub(crate) id: Uuid,
    pub(crate) partitions: i32,
    pub(crate) deleting: bool,
    pub(crate) configs: BTreeMap<String, String>,
}

/// Reads and replaces the two files.
#[derive(Debug)]
pub(crate) struct Catalogue {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
}

impl Catalogue {
    pub(crate) fn new(storage: Arc<dyn Storage>, dir: PathBuf) -> Self {
        Self { storage, dir }
    }

    /// Both files; `None` in an empty directory.
    pub(crate) fn load(&self) -> Result<Option<(Identity, Vec<TopicEntry>)>, StartError> {
        let broker = self.read(BROKER_FILE)?;
        let topics = self.read(TOPICS_FILE)?;
        match (broker, topics) {
            (Some(broker), Some(topics)) => {
                let identity = parse_identity(&broker).map_err(|reason| self.damaged(BROKER_FILE, reason))?;
                let topics = parse_topics(&topics).map_err(|reason| self.damaged(TOPICS_FILE, reason))?;
                Ok(Some((identity, topics)))
            }
            (None, None) if !self.holds_logs()? => Ok(None),
            // The identity is written last at the very first start: alone, the empty topic list proves nothing.
            (None, Some(topics))
                if parse_topics(&topics).is_ok_and(|t| t.is_empty()) && !self.holds_logs()? =>
            {
                Ok(None)
            }
            (broker, _) => {
                let missing = if broker.is_none() { BROKER_FILE } else { TOPICS_FILE };
                Err(self.damaged(missing, "the file is missing although there are logs"))
            }
        }
    }

    pub(crate) fn save_identity(&self, identity: &Identity) -> std::io::Result<()> {
        let mut text = format!("{BROKER_HEAD}\n");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "cluster {}", identity.cluster_id);
        let _ = writeln!(text, "node {}", identity.node_id);
        let _ = writeln!(text, "epoch {}", identity.leader_epoch);
        let _ = writeln!(text, "producer-ids {}", identity.producer_ids_end);
        self.write(BROKER_FILE, text)
    }

    pub(crate) fn save_topics<'a>(
        &self,
        topics: impl Iterator<Item = &'a TopicEntry>,
    ) -> std::io::Result<()> {
        let mut text = format!("{TOPICS_HEAD}\n");
        for topic in topics {
            let state = if topic.deleting { "deleting" } else { "topic" };
            let _ = write!(text, "{state} {} {} {}", topic.name, topic.id, topic.partitions);
            for (key, value) in &topic.configs {
                let _ = write!(text, " {key}={value}");
            }
            text.push('\n');
        }
        self.write(TOPICS_FILE, text)
    }

    fn write(&self, name: &str, mut text: String) -> std::io::Result<()> {
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc {crc:08x}");
        write_atomic(&*self.storage, &self.dir.join(name), text.as_bytes())
    }

    fn read(&self, name: &str) -> Result<Option<String>, StartError> {
        let path = self.dir.join(name);
        let bytes = read_file(&*self.storage, &path)
            .map_err(|source| StartError::Io { doing: format!("read {}", path.display()), source })?;
        let Some(bytes) = bytes else { return Ok(None) };
        checked(&bytes).map(|text| Some(text.to_owned())).map_err(|reason| self.damaged(name, reason))
    }

    fn holds_logs(&self) -> Result<bool, StartError> {
        let entries = self
            .storage
            .list(&self.dir)
            .map_err(|source| StartError::Io { doing: format!("list {}", self.dir.display()), source })?;
        // A fresh file system has the latter at its root.
        let mut folders =
            entries.iter().filter(|entry| entry.is_dir && entry.name != "lost+found").peekable();
        if folders.peek().is_none() {
            return Ok(false);
        }
        match folders.find(|folder| !is_partition_dir(&folder.name)) {
            None => Ok(true),
            Some(stranger) => Err(StartError::Foreign {
                directory: self.dir.display().to_string(),
                found: stranger.name.clone(),
            }),
        }
    }

    fn damaged(&self, name: &str, reason: &str) -> StartError {
        StartError::Catalogue {
            directory: self.dir.display().to_string(),
            reason: format!("{name}: {reason}"),
        }
    }
}

/// Whether a directory of this name can hold the log of a partition.
fn is_partition_dir(name: &str) -> bool {
    name.rsplit_once('-')
        .is_some_and(|(topic, partition)| !topic.is_empty() && partition.parse::<u32>().is_ok())
}

/// Where the log of a partition lives.
pub(crate) fn partition_dir(dir: &Path, topic: &str, partition: i32) -> PathBuf {
    dir.join(format!("{topic}-{partition}"))
}

fn checked(bytes: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not text")?;
    let body_end = text.trim_end_matches('\n').rfind('\n').ok_or("too short")? + 1;
    let (body, last) = text.split_at(body_end);
    let crc = last.strip_prefix("crc ").ok_or("no checksum")?;
    let crc = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| "the checksum is not a number")?;
    if crc == crc32c::crc32c(body.as_bytes()) { Ok(body) } else { Err("the checksum does not match") }
}

fn parse_identity(text: &str) -> Result<Identity, &'static str> {
    let mut lines = text.lines();
    if lines.next() != Some(BROKER_HEAD) {
        return Err("another format or version");
    }
    let mut field = |name: &str| {
        let line = lines.next().ok_or("a line is missing")?;
        line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')).ok_or("a line is out of place")
    };
    let cluster_id = Str::from(field("cluster")?);
    let node_id = field("node")?.parse().map_err(|_| "the node id is not a number")?;
    let leader_epoch = field("epoch")?.parse().map_err(|_| "the epoch is not a number")?;
    let producer_ids_end = field("producer-ids")?.parse().map_err(|_| "the producer id is not a number")?;
    Ok(Identity { cluster_id, node_id, leader_epoch, producer_ids_end })
}

fn parse_topics(text: &str) -> Result<Vec<TopicEntry>, &'static str> {
    let mut lines = text.lines();
    if lines.next() != Some(TOPICS_HEAD) {
        return Err("another format or version");
    }
    lines.map(parse_topic).collect()
}

fn parse_topic(line: &str) -> Result<TopicEntry, &'static str> {
    let mut words = line.split(' ');
    let deleting = match words.next() {
        Some("topic") => false,
        Some("deleting") => true,
        _ => return Err("a line is neither topic nor deleting"),
    };
    let name = words.next().filter(|name| !name.is_empty()).ok_or("a topic without a name")?;
    let id = words.next().and_then(|id| id.parse().ok()).ok_or("a topic without an id")?;
    let partitions = words.next().and_then(|count| count.parse().ok()).ok_or("a topic without partitions")?;
    let mut configs = BTreeMap::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or("a setting without a value")?;
        configs.insert(key.to_owned(), value.to_owned());
    }
    Ok(TopicEntry { name: Str::from(name), id, partitions, deleting, configs })
}
