//! The log of committed offsets stays small however often groups commit, and a power cut at any storage call of its
//! rewriting loses nothing.
//!
//! The story: the log was written anew and the old one removed before the new one was on the disk; the power went, and
//! every group began at the start. Or: a commit on its way while the rewrite ran was overtaken by its forerunner.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod hand;
}

use std::collections::BTreeMap;

use common::hand::Hand;
use common::{batch, create_topics, only_row, produce};
use tramline_broker::BrokerConfig;
use tramline_log::Storage;
use tramline_log::storage::MemoryStorage;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use tramline_wire::messages::{DeleteGroupsRequest, OffsetCommitRequest, OffsetFetchRequest};

const LOG: &str = "/data/__consumer_offsets-0";

fn config() -> BrokerConfig {
    BrokerConfig::new()
        .presize_bytes(4096)
        .checkpoint_interval(std::time::Duration::ZERO)
        .auto_create_topics(false)
        .group_log_bytes(1500)
}

fn committed(hand: &Hand, group: &str) -> i64 {
    let topics = vec![OffsetFetchRequestTopic { name: "t".into(), partition_indexes: vec![0] }];
    let request = OffsetFetchRequest { group_id: group.into(), topics: Some(topics), ..Default::default() };
    hand.call(7, request).unwrap().topics[0].partitions[0].committed_offset
}

fn commit(group: &str, offset: i64) -> OffsetCommitRequest {
    let row = OffsetCommitRequestPartition {
        committed_offset: offset,
        committed_metadata: Some("x".repeat(40).as_str().into()),
        ..OffsetCommitRequestPartition::default()
    };
    OffsetCommitRequest {
        group_id: group.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: "t".into(),
            partitions: vec![row],
            ..OffsetCommitRequestTopic::default()
        }],
        ..OffsetCommitRequest::default()
    }
}

/// What each group may find: the last answered offset, and those sent after it.
type Promised = BTreeMap<&'static str, Vec<i64>>;

/// Rounds of commits of three groups, in the same moment and after each other; one group goes in the middle.
fn run(hand: &Hand) -> Promised {
    let mut promised: Promised = ["a", "b", "c"].map(|group| (group, vec![-1])).into();
    if hand.call(7, create_topics("t", 1, &[])).is_none() {
        return promised;
    }
    for value in ["one", "two"] {
        let row = hand.call(9, produce("t", 0, -1, batch(&[value; 20])));
        if row.is_none_or(|response| only_row(&response).error_code != 0) {
            return promised;
        }
    }
    for round in 1..=24 {
        let groups: &[&'static str] = if round < 12 { &["a", "b", "c"] } else { &["a", "b"] };
        let requests: Vec<OffsetCommitRequest> = groups.iter().map(|group| commit(group, round)).collect();
        for (group, answer) in groups.iter().zip(hand.all(8, &requests)) {
            let known = promised.get_mut(group).unwrap();
            if answer.is_some_and(|response| response.topics[0].partitions[0].error_code == 0) {
                known.clear();
            }
            known.push(round);
        }
        if round == 12 {
            let request = DeleteGroupsRequest { groups_names: vec!["c".into()] };
            let known = promised.get_mut("c").unwrap();
            if hand.call(1, request).is_some_and(|response| response.results[0].error_code == 0) {
                known.clear();
            }
            known.push(-1);
        }
    }
    promised
}

fn violation(promised: &Promised, storage: &MemoryStorage) -> Option<String> {
    let Some(hand) = Hand::open(storage.shared(), config()) else {
        return Some("it does not start".to_owned());
    };
    promised.iter().find_map(|(group, allowed)| {
        let found = committed(&hand, group);
        (!allowed.contains(&found)).then(|| format!("{group} finds {found}, not one of {allowed:?}"))
    })
}

fn log_bytes(storage: &MemoryStorage) -> u64 {
    let names = storage.list(std::path::Path::new(LOG)).unwrap();
    let logs = names.iter().filter(|entry| entry.name.ends_with(".log"));
    logs.map(|entry| {
        let path = std::path::Path::new(LOG).join(&entry.name);
        storage.open(&path, tramline_log::storage::OpenMode::ReadOnly).unwrap().len().unwrap()
    })
    .sum()
}

#[test]
fn the_log_of_offsets_stays_small_and_is_whole_after_a_start() {
    let storage = MemoryStorage::new();
    let hand = Hand::open(storage.shared(), config()).unwrap();
    let promised = run(&hand);
    assert_eq!(promised, [("a", vec![24]), ("b", vec![24]), ("c", vec![-1])].into());
    for offset in 25..400 {
        assert_eq!(hand.call(8, commit("a", offset)).unwrap().topics[0].partitions[0].error_code, 0);
        assert!(log_bytes(&storage) < 16_000, "it grows: {}", log_bytes(&storage));
    }
    hand.0.shutdown().unwrap();
    let hand = Hand::open(storage.shared(), config()).unwrap();
    assert_eq!(["a", "b", "c"].map(|group| committed(&hand, group)), [399, 24, -1]);
}

#[test]
fn a_power_cut_at_any_storage_call_of_a_rewrite_loses_no_offset() {
    let storage = MemoryStorage::new();
    run(&Hand::open(storage.shared(), config()).unwrap());
    let effects = storage.effects();
    for n in 1..=effects {
        let storage = MemoryStorage::new();
        storage.crash_at(n);
        let Some(hand) = Hand::open(storage.shared(), config()) else { continue };
        let promised = run(&hand);
        drop(hand);
        for image in [storage.durable_image(), storage.torn_image(n), storage.after_kill()] {
            let found = violation(&promised, &image);
            assert!(found.is_none(), "power cut at effect {n} of {effects}: {}", found.unwrap_or_default());
        }
    }
}
