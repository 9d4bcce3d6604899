//! DeleteRecords (21), versions 0 to 2.
//!
//! Raises the log start of a partition; -1 is the high watermark, above it is 1. Answered when a start after a power
//! cut would find it so. Topics whose policy is to compact only get 44, those of the broker 17. Gap: `timeout_ms` is
//! not needed, nothing here waits for other nodes.

use tramline_wire::messages::delete_records_request::DeleteRecordsPartition;
use tramline_wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use tramline_wire::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::maintenance;
use crate::node::Node;
use crate::partition::Change;
use crate::routes::{Api, Context, api};
use crate::topics::RESERVED;

pub(crate) const API: Api = api!(DeleteRecordsRequest, 0..=2, handle);

async fn handle(context: Context, request: DeleteRecordsRequest) -> Result<DeleteRecordsResponse, String> {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let deleted = delete(&context.node, &topic.name, &asked).await;
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: asked.partition_index,
                low_watermark: *deleted.as_ref().unwrap_or(&-1),
                error_code: deleted.err().map_or(0, ErrorCode::code),
            });
        }
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    Ok(DeleteRecordsResponse { topics, ..DeleteRecordsResponse::default() })
}

async fn delete(node: &Node, topic: &str, asked: &DeleteRecordsPartition) -> Result<i64, ErrorCode> {
    let id = TopicPartition::new(topic, asked.partition_index);
    let Some(partition) = node.topics().partition(&id).cloned() else {
        return Err(ErrorCode::UnknownTopicOrPartition);
    };
    if RESERVED.contains(&topic) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let settings = partition.settings();
    if settings.compaction.is_some() && !settings.deletes {
        return Err(ErrorCode::PolicyViolation);
    }
    let change = Change::DeleteRecords { before: asked.offset };
    let done = maintenance::change(&node.engine, &partition, change).await;
    // Its base offset is the log start.
    done.map(|written| written.base_offset).map_err(|failure| failure.code())
}
