//! Many records for one call of a handler: one write to a store for all that is queued.
//!
//! Run with `cargo run --example batches -p tramline`. Carries its own broker; nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tramline::prelude::*;
use tramline::processor::Batch;

const READINGS: usize = 10_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let broker = Broker::builder(data.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    Admin::new(config.clone()).create_topics([NewTopic::new("readings", 4)]).await?;
    let producer = Producer::new(config.clone(), ProducerConfig::new()).await?;
    for number in 0..READINGS {
        let reading = ProducerRecord::to("readings").key(format!("sensor {}", number % 100)).value("21.5");
        // The delivery may be waited for later; close() waits for all.
        drop(producer.send(reading).await?);
    }
    producer.close().await?;

    let consumer = Consumer::builder(config)
        .group("store")
        .subscribe(["readings"])
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    let (stored, writes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, counted) = (Arc::clone(&stored), Arc::clone(&writes));
    let all_done = async move {
        while seen.load(Ordering::Relaxed) < READINGS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (result, consumer) = consumer
        .partitioned()
        .max_buffered_records(2000)
        .max_handler_batch_size(500)
        .build()?
        .for_each_batch(all_done, move |batch: Batch, _: Lane| {
            let (stored, writes) = (Arc::clone(&stored), Arc::clone(&counted));
            async move {
                // One round trip to a store, however many records there are. All of them are done, or none.
                tokio::time::sleep(Duration::from_millis(5)).await;
                writes.fetch_add(1, Ordering::Relaxed);
                stored.fetch_add(batch.len(), Ordering::Relaxed);
                Ok::<(), std::io::Error>(())
            }
        })
        .await;
    consumer.close().await;
    println!("{} records in {} writes", result?.records_completed, writes.load(Ordering::Relaxed));
    broker.shutdown().await?;
    Ok(())
}
