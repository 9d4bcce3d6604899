//! Record batches of magic 2: header, checks, walk, zero-copy reader, builder, produce rules.
//!
//! A batch is read without copying its records: [`RecordBatch`] keeps the bytes and one small range
//! per record, and a [`Record`](crate::Record) is that batch plus an index.

mod builder;
mod error;
mod header;
mod reader;
mod validate;
mod varint;
mod walk;

pub use builder::BatchBuilder;
pub use error::{BatchError, RecordFlaw};
pub use header::{
    BatchHeader, HEADER_LEN, MAGIC, TimestampType, check_batch, set_base_offset_and_epoch,
    set_log_append_time, set_producer, with_producer,
};
pub use reader::{DEFAULT_MAX_UNCOMPRESSED, RecordBatch, Records};
pub use validate::{BatchRefusal, ProduceRules, RecordError, RefusalReason, validate_produce_batch};
pub use walk::{Batches, Remainder, batches};

pub(crate) use reader::{Inner, Range};
pub(crate) use varint::{Cursor, put_varint, put_varlong, varint_len, varlong_len};
