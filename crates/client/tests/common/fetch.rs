//! Answers to fetches, made of whole batches.

use bytes::{Bytes, BytesMut};
use tramline_wire::batch::{BatchBuilder, set_base_offset_and_epoch};
use tramline_wire::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use tramline_wire::messages::*;
use tramline_wire::{Compression, ErrorCode};

/// `count` records from `base`, written under a leader of this epoch.
pub fn batch(base: i64, count: i64, leader_epoch: i32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for offset in base..base + count {
        builder.append(offset, None, Some(b"v"), &[]).unwrap();
    }
    let mut bytes = BytesMut::from(&builder.build()[..]);
    set_base_offset_and_epoch(&mut bytes, base, leader_epoch);
    bytes.freeze()
}

/// The answer that gives `row` to every partition asked for.
pub fn each(
    request: &FetchRequest,
    mut row: impl FnMut(&fetch_request::FetchPartition) -> PartitionData,
) -> FetchResponse {
    let topic = |topic: &fetch_request::FetchTopic| FetchableTopicResponse {
        topic: topic.topic.clone(),
        topic_id: topic.topic_id,
        partitions: topic.partitions.iter().map(&mut row).collect(),
    };
    FetchResponse { responses: request.topics.iter().map(topic).collect(), ..Default::default() }
}

pub fn data(end: i64, records: Bytes) -> PartitionData {
    PartitionData { high_watermark: end, records: Some(records), ..Default::default() }
}

pub fn refused(code: ErrorCode) -> PartitionData {
    PartitionData { error_code: code.code(), records: Some(Bytes::new()), ..Default::default() }
}

/// The part of a log of `end` records, each in a batch of its own, that was asked for.
pub fn log(asked: &fetch_request::FetchPartition, end: i64) -> PartitionData {
    let batches: Vec<Bytes> = (asked.fetch_offset.max(0)..end).map(|base| batch(base, 1, 0)).collect();
    PartitionData { partition_index: asked.partition, ..data(end, batches.concat().into()) }
}
