//! From a directory to a node: identity, topics, logs, groups. Blocking; nothing listens before all of it is done.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tramline_log::storage::{OpenMode, Storage, StorageFile};
use tramline_log::{LogError, RecoveryReport};
use tramline_wire::{Str, TopicPartition};

use crate::admin::{Admin, Refusal, fresh_id};
use crate::blocking::Pool;
use crate::catalogue::{Catalogue, Identity, TopicEntry, partition_dir};
use crate::config::BrokerConfig;
use crate::coordinator::GroupCoordinator;
use crate::engine::Engine;
use crate::error::StartError;
use crate::held_memory::HeldMemory;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::topic_config::Effective;
use crate::topics::{OFFSETS_TOPIC, Shelf, Topic};

const LOCK_FILE: &str = ".lock";
const NODE_ID: i32 = 1;

/// What a node is made from.
pub(crate) struct Plan {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) dir: PathBuf,
    pub(crate) config: BrokerConfig,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: fn() -> i64,
    /// False: nothing runs by itself, every step is taken by hand.
    pub(crate) threads: bool,
}

/// Opens everything; what it returns is ready to serve.
pub(crate) fn open(plan: Plan) -> Result<Arc<Node>, StartError> {
    let Plan { storage, dir, config, metrics, clock, threads } = plan;
    create_directory(&*storage, &dir)?;
    let lock = lock(&*storage, &dir)?;
    let config = Arc::new(config);
    let shelf = Arc::new(Shelf::default());
    let mut admin = open_catalogue(storage, dir, Arc::clone(&config), Arc::clone(&shelf), clock)?;
    finish_deletions(&mut admin)?;
    open_topics(&admin)?;
    let engine = Arc::new(Engine::new(
        config.writer_threads,
        admin.identity.leader_epoch,
        config.checkpoint_interval,
        Arc::clone(&metrics),
        clock,
    ));
    let offsets = TopicPartition::new(OFFSETS_TOPIC, 0);
    let log =
        shelf.now().partition(&offsets).cloned().ok_or(StartError::Internal("no offsets log was opened"))?;
    let directory = partition_dir(&admin.dir, OFFSETS_TOPIC, 0).display().to_string();
    let groups = GroupCoordinator::load(&config, Arc::clone(&engine), log, Arc::clone(&shelf), clock)
        .map_err(|reason| StartError::Log { directory, reason })?;
    let (readers, unpackers, admin_pool, compactor) = if threads {
        let failed = |source| StartError::Io { doing: "start threads".to_owned(), source };
        engine.start(config.committer_threads).map_err(failed)?;
        let readers = Pool::threads("tramline-read", config.reader_threads).map_err(failed)?;
        let unpackers = Pool::threads("tramline-unpack", config.reader_threads).map_err(failed)?;
        let admin_pool = Pool::threads("tramline-admin", 1).map_err(failed)?;
        (readers, unpackers, admin_pool, Pool::threads("tramline-compact", 1).map_err(failed)?)
    } else {
        (Pool::inline(), Pool::inline(), Pool::inline(), Pool::inline())
    };
    Ok(Arc::new(Node {
        cluster_id: admin.identity.cluster_id.clone(),
        node_id: admin.identity.node_id,
        log_dir: Str::from(admin.dir.display().to_string()),
        leader_epoch: admin.identity.leader_epoch,
        advertised: OnceLock::new(),
        shelf,
        engine,
        groups,
        readers,
        unpackers,
        fetch_sessions: crate::fetch_sessions::FetchSessions::default(),
        read_buffers: Arc::default(),
        metrics,
        held_memory: Arc::new(HeldMemory::new(config.connection_memory())),
        stopping: CancellationToken::new(),
        killed: CancellationToken::new(),
        parked_fetches: Semaphore::new(config.max_parked_fetches),
        parked_partitions: Semaphore::new(MAX_PARKED_PARTITIONS),
        clock,
        admin: Arc::new(Mutex::new(admin)),
        admin_pool,
        compactor,
        lock: Mutex::new(Some(lock)),
        config,
    }))
}

/// Partitions that waiting fetches look at, over all of them: each is told of every write.
const MAX_PARKED_PARTITIONS: usize = 1_000_000;

/// Makes the directory, and its name in each directory above it that had to be made, survive a power cut.
fn create_directory(storage: &dyn Storage, dir: &Path) -> Result<(), StartError> {
    let missing =
        |dir: &&Path| matches!(storage.list(dir), Err(error) if error.kind() == ErrorKind::NotFound);
    let above = |dir: &Path| match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        parent => parent.map(Path::to_path_buf),
    };
    let created: Vec<&Path> =
        dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()).take_while(missing).collect();
    storage.create_dir_all(dir).map_err(|source| io_error("create", dir, source))?;
    // The directory itself also when it was there: whoever made it may not have forced its name.
    for (dir, ours) in
        created.iter().map(|dir| (*dir, true)).chain(created.is_empty().then_some((dir, false)))
    {
        let Some(parent) = above(dir) else { continue };
        match storage.sync_dir(&parent) {
            Err(error) if !ours && error.kind() == ErrorKind::PermissionDenied => {}
            synced => synced.map_err(|source| io_error("force", &parent, source))?,
        }
    }
    Ok(())
}

