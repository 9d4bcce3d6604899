//! The embedded broker: a durable, single-node log that Kafka clients use unmodified, inside any process.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tramline_broker::Broker;
//!
//! let broker = Broker::builder("data").listen("127.0.0.1:0").start().await?;
//! println!("listening on {}", broker.local_addr());
//! broker.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What an ack means
//! - `acks=0`: nothing. No bytes are answered; an error closes the connection.
//! - `acks=1`: the records are in the log and survive the death of the process.
//! - `acks=all`: a barrier (`fdatasync`) has covered the records; they survive a power cut.
//!
//! Consumers never read a record whose `acks=all` batch, or an earlier one, is not yet covered by a barrier.

mod admin;
mod blocking;
mod broker_config;
mod broker_keys;
mod builder;
mod catalogue;
mod config;
mod config_edit;
mod connection;
mod coordinator;
mod engine;
mod error;
mod fetch_sessions;
mod handlers;
mod held_memory;
mod listener;
mod maintenance;
mod metrics;
mod node;
mod partition;
mod read_buffers;
mod routes;
mod shutdown;
mod startup;
mod stepped;
mod topic_config;
mod topics;
mod write_actor;

pub use builder::{Broker, BrokerBuilder, BrokerHandle};
pub use config::BrokerConfig;
pub use error::{ShutdownError, StartError};
pub use metrics::MetricsSnapshot;
pub use stepped::{Answer, SteppedBroker};
