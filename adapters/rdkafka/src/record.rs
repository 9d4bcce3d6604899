//! librdkafka's messages as records: one copy of what is in them, and nothing lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Message, Timestamp};
use tramline_wire::batch::TimestampType;
use tramline_wire::{Record, Str, TopicPartition};

use crate::error::SourceError;

/// The message as a record of `topic_partition`, which is its partition.
pub(crate) fn record(
    topic_partition: &TopicPartition,
    message: &BorrowedMessage<'_>,
) -> Result<Record, SourceError> {
    let (timestamp, timestamp_type) = match message.timestamp() {
        Timestamp::NotAvailable => (-1, TimestampType::CreateTime),
        Timestamp::CreateTime(at) => (at, TimestampType::CreateTime),
        Timestamp::LogAppendTime(at) => (at, TimestampType::LogAppendTime),
    };
    let headers = headers(message).ok_or_else(|| SourceError::HeaderName {
        topic_partition: topic_partition.clone(),
        offset: message.offset(),
    })?;
    let record = Record::from_parts(
        topic_partition.clone(),
        message.offset(),
        timestamp,
        message.key().map(Bytes::copy_from_slice),
        message.payload().map(Bytes::copy_from_slice),
        headers,
    );
    Ok(record.with_timestamp_type(timestamp_type))
}

/// None when a name is not UTF-8: rdkafka panics then.
fn headers(message: &BorrowedMessage<'_>) -> Option<Vec<(Str, Option<Bytes>)>> {
    let Some(headers) = message.headers() else { return Some(Vec::new()) };
    let read = AssertUnwindSafe(|| {
        let copy = |header: rdkafka::message::Header<'_, &[u8]>| {
            (Str::from(header.key), header.value.map(Bytes::copy_from_slice))
        };
        headers.iter().map(copy).collect()
    });
    catch_unwind(read).ok()
}
