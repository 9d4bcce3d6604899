//! Broker, producer and ordered lanes in one process: nothing to install, nothing to start first.
//!
//! `cargo run --example embedded -p tramline`, and in another terminal, while it runs:
//! `tramline consume orders -b 127.0.0.1:9092`, or any Kafka tool.

use std::time::Duration;

use tramline::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let broker = Broker::builder(folder.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    Admin::new(config.clone()).create_topics([NewTopic::new("orders", 3)]).await?;

    let producer = Producer::new(config.clone(), ProducerConfig::new()).await?;
    for (customer, order) in
        [("ann", "tea"), ("bob", "cake"), ("ann", "milk"), ("cid", "rice"), ("bob", "jam")]
    {
        // The first await is for room in the buffer, the second for the disk barrier.
        producer.send(ProducerRecord::to("orders").key(customer).value(order)).await?.await?;
    }
    producer.close().await?;

    let consumer = Consumer::builder(config)
        .group("kitchen")
        .subscribe(["orders"])
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    // Stops by itself after a moment; a service would pass `tokio::signal::ctrl_c()`.
    let shutdown = tokio::time::sleep(Duration::from_secs(2));
    let (result, consumer) = consumer
        .partitioned()
        .build()?
        .for_each(shutdown, |record: Record, lane: Lane| async move {
            let (customer, order) = (record.key().unwrap_or_default(), record.value().unwrap_or_default());
            println!(
                "{} offset {}: {} orders {}",
                lane.topic_partition(),
                record.offset(),
                String::from_utf8_lossy(customer),
                String::from_utf8_lossy(order)
            );
            Ok::<(), std::io::Error>(())
        })
        .await;
    println!("{} records done, offsets committed", result?.records_completed);
    consumer.close().await;
    broker.shutdown().await?;
    Ok(())
}
