//! Every storage call fails once, one after the other: nobody hangs, errors have Kafka's codes, reads go on, and
//! what was promised is there after the next start.
//!
//! The story: a failed `fsync` ended the writer; whoever waited for that group waited for ever, and a later barrier
//! claimed success for pages the kernel had already thrown away.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod ledger;
}

use std::collections::BTreeSet;
use std::io::ErrorKind;

use common::ledger::{Hand, Ledger};
use common::{PRODUCE, batch, only_row, produce};
use tramline_log::storage::MemoryStorage;
use tramline_log::storage::memory::CallKind;
use tramline_wire::ErrorCode;

/// One life with the fault; the ledger's calls assert that every waiter is answered.
fn live(storage: &MemoryStorage) -> (Ledger, Option<Hand>) {
    let mut ledger = Ledger::default();
    let hand = Hand::open(storage.shared()).ok();
    if let Some(hand) = &hand {
        ledger.run(hand);
    }
    (ledger, hand)
}

fn effects() -> u64 {
    let storage = MemoryStorage::new();
    let (_, hand) = live(&storage);
    assert!(hand.is_some());
    storage.effects()
}

/// Codes that a client may see when the storage fails: success, storage error, and what the coordinator says when
/// its log cannot be written, or when a topic whose creation failed is missing.
fn allowed() -> BTreeSet<i16> {
    let codes = [
        ErrorCode::None,
        ErrorCode::KafkaStorageError,
        ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotCoordinator,
        ErrorCode::UnknownTopicOrPartition,
        // A topic whose deletion failed is still there.
        ErrorCode::TopicAlreadyExists,
        // A weak batch of the same producer failed before: its successor does not follow on anything.
        ErrorCode::OutOfOrderSequenceNumber,
    ];
    codes.into_iter().map(ErrorCode::code).collect()
}

#[test]
fn n04_a_failure_of_any_storage_call_leaves_nobody_waiting_and_every_promise_kept() {
    for n in 1..=effects() {
        let storage = MemoryStorage::new();
        storage.fail_effect(n, ErrorKind::Other);
        let (ledger, hand) = live(&storage);
        let Some(hand) = hand else { continue };
        let strange: Vec<_> = ledger.codes.keys().filter(|code| !allowed().contains(code)).collect();
        assert!(strange.is_empty(), "fault at effect {n}: codes {strange:?}");
        for sent in ledger.sent.iter().filter(|sent| sent.offset.is_some()) {
            // A fence keeps the high watermark where it was: behind every promise, not behind every write.
            let log = hand.fetch_all(sent.topic, sent.partition);
            let log =
                log.unwrap_or_else(|code| panic!("fault at effect {n}: reads do not go on, code {code}"));
            if sent.acks == -1 {
                assert!(log.iter().any(|(at, value)| Some(*at) == sent.offset && *value == sent.value));
            }
        }
        drop(hand);
        for (what, image) in [("a kill", storage.after_kill()), ("a power cut", storage.durable_image())] {
            let again =
                Hand::open(image.shared()).unwrap_or_else(|error| panic!("fault at effect {n}: {error}"));
            let violation = ledger.violation(&again, false);
            assert!(
                violation.is_none(),
                "fault at effect {n}, then {what}: {}",
                violation.unwrap_or_default()
            );
        }
    }
}

#[test]
fn b139_a_failed_barrier_is_never_tried_again_and_closes_its_partition_alone() {
    for kind in [CallKind::SyncData, CallKind::Write] {
        let storage = MemoryStorage::new();
        let hand = Hand::open(storage.shared()).unwrap();
        assert_eq!(hand.call(7, &common::create_topics("t", 2, &[])).unwrap().topics[0].error_code, 0);
        let send = |partition: i32, acks: i16, text: &str| {
            only_row(&hand.call(PRODUCE, &produce("t", partition, acks, batch(&[text]))).unwrap())
        };
        assert_eq!(send(0, -1, "before").error_code, 0);
        storage.fail(kind, 1, ErrorKind::Other);
        let requests: Vec<_> = ["a", "b", "c"].map(|text| produce("t", 0, -1, batch(&[text]))).into();
        let answers = hand.all(PRODUCE, &requests.iter().collect::<Vec<_>>());
        for answer in answers {
            assert_eq!(
                only_row(&answer.unwrap()).error_code,
                ErrorCode::KafkaStorageError.code(),
                "the whole group"
            );
        }
        let barriers = storage.calls(CallKind::SyncData);
        for acks in [-1, 1] {
            assert_eq!(send(0, acks, "after").error_code, ErrorCode::KafkaStorageError.code());
        }
        assert_eq!(storage.calls(CallKind::SyncData), barriers, "no barrier is tried again");
        assert_eq!(
            hand.fetch_all("t", 0).unwrap(),
            [(0, "before".to_owned())],
            "reads go on below the watermark"
        );
        assert_eq!(send(1, -1, "neighbour").error_code, 0);
        assert_eq!(hand.broker.metrics().partitions_fenced, 1);
    }
}
