//! Changes of what the node keeps: creating, growing and deleting topics, handing out producer ids. Blocking; one at
//! a time, under the admin lock; each is on the disk before anyone sees it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tramline_log::storage::Storage;
use tramline_log::{Log, LogConfig, LogError, RecoveryReport};
use tramline_wire::{ErrorCode, Str, TopicPartition, Uuid};

use crate::catalogue::{Catalogue, Identity, TopicEntry, partition_dir};
use crate::config::BrokerConfig;
use crate::config_edit::Edits;
use crate::partition::Partition;
use crate::topic_config::{self, Effective};
use crate::topics::{RESERVED, Shelf, Topic, Topics};
use crate::write_actor::WriteActor;

/// How many producer ids are put aside with one write.
const PRODUCER_ID_BLOCK: i64 = 1000;

/// A refusal with what a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn storage(what: &str, error: &dyn std::fmt::Display) -> Self {
        tracing::error!(%error, "{what}");
        Self::new(ErrorCode::KafkaStorageError, format!("{what}: {error}"))
    }
}

/// What a new topic is to be.
#[derive(Clone, Debug)]
pub(crate) struct NewTopic {
    pub(crate) name: Str,
    /// -1: the broker's default.
    pub(crate) partitions: i32,
    pub(crate) configs: BTreeMap<String, String>,
}

/// What the logs of a topic have to learn of its new settings.
#[derive(Debug)]
pub(crate) struct Altered {
    pub(crate) partitions: Vec<Arc<Partition>>,
    pub(crate) settings: Effective,
}

/// The state behind the admin lock.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) dir: PathBuf,
    pub(crate) catalogue: Catalogue,
    pub(crate) identity: Identity,
    pub(crate) entries: BTreeMap<Str, TopicEntry>,
    pub(crate) next_producer_id: i64,
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) clock: fn() -> i64,
}

impl Admin {
    /// Creates a topic; with `validate_only` everything is checked and nothing done. Gives its id and the number of
    /// its partitions.
    pub(crate) fn create(&mut self, new: &NewTopic, validate_only: bool) -> Result<(Uuid, i32), Refusal> {
        // Files that a deletion could not remove are tried again before the name is refused.
        let _ = self.finish_deletion(&new.name);
        let partitions = self.check_new(new)?;
        if validate_only {
            return Ok((Uuid::ZERO, partitions));
        }
        let id = fresh_id()?;
        let name = new.name.detached();
        let settings = Effective::new(&new.configs, &self.config);
        let opened = self.open_new(&name, id, settings, 0..partitions)?;
        let entry =
            TopicEntry { name: name.clone(), id, partitions, deleting: false, configs: new.configs.clone() };
        self.entries.insert(name.clone(), entry);
        if let Err(error) = self.save() {
            self.entries.remove(&name);
            return Err(Refusal::storage("cannot write the topic list", &error));
        }
        let topic = Topic { name, id, configs: new.configs.clone(), partitions: opened };
        self.shelf.change(|topics| topics.put(topic));
        Ok((id, partitions))
    }

    fn check_new(&self, new: &NewTopic) -> Result<i32, Refusal> {
        if let Some(reason) = topic_config::name_refusal(&new.name) {
            return Err(Refusal::new(ErrorCode::InvalidTopicException, reason));
        }
        if RESERVED.contains(&new.name.as_str()) {
            return Err(Refusal::new(
                ErrorCode::InvalidTopicException,
                "the name is reserved for the broker",
            ));
        }
        let partitions = if new.partitions == -1 { self.config.default_partitions } else { new.partitions };
        if partitions <= 0 {
            return Err(Refusal::new(ErrorCode::InvalidPartitions, "a topic has at least one partition"));
        }
        if let Some(entry) = self.entries.get(&new.name) {
            let reason = if entry.deleting { "the topic is being deleted" } else { "the topic exists" };
            return Err(Refusal::new(ErrorCode::TopicAlreadyExists, reason));
        }
        let collides = |a: &str, b: &str| a.replace('.', "_") == b.replace('.', "_");
        if (new.name.contains('.') || new.name.contains('_'))
            && let Some(other) = self.entries.keys().find(|other| collides(other, &new.name))
        {
            let reason = format!("the name collides with {other}: '.' and '_' count as the same");
            return Err(Refusal::new(ErrorCode::InvalidTopicException, reason));
        }
        self.check_count(&self.shelf.now(), partitions)?;
        for (key, value) in &new.configs {
            if let Some(reason) = topic_config::refusal(key, value) {
                return Err(Refusal::new(ErrorCode::InvalidConfig, reason));
            }
        }
        Ok(partitions)
    }

    fn check_count(&self, topics: &Topics, more: i32) -> Result<(), Refusal> {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        if topics.partition_count().saturating_add(more) > self.config.max_partitions {
            let reason = format!("the broker holds at most {} partitions", self.config.max_partitions);
            return Err(Refusal::new(ErrorCode::InvalidPartitions, reason));
        }
        Ok(())
    }

