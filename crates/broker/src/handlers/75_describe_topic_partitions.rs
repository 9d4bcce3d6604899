//! DescribeTopicPartitions (75), version 0.
//!
//! Topics in the order of their names, page by page: a cursor says where the next page begins. At most 2,000
//! partitions a page.

use std::collections::BTreeSet;

use tramline_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use tramline_wire::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::node::Node;
use crate::routes::{Api, Context, api};
use crate::topic_config::name_refusal;
use crate::topics::Topic;

pub(crate) const API: Api = api!(DescribeTopicPartitionsRequest, 0..=0, handle);

const PAGE: i32 = 2000;

async fn handle(
    context: Context,
    request: DescribeTopicPartitionsRequest,
) -> Result<DescribeTopicPartitionsResponse, String> {
    let node = &context.node;
    let now = node.topics();
    let names: BTreeSet<Str> = if request.topics.is_empty() {
        now.iter().map(|topic| topic.name.clone()).collect()
    } else {
        request.topics.into_iter().map(|topic| topic.name).collect()
    };
    let begin = request.cursor.map(|cursor| (cursor.topic_name, cursor.partition_index));
    let mut room = usize::try_from(request.response_partition_limit.clamp(1, PAGE)).unwrap_or(1);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let from = match &begin {
            Some((first, _)) if name < *first => continue,
            Some((first, partition)) if name == *first => usize::try_from(*partition).unwrap_or(0),
            _ => 0,
        };
        if room == 0 {
            response.next_cursor = Some(cursor(name, from));
            break;
        }
        let Some(topic) = now.by_name(&name) else {
            response.topics.push(unknown(name));
            continue;
        };
        let count = topic.partitions.len();
        let until = count.min(from.saturating_add(room));
        response.topics.push(row(node, topic, from..until));
        room = room.saturating_sub(until.saturating_sub(from));
        if until < count {
            response.next_cursor = Some(cursor(name, until));
            break;
        }
    }
    Ok(response)
}

fn cursor(topic_name: Str, partition: usize) -> Cursor {
    Cursor { topic_name, partition_index: i32::try_from(partition).unwrap_or(i32::MAX) }
}

fn unknown(name: Str) -> DescribeTopicPartitionsResponseTopic {
    let code = match name_refusal(&name) {
        Some(_) => ErrorCode::InvalidTopicException,
        None => ErrorCode::UnknownTopicOrPartition,
    };
    DescribeTopicPartitionsResponseTopic {
        error_code: code.code(),
        name: Some(name),
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}

fn row(node: &Node, topic: &Topic, part: std::ops::Range<usize>) -> DescribeTopicPartitionsResponseTopic {
    let partition = |index| DescribeTopicPartitionsResponsePartition {
        partition_index: i32::try_from(index).unwrap_or(i32::MAX),
        leader_id: node.node_id,
        leader_epoch: node.leader_epoch,
        replica_nodes: vec![node.node_id],
        isr_nodes: vec![node.node_id],
        // Empty, not null: Kafka's own admin client reads both without looking.
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        ..DescribeTopicPartitionsResponsePartition::default()
    };
    DescribeTopicPartitionsResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: part.map(partition).collect(),
        ..DescribeTopicPartitionsResponseTopic::default()
    }
}
