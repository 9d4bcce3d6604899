//! What every request can reach: topics, the write side, the coordinator, threads for blocking work.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tramline_log::StorageFile;
use tramline_wire::{ErrorCode, Str};

use crate::admin::{Admin, Refusal};
use crate::blocking::Pool;
use crate::config::BrokerConfig;
use crate::coordinator::GroupCoordinator;
use crate::engine::Engine;
use crate::fetch_sessions::FetchSessions;
use crate::held_memory::HeldMemory;
use crate::metrics::Metrics;
use crate::read_buffers::ReadBuffers;
use crate::topics::{Shelf, Topics};

/// How clients reach this node.
#[derive(Clone, Debug)]
pub(crate) struct Advertised {
    pub(crate) host: Str,
    pub(crate) port: i32,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) cluster_id: Str,
    pub(crate) node_id: i32,
    /// The directory of the logs, for tools.
    pub(crate) log_dir: Str,
    pub(crate) leader_epoch: i32,
    pub(crate) advertised: OnceLock<Advertised>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) groups: Arc<GroupCoordinator>,
    pub(crate) readers: Pool,
    pub(crate) fetch_sessions: FetchSessions,
    pub(crate) read_buffers: Arc<ReadBuffers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) held_memory: Arc<HeldMemory>,
    /// No request is started any more, waiting ones are answered.
    pub(crate) stopping: CancellationToken,
    /// Connections end where they are.
    pub(crate) killed: CancellationToken,
    pub(crate) parked_fetches: Semaphore,
    /// Partitions that waiting fetches look at, over all of them.
    pub(crate) parked_partitions: Semaphore,
    pub(crate) clock: fn() -> i64,
    pub(crate) admin: Arc<Mutex<Admin>>,
    pub(crate) admin_pool: Pool,
    /// For looking into compressed batches, which a few bytes can make long.
    pub(crate) unpackers: Pool,
    /// For passes over whole logs, which take long.
    pub(crate) compactor: Pool,
    /// Held for as long as the directory is ours.
    pub(crate) lock: Mutex<Option<Arc<dyn StorageFile>>>,
}

impl Node {
    pub(crate) fn topics(&self) -> Arc<Topics> {
        self.shelf.now()
    }

    /// The most elements that the arrays of one request may have together: some for each partition there can be.
    pub(crate) fn most_elements(&self) -> usize {
        const SOME: usize = 100_000;
        SOME.max(self.config.max_partitions.saturating_mul(10))
    }

    /// How clients reach this node; unspecified before the listener is bound, which no client can see.
    pub(crate) fn advertised(&self) -> Advertised {
        self.advertised.get().cloned().unwrap_or_else(|| Advertised { host: Str::new(), port: -1 })
    }

    /// Runs a change of what the node keeps, alone, off the runtime.
    pub(crate) async fn administer<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Admin) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let admin = Arc::clone(&self.admin);
        let run = move || change(&mut admin.lock().unwrap_or_else(PoisonError::into_inner));
        self.admin_pool
            .run(run)
            .await
            .unwrap_or_else(|_| Err(Refusal::new(ErrorCode::UnknownServerError, "the broker is stopping")))
    }
}

/// Wall-clock milliseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
