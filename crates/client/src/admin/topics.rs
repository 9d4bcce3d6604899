//! Topics: create, delete, grow, list, describe.

use std::collections::{BTreeMap, BTreeSet};

use tramline_core::client::metadata::{PartitionView, TopicView};
use tramline_wire::messages::create_partitions_request::CreatePartitionsTopic;
use tramline_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use tramline_wire::messages::create_topics_response::CreatableTopicResult;
use tramline_wire::messages::delete_topics_request::DeleteTopicState;
use tramline_wire::messages::delete_topics_response::DeletableTopicResult;
use tramline_wire::messages::{CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest};
use tramline_wire::{ErrorCode, Str, Uuid};

use super::{Admin, AdminError, OPERATION_TIMEOUT, Refusal, millis};
use crate::cluster::{Cluster, Target};

/// A topic to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    name: Str,
    partitions: i32,
    replication_factor: i16,
    configs: Vec<(Str, Str)>,
}

impl NewTopic {
    /// A topic with this many partitions, and as many replicas of each as the cluster gives by default.
    #[must_use]
    pub fn new(name: impl Into<Str>, partitions: i32) -> Self {
        Self { name: name.into(), partitions, replication_factor: -1, configs: Vec::new() }
    }

    /// How many brokers hold each partition. Default: the cluster's own (1 on the embedded broker).
    #[must_use]
    pub const fn replication_factor(mut self, replicas: i16) -> Self {
        self.replication_factor = replicas;
        self
    }

    /// A setting of the topic, by Kafka's name; an unknown one is refused by the broker.
    #[must_use]
    pub fn config(mut self, key: impl Into<Str>, value: impl Into<Str>) -> Self {
        self.configs.push((key.into(), value.into()));
        self
    }

    fn into_wire(self) -> CreatableTopic {
        let config = |(name, value)| CreatableTopicConfig { name, value: Some(value) };
        CreatableTopic {
            name: self.name,
            num_partitions: self.partitions,
            replication_factor: self.replication_factor,
            configs: self.configs.into_iter().map(config).collect(),
            ..Default::default()
        }
    }
}

/// A topic as the cluster sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Its name.
    pub name: Str,
    /// Its id: another one after it was deleted and made again. Zero on brokers before Kafka 2.8.
    pub id: Uuid,
    /// Whether it is one of the broker's own.
    pub is_internal: bool,
    /// Its partitions by number.
    pub partitions: Vec<PartitionDescription>,
}

/// A partition as the cluster sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionDescription {
    /// Its number.
    pub partition: i32,
    /// The node that leads it, if one does.
    pub leader: Option<i32>,
    /// Grows with each new leader; -1 when unknown.
    pub leader_epoch: i32,
    /// The nodes that hold it.
    pub replicas: Vec<i32>,
    /// Those that are up to date.
    pub in_sync_replicas: Vec<i32>,
}

impl TopicDescription {
    fn new(name: &Str, view: &TopicView) -> Self {
        let partition = |view: &PartitionView| PartitionDescription {
            partition: view.partition,
            leader: view.leader,
            leader_epoch: view.leader_epoch,
            replicas: view.replicas.clone(),
            in_sync_replicas: view.in_sync_replicas.clone(),
        };
        let mut partitions: Vec<_> = view.partitions.iter().map(partition).collect();
        partitions.sort_unstable_by_key(|partition| partition.partition);
        Self { name: name.clone(), id: view.id, is_internal: view.is_internal, partitions }
    }
}

impl Admin {
    /// Creates topics. The answer has an outcome for each, with the id of each new topic.
    ///
    /// # Errors
    /// [`AdminError`] when nobody answered for the whole request.
    pub async fn create_topics(
        &self,
        topics: impl IntoIterator<Item = NewTopic>,
    ) -> Result<BTreeMap<Str, Result<Uuid, Refusal>>, AdminError> {
        let topics: Vec<CreatableTopic> = topics.into_iter().map(NewTopic::into_wire).collect();
        let names: Vec<Str> = topics.iter().map(|topic| topic.name.clone()).collect();
        let request =
            CreateTopicsRequest { topics, timeout_ms: millis(OPERATION_TIMEOUT), ..Default::default() };
        let answer = self
            .ask(&Target::Controller, request, |answer| {
                only(answer.topics.iter().map(|topic| topic.error_code))
            })
            .await?;
        let outcome = |topic: CreatableTopicResult| {
            let outcome = Refusal::check(topic.error_code, topic.error_message.as_ref());
            (topic.name, outcome.map(|()| topic.topic_id))
        };
        all_told(&names, first_told(answer.topics.into_iter().map(outcome)), Str::to_string)
    }