fn lock(storage: &dyn Storage, dir: &Path) -> Result<Arc<dyn StorageFile>, StartError> {
    let path = dir.join(LOCK_FILE);
    let file = storage.open(&path, OpenMode::Create).map_err(|source| io_error("open", &path, source))?;
    match file.try_lock() {
        Ok(true) => Ok(file),
        Ok(false) => Err(StartError::InUse { directory: dir.display().to_string() }),
        Err(source) => Err(io_error("lock", &path, source)),
    }
}

fn open_catalogue(
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    config: Arc<BrokerConfig>,
    shelf: Arc<Shelf>,
    clock: fn() -> i64,
) -> Result<Admin, StartError> {
    let catalogue = Catalogue::new(Arc::clone(&storage), dir.clone());
    let failed = |source| io_error("write the catalogue in", &dir, source);
    let (mut identity, mut entries) = match catalogue.load()? {
        Some((identity, topics)) => {
            let entries: BTreeMap<Str, TopicEntry> =
                topics.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
            (identity, entries)
        }
        None => {
            catalogue.save_topics(std::iter::empty()).map_err(failed)?;
            let cluster_id = Str::from(random_id()?.to_string());
            (
                Identity { cluster_id, node_id: NODE_ID, leader_epoch: -1, producer_ids_end: 0 },
                BTreeMap::new(),
            )
        }
    };
    identity.leader_epoch += 1;
    catalogue.save_identity(&identity).map_err(failed)?;
    if let Entry::Vacant(vacant) = entries.entry(Str::from_static(OFFSETS_TOPIC)) {
        let configs = [("cleanup.policy", "compact"), ("segment.bytes", "67108864")];
        let configs = configs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let name = vacant.key().clone();
        vacant.insert(TopicEntry { name, id: random_id()?, partitions: 1, deleting: false, configs });
        catalogue.save_topics(entries.values()).map_err(failed)?;
    }
    let next_producer_id = identity.producer_ids_end;
    Ok(Admin { storage, dir, catalogue, identity, entries, next_producer_id, config, shelf, clock })
}

fn random_id() -> Result<tramline_wire::Uuid, StartError> {
    fresh_id().map_err(|Refusal { .. }| StartError::Internal("the operating system gives no random bytes"))
}

fn finish_deletions(admin: &mut Admin) -> Result<(), StartError> {
    let unfinished: Vec<Str> =
        admin.entries.values().filter(|entry| entry.deleting).map(|entry| entry.name.clone()).collect();
    for name in unfinished {
        info!(topic = %name, "finishing the deletion of a topic");
        admin
            .finish_deletion(&name)
            .map_err(|source| io_error("remove the logs of a deleted topic in", &admin.dir, source))?;
    }
    Ok(())
}

fn open_topics(admin: &Admin) -> Result<(), StartError> {
    let (mut opened, mut proven) = (0, 0);
    for entry in admin.entries.values() {
        let settings = Effective::new(&entry.configs, &admin.config);
        let mut partitions = Vec::new();
        for number in 0..entry.partitions {
            let (partition, report) = admin
                .open_partition(&entry.name, entry.id, number, settings)
                .map_err(|error| log_error(admin, entry, number, &error))?;
            tell(&partition.id, &report);
            opened += 1;
            proven += report.proven_batches;
            partitions.push(partition);
        }
        let topic =
            Topic { name: entry.name.clone(), id: entry.id, configs: entry.configs.clone(), partitions };
        admin.shelf.change(|topics| topics.put(topic));
    }
    let epoch = admin.identity.leader_epoch;
    info!(partitions = opened, batches_proven = proven, leader_epoch = epoch, "logs are open");
    Ok(())
}

/// One line for every partition about which there is something to say.
fn tell(id: &TopicPartition, report: &RecoveryReport) {
    if !report.damaged.is_empty() {
        warn!(partition = %id, "{report}");
    } else if report.cut_at.is_some() || !report.clean && report.log_end > 0 {
        info!(partition = %id, "{report}");
    }
}

fn log_error(admin: &Admin, entry: &TopicEntry, number: i32, error: &LogError) -> StartError {
    let directory = partition_dir(&admin.dir, &entry.name, number).display().to_string();
    StartError::Log { directory, reason: error.to_string() }
}

fn io_error(doing: &str, path: &Path, source: std::io::Error) -> StartError {
    StartError::Io { doing: format!("{doing} {}", path.display()), source }
}
