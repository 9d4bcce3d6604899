//! A power cut at any storage call of deleting records and altering settings: what was answered holds.
//!
//! The story: a log start was told to clients that lay above what was on the disk, and after the power cut the log ended
//! below its own start; or a setting was acknowledged and gone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod hand;
}

use common::hand::{Hand, alter_topic};
use common::{batch, create_topics, fetch, list_offsets, only_partition, only_row, produce, values};
use tramline_broker::BrokerConfig;
use tramline_log::storage::MemoryStorage;
use tramline_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use tramline_wire::messages::describe_configs_request::DescribeConfigsResource;
use tramline_wire::messages::{DeleteRecordsRequest, DescribeConfigsRequest};

fn config() -> BrokerConfig {
    BrokerConfig::new().presize_bytes(4096).checkpoint_interval(std::time::Duration::ZERO)
}

/// What was answered.
#[derive(Debug, Default)]
struct Told {
    created: bool,
    start: i64,
    asked_start: i64,
    segment_ms: String,
    asked_ms: String,
}

fn alter(hand: &Hand, value: &str) -> Option<i16> {
    Some(hand.call(2, alter_topic("t", "segment.ms", value))?.responses[0].error_code)
}

fn delete(hand: &Hand, offset: i64) -> Option<i16> {
    let partition = DeleteRecordsPartition { partition_index: 0, offset };
    let topic = DeleteRecordsTopic { name: "t".into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 0 };
    Some(hand.call(2, request)?.topics[0].partitions[0].error_code)
}

/// Weak records in several segments, whose start is raised above what was ever forced, and settings in between.
fn run(hand: &Hand) -> Told {
    let mut told = Told { segment_ms: "100000".to_owned(), asked_ms: "100000".to_owned(), ..Told::default() };
    let topic = create_topics("t", 1, &[("segment.bytes", "4096"), ("segment.ms", "100000")]);
    told.created = hand.call(7, topic).is_some_and(|response| response.topics[0].error_code == 0);
    for round in 1..=6 {
        for _ in 0..4 {
            let sent = hand.call(9, produce("t", 0, 1, batch(&["x".repeat(1000).as_str()])));
            if sent.is_none_or(|response| only_row(&response).error_code != 0) {
                return told;
            }
        }
        told.asked_start = round * 4 - 1;
        if delete(hand, told.asked_start) != Some(0) {
            return told;
        }
        told.start = told.asked_start;
        told.asked_ms = (100_000 + round).to_string();
        if alter(hand, &told.asked_ms) != Some(0) {
            return told;
        }
        told.segment_ms.clone_from(&told.asked_ms);
    }
    told
}

fn violation(told: &Told, storage: &MemoryStorage) -> Option<String> {
    let Some(hand) = Hand::open(storage.shared(), config()) else {
        return Some("it does not start".to_owned());
    };
    if !told.created {
        return None;
    }
    let start = hand.call(7, list_offsets("t", 0, -2)).unwrap().topics[0].partitions[0].offset;
    if start != told.start && start != told.asked_start {
        return Some(format!("the log begins at {start}"));
    }
    let row = only_partition(&hand.call(12, fetch("t", 0, start, 0, 1)).unwrap());
    if row.error_code != 0 {
        return Some(format!("the log start cannot be read: code {}", row.error_code));
    }
    values(row.records.unwrap());
    let resource = DescribeConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        configuration_keys: Some(vec!["segment.ms".into()]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    let value = hand.call(4, request).unwrap().results[0].configs[0].value.clone().unwrap().to_string();
    (value != told.segment_ms && value != told.asked_ms).then(|| format!("segment.ms is {value}"))
}

#[test]
fn deleted_records_and_altered_settings_survive_a_power_cut_at_every_storage_call() {
    let storage = MemoryStorage::new();
    let told = run(&Hand::open(storage.shared(), config()).unwrap());
    assert_eq!((told.start, told.segment_ms.as_str()), (23, "100006"));
    for n in 1..=storage.effects() {
        let storage = MemoryStorage::new();
        storage.crash_at(n);
        let Some(hand) = Hand::open(storage.shared(), config()) else { continue };
        let told = run(&hand);
        drop(hand);
        for image in [storage.durable_image(), storage.torn_image(n), storage.after_kill()] {
            let found = violation(&told, &image);
            assert!(found.is_none(), "power cut at effect {n}, {told:?}: {}", found.unwrap_or_default());
        }
    }
}
