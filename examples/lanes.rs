//! A long-lived processor for each partition: state without locks, several records on their way at once, own commits.
//!
//! Run with `cargo run --example lanes -p tramline`. Carries its own broker; nothing is left behind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tramline::prelude::*;

const TRIPS: usize = 300;
static DONE: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let broker = Broker::builder(data.path()).listen("127.0.0.1:0").start().await?;
    let config = ClientConfig::new(broker.local_addr().to_string());
    Admin::new(config.clone()).create_topics([NewTopic::new("trips", 3)]).await?;
    let producer = Producer::new(config.clone(), ProducerConfig::new()).await?;
    for number in 0..TRIPS {
        let trip =
            ProducerRecord::to("trips").key(format!("tram {}", number % 7)).value(format!("{}", number % 10));
        // The delivery may be waited for later; close() waits for all.
        drop(producer.send(trip).await?);
    }
    producer.close().await?;

    let consumer = Consumer::builder(config.clone())
        .group("distances")
        .subscribe(["trips"])
        .offset_reset(OffsetReset::Earliest)
        .build()
        .await?;
    let all_done = async {
        while DONE.load(Ordering::Relaxed) < TRIPS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // UserManaged: nothing is committed but by `lane.commit()` below.
    let run = consumer.partitioned().commit(CommitPolicy::UserManaged).build_lanes()?;
    let (result, consumer) = run.lanes(all_done, drive).await;
    consumer.close().await;
    let report = result?;
    assert_eq!(report.records_completed, TRIPS as u64);
    let committed: i64 =
        Admin::new(config).group_offsets("distances").await?.values().map(|at| at.offset).sum();
    assert_eq!(committed, TRIPS as i64);
    println!(
        "{} trips in {} lanes, {} commits",
        report.records_completed, report.lanes_started, report.commits
    );
    broker.shutdown().await?;
    Ok(())
}

/// The whole life of one partition's records while they are ours.
async fn drive(mut lane: LaneStream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Belongs to this lane alone, and only it is told of these keys.
    let mut distance: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut since_commit = 0;
    while let Some(trip) = lane.next().await {
        let km: u64 = std::str::from_utf8(trip.value().unwrap_or_default())?.parse()?;
        *distance.entry(trip.key().unwrap_or_default().to_vec()).or_default() += km;
        trip.done();
        DONE.fetch_add(1, Ordering::Relaxed);
        since_commit += 1;
        if since_commit == 50 {
            lane.commit().await?;
            since_commit = 0;
        }
    }
    // The partition goes to somebody else, or the run ends: what was done is committed while it is ours.
    lane.commit().await?;
    println!("{}: {} trams, frontier {:?}", lane.topic_partition(), distance.len(), lane.frontier());
    Ok(())
}
