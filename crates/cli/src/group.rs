//! `tramline group`: list, describe, delete, reset.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tramline::client::{Admin, AdminError, GroupDescription, OffsetAndMetadata, StartOffset};
use tramline::wire::{ErrorCode, TopicPartition};

use crate::args::{Global, Group, GroupCommand, ResetTo};
use crate::{Outcome, cluster, output};

/// Runs one of the group commands.
pub async fn run(args: Group, global: &Global) -> Result<Outcome> {
    let admin = Admin::new(cluster::config(global));
    match args.command {
        GroupCommand::List => list(&admin, global).await,
        GroupCommand::Describe { group } => describe(&admin, global, &group).await,
        GroupCommand::Delete { group } => {
            admin.delete_group(group.as_str()).await.with_context(|| format!("cannot delete {group}"))?;
            if global.json {
                output::json(&serde_json::json!({"group": group, "deleted": true}))?;
            } else {
                output::line(&format!("deleted {group}"))?;
            }
            Ok(Outcome::Done)
        }
        GroupCommand::Reset { group, topic, to } => reset(&admin, global, &group, &topic, to).await,
    }
}

async fn list(admin: &Admin, global: &Global) -> Result<Outcome> {
    let groups = admin.list_groups().await?;
    if groups.is_empty() && !global.json {
        output::note("no groups; one begins with its first member: tramline consume TOPIC -g GROUP");
        return Ok(Outcome::Done);
    }
    let mut table = output::table(&["group", "state", "type"], &[]);
    for group in &groups {
        if global.json {
            output::json(
                &serde_json::json!({"group": *group.group, "state": *group.state, "type": *group.protocol_type}),
            )?;
        } else {
            table.add_row([group.group.as_str(), &group.state, &group.protocol_type]);
        }
    }
    if !global.json {
        output::print_table(&table)?;
    }
    Ok(Outcome::Done)
}

/// One partition the group reads or has read.
#[derive(Serialize)]
struct Line<'a> {
    group: &'a str,
    state: &'a str,
    topic: &'a str,
    partition: i32,
    committed: Option<i64>,
    end: Option<i64>,
    lag: Option<i64>,
    member: Option<&'a str>,
    client: Option<&'a str>,
    host: Option<&'a str>,
}

async fn describe(admin: &Admin, global: &Global, group: &str) -> Result<Outcome> {
    let found = admin.describe_group(group).await.with_context(|| format!("cannot describe {group}"))?;
    let committed = admin.group_offsets(group).await?;
    if *found.state == *"Dead" && committed.is_empty() {
        bail!("there is no group {group}: tramline group list shows those there are");
    }
    let ends = ends_of(admin, &found, &committed).await?;
    let lines = lines(group, &found, &committed, &ends);
    if global.json {
        for line in &lines {
            output::json(line)?;
        }
        return Ok(Outcome::Done);
    }
    output::line(&format!("{group}: {}, {}", found.state, output::count(found.members.len(), "member")))?;
    let headings = ["topic", "partition", "committed", "end", "lag", "member", "host"];
    let mut table = output::table(&headings, &[1, 2, 3, 4]);
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for line in &lines {
        table.add_row([
            line.topic.to_owned(),
            line.partition.to_string(),
            number(line.committed),
            number(line.end),
            number(line.lag),
            line.member.unwrap_or("-").to_owned(),
            line.host.unwrap_or("-").to_owned(),
        ]);
    }
    if !lines.is_empty() {
        output::print_table(&table)?;
    }
    Ok(Outcome::Done)
}

fn lines<'a>(
    group: &'a str,
    found: &'a GroupDescription,
    committed: &'a BTreeMap<TopicPartition, OffsetAndMetadata>,
    ends: &BTreeMap<TopicPartition, i64>,
) -> Vec<Line<'a>> {
    let mut owners = BTreeMap::new();
    for member in &found.members {
        for place in &member.assignment {
            owners.insert(place, member);
        }
    }
    let mut places: Vec<&TopicPartition> = committed.keys().chain(owners.keys().copied()).collect();
    places.sort_unstable();
    places.dedup();
    let line = |place: &'a TopicPartition| {
        let at = committed.get(place).map(|offset| offset.offset);
        let end = ends.get(place).copied();
        let owner = owners.get(place);
        Line {
            group,
            state: &found.state,
            topic: &place.topic,
            partition: place.partition,
            committed: at,
            end,
            lag: end.map(|end| (end - at.unwrap_or(0)).max(0)),
            member: owner.map(|member| member.member_id.as_str()),
            client: owner.map(|member| member.client_id.as_str()),
            host: owner.map(|member| member.client_host.as_str()),
        }
    };
    places.into_iter().map(line).collect()
}

async fn ends_of(
    admin: &Admin,
    found: &GroupDescription,
    committed: &BTreeMap<TopicPartition, OffsetAndMetadata>,
) -> Result<BTreeMap<TopicPartition, i64>> {
    let owned = found.members.iter().flat_map(|member| &member.assignment);
    let mut topics: Vec<_> = committed.keys().chain(owned).map(|place| place.topic.clone()).collect();
    topics.sort_unstable();
    topics.dedup();
    let mut ends = BTreeMap::new();
    for topic in topics {
        match admin.list_offsets(topic.clone(), StartOffset::Latest).await {
            Ok(found) => {
                ends.extend(found.into_iter().map(|(n, end)| (TopicPartition::new(topic.clone(), n), end)));
            }
            // A topic that was deleted has no ends; what was committed for it is shown all the same.
            Err(AdminError::Refused(refusal)) if refusal.code == ErrorCode::from(3) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ends)
}

async fn reset(admin: &Admin, global: &Global, group: &str, topic: &str, to: ResetTo) -> Result<Outcome> {
    let description = admin.describe_group(group).await;
    if let Ok(found) = &description
        && !found.members.is_empty()
    {
        bail!(
            "{group} has {}; stop them first, then reset",
            output::count(found.members.len(), "live member")
        );
    }
    let place = match to {
        ResetTo::Start => StartOffset::Earliest,
        ResetTo::End => StartOffset::Latest,
        ResetTo::Offset(offset) => StartOffset::At(offset),
        ResetTo::Time(time) => StartOffset::Timestamp(time),
    };
    let mut offsets =
        admin.list_offsets(topic, place).await.with_context(|| format!("cannot look at {topic}"))?;
    if let ResetTo::Offset(_) = to {
        let starts = admin.list_offsets(topic, StartOffset::Earliest).await?;
        let ends = admin.list_offsets(topic, StartOffset::Latest).await?;
        for (partition, offset) in &mut offsets {
            let (start, end) = (starts.get(partition).copied(), ends.get(partition).copied());
            *offset = (*offset).max(start.unwrap_or(0)).min(end.unwrap_or(*offset));
        }
    }
    let new =
        offsets.iter().map(|(&n, &offset)| (TopicPartition::new(topic, n), OffsetAndMetadata::new(offset)));
    admin.set_group_offsets(group, new).await.with_context(|| format!("cannot reset {group}"))?;
    let mut table = output::table(&["topic", "partition", "committed"], &[1, 2]);
    for (partition, offset) in &offsets {
        if global.json {
            output::json(
                &serde_json::json!({"group": group, "topic": topic, "partition": partition, "committed": offset}),
            )?;
        } else {
            table.add_row([topic.to_owned(), partition.to_string(), offset.to_string()]);
        }
    }
    if !global.json {
        output::print_table(&table)?;
    }
    Ok(Outcome::Done)
}
