//! `tramline consume`: records of a topic as lines, alone from a place or in a group from its commit.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Stdout, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tramline::client::{
    Admin, Assignor, ConsumeError, Consumer, Event, Events, Fetched, OffsetAndMetadata, OffsetReset,
    StartOffset,
};
use tramline::wire::{Record, TopicPartition};

use crate::args::{Consume, From, Global};
use crate::stop::Stop;
use crate::{Outcome, cluster, output};

/// How often a group's offsets are committed while records flow.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the end is looked for while no record comes.
const END_INTERVAL: Duration = Duration::from_millis(50);

/// Prints records until the end asked for, a stop, or a failure.
pub async fn run(args: Consume, global: &Global, stop: Stop) -> Result<Outcome> {
    let consumer = stop.or(open(&args, global)).await?;
    let events = args.group.is_some().then(|| consumer.events());
    let mut reading =
        Reading { printer: Printer::new(&args, global.json), ends: None, done: BTreeMap::new(), args };
    let outcome = reading.read(&consumer, events, stop).await;
    // What was printed is printed, whatever ended the reading: commit it before the error goes on.
    let committed = reading.commit(&consumer).await;
    consumer.close().await;
    outcome?;
    committed?;
    Ok(Outcome::Done)
}

async fn open(args: &Consume, global: &Global) -> Result<Consumer> {
    let what = || format!("cannot read {} at {}", args.topic, global.brokers());
    if args.group.is_some() {
        // A member would wait for the topic to appear, which looks like a hang to whoever mistyped its name.
        Admin::new(cluster::config(global)).describe_topic(&*args.topic).await.with_context(what)?;
    }
    let builder = Consumer::builder(cluster::config(global));
    let builder = match (&args.group, args.from) {
        (None, From::Start) => builder.assign_topic(&*args.topic, StartOffset::Earliest),
        (None, From::End) => builder.assign_topic(&*args.topic, StartOffset::Latest),
        (None, From::Offset(offset)) => builder.assign_topic(&*args.topic, StartOffset::At(offset)),
        (Some(group), from) => {
            let reset = match from {
                From::Start => OffsetReset::Earliest,
                From::End => OffsetReset::Latest,
                From::Offset(_) => bail!(
                    "a group begins at its commit; set that first: tramline group reset {group} --topic {} --to OFFSET",
                    args.topic
                ),
            };
            // The assignor every Kafka client knows, so that one group may hold kcat, a Java program and this command.
            let assignors = [Assignor::Range];
            builder.group(&**group).subscribe([&*args.topic]).assignors(assignors).offset_reset(reset)
        }
    };
    builder.build().await.with_context(what)
}

struct Reading {
    args: Consume,
    printer: Printer,
    /// With `-e`: the ends seen when the partitions became ours. `None` until then.
    ends: Option<BTreeMap<TopicPartition, i64>>,
    /// What was printed and not committed yet.
    done: BTreeMap<TopicPartition, OffsetAndMetadata>,
}

impl Reading {
    async fn read(&mut self, consumer: &Consumer, mut events: Option<Events>, stop: Stop) -> Result<()> {
        if events.is_none() {
            self.note_ends(consumer, &consumer.assignment()).await?;
        }
        let mut commit = interval(COMMIT_INTERVAL);
        commit.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut end = interval(END_INTERVAL);
        end.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_finished(consumer) {
            tokio::select! {
                biased;
                () = stop.asked() => break,
                event = next_event(&mut events) => self.handle(consumer, event).await?,
                batch = consumer.next_batch() => self.print(consumer, &batch.map_err(explain)?)?,
                _ = commit.tick(), if events.is_some() => self.commit(consumer).await?,
                _ = end.tick(), if self.args.end => {}
            }
        }
        Ok(())
    }

    fn is_finished(&self, consumer: &Consumer) -> bool {
        if self.args.count.is_some_and(|count| self.printer.printed >= count) {
            return true;
        }
        let Some(ends) = &self.ends else { return false };
        let reached = |(place, end): (&TopicPartition, &i64)| {
            consumer.position(place).is_some_and(|position| position >= *end)
        };
        self.args.end && ends.iter().all(reached)
    }

    async fn handle(&mut self, consumer: &Consumer, event: Option<Event>) -> Result<()> {
        match event {
            Some(Event::Assigned { partitions, .. }) => self.note_ends(consumer, &partitions).await?,
            Some(Event::Revoked(revocation)) => {
                self.commit(consumer).await?;
                self.forget(revocation.partitions());
                // All are given up at the start of a rebalance: what is ours, and where it ends, is told by the next one.
                self.ends.take_if(|ends| ends.is_empty());
            }
            Some(Event::Lost { partitions, .. }) => self.forget(&partitions),
            Some(Event::PositionReset { topic_partition, to, from: Some(from), .. }) => {
                output::note(format_args!(
                    "offset {from} of {topic_partition} is not in the log any more: going on at {to}"
                ));
            }
            _ => {}
        }
        Ok(())
    }