    /// Opens the logs of new partitions; none is left behind when one fails.
    fn open_new(
        &self,
        name: &Str,
        id: Uuid,
        settings: Effective,
        numbers: std::ops::Range<i32>,
    ) -> Result<Vec<Arc<Partition>>, Refusal> {
        let mut opened: Vec<Arc<Partition>> = Vec::new();
        for number in numbers {
            match self.open_one_new(name, id, number, settings) {
                Ok(partition) => opened.push(partition),
                Err(refusal) => {
                    for partition in opened {
                        let (log, _) = partition.actor().delete();
                        // The first error is the one to report; what stays behind is an empty log.
                        let _ = log.map(Log::delete);
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(opened)
    }

    fn open_one_new(
        &self,
        name: &Str,
        id: Uuid,
        number: i32,
        settings: Effective,
    ) -> Result<Arc<Partition>, Refusal> {
        let dir = partition_dir(&self.dir, name, number);
        let ours =
            matches!(self.storage.list(&dir), Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        match self.open_partition(name, id, number, settings) {
            Ok((partition, report)) if report.log_end == 0 => Ok(partition),
            Ok(_) => {
                let reason = format!(
                    "{} holds records of a topic that is not listed; nothing was removed",
                    dir.display()
                );
                Err(Refusal::new(ErrorCode::KafkaStorageError, reason))
            }
            Err(error) => {
                if ours {
                    // A name whose barrier failed may never become durable: the next attempt must make a new one.
                    let _ = remove_log(&*self.storage, &dir);
                }
                Err(Refusal::storage("cannot create the log of a partition", &error))
            }
        }
    }

    /// Opens, and recovers, the log of one partition.
    pub(crate) fn open_partition(
        &self,
        topic: &Str,
        id: Uuid,
        number: i32,
        settings: Effective,
    ) -> Result<(Arc<Partition>, RecoveryReport), LogError> {
        let dir = partition_dir(&self.dir, topic, number);
        let (mut log, report) = Log::open(
            Arc::clone(&self.storage),
            dir,
            log_config(settings, self.config.presize_bytes),
            (self.clock)(),
        )?;
        log.begin_epoch(self.identity.leader_epoch)?;
        let id_of = TopicPartition::new(topic, number);
        let partition = Partition::new(id_of, id, settings, WriteActor::new(log), self.config.mailbox_bytes);
        Ok((Arc::new(partition), report))
    }

    /// Gives a topic more partitions, `count` in all.
    pub(crate) fn grow(&mut self, name: &Str, count: i32, validate_only: bool) -> Result<(), Refusal> {
        let topics = self.shelf.now();
        let Some(topic) = topics.by_name(name).filter(|topic| !topic.is_internal()) else {
            return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, "no such topic"));
        };
        let current = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        if count <= current {
            let reason = format!("the topic has {current} partitions already");
            return Err(Refusal::new(ErrorCode::InvalidPartitions, reason));
        }
        self.check_count(&topics, count - current)?;
        if validate_only {
            return Ok(());
        }
        let settings = Effective::new(&topic.configs, &self.config);
        let opened = self.open_new(&topic.name, topic.id, settings, current..count)?;
        if let Some(entry) = self.entries.get_mut(name) {
            entry.partitions = count;
        }
        if let Err(error) = self.save() {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.partitions = current;
            }
            return Err(Refusal::storage("cannot write the topic list", &error));
        }
        let mut partitions = topic.partitions.clone();
        partitions.extend(opened);
        let grown =
            Topic { name: topic.name.clone(), id: topic.id, configs: topic.configs.clone(), partitions };
        self.shelf.change(|topics| topics.put(grown));
        Ok(())
    }

    /// Changes the settings of a topic. Gives what its partitions have to learn; nothing with `validate_only`.
    pub(crate) fn alter(
        &mut self,
        name: &Str,
        edits: &Edits,
        validate_only: bool,
    ) -> Result<Option<Altered>, Refusal> {
        let topics = self.shelf.now();
        let Some(topic) = topics.by_name(name).filter(|topic| !topic.is_internal()) else {
            return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, "no such topic"));
        };
        let configs = edits.apply(&topic.configs, &self.config)?;
        if validate_only {
            return Ok(None);
        }
        if let Some(entry) = self.entries.get_mut(name) {
            entry.configs.clone_from(&configs);
        }
        if let Err(error) = self.save() {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.configs.clone_from(&topic.configs);
            }
            return Err(Refusal::storage("cannot write the topic list", &error));
        }
        let settings = Effective::new(&configs, &self.config);
        let partitions = topic.partitions.clone();
        for partition in &partitions {
            partition.set_settings(settings);
        }
        let (name, id) = (topic.name.clone(), topic.id);
        let altered = Topic { name, id, configs, partitions: partitions.clone() };
        self.shelf.change(|topics| topics.put(altered));
        Ok(Some(Altered { partitions, settings }))
    }

    /// Deletes a topic: first on the list, then for clients, then its files. Until the files are gone the name stays
    /// taken, so that a new topic can never begin with old records.
    pub(crate) fn delete(&mut self, name: &Str) -> Result<(), Refusal> {
        let unknown = || Refusal::new(ErrorCode::UnknownTopicOrPartition, "no such topic");
        if RESERVED.contains(&name.as_str()) {
            return Err(Refusal::new(ErrorCode::InvalidTopicException, "the topic belongs to the broker"));
        }
        let entry = self.entries.get_mut(name).filter(|entry| !entry.deleting).ok_or_else(unknown)?;
        entry.deleting = true;
        let marked = self.save();
        if marked.is_err() {
            // The list on the disk may say either now. Only when it says again that the topic is there may the topic
            // go on; else acks would be given for records that the next start removes.
            self.set_deleting(name, false);
            if self.save().is_err() {
                self.set_deleting(name, true);
            }
        }
        if let (Err(error), Some(false)) = (&marked, self.entries.get(name).map(|entry| entry.deleting)) {
            return Err(Refusal::storage("cannot write the topic list", error));
        }
        let topic = self.shelf.change(|topics| topics.remove(name)).ok_or_else(unknown)?;
        for partition in &topic.partitions {
            partition.set_deleted();
            let (log, answers) = partition.actor().delete();
            answers.give();
            if let Some(log) = log {
                log.retire();
            }
        }
        if let Err(error) = marked {
            return Err(Refusal::storage(
                "a topic is closed, since the topic list cannot be written",
                &error,
            ));
        }
        // From here on the topic is deleted for clients, whatever happens to its files: the next start goes on.
        if let Err(error) = self.finish_deletion(name) {
            tracing::warn!(topic = %name, %error, "files of a deleted topic remain; the next start removes them");
        }
        Ok(())
    }

    fn set_deleting(&mut self, name: &Str, deleting: bool) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.deleting = deleting;
        }
    }

    /// Removes the files of a topic that is marked as being deleted, then its entry.
    pub(crate) fn finish_deletion(&mut self, name: &Str) -> std::io::Result<()> {
        let Some(entry) = self.entries.get(name).filter(|entry| entry.deleting).cloned() else {
            return Ok(());
        };
        for number in 0..entry.partitions {
            remove_log(&*self.storage, &partition_dir(&self.dir, name, number))?;
        }
        self.storage.sync_dir(&self.dir)?;
        self.entries.remove(name);
        if let Err(error) = self.save() {
            self.entries.insert(name.clone(), entry);
            return Err(error);
        }
        Ok(())
    }

    fn save(&self) -> std::io::Result<()> {
        self.catalogue.save_topics(self.entries.values())
    }

    /// A producer id that was never handed out before, on this node, in any run.
    pub(crate) fn producer_id(&mut self) -> Result<i64, Refusal> {
        if self.next_producer_id >= self.identity.producer_ids_end {
            let mut identity = self.identity.clone();
            identity.producer_ids_end += PRODUCER_ID_BLOCK;
            self.catalogue
                .save_identity(&identity)
                .map_err(|error| Refusal::storage("cannot put producer ids aside", &error))?;
            self.identity = identity;
        }
        let id = self.next_producer_id;
        self.next_producer_id += 1;
        Ok(id)
    }
}

