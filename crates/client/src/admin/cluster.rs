//! The cluster itself: its brokers, and the settings of topics and brokers.

use tramline_wire::Str;
use tramline_wire::messages::DescribeConfigsRequest;
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};

use super::topics::only;
use super::{Admin, AdminError, Refusal};
use crate::cluster::Target;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// The brokers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterInfo {
    /// The cluster's id, if it has one.
    pub id: Option<Str>,
    /// The node that takes admin requests, if one does.
    pub controller: Option<i32>,
    /// The brokers by node id.
    pub brokers: Vec<BrokerInfo>,
}

/// One broker of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerInfo {
    /// Its node id.
    pub id: i32,
    /// The host it says it is reached at.
    pub host: Str,
    /// Its port.
    pub port: i32,
    /// Its rack, if it has one.
    pub rack: Option<Str>,
}

/// One setting of a topic or a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigEntry {
    /// Kafka's name of it.
    pub name: Str,
    /// Its value; `None` when there is none or it is secret.
    pub value: Option<Str>,
    /// Whether it was set, rather than left at its default.
    pub is_set: bool,
}

impl Admin {
    /// The brokers of the cluster.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn describe_cluster(&self) -> Result<ClusterInfo, AdminError> {
        let view = self.cluster().await?.refresh(Some(&[]), false).await?;
        let brokers = view.nodes.values().map(|node| BrokerInfo {
            id: node.id,
            host: node.host.clone(),
            port: node.port,
            rack: node.rack.clone(),
        });
        Ok(ClusterInfo {
            id: view.cluster_id.clone(),
            controller: view.controller,
            brokers: brokers.collect(),
        })
    }

    /// Every setting of a topic.
    ///
    /// # Errors
    /// [`AdminError::Refused`] when there is no such topic.
    pub async fn describe_topic_configs(
        &self,
        topic: impl Into<Str>,
    ) -> Result<Vec<ConfigEntry>, AdminError> {
        self.describe_configs(TOPIC, topic.into(), Target::Any).await
    }

    /// Every setting of a broker, asked of that broker.
    ///
    /// # Errors
    /// [`AdminError::Refused`] when there is no such broker.
    pub async fn describe_broker_configs(&self, node: i32) -> Result<Vec<ConfigEntry>, AdminError> {
        self.describe_configs(BROKER, Str::from(node.to_string()), Target::NodeControl(node)).await
    }

    async fn describe_configs(
        &self,
        kind: i8,
        name: Str,
        target: Target,
    ) -> Result<Vec<ConfigEntry>, AdminError> {
        let resource = DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.clone(),
            configuration_keys: None,
        };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let answer = self
            .ask(&target, request, |answer| only(answer.results.iter().map(|row| row.error_code)))
            .await?;
        let is_meant = |row: &DescribeConfigsResult| row.resource_type == kind && row.resource_name == name;
        let row =
            answer.results.into_iter().find(is_meant).ok_or_else(|| AdminError::Missing(name.to_string()))?;
        Refusal::check(row.error_code, row.error_message.as_ref()).map_err(AdminError::Refused)?;
        Ok(row.configs.into_iter().map(entry).collect())
    }
}

fn entry(row: DescribeConfigsResourceResult) -> ConfigEntry {
    /// Where a value that nobody set comes from, as DescribeConfigs numbers its sources.
    const DEFAULT: i8 = 5;
    ConfigEntry { name: row.name, value: row.value, is_set: row.config_source != DEFAULT }
}
