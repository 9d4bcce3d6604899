//! ElectLeaders (43), versions 0 to 2.
//!
//! The one node leads everything already: 84 for each partition there is. All partitions (null) is an empty answer.

use tramline_wire::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use tramline_wire::messages::{ElectLeadersRequest, ElectLeadersResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ElectLeadersRequest, 0..=2, handle);

async fn handle(context: Context, request: ElectLeadersRequest) -> Result<ElectLeadersResponse, String> {
    let now = context.node.topics();
    let topics = request.topic_partitions.unwrap_or_default().into_iter().map(|topic| {
        let row = |partition_id: &i32| {
            let known = now.partition(&TopicPartition::new(&topic.topic, *partition_id)).is_some();
            let code = if known { ErrorCode::ElectionNotNeeded } else { ErrorCode::UnknownTopicOrPartition };
            PartitionResult { partition_id: *partition_id, error_code: code.code(), error_message: None }
        };
        let partition_result = topic.partitions.iter().map(row).collect();
        ReplicaElectionResult { topic: topic.topic, partition_result }
    });
    let replica_election_results = topics.collect();
    Ok(ElectLeadersResponse { replica_election_results, ..ElectLeadersResponse::default() })
}
