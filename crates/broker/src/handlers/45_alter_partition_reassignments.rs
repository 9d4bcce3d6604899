//! AlterPartitionReassignments (45), versions 0 to 1.
//!
//! With one node there is one place: to be where it is already is fine, anywhere else is 39, and there is never a move
//! to give up (85).

use tramline_wire::messages::alter_partition_reassignments_request::ReassignablePartition;
use tramline_wire::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use tramline_wire::messages::{AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse};
use tramline_wire::{ErrorCode, TopicPartition};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(AlterPartitionReassignmentsRequest, 0..=1, handle);

async fn handle(
    context: Context,
    request: AlterPartitionReassignmentsRequest,
) -> Result<AlterPartitionReassignmentsResponse, String> {
    let now = context.node.topics();
    let topics = request.topics.into_iter().map(|topic| {
        let row = |asked: &ReassignablePartition| {
            let known = now.partition(&TopicPartition::new(&topic.name, asked.partition_index)).is_some();
            let code = match &asked.replicas {
                _ if !known => ErrorCode::UnknownTopicOrPartition,
                None => ErrorCode::NoReassignmentInProgress,
                Some(replicas) if replicas[..] == [context.node.node_id] => ErrorCode::None,
                Some(_) => ErrorCode::InvalidReplicaAssignment,
            };
            let error_message =
                (code == ErrorCode::InvalidReplicaAssignment).then(|| "there is one broker only".into());
            ReassignablePartitionResponse {
                partition_index: asked.partition_index,
                error_code: code.code(),
                error_message,
            }
        };
        let partitions = topic.partitions.iter().map(row).collect();
        ReassignableTopicResponse { name: topic.name, partitions }
    });
    let responses = topics.collect();
    Ok(AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        responses,
        ..AlterPartitionReassignmentsResponse::default()
    })
}
