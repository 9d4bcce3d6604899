//! Why a request to the cluster has no answer.

use std::io;
use std::sync::Arc;

use tramline_core::client::api_versions::UnsupportedApi;
use tramline_core::client::connection::Poison;
use tramline_core::client::error_actions::{Operation, action};
use tramline_wire::{EncodeError, ErrorCode};

/// One request could not be answered. An error code inside an answer is not this: the answer arrived.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The configuration names no broker, or an address is not `host:port`.
    #[error("`{0}` is not a broker address (host:port)")]
    BadAddress(String),
    /// No connection could be made. Nothing was sent.
    #[error("cannot connect to {address}: {cause}")]
    Unreachable {
        /// Whom we tried to reach.
        address: String,
        /// What the operating system said.
        cause: Arc<io::Error>,
    },
    /// What listens there is no Kafka broker. Nothing but the version handshake was sent.
    #[error("{address} is not a Kafka broker: {what}")]
    NotKafka {
        /// Who answered.
        address: String,
        /// What it did.
        what: String,
    },
    /// The broker did not agree to any version of the version handshake. Nothing was sent.
    #[error("{address} refused the version handshake with {code}")]
    HandshakeRefused {
        /// Who refused.
        address: String,
        /// With which error.
        code: ErrorCode,
    },
    /// The connection was lost before the answer came. The request was possibly sent and possibly carried out.
    #[error("connection lost, request possibly sent: {0}")]
    Lost(Poison),
    /// The connection ended before the request was written. Nothing was sent.
    #[error("the connection ended before the request was written")]
    NotSent,
    /// Broker and client have no version of this request in common.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedApi),
    /// The request cannot be expressed in the version spoken: our own bug, or a value out of range.
    #[error("the request cannot be encoded: {0}")]
    Encode(Arc<EncodeError>),
    /// The node is not known, or not any more.
    #[error("node {0} is not part of the cluster")]
    UnknownNode(i32),
    /// The cluster does not say which node takes admin requests.
    #[error("the cluster has no controller now")]
    NoController,
    /// The coordinator of a group was asked for and not told.
    #[error("no coordinator for the group: {code}")]
    NoCoordinator {
        /// What the broker answered.
        code: ErrorCode,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl CallError {
    /// Whether the request may have reached the broker and may have been carried out.
    #[must_use]
    pub fn is_possibly_sent(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Whether the same call can succeed later without any change by the caller.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Lost(_)
            | Self::NotSent
            | Self::UnknownNode(_)
            | Self::NoController => true,
            Self::NoCoordinator { code } => action(Operation::FindCoordinator, *code).asks_again(),
            Self::BadAddress(_)
            | Self::NotKafka { .. }
            | Self::HandshakeRefused { .. }
            | Self::Unsupported(_)
            | Self::Encode(_)
            | Self::Closed => false,
        }
    }
}
