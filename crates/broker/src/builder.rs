//! How a broker is started and stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use tramline_log::Storage;
use tramline_log::storage::DiskStorage;
use tramline_wire::Str;

use crate::blocking::Pool;
use crate::config::BrokerConfig;
use crate::error::{ShutdownError, StartError};
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::node::{Advertised, Node, wall_clock};
use crate::{listener, maintenance, shutdown, startup};

/// Connections the kernel keeps for us before they are accepted.
const BACKLOG: u32 = 1024;

/// Where a broker begins; see [`Broker::builder`].
#[derive(Debug)]
pub struct Broker(());

impl Broker {
    /// A broker that keeps everything in `directory`, which is created when it is missing.
    pub fn builder(directory: impl Into<PathBuf>) -> BrokerBuilder {
        Self::builder_on(DiskStorage::shared(), directory)
    }

    /// A broker on another storage: memory, or one that fails or delays on purpose.
    pub fn builder_on(storage: Arc<dyn Storage>, directory: impl Into<PathBuf>) -> BrokerBuilder {
        BrokerBuilder {
            storage,
            directory: directory.into(),
            listen: "127.0.0.1:9092".to_owned(),
            insecure: false,
            config: BrokerConfig::default(),
        }
    }
}

/// What a broker is to be; [`start`](Self::start) makes it run.
#[derive(Debug)]
#[must_use = "nothing runs before `start`"]
pub struct BrokerBuilder {
    storage: Arc<dyn Storage>,
    directory: PathBuf,
    listen: String,
    insecure: bool,
    config: BrokerConfig,
}

impl BrokerBuilder {
    /// The address to listen on, `host:port`. Default `127.0.0.1:9092`. Port 0 takes a free port, see
    /// [`BrokerHandle::local_addr`].
    pub fn listen(mut self, address: impl ToString) -> Self {
        self.listen = address.to_string();
        self
    }

    /// Allows an address that other machines can reach. Default false. There is neither encryption nor a
    /// password: whoever reaches the port reads and writes everything.
    pub fn insecure(mut self, allowed: bool) -> Self {
        self.insecure = allowed;
        self
    }

    /// The settings. Default [`BrokerConfig::default`].
    pub fn config(mut self, config: BrokerConfig) -> Self {
        self.config = config;
        self
    }

    /// Recovers the logs, binds the address and serves. Needs a tokio runtime with I/O and time; file work runs
    /// on threads of its own. When this returns, clients can connect.
    ///
    /// Dropping the future before it is ready may leave a thread running for the moment that recovery still takes.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(self) -> Result<BrokerHandle, StartError> {
        self.config.check().map_err(|(name, reason)| StartError::Config { name, reason })?;
        let address = resolve(&self.listen).await?;
        if !address.ip().is_loopback() && !self.insecure {
            return Err(StartError::NotLoopback { address });
        }
        // Bound first, so that a taken port costs no recovery; listening only when everything is recovered.
        let socket = bind(address)?;
        let advertised = (self.config.advertised_host.clone(), self.config.advertised_port);
        let plan = startup::Plan {
            storage: self.storage,
            dir: self.directory,
            config: self.config,
            metrics: Arc::new(Metrics::default()),
            clock: wall_clock,
            threads: true,
        };
        let opener = Pool::threads("tramline-open", 1)
            .map_err(|source| StartError::Io { doing: "start a thread".to_owned(), source })?;
        let opened = opener.run(move || startup::open(plan)).await;
        let node = opened.map_err(|_| StartError::Internal("opening the logs panicked"))??;
        let listening = socket.listen(BACKLOG).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (local_addr, listener) = match listening {
            Ok(listening) => listening,
            Err(source) => {
                let _ = opener.run(move || shutdown::close(&node)).await;
                return Err(StartError::Bind { address, source });
            }
        };
        advertise(&node, local_addr, advertised);
        Ok(BrokerHandle::run(node, listener, local_addr))
    }
}

