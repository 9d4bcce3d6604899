//! A dispatcher by hand: one task per partition over a consumer and its events. What `partitioned()` does for you, less
//! keys, retries, budgets, reports and a policy for failures.
//!
//! Run with `cargo run --example dispatcher -p tramline`. Carries its own broker; nothing is left behind.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tramline::client::{ConsumeError, Event, Fetched, OffsetAndMetadata};
use tramline::prelude::*;

/// One partition's task and its queue. Dropping it cancels the handler at its next await.
struct Worker {
    queue: mpsc::UnboundedSender<Fetched>,
    task: AbortOnDropHandle<()>,
}

type Workers = HashMap<TopicPartition, Worker>;

impl Worker {
    fn start<F: Future<Output = ()> + Send>(
        consumer: Arc<Consumer>,
        handle: impl Fn(Record) -> F + Send + Sync + 'static,
    ) -> Self {
        let (queue, mut batches) = mpsc::unbounded_channel::<Fetched>();
        let task = tokio::spawn(async move {
            while let Some(batch) = batches.recv().await {
                // One batch in hand, one in the queue: that is all that a slow handler keeps in memory.
                consumer.resume([&batch.topic_partition]);
                for record in batch.records {
                    handle(record).await;
                }
                // Only now, and only while it is still the assignment in which the batch was read.
                let done = OffsetAndMetadata::new(batch.next_offset)
                    .leader_epoch(Some(batch.leader_epoch))
                    .assigned_in(batch.generation);
                if let Err(error) = consumer.commit([(batch.topic_partition, done)]).await {
                    eprintln!("these records will come again: {error}");
                }
            }
        });
        Self { queue, task: AbortOnDropHandle::new(task) }
    }
}

/// Lets these finish what they have, all at once, and no longer than until `deadline`.
async fn drain(workers: Vec<Worker>, deadline: tokio::time::Instant) {
    let draining = workers.into_iter().map(|worker| {
        drop(worker.queue);
        worker.task
    });
    let mut draining: JoinSet<_> = draining.collect();
    while let Ok(Some(_)) = timeout_at(deadline, draining.join_next()).await {}
}

/// Hands every record to `handle`, in order per partition, side by side over partitions, until `stop`.
pub async fn dispatch<F: Future<Output = ()> + Send>(
    consumer: Arc<Consumer>,
    handle: impl Fn(Record) -> F + Clone + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<(), ConsumeError> {
    let (mut events, mut workers, mut revoking) = (consumer.events(), Workers::new(), JoinSet::new());
    let mut learn = |event: Event, workers: &mut Workers| match event {
        Event::Assigned { partitions, .. } => {
            let start = |tp| (tp, Worker::start(Arc::clone(&consumer), handle.clone()));
            workers.extend(partitions.into_iter().map(start));
        }
        // Ours until the token is dropped, so it goes along. Everything else goes on meanwhile.
        Event::Revoked(revocation) => {
            let revoked = revocation.partitions().iter().filter_map(|tp| workers.remove(tp)).collect();
            revoking.spawn(async move {
                drain(revoked, revocation.deadline()).await;
                revocation.acknowledge();
            });
        }
        // Somebody else may have them already: cancelled, and never committed.
        Event::Lost { partitions, .. } => workers.retain(|tp, _| !partitions.contains(tp)),
        _ => {}
    };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(event) = events.next() => learn(event, &mut workers),
            batch = consumer.next_batch() => {
                // What was assigned, or taken away, before this batch must be known before it.
                while let Some(event) = events.try_next() {
                    learn(event, &mut workers);
                }
                let batch = batch?;
                if let Some(worker) = workers.get(&batch.topic_partition) {
                    consumer.pause([&batch.topic_partition]);
                    // A worker that has ended has panicked; its records come again after a restart.
                    worker.queue.send(batch).ok();
                }
            }
        }
    }
    drain(workers.into_values().collect(), tokio::time::Instant::now() + Duration::from_secs(30)).await;
    while revoking.join_next().await.is_some() {}
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let broker = Broker::builder(data.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    Admin::new(config.clone()).create_topics([NewTopic::new("orders", 3)]).await?;
    let producer = Producer::new(config.clone(), ProducerConfig::new()).await?;
    for number in 0..30 {
        producer.send(ProducerRecord::to("orders").value(format!("order {number}"))).await?.await?;
    }
    producer.close().await?;

    let builder = Consumer::builder(config).group("kitchen").subscribe(["orders"]);
    let consumer = Arc::new(builder.offset_reset(OffsetReset::Earliest).build().await?);
    let stop = CancellationToken::new();
    let (done, mut seen) = mpsc::unbounded_channel();
    let handle = move |record: Record| {
        let done = done.clone();
        async move { drop(done.send(format!("{} {}", record.topic_partition(), record.offset()))) }
    };
    let running = tokio::spawn(dispatch(Arc::clone(&consumer), handle, stop.clone()));
    for _ in 0..30 {
        println!("{}", seen.recv().await.unwrap_or_default());
    }
    stop.cancel();
    running.await??;
    consumer.close().await;
    broker.shutdown().await?;
    Ok(())
}
