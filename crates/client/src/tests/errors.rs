//! The columns of the error table that drivers act on, every code of them.

use tramline_core::client::error_actions::{Action, Operation, action};
use tramline_wire::{ApiKey, ErrorCode};

use super::*;
use crate::common::Reply;
use crate::{DeliveryError, SendError};

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
        peer.script(ApiKey::Metadata, [Reply::Error(code.code()), Reply::Error(code.code())]);
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