async fn resolve(listen: &str) -> Result<SocketAddr, StartError> {
    let failed = |source| StartError::Address { address: listen.to_owned(), source };
    let found: Vec<SocketAddr> = tokio::net::lookup_host(listen).await.map_err(failed)?.collect();
    let preferred = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first()).copied();
    preferred.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

fn bind(address: SocketAddr) -> Result<TcpSocket, StartError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A port whose last connections linger can be taken again at once; it never lets two listeners share it.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    bound().map_err(|source| StartError::Bind { address, source })
}

fn advertise(node: &Node, local_addr: SocketAddr, (host, port): (Option<String>, Option<u16>)) {
    let host = host.unwrap_or_else(|| {
        if local_addr.ip().is_unspecified() {
            warn!("listening on every address without an advertised host: clients are told 127.0.0.1");
            return "127.0.0.1".to_owned();
        }
        local_addr.ip().to_string()
    });
    let port = i32::from(port.unwrap_or_else(|| local_addr.port()));
    // Set once, here, before the first connection is accepted.
    let _ = node.advertised.set(Advertised { host: Str::from(host), port });
}

/// A running broker. Dropping it stops the broker at once, like the death of the process would:
/// everything acknowledged stays as durable as its ack promised, the next start recovers.
#[derive(Debug)]
pub struct BrokerHandle {
    node: Arc<Node>,
    local_addr: SocketAddr,
    connections: TaskTracker,
}

impl BrokerHandle {
    fn run(node: Arc<Node>, listener: TcpListener, local_addr: SocketAddr) -> Self {
        let connections = TaskTracker::new();
        connections.spawn(listener::accept(listener, Arc::clone(&node), connections.clone()));
        let (groups, stopping) = (Arc::clone(&node.groups), node.stopping.clone());
        connections.spawn(async move {
            tokio::select! {
                () = groups.keep_time() => {}
                () = stopping.cancelled() => {}
            }
        });
        let (kept, stopping) = (Arc::clone(&node), node.stopping.clone());
        connections.spawn(async move {
            tokio::select! {
                () = maintenance::keep(kept) => {}
                () = stopping.cancelled() => {}
            }
        });
        info!(address = %local_addr, cluster_id = %node.cluster_id, "listening");
        Self { node, local_addr, connections }
    }

    /// The bound address, with the port that was taken for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The counters now.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.node.metrics.snapshot()
    }

    /// Stops: accepts nothing more, finishes the produces in flight, answers waiting fetches and joins, forces and
    /// checkpoints every log, closes. Dropping the future half-way leaves a stopping broker that stops at once.
    ///
    /// # Errors
    /// See [`ShutdownError`]; the broker is stopped all the same.
    pub async fn shutdown(self) -> Result<(), ShutdownError> {
        let node = Arc::clone(&self.node);
        node.stopping.cancel();
        node.groups.stop();
        self.connections.close();
        let unanswered =
            match tokio::time::timeout(node.config.shutdown_timeout, self.connections.wait()).await {
                Ok(()) => None,
                Err(_) => {
                    let connections = usize::try_from(node.metrics.connections_open.get()).unwrap_or(0);
                    node.killed.cancel();
                    self.connections.wait().await;
                    Some(ShutdownError::Unanswered { connections })
                }
            };
        let closing = Arc::clone(&node);
        let closed = node.admin_pool.run(move || shutdown::close(&closing)).await;
        info!(address = %self.local_addr, "stopped");
        closed.unwrap_or(Ok(()))?;
        unanswered.map_or(Ok(()), Err)
    }

    /// Stops like the death of the process would: connections end where they are, nothing is forced or written down
    /// that nobody was promised. Unlike a drop, the directory is free again when this returns.
    pub async fn abort(self) {
        let node = Arc::clone(&self.node);
        node.stopping.cancel();
        node.killed.cancel();
        self.connections.close();
        self.connections.wait().await;
        let abandoned = Arc::clone(&node);
        let _ = node.admin_pool.run(move || shutdown::abandon(&abandoned)).await;
    }
}

impl Drop for BrokerHandle {
    fn drop(&mut self) {
        self.node.stopping.cancel();
        self.node.killed.cancel();
        self.node.engine.abandon();
    }
}
