//! What is too old or too much goes, whole segments at a time, and readers learn of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod hand;
}

use std::time::Duration;

use common::hand::Hand;
use common::{Stage, batch, batch_at, create_topics, fetch, now, only_partition, only_row, produce, values};
use tramline_broker::BrokerConfig;
use tramline_log::storage::MemoryStorage;
use tramline_wire::{Compression, ErrorCode};

const OUT_OF_RANGE: i16 = 1;
const HOUR: i64 = 3_600_000;

fn create(hand: &Hand, configs: &[(&str, &str)]) {
    let response = hand.call(7, create_topics("t", 1, configs)).unwrap();
    assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
}

fn send(hand: &Hand, acks: i16, timestamp: i64, text: &str) {
    let records = batch_at(&[&text.repeat(500)], timestamp, Compression::None);
    let row = only_row(&hand.call(9, produce("t", 0, acks, records)).unwrap());
    assert_eq!(row.error_code, 0);
}

/// The log start, as a fetch of everything gives it.
fn start_and_count(hand: &Hand) -> (i64, usize) {
    let row = only_partition(&hand.call(12, fetch("t", 0, 0, 0, 1)).unwrap());
    if row.error_code == OUT_OF_RANGE {
        let response = hand.call(7, common::list_offsets("t", 0, -2)).unwrap();
        let start = response.topics[0].partitions[0].offset;
        let row = only_partition(&hand.call(12, fetch("t", 0, start, 0, 1)).unwrap());
        return (start, values(row.records.unwrap()).len());
    }
    assert_eq!(ErrorCode::from(row.error_code).code(), 0);
    (row.log_start_offset, values(row.records.unwrap()).len())
}

fn maintain(hand: &Hand) {
    // The first turn forces and seals, the second removes what is durable by then.
    for _ in 0..2 {
        hand.0.maintain();
        hand.0.settle();
    }
}

#[test]
fn retention_by_size_keeps_the_newest_segments() {
    let hand = Hand::open(MemoryStorage::new().shared(), BrokerConfig::new()).unwrap();
    create(&hand, &[("segment.bytes", "4096"), ("retention.bytes", "8192")]);
    for _ in 0..40 {
        send(&hand, -1, now(), "x");
    }
    assert_eq!(start_and_count(&hand), (0, 40));
    maintain(&hand);
    let (start, count) = start_and_count(&hand);
    assert!(start > 20, "{start}");
    assert_eq!(start + i64::try_from(count).unwrap(), 40);
}

#[test]
fn retention_by_age_takes_the_records_own_time_and_the_default_of_the_broker() {
    let config = BrokerConfig::new().retention(Some(Duration::from_hours(2)));
    let hand = Hand::open(MemoryStorage::new().shared(), config).unwrap();
    create(&hand, &[("segment.bytes", "4096")]);
    for n in 0..20 {
        send(&hand, -1, if n < 14 { now() - 3 * HOUR } else { now() - HOUR }, "x");
    }
    maintain(&hand);
    let (start, count) = start_and_count(&hand);
    assert!((1..=14).contains(&start), "{start}");
    assert_eq!(start + i64::try_from(count).unwrap(), 20);
}

#[test]
fn compacted_topics_and_records_without_a_time_are_not_removed() {
    let hand = Hand::open(MemoryStorage::new().shared(), BrokerConfig::new()).unwrap();
    create(&hand, &[("retention.ms", "1")]);
    send(&hand, -1, -1, "x");
    maintain(&hand);
    assert_eq!(start_and_count(&hand), (0, 1));
}

#[test]
fn records_that_nobody_waits_for_are_forced_in_the_background() {
    let storage = MemoryStorage::new();
    let hand = Hand::open(storage.shared(), BrokerConfig::new()).unwrap();
    create(&hand, &[]);
    send(&hand, 1, now(), "x");
    let reopened = |storage: &MemoryStorage| {
        start_and_count(&Hand::open(storage.shared(), BrokerConfig::new()).unwrap())
    };
    assert_eq!(reopened(&storage.durable_image()), (0, 0));
    maintain(&hand);
    assert_eq!(reopened(&storage.durable_image()), (0, 1));
}

#[tokio::test]
async fn b167_a_waiting_fetch_whose_offset_is_removed_gets_out_of_range() {
    let config = BrokerConfig::new()
        .retention_check_interval(Duration::from_millis(50))
        .background_sync_interval(Duration::from_millis(50));
    let stage = Stage::with(config).await;
    let mut client = stage.client().await;
    client.create_topic_with("t", 1, &[("retention.bytes", "0"), ("segment.ms", "1")]).await;
    client.produce("t", 0, 1, batch(&["one"])).await;
    // It asks for more than there will ever be: only the removal ends it before its minute is over.
    let row = only_partition(&client.call(12, &fetch("t", 0, 0, 60_000, 1 << 20)).await);
    assert_eq!(row.error_code, OUT_OF_RANGE);
    assert_eq!(client.offset_at("t", 0, -2).await.offset, 1);
}
