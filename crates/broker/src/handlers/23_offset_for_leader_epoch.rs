//! OffsetForLeaderEpoch (23), versions 2 to 4.
//!
//! Where an epoch ended, so that a consumer can tell whether the log was cut behind it: the log end for the latest
//! epoch, the start of the next one for older ones, (-1, -1) for epochs that are not known yet.

use std::sync::Arc;

use tramline_wire::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use tramline_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use tramline_wire::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::handlers::{epoch_error, gone};
use crate::partition::Partition;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(OffsetForLeaderEpochRequest, 2..=4, handle);

async fn handle(
    context: Context,
    request: OffsetForLeaderEpochRequest,
) -> Result<OffsetForLeaderEpochResponse, String> {
    let now = context.node.topics();
    let leader_epoch = context.node.leader_epoch;
    let topic = |topic: tramline_wire::messages::offset_for_leader_epoch_request::OffsetForLeaderTopic| {
        let row = |asked: &OffsetForLeaderPartition| {
            row(asked, leader_epoch, now.partition(&TopicPartition::new(&topic.topic, asked.partition)))
        };
        let partitions = topic.partitions.iter().map(row).collect();
        OffsetForLeaderTopicResult { topic: topic.topic, partitions }
    };
    let topics = request.topics.into_iter().map(topic).collect();
    Ok(OffsetForLeaderEpochResponse { topics, ..OffsetForLeaderEpochResponse::default() })
}

fn row(
    asked: &OffsetForLeaderPartition,
    leader_epoch: i32,
    partition: Option<&Arc<Partition>>,
) -> EpochEndOffset {
    let blank = EpochEndOffset {
        partition: asked.partition,
        leader_epoch: -1,
        end_offset: -1,
        ..EpochEndOffset::default()
    };
    let failed = |code: ErrorCode| EpochEndOffset { error_code: code.code(), ..blank.clone() };
    let Some(partition) = partition else { return failed(ErrorCode::UnknownTopicOrPartition) };
    if let Some(code) =
        gone(partition, false).or_else(|| epoch_error(asked.current_leader_epoch, leader_epoch))
    {
        return failed(code);
    }
    let (leader_epoch, end_offset) = partition.reader.epoch_end(asked.leader_epoch);
    EpochEndOffset { leader_epoch, end_offset, ..blank }
}
