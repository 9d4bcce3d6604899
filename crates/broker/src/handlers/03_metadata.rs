//! Metadata (3), versions 0 to 13.
//!
//! No topics in version 0 and null later mean all topics, the broker's own marked as internal; an empty list means none.
//! A topic asked for by name that does not exist is created when broker and request allow it, before the answer,
//! which names its leader at once. Versions 12 and later may ask by id. One node leads and replicates everything.
//! Gaps: authorized operations are never given.

use std::collections::{BTreeMap, HashSet};

use tramline_wire::messages::metadata_request::MetadataRequestTopic;
use tramline_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use tramline_wire::messages::{MetadataRequest, MetadataResponse};
use tramline_wire::{ErrorCode, Str, Uuid};

use crate::admin::NewTopic;
use crate::node::Node;
use crate::routes::{Api, Context, api};
use crate::topic_config::name_refusal;
use crate::topics::Topic;

pub(crate) const API: Api = api!(MetadataRequest, 0..=13, handle);

async fn handle(context: Context, request: MetadataRequest) -> Result<MetadataResponse, String> {
    let node = &*context.node;
    let may_create =
        node.config.auto_create_topics && (context.version < 4 || request.allow_auto_topic_creation);
    let topics = match request.topics {
        None => all(node),
        Some(topics) if topics.is_empty() && context.version == 0 => all(node),
        Some(topics) => named(node, topics, may_create).await,
    };
    let address = node.advertised();
    Ok(MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: node.node_id,
            host: address.host,
            port: address.port,
            ..MetadataResponseBroker::default()
        }],
        cluster_id: Some(node.cluster_id.clone()),
        controller_id: node.node_id,
        topics,
        ..MetadataResponse::default()
    })
}

fn all(node: &Node) -> Vec<MetadataResponseTopic> {
    node.topics().iter().map(|topic| row(node, topic)).collect()
}

async fn named(
    node: &Node,
    asked: Vec<MetadataRequestTopic>,
    may_create: bool,
) -> Vec<MetadataResponseTopic> {
    let mut seen = HashSet::new();
    let mut rows = Vec::with_capacity(asked.len());
    for topic in asked {
        if !seen.insert((topic.name.clone(), topic.topic_id)) {
            continue;
        }
        rows.push(match topic.name {
            Some(name) => by_name(node, name, may_create).await,
            None => match node.topics().by_id(&topic.topic_id) {
                Some(found) => row(node, found),
                None => refused(None, topic.topic_id, ErrorCode::UnknownTopicId),
            },
        });
    }
    rows
}

async fn by_name(node: &Node, name: Str, may_create: bool) -> MetadataResponseTopic {
    if let Some(topic) = node.topics().by_name(&name) {
        return row(node, topic);
    }
    if name_refusal(&name).is_some() {
        return refused(Some(name), Uuid::ZERO, ErrorCode::InvalidTopicException);
    }
    if !may_create {
        return refused(Some(name), Uuid::ZERO, ErrorCode::UnknownTopicOrPartition);
    }
    let new = NewTopic { name: name.clone(), partitions: -1, configs: BTreeMap::new() };
    let created = node.administer(move |admin| admin.create(&new, false)).await;
    match (created, node.topics().by_name(&name)) {
        // Someone else may have been faster.
        (_, Some(topic)) => row(node, topic),
        (Err(refusal), None) if refusal.code == ErrorCode::InvalidTopicException => {
            refused(Some(name), Uuid::ZERO, ErrorCode::InvalidTopicException)
        }
        // Clients ask again after this code, whatever it was that hindered us.
        (_, None) => refused(Some(name), Uuid::ZERO, ErrorCode::LeaderNotAvailable),
    }
}

fn refused(name: Option<Str>, topic_id: Uuid, code: ErrorCode) -> MetadataResponseTopic {
    MetadataResponseTopic { error_code: code.code(), name, topic_id, ..MetadataResponseTopic::default() }
}

fn row(node: &Node, topic: &Topic) -> MetadataResponseTopic {
    let partition = |(index, _)| MetadataResponsePartition {
        partition_index: i32::try_from(index).unwrap_or(i32::MAX),
        leader_id: node.node_id,
        leader_epoch: node.leader_epoch,
        replica_nodes: vec![node.node_id],
        isr_nodes: vec![node.node_id],
        ..MetadataResponsePartition::default()
    };
    MetadataResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: topic.is_internal(),
        partitions: topic.partitions.iter().enumerate().map(partition).collect(),
        ..MetadataResponseTopic::default()
    }
}
