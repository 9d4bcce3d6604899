//! Topics with `cleanup.policy=compact`: of each key the newest record stays, over restarts too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod hand;
}

use bytes::Bytes;
use common::hand::{Hand, alter_topic};
use common::{create_topics, fetch, now, only_partition, only_row, produce, values};
use tramline_broker::BrokerConfig;
use tramline_log::storage::MemoryStorage;
use tramline_wire::{BatchBuilder, Compression};

fn create(hand: &Hand, configs: &[(&str, &str)]) {
    let response = hand.call(7, create_topics("t", 1, configs)).unwrap();
    assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
}

fn keyed(key: &str, value: &str) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(now(), Some(key.as_bytes()), Some(value.as_bytes()), &[]).unwrap();
    builder.build()
}

fn send(hand: &Hand, key: &str, value: &str) {
    assert_eq!(only_row(&hand.call(9, produce("t", 0, -1, keyed(key, value))).unwrap()).error_code, 0);
}

/// Everything a consumer that begins at the start gets, and where it stands then.
fn read_all(hand: &Hand) -> (Vec<(i64, String)>, i64) {
    let (mut found, mut next) = (Vec::new(), 0);
    loop {
        let row = only_partition(&hand.call(12, fetch("t", 0, next, 0, 1)).unwrap());
        assert_eq!(row.error_code, 0);
        let records = row.records.unwrap();
        let Some(last) = tramline_wire::batches(records.clone()).map(|batch| batch.unwrap().0).last() else {
            assert_eq!(next, row.high_watermark, "a consumer stands still before the end");
            return (found, next);
        };
        next = last.last_offset() + 1;
        found.extend(values(records));
    }
}

const SMALL: &[(&str, &str)] =
    &[("cleanup.policy", "compact"), ("segment.bytes", "4096"), ("min.cleanable.dirty.ratio", "0.1")];

#[test]
fn of_each_key_the_newest_record_stays_and_consumers_reach_the_end() {
    let storage = MemoryStorage::new();
    let hand = Hand::open(storage.shared(), BrokerConfig::new()).unwrap();
    create(&hand, SMALL);
    for n in 0..400 {
        send(&hand, &format!("key-{}", n % 9), &format!("{n:0100}"));
    }
    let before = read_all(&hand);
    assert_eq!((before.0.len(), before.1), (400, 400));
    hand.compact();
    let (records, end) = read_all(&hand);
    assert_eq!(end, 400);
    assert!(records.len() < 80, "{} of 400 records are left", records.len());
    assert_eq!(records[records.len() - 9..], before.0[391..], "the newest of each key");
    assert!(records.iter().all(|record| before.0[usize::try_from(record.0).unwrap()] == *record));
    assert_eq!(hand.0.metrics().compactions, 1);
    drop(hand);
    for image in [storage.durable_image(), storage.after_kill()] {
        assert_eq!(
            read_all(&Hand::open(image.shared(), BrokerConfig::new()).unwrap()),
            (records.clone(), 400)
        );
    }
}

#[test]
fn a_topic_that_deletes_keeps_every_record_until_its_time() {
    let hand = Hand::open(MemoryStorage::new().shared(), BrokerConfig::new()).unwrap();
    create(&hand, &[("segment.bytes", "4096")]);
    for n in 0..100 {
        send(&hand, "k", &format!("{n:0100}"));
    }
    hand.compact();
    assert_eq!(read_all(&hand).0.len(), 100);
}

#[test]
fn a_topic_becomes_compacted_by_a_change_of_its_settings() {
    let hand = Hand::open(MemoryStorage::new().shared(), BrokerConfig::new()).unwrap();
    create(&hand, &[("segment.bytes", "4096")]);
    for n in 0..100 {
        send(&hand, "k", &format!("{n:0100}"));
    }
    // Replaces the small segments, too.
    let response = hand.call(2, alter_topic("t", "cleanup.policy", "compact")).unwrap();
    assert_eq!(response.responses[0].error_code, 0);
    hand.compact();
    assert!(read_all(&hand).0.len() < 40);
}
