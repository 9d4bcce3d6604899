//! The bytes of the Kafka protocol: messages, record batches, compression, partitioners, frames.
//!
//! Nothing here reads a socket, a file or a clock, and nothing panics or allocates more than a small
//! multiple of the bytes it was given, whatever those bytes are.

mod api_key;
pub mod batch;
pub mod checksum;
pub mod compression;
mod error_code;
mod frame;
mod header;
mod message;
pub mod messages;
pub mod partitioner;
mod primitives;
pub mod record;
mod types;

pub use api_key::ApiKey;
pub use batch::{
    BatchBuilder, BatchError, BatchHeader, RecordBatch, batches, check_batch, set_base_offset_and_epoch,
};
pub use compression::Compression;
pub use error_code::ErrorCode;
pub use frame::{FrameDecoder, FrameError};
pub use header::{
    decode_request_header, decode_response, encode_request, encode_response, response_correlation_id,
};
pub use message::{Message, Request, Schema};
pub use partitioner::Partitioner;
pub use primitives::{DecodeError, EncodeError, Frame, Reader, Tags, Writer};
pub use record::Record;
pub use types::{ParseUuidError, Str, TopicPartition, Uuid};
