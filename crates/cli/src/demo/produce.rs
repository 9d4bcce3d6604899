//! Sends the events, never too far ahead of the members, and keeps every acknowledgement.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tramline::client::{Delivery, Producer, ProducerRecord};

use super::follow::Follow;
use super::input::Event;
use super::verify::Ack;

/// How far production may go: never more than `window` events ahead of the results, and not past `hold` events until
/// the hold is lifted, so that the kill meets a run that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub window: u64,
    pub hold: u64,
}

/// What the producer has been told so far.
#[derive(Debug, Default)]
pub struct Acked(Mutex<Vec<Ack>>);

impl Acked {
    /// How many events were acknowledged.
    pub fn count(&self) -> u64 {
        self.lock().len() as u64
    }

    /// Every acknowledgement so far.
    pub fn all(&self) -> Vec<Ack> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Ack>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends every event and waits for every acknowledgement.
pub async fn run(
    producer: &Producer,
    topic: &str,
    events: &[Event],
    follow: &Follow,
    pace: Pace,
    released: watch::Receiver<bool>,
    acked: Arc<Acked>,
) -> Result<()> {
    let (open, deliveries) = mpsc::channel(16_384);
    let collector = collect(deliveries, acked);
    for event in events {
        if event.row > pace.hold {
            let mut released = released.clone();
            released.wait_for(|released| *released).await.context("the run ended before its kill")?;
        }
        if event.row > pace.window && !follow.reaches(event.row - pace.window).await {
            bail!("the results cannot be followed any more");
        }
        let record = ProducerRecord::to(topic)
            .key(event.key.clone())
            .value(event.value.clone())
            .header("row", event.row.to_string());
        let delivery = producer.send(record).await?;
        if open.send((event.row, delivery)).await.is_err() {
            break;
        }
    }
    drop(open);
    collector.await.context("the collector of acknowledgements failed")?
}

fn collect(mut deliveries: mpsc::Receiver<(u64, Delivery)>, acked: Arc<Acked>) -> JoinHandle<Result<()>> {
    tokio::spawn(async move {
        while let Some((row, delivery)) = deliveries.recv().await {
            let written = delivery.await.with_context(|| format!("row {row} was not stored"))?;
            let offset = written.offset.context("a forced acknowledgement without an offset")?;
            acked.lock().push(Ack { row, partition: written.topic_partition.partition, offset });
        }
        Ok(())
    })
}
