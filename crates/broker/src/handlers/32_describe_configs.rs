//! DescribeConfigs (32), versions 1 to 4.
//!
//! Topics: every setting with its value, where it comes from, and its kind, also those at their defaults. The broker:
//! the settings that tools look at, which are read only. Gaps: loggers, client metrics and groups have no settings
//! here; no documentation texts.

use std::collections::BTreeMap;

use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use tramline_wire::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::node::Node;
use crate::routes::{Api, Context, api};
use crate::topic_config::{SETTINGS, default_value};

pub(crate) const API: Api = api!(DescribeConfigsRequest, 1..=4, handle);

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

const SOURCE_TOPIC: i8 = 1;
const SOURCE_STATIC: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

const BOOLEAN: i8 = 1;
const TEXT: i8 = 2;
const INT: i8 = 3;
const LONG: i8 = 5;

async fn handle(
    context: Context,
    request: DescribeConfigsRequest,
) -> Result<DescribeConfigsResponse, String> {
    let synonyms = request.include_synonyms;
    let results =
        request.resources.iter().map(|resource| describe(&context.node, resource, synonyms)).collect();
    Ok(DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() })
}

fn describe(node: &Node, resource: &DescribeConfigsResource, synonyms: bool) -> DescribeConfigsResult {
    let name = &resource.resource_name;
    let configs = match resource.resource_type {
        TOPIC => match node.topics().by_name(name) {
            Some(topic) => Ok(topic_rows(node, &topic.configs, synonyms)),
            None => Err(ErrorCode::UnknownTopicOrPartition),
        },
        BROKER if name.is_empty() => Ok(Vec::new()),
        BROKER if name.parse() == Ok(node.node_id) => Ok(broker_rows(node, synonyms)),
        _ => Err(ErrorCode::InvalidRequest),
    };
    let wanted = |row: &DescribeConfigsResourceResult| {
        resource.configuration_keys.as_ref().is_none_or(|keys| keys.contains(&row.name))
    };
    DescribeConfigsResult {
        error_code: configs.as_ref().err().map_or(0, |code| code.code()),
        error_message: configs.as_ref().err().map(|code| Str::from(code.to_string())),
        resource_type: resource.resource_type,
        resource_name: name.clone(),
        configs: configs.unwrap_or_default().into_iter().filter(wanted).collect(),
    }
}

fn topic_rows(
    node: &Node,
    overrides: &BTreeMap<String, String>,
    synonyms: bool,
) -> Vec<DescribeConfigsResourceResult> {
    let row = |setting: &crate::topic_config::Setting| {
        let default = default_value(setting, &node.config);
        let own = overrides.get(setting.name);
        let mut known = Vec::new();
        if synonyms {
            known.extend(own.map(|value| synonym(setting.name, value, SOURCE_TOPIC)));
            known.push(synonym(setting.name, &default, SOURCE_DEFAULT));
        }
        DescribeConfigsResourceResult {
            name: Str::from_static(setting.name),
            value: Some(own.map_or_else(|| Str::from(default), Str::from)),
            config_source: if own.is_some() { SOURCE_TOPIC } else { SOURCE_DEFAULT },
            synonyms: known,
            config_type: setting.kind.wire_type(),
            ..DescribeConfigsResourceResult::default()
        }
    };
    SETTINGS.iter().map(row).collect()
}

fn synonym(name: &str, value: &str, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym { name: Str::from(name), value: Some(Str::from(value)), source }
}

/// A limit as Kafka writes it: -1 for none.
fn limit(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-1".to_owned(), |value| value.to_string())
}

fn broker_rows(node: &Node, synonyms: bool) -> Vec<DescribeConfigsResourceResult> {
    let config = &node.config;
    let address = node.advertised();
    let kept = config.retention;
    let rows: [(&str, String, i8); 26] = [
        ("advertised.listeners", format!("PLAINTEXT://{}:{}", address.host, address.port), TEXT),
        ("auto.create.topics.enable", config.auto_create_topics.to_string(), BOOLEAN),
        ("broker.id", node.node_id.to_string(), INT),
        ("connections.max.idle.ms", config.idle_timeout.as_millis().to_string(), LONG),
        ("default.replication.factor", "1".to_owned(), INT),
        ("delete.topic.enable", "true".to_owned(), BOOLEAN),
        (
            "group.initial.rebalance.delay.ms",
            config.group_initial_rebalance_delay.as_millis().to_string(),
            INT,
        ),
        ("group.max.session.timeout.ms", config.group_max_session_timeout.as_millis().to_string(), INT),
        ("group.min.session.timeout.ms", config.group_min_session_timeout.as_millis().to_string(), INT),
        // The version that older tools take the broker's from.
        ("inter.broker.protocol.version", "4.0-IV3".to_owned(), TEXT),
        ("listeners", format!("PLAINTEXT://{}:{}", address.host, address.port), TEXT),
        ("log.dirs", node.log_dir.to_string(), TEXT),
        ("log.message.timestamp.type", "CreateTime".to_owned(), TEXT),
        ("log.retention.bytes", limit(config.retention_bytes), LONG),
        ("log.retention.check.interval.ms", config.retention_check_interval.as_millis().to_string(), LONG),
        ("log.retention.hours", limit(kept.map(|age| age.as_secs() / 3600)), INT),
        ("log.retention.minutes", limit(kept.map(|age| age.as_secs() / 60)), INT),
        ("log.retention.ms", limit(kept.map(|age| age.as_millis())), LONG),
        ("log.segment.bytes", config.segment_bytes.to_string(), INT),
        ("message.max.bytes", config.max_message_bytes.to_string(), INT),
        ("min.insync.replicas", "1".to_owned(), INT),
        ("node.id", node.node_id.to_string(), INT),
        ("num.partitions", config.default_partitions.to_string(), INT),
        ("offsets.retention.minutes", "10080".to_owned(), INT),
        ("process.roles", "broker,controller".to_owned(), TEXT),
        ("socket.request.max.bytes", config.max_request_bytes.to_string(), INT),
    ];
    rows.into_iter()
        .map(|(name, value, config_type)| DescribeConfigsResourceResult {
            name: Str::from_static(name),
            synonyms: if synonyms { vec![synonym(name, &value, SOURCE_STATIC)] } else { Vec::new() },
            value: Some(Str::from(value)),
            read_only: true,
            config_source: SOURCE_STATIC,
            config_type,
            ..DescribeConfigsResourceResult::default()
        })
        .collect()
}
