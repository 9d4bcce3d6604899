//! Records of one partition side by side, in order per key, with retries and dead letters.
//!
//! Run with `cargo run --example key_order -p tramline`. Carries its own broker; nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use tramline::prelude::*;
use tramline::processor::{Backoff, DeadLetterTopic, ErrorPolicy, Ordering, Retry};

const ORDERS: usize = 40;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let broker = Broker::builder(data.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    let topics = [NewTopic::new("orders", 1), NewTopic::new("orders-failed", 1)];
    Admin::new(config.clone()).create_topics(topics).await?;
    let producer = Arc::new(Producer::new(config.clone(), ProducerConfig::new()).await?);
    for number in 0..ORDERS {
        let customer = ["ann", "bob", "cem", "dee"][number % 4];
        let order = ProducerRecord::to("orders").key(customer).value(format!("order {number}"));
        producer.send(order).await?.await?;
    }

    let consumer = Consumer::builder(config)
        .group("kitchen")
        .subscribe(["orders"])
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    // Twice more, then aside: one bad order holds up its own customer for a moment, and nobody else.
    let retry = Retry::new(3, Backoff::new(Duration::from_millis(50), Duration::from_secs(1)));
    let aside = DeadLetterTopic::new(Arc::clone(&producer), "orders-failed");
    let run = consumer
        .partitioned()
        .ordering(Ordering::Key)
        .max_concurrent_handlers(4)
        .on_error(retry.then(ErrorPolicy::dead_letter(aside)))
        .build()?;
    let monitor = run.monitor();
    let all_done = async move {
        let done = |lane: &tramline::processor::LaneSnapshot| lane.completed >= ORDERS as u64;
        while !monitor.snapshot().iter().any(done) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (result, consumer) = run
        .for_each(all_done, |order: Record, _: Lane| async move {
            let text = String::from_utf8_lossy(order.value().unwrap_or_default()).into_owned();
            if text == "order 13" {
                return Err("no such dish");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            println!("{:>4} {text}", String::from_utf8_lossy(order.key().unwrap_or_default()));
            Ok(())
        })
        .await;
    consumer.close().await;
    let report = result?;
    println!(
        "{} done, {} retries, {} put aside",
        report.records_completed, report.retries, report.records_dead_lettered
    );
    broker.shutdown().await?;
    Ok(())
}