/// What a topic's settings come to for the logs of its partitions.
pub(crate) fn log_config(settings: Effective, presize_bytes: u32) -> LogConfig {
    LogConfig {
        presize_bytes,
        segment_bytes: u32::try_from(settings.segment_bytes).unwrap_or(i32::MAX as u32).min(i32::MAX as u32),
        index_interval_bytes: settings.index_interval_bytes,
        log_append_time: settings.log_append_time,
        retention: settings.retention_ms.map(Duration::from_millis),
        retention_bytes: settings.retention_bytes,
        segment_age: Some(Duration::from_millis(settings.segment_ms)),
        compaction: settings.compaction,
        ..LogConfig::default()
    }
}

pub(crate) fn fresh_id() -> Result<Uuid, Refusal> {
    loop {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            Refusal::new(ErrorCode::UnknownServerError, format!("no randomness: {error}"))
        })?;
        let id = Uuid::from_random(bytes);
        // Ids that begin with '-' read as an option on command lines.
        if !id.to_string().starts_with('-') {
            return Ok(id);
        }
    }
}

/// Removes a log's directory with all it holds; one that is not there is fine.
fn remove_log(storage: &dyn Storage, dir: &Path) -> std::io::Result<()> {
    let entries = match storage.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_log(storage, &path)? } else { storage.remove(&path)? }
    }
    storage.remove_dir(dir)
}
