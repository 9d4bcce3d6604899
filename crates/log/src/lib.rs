//! The durable partition log behind one small storage trait.
//!
//! One [`Log`] per partition owns everything that changes and lives in the partition's write actor; any number of
//! threads read through its [`LogReader`]. Appending and durability are apart: [`Log::append_group`] writes,
//! [`Log::take_sync`] says what must be forced, [`SyncTicket::force`] forces it on any thread, and
//! [`Log::synced`] takes the proof. All calls block; none waits for another thread.

mod append;
mod checkpoint;
mod compaction;
mod config;
mod dirty;
mod epochs;
mod error;
mod log;
mod maintenance;
mod offset_index;
mod producer_state;
mod reader;
mod recovery;
mod report;
mod retention;
mod scan;
mod segment;
mod segment_file;
pub mod storage;
mod sync;
pub mod watermark;
mod writer;

pub use append::{Append, AppendOutcome};
pub use compaction::{Compacted, CompactionJob, CompactionReport};
pub use config::{Compaction, LogConfig, RecoveryMode, Timestamp};
pub use epochs::EpochList;
pub use error::{AppendError, LogError, ReadError, SyncError};
pub use log::Log;
pub use producer_state::ActiveProducer;
pub use reader::{LogReader, Slice, TimedOffset};
pub use report::{Damaged, RecoveryReport};
pub use storage::{FileRange, Storage, StorageFile};
pub use sync::{Forced, SyncTicket};
pub use watermark::DurabilityGate;
