//! The topics of a queue: their names, their settings, and the check that they are what a queue needs.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tramline_client::{Admin, AdminError, ErrorCode, NewTopic};
use tramline_wire::{Str, TopicPartition};

use crate::error::OpenError;
use crate::shared::LOOK_AGAIN;

/// How long a topic that was made may take to be known everywhere.
const APPEARS: Duration = Duration::from_secs(10);

/// The names.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    pub tasks: Str,
    pub claims: Str,
    pub snapshots: Str,
    pub dead: Str,
    pub results: Str,
    pub group: Str,
}

impl Topics {
    pub fn of(queue: &str) -> Self {
        let named = |part: &str| Str::from(format!("{queue}.{part}"));
        Self {
            tasks: named("tasks"),
            claims: named("claims"),
            snapshots: named("snapshots"),
            dead: named("dead"),
            results: named("results"),
            group: named("workers"),
        }
    }

    pub fn tasks_of(&self, shard: i32) -> TopicPartition {
        TopicPartition::new(self.tasks.clone(), shard)
    }

    pub fn claims_of(&self, shard: i32) -> TopicPartition {
        TopicPartition::new(self.claims.clone(), shard)
    }

    pub fn snapshots_of(&self, shard: i32) -> TopicPartition {
        TopicPartition::new(self.snapshots.clone(), shard)
    }

    /// Those every queue has.
    fn needed(&self, results: bool) -> Vec<&Str> {
        let mut needed = vec![&self.tasks, &self.claims, &self.snapshots, &self.dead];
        if results {
            needed.push(&self.results);
        }
        needed
    }
}

/// What a topic of a queue is like.
pub(crate) struct Plan {
    pub shards: i32,
    pub replication_factor: Option<i16>,
    pub results: bool,
    /// Whether what is missing is made.
    pub create: bool,
}

/// Makes what is missing and checks what is there. How many shards there are.
pub(crate) async fn prepare(admin: &Admin, topics: &Topics, plan: &Plan) -> Result<i32, OpenError> {
    let needed = topics.needed(plan.results);
    let mut there = partitions(admin, &needed).await?;
    if !there.contains_key(&topics.tasks) {
        if !plan.create {
            return Err(OpenError::Missing(topics.tasks.trim_end_matches(".tasks").to_owned()));
        }
        // By itself: it may be there unseen, made just now by somebody who wants another number of shards, and it is what
        // says how many partitions the others get.
        let tasks = [&topics.tasks];
        create(admin, topics, &tasks, plan.shards as usize, plan).await?;
        there.extend(appeared(admin, &tasks).await?);
    }
    let shards = there.get(&topics.tasks).copied().unwrap_or(0);
    let missing: Vec<&Str> = needed.iter().copied().filter(|topic| !there.contains_key(*topic)).collect();
    if shards > 0 && !missing.is_empty() {
        create(admin, topics, &missing, shards, plan).await?;
        there = appeared(admin, &needed).await?;
    }
    for topic in needed {
        let partitions = there.get(topic).copied().unwrap_or(0);
        if partitions != shards || partitions == 0 {
            return Err(OpenError::Partitions { topic: topic.clone(), partitions, shards });
        }
    }
    for topic in [&topics.tasks, &topics.claims] {
        check_settings(admin, topic).await?;
    }
    // Partition numbers are 32 bits wide.
    Ok(i32::try_from(shards).unwrap_or(i32::MAX))
}

/// The same once what was made is known to whoever answers: a cluster spreads that word after it has acknowledged the making.
async fn appeared(admin: &Admin, wanted: &[&Str]) -> Result<BTreeMap<Str, usize>, OpenError> {
    let begun = Instant::now();
    loop {
        let there = partitions(admin, wanted).await?;
        let complete = wanted.iter().all(|topic| there.contains_key(*topic));
        if complete || begun.elapsed() > APPEARS {
            return Ok(there);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How many partitions each of the topics has that exists.
async fn partitions(admin: &Admin, wanted: &[&Str]) -> Result<BTreeMap<Str, usize>, OpenError> {
    let mut there = BTreeMap::new();
    for &topic in wanted {
        match admin.describe_topic(topic.clone()).await {
            Ok(description) => {
                there.insert(topic.clone(), description.partitions.len());
            }
            Err(AdminError::Refused(refusal)) if refusal.code == ErrorCode::UnknownTopicOrPartition => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(there)
}

async fn create(
    admin: &Admin,
    topics: &Topics,
    missing: &[&Str],
    shards: usize,
    plan: &Plan,
) -> Result<(), OpenError> {
    let new = |topic: &&Str| {
        let topic = *topic;
        let mut new = NewTopic::new(topic.clone(), i32::try_from(shards).unwrap_or(i32::MAX));
        if let Some(replicas) = plan.replication_factor {
            new = new.replication_factor(replicas);
        }
        // What may go is the queue's to decide: a lease or a task that time deletes would be forgotten.
        new = new
            .config("cleanup.policy", "delete")
            .config("retention.ms", "-1")
            .config("retention.bytes", "-1");
        if *topic == topics.tasks || *topic == topics.claims {
            new = new.config("message.timestamp.type", "LogAppendTime");
        }
        new
    };
    for (topic, outcome) in admin.create_topics(missing.iter().map(new)).await? {
        match outcome {
            Ok(_) => {}
            // Somebody else was faster.
            Err(refusal) if refusal.code == ErrorCode::TopicAlreadyExists => {}
            Err(refusal) => return Err(OpenError::Create { topic, refusal }),
        }
    }
    Ok(())
}

async fn check_settings(admin: &Admin, topic: &Str) -> Result<(), OpenError> {
    let entries = admin.describe_topic_configs(topic.clone()).await?;
    let value = |name: &str| {
        let entry = entries.iter().find(|entry| *entry.name == *name);
        entry.and_then(|entry| entry.value.clone()).map(String::from)
    };
    let wrong =
        |setting, value: String, needed| OpenError::Setting { topic: topic.clone(), setting, value, needed };
    match value("message.timestamp.type") {
        Some(kind) if kind != "LogAppendTime" => {
            return Err(wrong(
                "message.timestamp.type",
                kind,
                "LogAppendTime: leases run by the brokers' clocks",
            ));
        }
        _ => {}
    }
    match value("cleanup.policy") {
        Some(policy) if policy.contains("compact") => Err(wrong(
            "cleanup.policy",
            policy,
            "delete: compaction keeps the last claim, which may be a lost one",
        )),
        _ => Ok(()),
    }
}
