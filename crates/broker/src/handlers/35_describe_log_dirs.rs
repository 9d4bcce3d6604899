//! DescribeLogDirs (35), versions 1 to 4.
//!
//! One directory with the bytes of each partition's segments: where tools get the size of a topic from. Gap: the room
//! on the disk is not told (-1).

use std::collections::BTreeSet;

use tramline_wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use tramline_wire::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};

use crate::partition::Partition;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeLogDirsRequest, 1..=4, handle);

async fn handle(
    context: Context,
    request: DescribeLogDirsRequest,
) -> Result<DescribeLogDirsResponse, String> {
    let node = &context.node;
    let now = node.topics();
    let asked: Option<BTreeSet<(&str, i32)>> =
        request.topics.as_ref().map(|topics| topics.iter().flat_map(pairs_of).collect());
    let wanted = |partition: &Partition| {
        asked
            .as_ref()
            .is_none_or(|asked| asked.contains(&(partition.id.topic.as_str(), partition.id.partition)))
    };
    let topics = now.iter().filter_map(|topic| {
        let rows = topic.partitions.iter().filter(|partition| wanted(partition));
        let partitions: Vec<_> = rows.map(|partition| row(partition)).collect();
        (!partitions.is_empty()).then(|| DescribeLogDirsTopic { name: topic.name.clone(), partitions })
    });
    let result = DescribeLogDirsResult {
        log_dir: node.log_dir.clone(),
        topics: topics.collect(),
        ..DescribeLogDirsResult::default()
    };
    Ok(DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() })
}

fn pairs_of(
    topic: &tramline_wire::messages::describe_log_dirs_request::DescribableLogDirTopic,
) -> impl Iterator<Item = (&str, i32)> {
    topic.partitions.iter().map(|partition| (topic.topic.as_str(), *partition))
}

fn row(partition: &Partition) -> DescribeLogDirsPartition {
    DescribeLogDirsPartition {
        partition_index: partition.id.partition,
        partition_size: i64::try_from(partition.reader.size_bytes()).unwrap_or(i64::MAX),
        ..DescribeLogDirsPartition::default()
    }
}
