//! DescribeConfigs (32), versions 1 to 4.
//!
//! Every setting of topics and of the broker that Kafka has, with its value, where it comes from, and its kind, also
//! those at their defaults. Those of the broker are read only; one whose value is not Kafka's default has that as a
//! synonym, and one that has no effect here says so as its documentation. Loggers, client metrics and groups have no
//! settings: an empty list. Gap: no other documentation.

use std::collections::{BTreeMap, HashSet};

use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use tramline_wire::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::broker_config::{BrokerKind, BrokerSetting, broker_settings};
use crate::node::Node;
use crate::routes::{Api, Context, api};
use crate::topic_config::{SETTINGS, default_value};

pub(crate) const API: Api = api!(DescribeConfigsRequest, 1..=4, handle);

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

const SOURCE_TOPIC: i8 = 1;
const SOURCE_STATIC: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

const NO_EFFECT: &str = "No effect here: the value is the default of Apache Kafka.";

async fn handle(
    context: Context,
    request: DescribeConfigsRequest,
) -> Result<DescribeConfigsResponse, String> {
    // Each once with all of its settings, and once with some: a row of a few bytes is answered with hundreds.
    let mut seen = HashSet::new();
    let once = |resource: &&DescribeConfigsResource| {
        let all = resource.configuration_keys.is_none();
        seen.insert((resource.resource_type, resource.resource_name.clone(), all))
    };
    let resources = request.resources.iter().filter(once);
    let results = resources.map(|resource| describe(&context.node, resource, &request)).collect();
    Ok(DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() })
}

fn describe(
    node: &Node,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> DescribeConfigsResult {
    let name = &resource.resource_name;
    let configs = match resource.resource_type {
        TOPIC => match node.topics().by_name(name) {
            Some(topic) => Ok(topic_rows(node, &topic.configs, request.include_synonyms)),
            None => Err(ErrorCode::UnknownTopicOrPartition),
        },
        BROKER if name.is_empty() => Ok(Vec::new()),
        BROKER if name.parse() == Ok(node.node_id) => Ok(broker_rows(node, request)),
        BROKER_LOGGER if name.parse() == Ok(node.node_id) => Ok(Vec::new()),
        CLIENT_METRICS | GROUP if !name.is_empty() => Ok(Vec::new()),
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

fn broker_rows(node: &Node, request: &DescribeConfigsRequest) -> Vec<DescribeConfigsResourceResult> {
    let row = |setting: BrokerSetting| {
        let BrokerSetting { name, kind, value, default, acts } = setting;
        // Kafka keeps them to itself too.
        let is_sensitive = kind == BrokerKind::Password;
        let is_default = value.as_deref() == default;
        let mut synonyms = Vec::new();
        if request.include_synonyms && !is_sensitive {
            let own = value.as_deref().filter(|_| !is_default);
            synonyms.extend(own.map(|value| synonym(name, value, SOURCE_STATIC)));
            synonyms.extend(default.map(|value| synonym(name, value, SOURCE_DEFAULT)));
        }
        DescribeConfigsResourceResult {
            name: Str::from_static(name),
            value: value.filter(|_| !is_sensitive).map(Str::from),
            read_only: true,
            config_source: if is_default { SOURCE_DEFAULT } else { SOURCE_STATIC },
            is_sensitive,
            synonyms,
            config_type: kind as i8,
            documentation: (request.include_documentation && !acts).then(|| Str::from_static(NO_EFFECT)),
        }
    };
    broker_settings(node).into_iter().map(row).collect()
}
