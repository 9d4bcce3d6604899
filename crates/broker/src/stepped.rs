//! The same broker without sockets and threads, moved by hand: what the crash tests walk with.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tramline_log::Storage;

use crate::config::BrokerConfig;
use crate::error::{ShutdownError, StartError};
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::node::Node;
use crate::routes::{self, Call, Reply, Started};
use crate::{maintenance, shutdown, startup};

/// What came back for a request frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// A response frame, with its length in front.
    Frame(Bytes),
    /// Nothing is sent (`acks=0`).
    Nothing,
    /// The connection is closed; why.
    Closed(String),
}

/// A broker without sockets, threads or timers: requests are frames handed in, and every write and every barrier is
/// one call. The handlers, write actors, committer and coordinator are the ones of [`Broker`](crate::Broker), so a
/// test can stop between any two storage calls, deterministically.
///
/// Nothing moves by itself: an answer that waits for a write becomes ready after [`step_writer`](Self::step_writer),
/// one that waits for a barrier after [`step_committer`](Self::step_committer). Waiting fetches need a runtime with
/// time; give them no time to wait.
#[derive(Debug)]
pub struct SteppedBroker {
    node: Arc<Node>,
}

impl SteppedBroker {
    /// Opens, or recovers, a broker in `directory` of `storage`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        directory: impl Into<PathBuf>,
        config: BrokerConfig,
    ) -> Result<Self, StartError> {
        config.check().map_err(|(name, reason)| StartError::Config { name, reason })?;
        let plan = startup::Plan {
            storage,
            dir: directory.into(),
            config,
            metrics: Arc::new(Metrics::default()),
            clock: crate::node::wall_clock,
            threads: false,
        };
        Ok(Self { node: startup::open(plan)? })
    }

    /// Hands in a request frame, without its length. The future does nothing before it is polled; a produce has its
    /// place in the logs after the first poll.
    pub fn request(&self, frame: Bytes) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let call = Call { node: Arc::clone(&self.node), peer, frame };
        Box::pin(async move {
            let reply = match routes::start(call) {
                Started::Plain(reply) => reply.await,
                Started::Ordered(accept) => accept.await.await,
            };
            match reply {
                Reply::Frame(chunks) => Answer::Frame(chunks.concat().into()),
                Reply::Nothing => Answer::Nothing,
                Reply::Close(reason) => Answer::Closed(reason),
            }
        })
    }

    /// Writes the next group that is queued; false when nothing is.
    pub fn step_writer(&self) -> bool {
        self.node.engine.step_writer()
    }

    /// Does the next barrier that is asked for, and releases who waited for it; false when none is.
    pub fn step_committer(&self) -> bool {
        self.node.engine.step_committer()
    }

    /// Asks for what happens from time to time by itself: barriers nobody waits for, and what retention removes. The
    /// steps that follow do it.
    pub fn maintain(&self) {
        maintenance::sync_all(&self.node);
        maintenance::retain_all(&self.node);
    }

    /// Compacts what is worth it. Moves when it is polled and [`settle`](Self::settle) is called in turns.
    pub fn compact(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(maintenance::compact_all(Arc::clone(&self.node)))
    }

    /// Steps until nothing is left to do.
    pub fn settle(&self) {
        while self.step_writer() || self.step_committer() {}
    }

    /// The counters now.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.node.metrics.snapshot()
    }

    /// Settles, forces and closes every log.
    ///
    /// # Errors
    /// See [`ShutdownError`].
    pub fn shutdown(self) -> Result<(), ShutdownError> {
        self.node.groups.stop();
        self.settle();
        shutdown::close(&self.node)
    }
}
