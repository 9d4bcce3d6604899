//! Why a broker did not start, and what went wrong while it stopped.

use std::io;
use std::net::SocketAddr;

/// Why a broker did not start. Nothing is listening afterwards, and nothing on the disk was removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting makes no sense.
    #[error("setting {name}: {reason}")]
    Config {
        /// The setting.
        name: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The address to listen on is not an address, or its name does not resolve.
    #[error("cannot listen on {address:?}: {source}")]
    Address {
        /// The address as given.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// The address is reachable from other machines, and nothing protects it.
    #[error(
        "{address} is reachable from other machines without encryption or passwords; allow it explicitly as insecure, or listen on 127.0.0.1"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The address could not be bound; another process may be listening on it.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another broker uses the data directory.
    #[error("the data directory {directory} is in use by another broker")]
    InUse {
        /// The directory.
        directory: String,
    },
    /// The data directory holds what no broker has put there, and nothing of a broker. Nothing was touched.
    #[error("{directory} is no data directory of a broker: it holds {found:?} already")]
    Foreign {
        /// The directory.
        directory: String,
        /// One of the things in it.
        found: String,
    },
    /// A file of the data directory could not be read or written.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The list of topics is damaged. Nothing was removed; restore the directory named, or move it away to start
    /// with an empty list (the topics' own directories stay).
    #[error("the topic list in {directory} is damaged: {reason}; nothing was removed")]
    Catalogue {
        /// Where the list is kept.
        directory: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The log of a partition could not be opened.
    #[error("cannot open the log {directory}: {reason}")]
    Log {
        /// The log's directory.
        directory: String,
        /// What is wrong.
        reason: String,
    },
    /// A bug of this crate.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl StartError {
    /// Whether the same call may succeed later without anything being repaired.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Bind { .. } | Self::InUse { .. })
    }
}

/// What did not end well while a broker stopped. It is stopped all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The last barrier or checkpoint of some logs failed; the next start recovers them.
    #[error("{count} logs did not close cleanly, the first is {first}: {reason}")]
    Logs {
        /// How many.
        count: usize,
        /// The directory of the first.
        first: String,
        /// What went wrong with it.
        reason: String,
    },
    /// Requests were still running when the time was over; their connections were closed.
    #[error("{connections} connections were closed with a request unanswered")]
    Unanswered {
        /// How many.
        connections: usize,
    },
}
