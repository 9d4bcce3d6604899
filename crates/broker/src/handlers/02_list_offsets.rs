//! ListOffsets (2), versions 1 to 10.
//!
//! -2 the log start, -1 the high watermark, -3 (from 7) the record with the largest timestamp, -4 (from 8) the start
//! of what is on this disk, which is the log start, -5 (from 9) the end of what is elsewhere, which nothing is, else
//! the first record, by offset, whose own timestamp is not before the one asked for. Nothing found is -1 without an error.
//! A partition named twice gets 42. Gaps: other negative times are refused with 35.

use std::collections::HashSet;
use std::sync::Arc;

use tramline_log::ReadError;
use tramline_wire::messages::list_offsets_request::ListOffsetsPartition;
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::{ListOffsetsRequest, ListOffsetsResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::handlers::{epoch_error, gone};
use crate::partition::Partition;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ListOffsetsRequest, 1..=10, handle);

/// The first version whose answer has the leader epoch.
const EPOCH_FROM: i16 = 4;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

async fn handle(context: Context, request: ListOffsetsRequest) -> Result<ListOffsetsResponse, String> {
    let node = &*context.node;
    let (version, leader_epoch) = (context.version, node.leader_epoch);
    let now = node.topics();
    let mut seen = HashSet::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let id = TopicPartition::new(&topic.name, asked.partition_index);
            let partition = now.partition(&id).cloned();
            let is_timed = asked.timestamp >= 0 || asked.timestamp == MAX_TIMESTAMP;
            let twice = !seen.insert(id);
            let look = move || row(&asked, version, leader_epoch, partition.as_ref(), twice);
            // Each a job of its own: a search of thousands of logs lets the reads of others in between.
            partitions.push(if is_timed {
                node.readers.run(look).await.map_err(|_| "the broker is stopping".to_owned())?
            } else {
                look()
            });
        }
        topics.push(ListOffsetsTopicResponse { name: topic.name, partitions });
    }
    Ok(ListOffsetsResponse { topics, ..ListOffsetsResponse::default() })
}

fn row(
    asked: &ListOffsetsPartition,
    version: i16,
    leader_epoch: i32,
    partition: Option<&Arc<Partition>>,
    twice: bool,
) -> ListOffsetsPartitionResponse {
    let refusal = if twice {
        Some(ErrorCode::InvalidRequest)
    } else {
        epoch_error(asked.current_leader_epoch, leader_epoch)
    };
    let found = match (refusal, partition) {
        (Some(code), _) => Err(code),
        (None, None) => Err(ErrorCode::UnknownTopicOrPartition),
        (None, Some(partition)) => match gone(partition, false) {
            Some(code) => Err(code),
            None => find(asked.timestamp, version, leader_epoch, partition),
        },
    };
    let blank = ListOffsetsPartitionResponse {
        partition_index: asked.partition_index,
        timestamp: -1,
        offset: -1,
        leader_epoch: -1,
        ..ListOffsetsPartitionResponse::default()
    };
    match found {
        Ok((offset, timestamp, epoch)) => {
            let leader_epoch = if version >= EPOCH_FROM { epoch } else { -1 };
            ListOffsetsPartitionResponse { offset, timestamp, leader_epoch, ..blank }
        }
        Err(code) => ListOffsetsPartitionResponse { error_code: code.code(), ..blank },
    }
}

fn find(
    timestamp: i64,
    version: i16,
    leader_epoch: i32,
    partition: &Partition,
) -> Result<(i64, i64, i32), ErrorCode> {
    let limit = partition.high_watermark();
    let timed = match timestamp {
        LATEST => return Ok((limit, -1, leader_epoch)),
        EARLIEST => return Ok((partition.reader.log_start(), -1, leader_epoch)),
        EARLIEST_LOCAL if version >= 8 => return Ok((partition.reader.log_start(), -1, leader_epoch)),
        LATEST_TIERED if version >= 9 => return Ok((-1, -1, -1)),
        MAX_TIMESTAMP if version >= 7 => partition.reader.max_timestamp(limit),
        0.. => partition.reader.offset_for_time(timestamp, limit),
        _ => return Err(ErrorCode::UnsupportedVersion),
    };
    match timed {
        Ok(Some(found)) => Ok((found.offset, found.timestamp, found.leader_epoch)),
        Ok(None) => Ok((-1, -1, -1)),
        Err(error) => Err(failed(partition, &error)),
    }
}

fn failed(partition: &Partition, error: &ReadError) -> ErrorCode {
    // It may have been deleted in the middle of this.
    if let Some(code) = gone(partition, false) {
        return code;
    }
    tracing::error!(partition = %partition.id, %error, "looking up an offset failed");
    ErrorCode::from(error.code())
}
