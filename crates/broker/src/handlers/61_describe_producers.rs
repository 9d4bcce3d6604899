//! DescribeProducers (61), version 0.
//!
//! The idempotent producers of a partition with their newest batch. Gap: no transactions, so none is open.

use std::collections::HashSet;

use tramline_log::{ActiveProducer, Log};
use tramline_wire::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use tramline_wire::messages::{DescribeProducersRequest, DescribeProducersResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::routes::{Api, Context, api};
use crate::topics::Topics;

pub(crate) const API: Api = api!(DescribeProducersRequest, 0..=0, handle);

async fn handle(
    context: Context,
    request: DescribeProducersRequest,
) -> Result<DescribeProducersResponse, String> {
    let now = context.node.topics();
    // The write actor may be in the middle of a write: not on the runtime.
    let look = move || {
        // Each once: a partition of four bytes is answered with all of its producers.
        let mut seen = HashSet::new();
        let topics = request.topics.into_iter().map(|topic| {
            let ids = topic.partition_indexes.iter().map(|index| TopicPartition::new(&topic.name, *index));
            let partitions = ids.filter(|id| seen.insert(id.clone())).map(|id| row(&now, &id)).collect();
            TopicResponse { name: topic.name, partitions }
        });
        topics.collect()
    };
    let topics = context.node.readers.run(look).await.map_err(|_| "the broker is stopping".to_owned())?;
    Ok(DescribeProducersResponse { topics, ..DescribeProducersResponse::default() })
}

fn row(topics: &Topics, id: &TopicPartition) -> PartitionResponse {
    let Some(partition) = topics.partition(id) else {
        return PartitionResponse {
            partition_index: id.partition,
            error_code: ErrorCode::UnknownTopicOrPartition.code(),
            ..PartitionResponse::default()
        };
    };
    let producers = partition.actor().log().map(|log| Log::active_producers(log)).unwrap_or_default();
    PartitionResponse {
        partition_index: id.partition,
        active_producers: producers.iter().map(producer).collect(),
        ..PartitionResponse::default()
    }
}

fn producer(active: &ActiveProducer) -> ProducerState {
    ProducerState {
        producer_id: active.producer_id,
        producer_epoch: i32::from(active.epoch),
        last_sequence: active.last_sequence,
        last_timestamp: active.last_timestamp,
        coordinator_epoch: -1,
        current_txn_start_offset: -1,
    }
}
