//! Pure-Rust async Kafka client: producer, consumer, admin.
//!
//! Every handle is built from a [`ClientConfig`] and dials its own connections, which no public type reaches: nobody
//! else can read an answer meant for it. All decisions are made by the machines of `tramline-core`; what is here owns
//! sockets, clocks and tasks.

mod admin;
mod broker_connection;
mod cluster;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod config;
mod consumer;
mod error;
mod exchange;
pub mod producer;
#[cfg(test)]
mod tests;
mod transport;

pub use admin::*;
pub use config::ClientConfig;
pub use consumer::*;
// The trait by which `Consumer::stream` is read.
pub use error::CallError;
pub use futures_core::Stream;
pub use producer::{
    Delivery, DeliveryError, Producer, ProducerConfig, ProducerRecord, RecordMetadata, SendError,
};
pub use tramline_core::client::accumulator::{Acks, Spread};
pub use tramline_wire::{Compression, ErrorCode, Partitioner, Record, Str, TopicPartition, Uuid};