    /// Deletes topics with all their records. The answer has an outcome for each.
    ///
    /// # Errors
    /// [`AdminError`] when nobody answered for the whole request.
    pub async fn delete_topics<T: Into<Str>>(
        &self,
        topics: impl IntoIterator<Item = T>,
    ) -> Result<BTreeMap<Str, Result<(), Refusal>>, AdminError> {
        let names: Vec<Str> = topics.into_iter().map(Into::into).collect();
        let timeout_ms = millis(OPERATION_TIMEOUT);
        let asked = names.clone();
        let by_version = move |version: i16| {
            if version < 6 {
                return DeleteTopicsRequest { topic_names: names.clone(), timeout_ms, ..Default::default() };
            }
            let by_name = |name: &Str| DeleteTopicState { name: Some(name.clone()), ..Default::default() };
            DeleteTopicsRequest {
                topics: names.iter().map(by_name).collect(),
                timeout_ms,
                ..Default::default()
            }
        };
        let answer = self
            .ask_with(&Target::Controller, by_version, |answer| {
                only(answer.responses.iter().map(|topic| topic.error_code))
            })
            .await?;
        let outcome = |topic: DeletableTopicResult| {
            let outcome = Refusal::check(topic.error_code, topic.error_message.as_ref());
            topic.name.map(|name| (name, outcome))
        };
        all_told(&asked, first_told(answer.responses.into_iter().filter_map(outcome)), Str::to_string)
    }

    /// Makes `topic` have `count` partitions. Keys that fall to another partition afterwards are not in order with their past.
    ///
    /// # Errors
    /// [`AdminError::Refused`], for instance when the topic has as many already.
    pub async fn create_partitions(&self, topic: impl Into<Str>, count: i32) -> Result<(), AdminError> {
        let name = topic.into();
        let topics = vec![CreatePartitionsTopic { name: name.clone(), count, assignments: None }];
        let request =
            CreatePartitionsRequest { topics, timeout_ms: millis(OPERATION_TIMEOUT), ..Default::default() };
        let answer = self
            .ask(&Target::Controller, request, |answer| {
                only(answer.results.iter().map(|topic| topic.error_code))
            })
            .await?;
        let Some(result) = answer.results.into_iter().find(|result| result.name == name) else {
            return Err(AdminError::Missing(name.to_string()));
        };
        Refusal::check(result.error_code, result.error_message.as_ref()).map_err(AdminError::Refused)
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, AdminError> {
        let view = self.cluster().await?.refresh(None, false).await?;
        Ok(view.topics.iter().map(|(name, topic)| TopicDescription::new(name, topic)).collect())
    }

    /// One topic with its partitions. It is never created by asking.
    ///
    /// # Errors
    /// [`AdminError::Refused`] with `UNKNOWN_TOPIC_OR_PARTITION` when there is none of that name.
    pub async fn describe_topic(&self, topic: impl Into<Str>) -> Result<TopicDescription, AdminError> {
        let name = topic.into();
        describe(self.cluster().await?, &name).await
    }
}

/// What was told, once there is something for each of `asked`, and nothing that was never asked for.
pub(super) fn all_told<K: Ord, T>(
    asked: &[K],
    mut told: BTreeMap<K, T>,
    name: impl Fn(&K) -> String,
) -> Result<BTreeMap<K, T>, AdminError> {
    let wanted: BTreeSet<&K> = asked.iter().collect();
    told.retain(|key, _| wanted.contains(key));
    match asked.iter().find(|key| !told.contains_key(*key)) {
        Some(missing) => Err(AdminError::Missing(name(missing))),
        None => Ok(told),
    }
}

/// Rows by what they are about; of two about the same the first counts.
fn first_told<K: Ord, T>(rows: impl Iterator<Item = (K, T)>) -> BTreeMap<K, T> {
    let mut told = BTreeMap::new();
    for (key, row) in rows {
        told.entry(key).or_insert(row);
    }
    told
}

pub(super) async fn describe(cluster: &Cluster, name: &Str) -> Result<TopicDescription, AdminError> {
    let (view, told) = cluster.refresh_told(Some(std::slice::from_ref(name)), false).await?;
    let topic = view.topics.get(name).filter(|_| told.contains(name));
    let topic = topic.ok_or_else(|| AdminError::Missing(name.to_string()))?;
    match ErrorCode::from(topic.error_code) {
        code if code.is_ok() => Ok(TopicDescription::new(name, topic)),
        code => Err(AdminError::Refused(Refusal::new(code, None))),
    }
}

/// The code of a request about a single item, or when all items say the same (the wrong node was asked); else none.
pub(super) fn only(mut codes: impl Iterator<Item = i16>) -> i16 {
    let first = codes.next().unwrap_or(0);
    if codes.all(|code| code == first) { first } else { 0 }
}
