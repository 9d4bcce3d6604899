//! The bytes of the Kafka protocol: messages, record batches, compression, partitioners, frames.
//!
//! Nothing here reads a socket, a file or a clock, and nothing panics or allocates more than a small
//! multiple of the bytes it was given, whatever those bytes are.

pub mod batch;
pub mod checksum;
pub mod compression;
pub mod partitioner;
pub mod record;
mod types;

pub use batch::{
    BatchBuilder, BatchError, BatchHeader, RecordBatch, batches, check_batch, set_base_offset_and_epoch,
};
pub use compression::Compression;
pub use partitioner::Partitioner;
pub use record::Record;
pub use types::{ParseUuidError, Str, TopicPartition, Uuid};
