//! CreateTopics (19), versions 2 to 7.
//!
//! Each topic for itself: a bad one does not keep the others from being created. A topic named twice in a request
//! gets 42. When a topic's answer says 0 it is on the disk and can be written to. A replication factor above 1 gets
//! 38 unless the broker is told to be lenient. Manual assignments must name this node for partitions 0, 1, 2, ...
//! Gap: `timeout_ms` is not needed, nothing here waits for other nodes.

use std::collections::{BTreeMap, HashMap};

use tramline_wire::messages::create_topics_request::CreatableTopic;
use tramline_wire::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use tramline_wire::messages::{CreateTopicsRequest, CreateTopicsResponse};
use tramline_wire::{ErrorCode, Str, Uuid};

use crate::admin::{NewTopic, Refusal};
use crate::node::Node;
use crate::routes::{Api, Context, api};
use crate::topic_config::{SETTINGS, default_value};

pub(crate) const API: Api = api!(CreateTopicsRequest, 2..=7, handle);

const SOURCE_TOPIC: i8 = 1;
const SOURCE_DEFAULT: i8 = 5;

async fn handle(context: Context, request: CreateTopicsRequest) -> Result<CreateTopicsResponse, String> {
    let node = &*context.node;
    let mut times = HashMap::new();
    for topic in &request.topics {
        *times.entry(topic.name.clone()).or_insert(0) += 1;
    }
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.name.clone();
        match times.get(&name) {
            None => continue,
            Some(1) => {}
            Some(_) => {
                times.remove(&name);
                let refusal =
                    Refusal::new(ErrorCode::InvalidRequest, "the topic is named twice in the request");
                topics.push(refused(name, refusal));
                continue;
            }
        }
        let created = create(node, topic, request.validate_only).await;
        topics.push(created.unwrap_or_else(|refusal| refused(name, refusal)));
    }
    Ok(CreateTopicsResponse { topics, ..CreateTopicsResponse::default() })
}

async fn create(
    node: &Node,
    topic: CreatableTopic,
    validate_only: bool,
) -> Result<CreatableTopicResult, Refusal> {
    let partitions = partition_count(node, &topic)?;
    let mut configs = BTreeMap::new();
    for config in topic.configs {
        let Some(value) = config.value else {
            return Err(Refusal::new(ErrorCode::InvalidConfig, format!("{} has no value", config.name)));
        };
        configs.insert(config.name.to_string(), value.to_string());
    }
    let new = NewTopic { name: topic.name.clone(), partitions, configs: configs.clone() };
    let (topic_id, num_partitions) = node.administer(move |admin| admin.create(&new, validate_only)).await?;
    Ok(CreatableTopicResult {
        name: topic.name,
        topic_id,
        num_partitions,
        replication_factor: 1,
        configs: Some(describe(node, &configs)),
        ..CreatableTopicResult::default()
    })
}

fn partition_count(node: &Node, topic: &CreatableTopic) -> Result<i32, Refusal> {
    if topic.assignments.is_empty() {
        return match topic.replication_factor {
            -1 | 1 => Ok(topic.num_partitions),
            2.. if node.config.lenient_replication_factor => Ok(topic.num_partitions),
            _ => Err(Refusal::new(ErrorCode::InvalidReplicationFactor, "there is one node, so one replica")),
        };
    }
    if topic.num_partitions != -1 || topic.replication_factor != -1 {
        let reason = "manual assignments exclude numbers of partitions and replicas";
        return Err(Refusal::new(ErrorCode::InvalidRequest, reason));
    }
    let mut numbers: Vec<i32> =
        topic.assignments.iter().map(|assignment| assignment.partition_index).collect();
    numbers.sort_unstable();
    let contiguous = numbers.iter().zip(0..).all(|(number, expected)| *number == expected);
    let ours = topic.assignments.iter().all(|assignment| assignment.broker_ids == [node.node_id]);
    if !contiguous || !ours {
        let reason = "partitions are numbered from 0 and live on this node";
        return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, reason));
    }
    i32::try_from(numbers.len())
        .map_err(|_| Refusal::new(ErrorCode::InvalidPartitions, "too many partitions"))
}

fn describe(node: &Node, overrides: &BTreeMap<String, String>) -> Vec<CreatableTopicConfigs> {
    let row = |setting: &crate::topic_config::Setting| {
        let own = overrides.get(setting.name);
        CreatableTopicConfigs {
            name: Str::from_static(setting.name),
            value: Some(own.map_or_else(|| default_value(setting, &node.config), Clone::clone).into()),
            config_source: if own.is_some() { SOURCE_TOPIC } else { SOURCE_DEFAULT },
            ..CreatableTopicConfigs::default()
        }
    };
    SETTINGS.iter().map(row).collect()
}

fn refused(name: Str, refusal: Refusal) -> CreatableTopicResult {
    CreatableTopicResult {
        name,
        topic_id: Uuid::ZERO,
        error_code: refusal.code.code(),
        error_message: Some(refusal.message.into()),
        num_partitions: -1,
        replication_factor: -1,
        ..CreatableTopicResult::default()
    }
}
