//! Orders as numbers, decoded inside their lanes; what cannot be handled parks its key until somebody decides.
//!
//! Run with `cargo run --example parked_keys -p tramline`. Carries its own broker; nothing is left behind.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tramline::prelude::*;
use tramline::processor::{BoxError, DeadLetterTopic, Ordering, ParkedKey, ParkedKeys};

const ORDERS: [(&str, &str); 7] =
    [("ann", "3"), ("bob", "seven"), ("bob", "2"), ("cem", "0"), ("cem", "4"), ("ann", "1"), ("dee", "5")];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let broker = Broker::builder(data.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    let topics = [NewTopic::new("orders", 1), NewTopic::new("orders-failed", 1)];
    Admin::new(config.clone()).create_topics(topics).await?;
    let producer = Arc::new(Producer::new(config.clone(), ProducerConfig::new()).await?);
    for (customer, plates) in ORDERS {
        producer.send(ProducerRecord::to("orders").key(customer).value(plates)).await?.await?;
    }

    let consumer = Consumer::builder(config)
        .group("kitchen")
        .subscribe(["orders"])
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    let run = consumer
        .partitioned()
        .ordering(Ordering::Key)
        .max_concurrent_handlers(4)
        .on_error(Park::new().max_keys(10))
        .decode(plates)
        .build()?;
    let (parked, stop) = (run.parked(), CancellationToken::new());
    let (served, mut orders) = mpsc::unbounded_channel();
    let cook = move |Decoded { record, value: plates }: Decoded<u32>, _: Lane| {
        let served = served.clone();
        async move {
            if plates == 0 {
                return Err("nothing was ordered");
            }
            let customer = String::from_utf8_lossy(record.key().unwrap_or_default()).into_owned();
            println!("{customer}: {plates}");
            served.send(record.offset()).map_err(|_| "nobody waits")
        }
    };
    let kitchen = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), cook));
    // Three orders have nothing before them that fails.
    for _ in 0..3 {
        orders.recv().await;
    }
    // What a person would decide on a page that shows them: bob's order becomes a dead letter, cem's is skipped.
    for ParkedKey { id, error, waiting, .. } in two_parked(&parked).await {
        println!("parked at {}: {error}; {waiting} wait behind", id.offset);
        if error.starts_with("cannot be decoded") {
            parked.dead_letter(&id, DeadLetterTopic::new(Arc::clone(&producer), "orders-failed")).await?;
        } else {
            parked.skip(&id).await?;
        }
    }
    for _ in 0..2 {
        orders.recv().await;
    }
    stop.cancel();
    let (result, consumer) = kitchen.await?;
    consumer.close().await;
    let report = result?;
    println!(
        "{} completed, {} of them skipped and {} written aside",
        report.records_completed, report.records_skipped, report.records_dead_lettered
    );
    broker.shutdown().await?;
    Ok(())
}

fn plates(record: &Record) -> Result<u32, BoxError> {
    Ok(std::str::from_utf8(record.value().unwrap_or_default())?.parse()?)
}

async fn two_parked(parked: &ParkedKeys) -> Vec<ParkedKey> {
    loop {
        let list = parked.list();
        if list.len() == 2 {
            return list;
        }
        tokio::task::yield_now().await;
    }
}
