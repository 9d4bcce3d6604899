//! Ordered work, in parallel, over a partitioned log.
//!
//! This is the crate to depend on. It re-exports, under one roof:
//! - [`processor`]: ordered lanes per partition over any source of records;
//! - [`client`]: the Kafka client underneath, with producer, consumers and admin;
//! - [`queue`] (feature `queue`, on by default): the task queue over the client;
//! - [`broker`] (feature `broker`, on by default): the embedded broker to start on;
//! - [`wire`]: the bytes of the protocol, for those who need them.
//!
//! `use tramline::prelude::*` brings what a program usually names.

pub use tramline_client as client;
pub use tramline_processor as processor;
pub use tramline_wire as wire;

#[cfg(feature = "broker")]
pub use tramline_broker as broker;
#[cfg(feature = "queue")]
pub use tramline_queue as queue;

/// What a program that uses Tramline usually names.
pub mod prelude {
    #[cfg(feature = "broker")]
    pub use tramline_broker::Broker;
    pub use tramline_client::{
        Acks, Admin, ClientConfig, Consumer, NewTopic, OffsetReset, Producer, ProducerConfig, ProducerRecord,
        Record, StartOffset, TopicPartition,
    };
    pub use tramline_processor::{
        Batch, BatchHandler, CommitPolicy, Decoded, Delivered, ErrorPolicy, Handler, Lane, LaneStream, Park,
        PartitionedExt, Retry, StopPolicy,
    };
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/processing.md")]
struct Processing;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/confluent-kafka-dotnet.md")]
struct FromConfluentDotnet;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/parallel-consumer.md")]
struct FromParallelConsumer;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/akka-pekko.md")]
struct FromAkka;
