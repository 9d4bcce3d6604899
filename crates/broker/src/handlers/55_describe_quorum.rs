//! DescribeQuorum (55), versions 0 to 2: what tools ask to show who runs the cluster.
//!
//! There is no quorum and no metadata log. The answer is what is true without them: this node leads, in the epoch of its
//! start, is the only voter, and has nothing to replicate. Any other partition is 3, as in Kafka.

use tramline_wire::ErrorCode;
use tramline_wire::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use tramline_wire::messages::{DescribeQuorumRequest, DescribeQuorumResponse, describe_quorum_request};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeQuorumRequest, 0..=2, handle);

const METADATA_LOG: &str = "__cluster_metadata";
const NODES_FROM: i16 = 2;

async fn handle(context: Context, request: DescribeQuorumRequest) -> Result<DescribeQuorumResponse, String> {
    let asked = match &request.topics[..] {
        [topic] => {
            topic.topic_name == *METADATA_LOG
                && topic.partitions.iter().map(|row| row.partition_index).eq([0])
        }
        _ => false,
    };
    let topic = |topic: describe_quorum_request::TopicData| TopicData {
        topic_name: topic.topic_name,
        partitions: topic
            .partitions
            .iter()
            .map(|row| if asked { quorum(&context) } else { unknown(row.partition_index) })
            .collect(),
    };
    let topics = request.topics.into_iter().map(topic).collect();
    let nodes = if asked && context.version >= NODES_FROM { vec![this_node(&context)] } else { Vec::new() };
    Ok(DescribeQuorumResponse { topics, nodes, ..DescribeQuorumResponse::default() })
}

fn quorum(context: &Context) -> PartitionData {
    let node = &context.node;
    let voter = ReplicaState {
        replica_id: node.node_id,
        log_end_offset: 0,
        // The leader fetches from nobody, and is always up to date.
        last_fetch_timestamp: -1,
        last_caught_up_timestamp: (node.clock)(),
        ..ReplicaState::default()
    };
    PartitionData {
        leader_id: node.node_id,
        leader_epoch: node.leader_epoch,
        current_voters: vec![voter],
        ..PartitionData::default()
    }
}

fn unknown(partition_index: i32) -> PartitionData {
    PartitionData {
        partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition.code(),
        ..PartitionData::default()
    }
}

fn this_node(context: &Context) -> Node {
    let address = context.node.advertised();
    let listener = Listener {
        name: "PLAINTEXT".into(),
        host: address.host,
        port: u16::try_from(address.port).unwrap_or(0),
    };
    Node { node_id: context.node.node_id, listeners: vec![listener] }
}
