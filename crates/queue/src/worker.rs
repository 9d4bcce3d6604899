//! A worker: settings, and the handles by which it is run and watched.

mod driver;
mod jobs;
mod monitor;
mod payloads;
mod shards;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tramline_core::claims::WorkerConfig;
use tramline_core::claims::record::word;
use tramline_core::claims::worker::{Pick, WorkerStats};
use tramline_core::lanes::Backoff;
use tramline_wire::Str;

use crate::error::{WorkError, WorkerConfigError};
use crate::shared::Shared;
use crate::task::{Outcome, Task};
use driver::Driver;
pub use monitor::Monitor;
use monitor::Progress;

/// Collects the settings of a [`Worker`]. Nothing is checked or sent before [`WorkerBuilder::build`].
#[derive(Clone, Debug)]
pub struct WorkerBuilder {
    shared: Arc<Shared>,
    settings: Settings,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub name: String,
    pub concurrency: usize,
    pub lease: Duration,
    pub settle_timeout: Duration,
    pub backoff: Backoff,
    pub pick: Pick,
    pub snapshot_every: u32,
    pub trim: bool,
    /// `None`: the group spreads them.
    pub shards: Option<BTreeSet<i32>>,
    pub steal_after: Option<Duration>,
    pub drain_timeout: Duration,
    pub payload_bytes: usize,
    pub session_timeout: Duration,
}

impl WorkerBuilder {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            settings: Settings {
                name: "worker".into(),
                concurrency: 1,
                lease: Duration::from_secs(30),
                settle_timeout: Duration::from_secs(10),
                backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
                pick: Pick::Random,
                snapshot_every: 10_000,
                trim: true,
                shards: None,
                steal_after: Some(Duration::from_secs(1)),
                drain_timeout: Duration::from_secs(30),
                payload_bytes: 64 << 20,
                session_timeout: Duration::from_secs(45),
            },
        }
    }

    /// A name for people, such as the host's; what makes it unique is added. Default `worker`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Tasks in hand at once. Default 1. A task costs two trips to the log, so short tasks want more.
    #[must_use]
    pub const fn concurrency(mut self, tasks: usize) -> Self {
        self.settings.concurrency = tasks;
        self
    }

    /// How long a task is taken for; renewed each third of it while the handler runs. Default 30 s. Shorter hands the
    /// tasks of a dead worker over sooner, and loses tasks when the broker is away for longer.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a claim may take until it is read back. Default 10 s. A claim that wins later is released.
    #[must_use]
    pub const fn settle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.settle_timeout = timeout;
        self
    }

    /// How long a failed task waits before it comes again: doubled with each attempt, with jitter. Default 1 s to 5 min.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Which task is tried first. Default [`Pick::Random`]; [`Pick::First`] keeps nearer to the order of publication and
    /// makes workers collide.
    #[must_use]
    pub const fn pick(mut self, pick: Pick) -> Self {
        self.settings.pick = pick;
        self
    }

    /// Claims records between two snapshots of a shard; 0 for none. Default 10,000. Where more tasks than that are open
    /// they are rarer, so that they never outweigh the claims. Fewer make starts quicker and cost a copy of the open
    /// tasks each time.
    #[must_use]
    pub const fn snapshot_every(mut self, records: u32) -> Self {
        self.settings.snapshot_every = records;
        self
    }

    /// Whether claims and tasks that two snapshots cover are deleted. Default: yes. Without, the whole history can be
    /// [replayed](crate::Queue::replay), and grows.
    #[must_use]
    pub const fn trim(mut self, trim: bool) -> Self {
        self.settings.trim = trim;
        self
    }

    /// Works on exactly these shards, without asking the group of workers. Default: the workers of a queue share its
    /// shards as a consumer group.
    #[must_use]
    pub fn shards(mut self, shards: impl IntoIterator<Item = i32>) -> Self {
        self.settings.shards = Some(shards.into_iter().collect());
        self
    }

    /// How long a worker finds nothing to do in its shards before it looks into another's; doubled up to a minute while
    /// it finds nothing there either. Default 1 s; `None` for never.
    #[must_use]
    pub const fn steal_after(mut self, after: Option<Duration>) -> Self {
        self.settings.steal_after = after;
        self
    }

    /// How long handlers may go on after a stop was asked for; then they are dropped and their tasks given back.
    /// Default 30 s.
    #[must_use]
    pub const fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// Bytes of payloads that are kept in memory; others are read again when they are needed. Default 64 MiB.
    #[must_use]
    pub const fn payload_bytes(mut self, bytes: usize) -> Self {
        self.settings.payload_bytes = bytes;
        self
    }

    /// How long the group waits for a sign of life before a worker's shards go to others. Default 45 s. Tasks do not
    /// wait for it: they come free with their leases.
    #[must_use]
    pub const fn session_timeout(mut self, timeout: Duration) -> Self {
        self.settings.session_timeout = timeout;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`WorkerConfigError`].
    pub fn build(self) -> Result<Worker, WorkerConfigError> {
        let settings = self.settings;
        let rules = [
            (settings.concurrency == 0, "concurrency", "at least 1"),
            (settings.lease < Duration::from_millis(30), "lease", "at least 30 ms, to be renewed in time"),
            (settings.settle_timeout.is_zero(), "settle_timeout", "must be above zero"),
            (!settings.backoff.is_valid(), "backoff", "must begin above zero and not shrink"),
            (settings.shards.as_ref().is_some_and(BTreeSet::is_empty), "shards", "at least one"),
        ];
        if let Some((_, setting, why)) = rules.into_iter().find(|(broken, _, _)| *broken) {
            return Err(WorkerConfigError::InvalidSetting { setting, why });
        }
        let named = settings.shards.iter().flatten();
        if let Some(&unknown) = named.clone().find(|shard| !(0..self.shared.shards).contains(*shard)) {
            return Err(WorkerConfigError::UnknownShard(unknown));
        }
        let unique = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        let name = Str::from(format!("{}-{unique:016x}", word(&settings.name)));
        let progress = Arc::new(Progress::new(name));
        Ok(Worker { shared: self.shared, settings, progress, running: Mutex::new(()) })
    }
}

