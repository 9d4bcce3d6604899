//! One member of the demo's group: folds flights per aircraft, lane by lane, and writes each result before the record is done.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tramline::client::{
    ClientConfig, Consumer, Delivery, OffsetReset, Producer, ProducerConfig, ProducerRecord,
};
use tramline::processor::{CommitPolicy, Delivered, LaneStream, PartitionedExt, StopPolicy};
use tramline::wire::{Record, TopicPartition};

use super::fold::{Done, Folds};
use super::replay;
use crate::args::{DemoMember, Global};
use crate::stop::Stop;
use crate::{Outcome, cluster};

/// Results of one lane that may be on their way at once.
const OPEN: usize = 64;

/// Runs until stdin ends or a stop is asked for.
pub async fn run(args: DemoMember, global: &Global, stop: Stop) -> Result<Outcome> {
    stop.at_end_of_stdin();
    let config = cluster::config(global);
    let producer = Producer::new(config.clone(), ProducerConfig::new()).await?;
    let consumer = Consumer::builder(config.clone())
        .group(args.group.as_str())
        .subscribe([args.source.as_str()])
        .session_timeout(Duration::from_secs(6))
        .heartbeat_interval(Duration::from_millis(500))
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    let run = consumer
        .partitioned()
        .commit(CommitPolicy::Periodic(Duration::from_secs(1)))
        .stop(StopPolicy::Drain, Duration::from_secs(20))
        .build_lanes()
        .map_err(|error| anyhow!("{error}"))?;
    let member = Arc::new(Member { name: args.name, results: args.results, config, producer });
    let (result, consumer) = run
        .lanes(stop.token().cancelled_owned(), {
            let member = Arc::clone(&member);
            move |lane| {
                let member = Arc::clone(&member);
                async move { member.fold(lane).await.map_err(Failure) }
            }
        })
        .await;
    consumer.close().await;
    result?;
    if let Ok(member) = Arc::try_unwrap(member) {
        member.producer.close().await?;
    }
    Ok(Outcome::Done)
}

/// A failure of a lane with its causes in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct Failure(anyhow::Error);

struct Member {
    name: String,
    results: String,
    config: ClientConfig,
    producer: Producer,
}

impl Member {
    async fn fold(&self, mut lane: LaneStream) -> Result<()> {
        let Some(first) = lane.next().await else { return Ok(()) };
        let mut folds = self.restored(first.record()).await?;
        let mut open = VecDeque::from([(self.send(&mut folds, &first, lane.generation()).await?, first)]);
        let mut ended = false;
        loop {
            tokio::select! {
                biased;
                written = front(&mut open), if !open.is_empty() => {
                    written?;
                    if let Some((_, record)) = open.pop_front() {
                        record.done();
                    }
                }
                next = lane.next(), if !ended && open.len() < OPEN => match next {
                    Some(record) => {
                        let delivery = self.send(&mut folds, &record, lane.generation()).await?;
                        open.push_back((delivery, record));
                    }
                    None => ended = true,
                },
                else => return Ok(()),
            }
        }
    }

    /// The folds as they stood before this record, out of the results that earlier owners of the partition wrote.
    async fn restored(&self, first: &Record) -> Result<Folds> {
        let place = TopicPartition::new(self.results.as_str(), first.partition());
        let mut folds = Folds::default();
        replay::partition(&self.config, &place, |record| {
            folds.restore(&replay::done(record)?, first.offset());
            Ok(())
        })
        .await
        .with_context(|| format!("cannot restore the folds from {place}"))?;
        Ok(folds)
    }

    async fn send(&self, folds: &mut Folds, record: &Delivered, generation: i32) -> Result<Delivery> {
        let key = String::from_utf8_lossy(record.key().unwrap_or_default()).into_owned();
        let totals = folds.add(&key, record.offset(), record.value().unwrap_or_default())?;
        let done = Done {
            member: self.name.clone(),
            generation,
            partition: record.partition(),
            offset: record.offset(),
            row: replay::row(record).context("an event has no row number")?,
            key,
            totals,
        };
        let result = ProducerRecord::to(self.results.as_str())
            .partition(record.partition())
            .key(done.key.clone())
            .value(serde_json::to_vec(&done)?);
        Ok(self.producer.send(result).await?)
    }
}

/// Waits for the oldest result to be written. Cancel safe: a delivery stays where it is.
async fn front(open: &mut VecDeque<(Delivery, Delivered)>) -> Result<()> {
    poll_fn(|cx| match open.front_mut() {
        Some((delivery, _)) => {
            Pin::new(delivery).poll(cx).map(|written| written.map(drop).map_err(Into::into))
        }
        None => std::task::Poll::Pending,
    })
    .await
}
