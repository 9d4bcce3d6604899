//! What members tell each other through the coordinator: subscriptions and assignments, as bytes.
//!
//! Both begin with a version. Versions newer than the newest known one are read as the newest known one:
//! Kafka promises that they only add at the end. Malformed bytes are errors, never panics.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription,
    consumer_protocol_assignment as assignment_schema, consumer_protocol_subscription as subscription_schema,
};
use tramline_wire::{DecodeError, EncodeError, Message, Reader, Str, TopicPartition, Writer};

/// The protocol type of consumers, in Join and Sync.
pub const CONSUMER: &str = "consumer";

/// What a member subscribes to and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// The topics it wants.
    pub topics: Vec<Str>,
    /// Bytes for its assignor.
    pub user_data: Option<Bytes>,
    /// The partitions it owns (version 1 and above).
    pub owned: Vec<TopicPartition>,
    /// The generation in which it owns them, -1 when unknown (version 2 and above).
    pub generation: i32,
    /// Its rack (version 3 and above).
    pub rack: Option<Str>,
}

/// The subscription as bytes of version 3, which older leaders read as far as they know it.
///
/// # Errors
/// A text or list is longer than the format can say.
pub fn encode_subscription(subscription: &Subscription) -> Result<Bytes, EncodeError> {
    let owned = by_topic(&subscription.owned);
    let message = ConsumerProtocolSubscription {
        topics: subscription.topics.clone(),
        user_data: subscription.user_data.clone(),
        owned_partitions: owned
            .into_iter()
            .map(|(topic, partitions)| subscription_schema::TopicPartition { topic, partitions })
            .collect(),
        generation_id: subscription.generation,
        rack_id: subscription.rack.clone(),
    };
    encode(&message, 3)
}

/// Reads a subscription of any version.
///
/// # Errors
/// The bytes end too early or are not a subscription.
pub fn decode_subscription(bytes: &Bytes) -> Result<Subscription, DecodeError> {
    let message: ConsumerProtocolSubscription = decode(bytes)?;
    let owned = message.owned_partitions.into_iter().map(|entry| (entry.topic, entry.partitions));
    Ok(Subscription {
        topics: message.topics,
        user_data: message.user_data,
        owned: flattened(owned),
        generation: message.generation_id,
        rack: message.rack_id,
    })
}

/// The assignment as bytes of version 0, which every client reads.
///
/// # Errors
/// A text or list is longer than the format can say.
pub fn encode_assignment(partitions: &[TopicPartition]) -> Result<Bytes, EncodeError> {
    let message = ConsumerProtocolAssignment {
        assigned_partitions: by_topic(partitions)
            .into_iter()
            .map(|(topic, partitions)| assignment_schema::TopicPartition { topic, partitions })
            .collect(),
        user_data: None,
    };
    encode(&message, 0)
}

/// Reads an assignment of any version. No bytes at all, which is what a member gets that the leader left out,
/// are an assignment of nothing.
///
/// # Errors
/// The bytes end too early or are not an assignment.
pub fn decode_assignment(bytes: &Bytes) -> Result<Vec<TopicPartition>, DecodeError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let message: ConsumerProtocolAssignment = decode(bytes)?;
    Ok(flattened(message.assigned_partitions.into_iter().map(|entry| (entry.topic, entry.partitions))))
}

fn encode<M: Message>(message: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut out = Writer::new();
    out.i16(version);
    message.encode(&mut out, version)?;
    Ok(out.finish().to_bytes())
}

fn decode<M: Message>(bytes: &Bytes) -> Result<M, DecodeError> {
    let mut reader = Reader::new(bytes.clone());
    let version = reader.i16()?;
    M::decode(&mut reader, version.min(M::MAX_VERSION))
}

fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<Str, Vec<i32>> {
    let mut topics: BTreeMap<Str, Vec<i32>> = BTreeMap::new();
    for TopicPartition { topic, partition } in partitions {
        topics.entry(topic.clone()).or_default().push(*partition);
    }
    topics
}

fn flattened(topics: impl Iterator<Item = (Str, Vec<i32>)>) -> Vec<TopicPartition> {
    topics
        .flat_map(|(topic, partitions)| {
            // A copy, so that what is kept for long does not keep a whole frame alive.
            let topic = topic.detached();
            partitions.into_iter().map(move |partition| TopicPartition { topic: topic.clone(), partition })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn subscription() -> Subscription {
        Subscription {
            topics: vec!["a".into(), "b".into()],
            user_data: None,
            owned: vec![
                TopicPartition::new("a", 0),
                TopicPartition::new("a", 2),
                TopicPartition::new("b", 1),
            ],
            generation: 4,
            rack: Some("r".into()),
        }
    }

    #[test]
    fn a_subscription_reads_back() {
        let bytes = encode_subscription(&subscription()).unwrap();
        assert_eq!(bytes[..2], [0, 3]);
        assert_eq!(decode_subscription(&bytes), Ok(subscription()));
    }

    #[test]
    fn a_newer_subscription_is_read_as_the_newest_known() {
        let mut bytes = encode_subscription(&subscription()).unwrap().to_vec();
        bytes[1] = 9;
        bytes.extend_from_slice(b"something new");
        assert_eq!(decode_subscription(&bytes.into()), Ok(subscription()));
    }

    #[test]
    fn an_old_subscription_owns_nothing_in_an_unknown_generation() {
        let bytes = Bytes::from_static(b"\0\0\0\0\0\x01\0\x01a\xff\xff\xff\xff");
        let read = decode_subscription(&bytes).unwrap();
        assert_eq!((read.topics, read.owned, read.generation), (vec!["a".into()], vec![], -1));
    }

    #[test]
    fn an_assignment_reads_back_and_a_cut_one_is_an_error() {
        let partitions = vec![TopicPartition::new("a", 0), TopicPartition::new("b", 7)];
        let bytes = encode_assignment(&partitions).unwrap();
        assert_eq!(decode_assignment(&bytes), Ok(partitions));
        for end in 1..bytes.len() {
            assert!(decode_assignment(&bytes.slice(..end)).is_err(), "cut at {end}");
        }
        assert_eq!(decode_assignment(&Bytes::new()), Ok(vec![]));
    }

    #[test]
    fn a_negative_version_is_an_error() {
        assert!(decode_subscription(&Bytes::from_static(b"\xff\xff\0\0\0\0")).is_err());
    }
}
