//! What the programs do to a broker: produce with every record awaited, and take the figures of any workload.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;
use tramline_client::{Admin, ClientConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, Str};

use crate::sample::Sample;
use crate::served::{Served, cpu_seconds};

/// A broker and how to reach it.
#[derive(Debug)]
pub struct Client {
    broker: Served,
    admin: Admin,
}

impl Client {
    /// A client of this broker.
    #[must_use]
    pub fn new(broker: Served) -> Self {
        let admin = Admin::new(ClientConfig::new(broker.address()));
        Self { broker, admin }
    }

    /// How to reach the broker.
    #[must_use]
    pub fn config(&self) -> ClientConfig {
        ClientConfig::new(self.broker.address())
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn create(&self, topic: &Str, partitions: i32) -> Result<()> {
        for (name, outcome) in self.admin.create_topics([NewTopic::new(topic.clone(), partitions)]).await? {
            ensure!(outcome.is_ok(), "{name}: {outcome:?}");
        }
        Ok(())
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn delete(&self, topic: &Str) -> Result<()> {
        for (name, outcome) in self.admin.delete_topics([topic.clone()]).await? {
            ensure!(outcome.is_ok(), "{name}: {outcome:?}");
        }
        Ok(())
    }

    /// A producer of its own connections.
    ///
    /// # Errors
    /// It does not start.
    pub async fn producer(&self, config: &ProducerConfig) -> Result<Arc<Producer>> {
        Ok(Arc::new(Producer::new(self.config(), config.clone()).await?))
    }

    /// Runs a workload that says how many records it handled, and how long each took where it knows.
    ///
    /// # Errors
    /// The workload fails, or the broker is gone.
    pub async fn measure<F>(&mut self, workload: F) -> Result<Sample>
    where
        F: Future<Output = Result<(u64, Vec<Duration>)>>,
    {
        let counted = self.broker.counters()?;
        let cpu = |broker: &Served| (cpu_seconds(std::process::id()), cpu_seconds(broker.pid()));
        let before = cpu(&self.broker);
        let start = Instant::now();
        let (records, latencies) = workload.await?;
        let wall = start.elapsed();
        let after = cpu(&self.broker);
        Ok(Sample {
            records,
            wall,
            client_cpu: after.0 - before.0,
            broker_cpu: after.1 - before.1,
            counted: self.broker.counters()? - counted,
            latencies,
        })
    }
}

/// `tasks` tasks send a record, wait for it to be acknowledged, and send the next, for `time`; they share the producers.
///
/// # Errors
/// A record fails.
pub async fn awaited(
    producers: &[Arc<Producer>],
    tasks: usize,
    topic: &Str,
    value: &Bytes,
    time: Duration,
) -> Result<(u64, Vec<Duration>)> {
    let mut running = JoinSet::new();
    let until = Instant::now() + time;
    for producer in producers.iter().cycle().take(tasks) {
        let (producer, topic, value) = (Arc::clone(producer), topic.clone(), value.clone());
        running.spawn(async move {
            let mut latencies = Vec::new();
            let mut start = Instant::now();
            while start < until {
                let record = ProducerRecord::to(topic.clone()).value(value.clone());
                producer.send(record).await?.await?;
                let end = Instant::now();
                latencies.push(end - start);
                start = end;
            }
            anyhow::Ok(latencies)
        });
    }
    let mut all = Vec::new();
    while let Some(latencies) = running.join_next().await {
        all.extend(latencies??);
    }
    Ok((all.len() as u64, all))
}
