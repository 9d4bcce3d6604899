//! The bytes of the Kafka protocol: messages, record batches, compression, partitioners, frames.
//!
//! Nothing here reads a socket, a file or a clock, and nothing panics or allocates more than a small
//! multiple of the bytes it was given, whatever those bytes are.

mod types;

pub use types::{ParseUuidError, Str, TopicPartition, Uuid};
