//! `tramline topic`: create, list, describe, delete, grow.

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use tramline::client::{Admin, NewTopic, Refusal, StartOffset, TopicDescription};

use crate::args::{Global, Topic, TopicCommand};
use crate::{Outcome, cluster, output};

/// Runs one of the topic commands.
pub async fn run(args: Topic, global: &Global) -> Result<Outcome> {
    let admin = Admin::new(cluster::config(global));
    match args.command {
        TopicCommand::Create { name, partitions, configs } => {
            let topic = NewTopic::new(name.as_str(), partitions);
            let topic = configs.into_iter().fold(topic, |topic, (key, value)| topic.config(key, value));
            let id = one(admin.create_topics([topic]).await?, &name)?;
            say(global, &name, partitions, &format!("created {name} with {}, id {id}", count(partitions)))
        }
        TopicCommand::List => list(&admin, global).await,
        TopicCommand::Describe { name } => describe(&admin, global, &name).await,
        TopicCommand::Delete { name } => {
            one(admin.delete_topics([name.as_str()]).await?, &name)?;
            if global.json {
                output::json(&serde_json::json!({"topic": name, "deleted": true}))?;
            } else {
                output::line(&format!("deleted {name}"))?;
            }
            Ok(Outcome::Done)
        }
        TopicCommand::Grow { name, partitions } => {
            admin
                .create_partitions(name.as_str(), partitions)
                .await
                .with_context(|| format!("cannot grow {name}"))?;
            say(global, &name, partitions, &format!("{name} has {} now", count(partitions)))
        }
    }
}

fn count(partitions: i32) -> String {
    output::count(usize::try_from(partitions).unwrap_or_default(), "partition")
}

/// The outcome of the one topic that was named.
fn one<T>(
    outcomes: std::collections::BTreeMap<tramline::wire::Str, Result<T, Refusal>>,
    name: &str,
) -> Result<T> {
    let outcome = outcomes.into_iter().find(|(topic, _)| *topic == *name).map(|(_, outcome)| outcome);
    outcome.ok_or_else(|| anyhow!("the broker said nothing about {name}"))?.with_context(|| name.to_owned())
}

#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    partitions: i32,
}

fn say(global: &Global, topic: &str, partitions: i32, text: &str) -> Result<Outcome> {
    if global.json {
        output::json(&Line { topic, partitions })?;
    } else {
        output::line(text)?;
    }
    Ok(Outcome::Done)
}

async fn list(admin: &Admin, global: &Global) -> Result<Outcome> {
    let topics: Vec<TopicDescription> =
        admin.list_topics().await?.into_iter().filter(|t| !t.is_internal).collect();
    if global.json {
        for topic in &topics {
            output::json(&Line { topic: &topic.name, partitions: topic.partitions.len() as i32 })?;
        }
        return Ok(Outcome::Done);
    }
    if topics.is_empty() {
        output::note("no topics; make one: tramline topic create NAME");
        return Ok(Outcome::Done);
    }
    let mut table = output::table(&["topic", "partitions", "id"], &[1]);
    for topic in topics {
        table.add_row([topic.name.to_string(), topic.partitions.len().to_string(), topic.id.to_string()]);
    }
    output::print_table(&table)?;
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct PartitionLine<'a> {
    topic: &'a str,
    partition: i32,
    leader: Option<i32>,
    leader_epoch: i32,
    start: i64,
    end: i64,
}

async fn describe(admin: &Admin, global: &Global, name: &str) -> Result<Outcome> {
    let topic = admin.describe_topic(name).await.with_context(|| format!("cannot describe {name}"))?;
    let starts = admin.list_offsets(name, StartOffset::Earliest).await?;
    let ends = admin.list_offsets(name, StartOffset::Latest).await?;
    let mut table = output::table(&["partition", "leader", "epoch", "start", "end"], &[0, 1, 2, 3, 4]);
    for row in &topic.partitions {
        let at = |offsets: &std::collections::BTreeMap<i32, i64>| {
            offsets.get(&row.partition).copied().unwrap_or(0)
        };
        let line = PartitionLine {
            topic: name,
            partition: row.partition,
            leader: row.leader,
            leader_epoch: row.leader_epoch,
            start: at(&starts),
            end: at(&ends),
        };
        if global.json {
            output::json(&line)?;
            continue;
        }
        table.add_row([
            line.partition.to_string(),
            line.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string()),
            line.leader_epoch.to_string(),
            line.start.to_string(),
            line.end.to_string(),
        ]);
    }
    if !global.json {
        output::line(&format!("{name}, id {}", topic.id))?;
        output::print_table(&table)?;
    }
    Ok(Outcome::Done)
}