impl Settings {
    fn for_machine(&self, name: Str) -> WorkerConfig {
        let mut config = WorkerConfig::new(name);
        config.concurrency = self.concurrency;
        config.lease = self.lease;
        config.renew_after = self.lease / 3;
        config.settle_timeout = self.settle_timeout;
        config.backoff = self.backoff;
        config.pick = self.pick;
        config.snapshot_every = self.snapshot_every;
        config
    }
}

/// Takes tasks and runs a handler for each.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    settings: Settings,
    progress: Arc<Progress>,
    running: Mutex<()>,
}

impl Worker {
    /// The name it writes into the log.
    #[must_use]
    pub fn name(&self) -> &str {
        self.progress.name()
    }

    /// A handle that tells how the worker is while it runs.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.shared), Arc::clone(&self.progress))
    }

    /// Takes tasks until `shutdown` completes; then takes no more, lets handlers end for the drain timeout, and gives the
    /// rest back. A broker that goes away is waited for. Two runs of one worker take turns.
    ///
    /// Dropping the future drops the handlers; their tasks come free when the leases run out. What was written stays.
    ///
    /// # Errors
    /// [`WorkError`]: the queue's log cannot be read or written any more.
    pub async fn run<S, H, F>(&self, shutdown: S, handler: H) -> Result<WorkerStats, WorkError>
    where
        S: Future,
        H: Fn(Task) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let _alone = self.running.lock().await;
        let machine = self.settings.for_machine(self.progress.name_str());
        let driver =
            Driver::start(&self.shared, &self.settings, &self.progress, machine, Arc::new(handler)).await;
        let result = match driver {
            Ok(driver) => driver.run(shutdown).await,
            Err(error) => Err(error),
        };
        self.progress.ended();
        result
    }
}
