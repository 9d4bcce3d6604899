//! The columns of the error table that drivers act on, every code of them.

use tramline_core::client::error_actions::{Action, Operation, action};
use tramline_wire::{ApiKey, ErrorCode, TopicPartition};

use super::*;
use crate::common::Reply;
use crate::common::group::coordinate;
use crate::{
    CommitFailure, Consumer, DeliveryError, OffsetAndMetadata, OffsetsError, SendError, StartOffset,
};

fn every_code() -> impl Iterator<Item = ErrorCode> {
    (-3..=200).chain([12_345, i16::MIN, i16::MAX]).filter(|code| *code != 0).map(ErrorCode::from)
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_producer_id_is_retried_or_final() {
    for code in every_code() {
        let peer = peer("producer-id");
        peer.script(ApiKey::InitProducerId, [Reply::Error(code.code())]);
        let producer = producer(&peer, ProducerConfig::new()).await;
        let sent = producer.send(to("x")).await;
        let outcome = match sent {
            Ok(delivery) => delivery.await.map(|_| ()),
            Err(error) => Err(error.into()),
        };
        let retried = code.is_retriable();
        match outcome {
            Ok(()) => assert!(retried, "{code}"),
            Err(DeliveryError::Refused { code: told, .. }) => assert!(told == code && !retried, "{code}"),
            Err(DeliveryError::NotAccepted(refused)) => {
                assert!(*refused == SendError::Fatal(code) && !retried, "{code}: {refused}");
            }
            Err(other) => panic!("{code}: {other}"),
        }
        assert_eq!(peer.count(ApiKey::InitProducerId), 1 + usize::from(retried), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_topic_in_metadata_is_asked_about_again_or_told() {
    for code in every_code() {
        let peer = peer("topic-code");
        let producer = producer(&peer, ProducerConfig::new()).await;
        peer.script(ApiKey::Metadata, [Reply::Error(code.code())]);
        let refused = matches!(code.code(), 17 | 29 | 31);
        assert_eq!(action(Operation::Metadata, code) == Action::Report, refused);
        match producer.send(to("x")).await {
            Ok(delivery) => {
                assert!(!refused, "{code}");
                assert_eq!(offset(delivery).await, Some(0), "{code}");
            }
            Err(error) => {
                assert!(refused, "{code}");
                assert_eq!(error, SendError::TopicRefused { topic: "t".into(), code });
            }
        }
    }
}

/// What a question to the coordinator was seen to lead to.
#[derive(Debug, PartialEq)]
enum Seen {
    AskedAgain,
    FoundAgain,
    Refused,
    Fenced,
}

fn asked_again(peer: &Peer) -> Seen {
    match peer.count(ApiKey::FindCoordinator) {
        1 => Seen::AskedAgain,
        2 => Seen::FoundAgain,
        more => panic!("the coordinator was looked for {more} times"),
    }
}

async fn committer(peer: &Peer, start: StartOffset) -> Consumer {
    let start = [(TopicPartition::new("t", 0), start)];
    Consumer::builder(ClientConfig::new(peer.address())).group("g").assign(start).build().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_commit_does_what_the_table_says() {
    for code in every_code() {
        let peer = peer("commit-code");
        let offsets = coordinate(&peer);
        let consumer = committer(&peer, StartOffset::At(0)).await;
        offsets.lock().unwrap().codes = vec![code];
        let tp = TopicPartition::new("t", 0);
        let seen = match consumer.commit([(tp.clone(), OffsetAndMetadata::new(5))]).await {
            Ok(()) => asked_again(&peer),
            Err(error) => match &error.failed[&tp] {
                CommitFailure::Refused(told) if *told == code => Seen::Refused,
                CommitFailure::Fenced(told) if *told == code => Seen::Fenced,
                other => panic!("{code}: {other}"),
            },
        };
        let expected = match code.code() {
            3 | 14 | 27 => Seen::AskedAgain,
            7 | 13 | 15 | 16 => Seen::FoundAgain,
            22 | 25 | 82 => Seen::Fenced,
            _ => Seen::Refused,
        };
        assert_eq!(seen, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_code_of_committed_offsets_does_what_the_table_says() {
    for (code, whole) in every_code().flat_map(|code| [(code, true), (code, false)]) {
        let peer = peer("offset-code");
        let offsets = coordinate(&peer);
        offsets.lock().unwrap().committed.insert(0, (7, String::new()));
        let consumer = committer(&peer, StartOffset::At(0)).await;
        let codes = if whole { (code, ErrorCode::None) } else { (ErrorCode::None, code) };
        offsets.lock().unwrap().fetch_codes = vec![codes];
        let tp = TopicPartition::new("t", 0);
        let seen = match consumer.committed(std::slice::from_ref(&tp)).await {
            Ok(found) => {
                assert_eq!(found[&tp], Some(OffsetAndMetadata::new(7)));
                asked_again(&peer)
            }
            Err(OffsetsError::GroupRefused(told)) if whole && told == code => Seen::Refused,
            Err(OffsetsError::Refused { code: told, .. }) if !whole && told == code => Seen::Refused,
            Err(other) => panic!("{code}: {other}"),
        };
        let expected = match code.code() {
            14 | 88 => Seen::AskedAgain,
            13 | 15 | 16 => Seen::FoundAgain,
            _ => Seen::Refused,
        };
        assert_eq!(seen, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_starts_at_its_committed_offset_after_errors_that_pass_and_tells_of_others() {
    for (code, whole) in every_code().flat_map(|code| [(code, true), (code, false)]) {
        let peer = peer("start-code");
        let offsets = coordinate(&peer);
        offsets.lock().unwrap().committed.insert(0, (7, String::new()));
        let codes = if whole { (code, ErrorCode::None) } else { (ErrorCode::None, code) };
        offsets.lock().unwrap().fetch_codes = vec![codes];
        peer.script(ApiKey::Fetch, [Reply::Silence]);
        let consumer = committer(&peer, StartOffset::Committed).await;
        let passes = matches!(code.code(), 13 | 14 | 15 | 16 | 88);
        let got = tokio::time::timeout(Duration::from_secs(5), consumer.recv()).await;
        let position = consumer.position(&TopicPartition::new("t", 0));
        if passes {
            assert!(got.is_err(), "{code}: {got:?}");
            assert_eq!(position, Some(7));
        } else {
            let told = got.expect("it is told at once").expect_err("there is nothing to read").to_string();
            assert!(told.contains(&code.to_string()), "{code}: {told}");
        }
    }
}
