//! rdkafka's consumers as a source of ordered lanes.
//!
//! [`RdkafkaSource`] takes rdkafka's own `ClientConfig` and is processed like any other source: `source.partitioned()`. A
//! rebalance is only written down by rdkafka's callback; partitions are given back to librdkafka after their lanes are
//! drained and their progress is committed.
//!
//! ```no_run
//! use rdkafka::ClientConfig;
//! use tramline_processor::{Lane, PartitionedExt};
//! use tramline_rdkafka::RdkafkaSource;
//! use tramline_wire::Record;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = ClientConfig::new();
//! config.set("bootstrap.servers", "127.0.0.1:9092").set("group.id", "kitchen");
//! config.set("enable.auto.commit", "false").set("partition.assignment.strategy", "cooperative-sticky");
//! let source = RdkafkaSource::subscribe(&config, &["orders"])?;
//! let (result, source) = source
//!     .partitioned()
//!     .build()?
//!     .for_each(tokio::signal::ctrl_c(), |record: Record, _: Lane| async move {
//!         println!("{:?}", record.value());
//!         Ok::<(), std::io::Error>(())
//!     })
//!     .await;
//! source.close().await?;
//! println!("{} records", result?.records_completed);
//! # Ok(())
//! # }
//! ```
//!
//! # What librdkafka, or its wrapper, does not give
//! - **Generations.** The group's generation and the member's id stay inside; a lane's generation here counts the
//!   assignments of this source. It fences commits of an earlier assignment all the same. For the offsets of a transaction,
//!   [`GroupHandle::metadata`] gives rdkafka's own description of the member.
//! - **Fetching during a rebalance.** librdkafka stops fetching *every* partition until revoked ones are given back, also
//!   with cooperative assignors. Other lanes go on with what is queued and read ahead ([`RdkafkaSource::read_ahead`]); with
//!   Tramline's own consumer they go on fetching.
//! - **A loss while a revocation is held.** librdkafka passes it over until the partitions are given back. The group refuses
//!   the last commit then, and the drain is bounded by its deadline. Without a hold, a loss is told at once.
//! - **Transaction markers and compacted tails.** Only records are handed out, so a frontier ends behind the last record,
//!   and the lag of a transactional topic stays at the markers behind it.
//! - **Leader epochs** of records. Offsets are committed without one.
//! - **Partial reads of headers.** A header whose name is not UTF-8 makes the wrapper panic; the panic is caught, and the
//!   run ends with [`SourceError::HeaderName`].
//! - **How a commit went, partition by partition.** There is one request per topic, see the module `commit`.
//! - **A way to end a close.** librdkafka closes on a thread of its own; [`RdkafkaSource::close`] stops waiting for it.
//!
//! # What this source does itself
//! - **Where an assignment begins.** It asks for the commits and the ends of the logs, and gives librdkafka numbers:
//!   librdkafka's own look-up, overtaken by a rebalance, moves a later assignment to the start of the log (records twice,
//!   commits moving back) or to its end (records passed over). A rebalance takes two or three more requests for it.
//!   `auto.offset.reset` keeps its meaning where there is no commit, or when what was committed is no longer in the log. A
//!   position that leaves the log *while* it is read, or that lies behind its end, ends the run with
//!   [`SourceError::Partition`]: records are gone, and nobody chose that.
//! - **Order.** What comes below what was handed out is passed over, and a commit below the start of the assignment or
//!   below the last commit is refused, unless the program sought back.
//! - **Errors stay.** A run over a source whose run ended with a [`SourceError`] ends with the same error, for librdkafka
//!   would go on behind what could not be read. Close it and make a new one.
//!
//! Eager and cooperative assignors both work. With eager ones every rebalance drains every lane of every member.

mod close;
mod commit;
mod config;
mod context;
mod error;
mod events;
mod pump;
mod record;
mod shared;
mod source;
mod start;

pub use config::GroupHandle;
pub use error::{BuildError, CloseError, SourceError};
pub use events::RdkafkaEvents;
pub use source::RdkafkaSource;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration/rdkafka-loop.md")]
struct Migration;