    async fn note_ends(&mut self, consumer: &Consumer, partitions: &[TopicPartition]) -> Result<()> {
        let ends = if self.args.end { consumer.end_offsets(partitions).await? } else { BTreeMap::new() };
        self.ends.get_or_insert_default().extend(ends);
        // A partition that came back has a new end, and may have been at rest at the old one.
        consumer.resume(partitions);
        if let (None, From::Offset(offset)) = (&self.args.group, self.args.from) {
            for place in partitions {
                self.rest(consumer, place, offset);
            }
        }
        Ok(())
    }

    /// Fetches nothing more from a partition whose end is reached: with `-e` what came later is not asked for, and a
    /// place behind the end is no fault.
    fn rest(&self, consumer: &Consumer, place: &TopicPartition, next: i64) {
        if self.end_of(place).is_some_and(|end| next >= end) {
            consumer.pause([place]);
        }
    }

    fn end_of(&self, place: &TopicPartition) -> Option<i64> {
        self.ends.as_ref()?.get(place).copied()
    }

    fn forget(&mut self, partitions: &[TopicPartition]) {
        for place in partitions {
            self.done.remove(place);
            if let Some(ends) = &mut self.ends {
                ends.remove(place);
            }
        }
    }

    fn print(&mut self, consumer: &Consumer, batch: &Fetched) -> Result<()> {
        let end = self.end_of(&batch.topic_partition).unwrap_or(i64::MAX);
        let mut next = OffsetAndMetadata::new(batch.next_offset).leader_epoch(Some(batch.leader_epoch));
        for record in &batch.records {
            if record.offset() >= end {
                next = OffsetAndMetadata::new(record.offset()).leader_epoch(Some(batch.leader_epoch));
                break;
            }
            self.printer.print(record)?;
            if self.args.count.is_some_and(|count| self.printer.printed >= count) {
                next = OffsetAndMetadata::after(record);
                break;
            }
        }
        self.printer.out.flush()?;
        self.rest(consumer, &batch.topic_partition, batch.next_offset);
        if self.args.group.is_some() {
            self.done.insert(batch.topic_partition.clone(), next.assigned_in(batch.generation));
        }
        Ok(())
    }

    async fn commit(&mut self, consumer: &Consumer) -> Result<()> {
        if self.done.is_empty() {
            return Ok(());
        }
        let done = std::mem::take(&mut self.done);
        consumer
            .commit(done)
            .await
            .context("what was printed could not be committed; it will be printed again")
    }
}

async fn next_event(events: &mut Option<Events>) -> Option<Event> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

fn explain(error: ConsumeError) -> anyhow::Error {
    anyhow::Error::new(error).context("reading stopped")
}

struct Printer {
    out: BufWriter<Stdout>,
    json: bool,
    separator: Option<String>,
    printed: u64,
}

impl Printer {
    fn new(args: &Consume, json: bool) -> Self {
        Self { out: BufWriter::new(io::stdout()), json, separator: args.key_separator.clone(), printed: 0 }
    }

    fn print(&mut self, record: &Record) -> Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.out, &Line::of(record))?;
        } else {
            if let Some(separator) = &self.separator {
                self.out.write_all(record.key().unwrap_or_default())?;
                self.out.write_all(separator.as_bytes())?;
            }
            self.out.write_all(record.value().unwrap_or_default())?;
        }
        self.out.write_all(b"\n")?;
        self.printed += 1;
        Ok(())
    }
}

/// A record as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    timestamp: i64,
    key: Option<Text<'a>>,
    value: Option<Text<'a>>,
    headers: Vec<Header<'a>>,
}

#[derive(Serialize)]
struct Header<'a> {
    key: &'a str,
    value: Option<Text<'a>>,
}

/// Text as a string, other bytes as base64.
#[derive(Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(&'a str),
    Bytes { base64: String },
}

impl<'a> Text<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Utf8(text),
            Err(_) => Self::Bytes { base64: BASE64.encode(bytes) },
        }
    }
}

impl<'a> Line<'a> {
    fn of(record: &'a Record) -> Self {
        Self {
            topic: record.topic(),
            partition: record.partition(),
            offset: record.offset(),
            timestamp: record.timestamp(),
            key: record.key().map(Text::of),
            value: record.value().map(Text::of),
            headers: record
                .headers()
                .map(|(key, value)| Header { key, value: value.map(Text::of) })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tramline::wire::Str;

    use super::*;

    #[test]
    fn bytes_that_are_not_text_are_base64_and_nothing_is_null() {
        let headers = vec![(Str::from("a"), Some(Bytes::from_static(b"1"))), (Str::from("a"), None)];
        let value = Bytes::from_static(&[0xff, 0x00]);
        let record = Record::from_parts(TopicPartition::new("t", 3), 7, 1234, None, Some(value), headers);
        assert_eq!(
            serde_json::to_string(&Line::of(&record)).unwrap(),
            r#"{"topic":"t","partition":3,"offset":7,"timestamp":1234,"key":null,"value":{"base64":"/wA="},"headers":[{"key":"a","value":"1"},{"key":"a","value":null}]}"#
        );
    }
}
