//! What groups exchange and keep: subscriptions, assignments, the records of the group log.

use std::time::Duration;

use bytes::Bytes;
use tramline_core::group::coordinator::{Config, Coordinator};
use tramline_core::group::protocol::{
    Subscription, decode_assignment, decode_subscription, encode_assignment, encode_subscription,
};
use tramline_core::time::Instant;
use tramline_wire::TopicPartition;

use crate::counting::within;

/// For each byte of input: a partition of four bytes becomes one with its topic, while the list of them grows.
const PER_BYTE: usize = 64;
const FIXED: usize = 4096;

/// The first byte says what follows: 0 a subscription, else an assignment.
pub(crate) fn check_members(data: &[u8]) -> bool {
    let Some((mode, rest)) = data.split_first() else { return false };
    let bytes = Bytes::copy_from_slice(rest);
    let most = PER_BYTE * rest.len() + FIXED;
    let sorted = |mut partitions: Vec<TopicPartition>| {
        partitions.sort();
        partitions
    };
    if mode % 2 == 0 {
        let Ok(read) = within(most, "a subscription", || decode_subscription(&bytes)) else { return false };
        let written = encode_subscription(&read).expect("what was read can be written");
        let again = decode_subscription(&written).expect("what was written can be read");
        let normal = |read: Subscription| Subscription { owned: sorted(read.owned), ..read };
        assert_eq!(normal(again), normal(read));
    } else {
        let Ok(read) = within(most, "an assignment", || decode_assignment(&bytes)) else { return false };
        let written = encode_assignment(&read).expect("what was read can be written");
        let again = decode_assignment(&written).expect("what was written can be read");
        assert_eq!(sorted(again), sorted(read));
    }
    true
}

pub(crate) fn member_seeds() -> Vec<Vec<u8>> {
    let partitions =
        || vec![TopicPartition::new("a", 0), TopicPartition::new("a", 2), TopicPartition::new("b", 1)];
    let subscription = Subscription {
        topics: vec!["a".into(), "b".into()],
        user_data: Some(Bytes::from_static(b"x")),
        owned: partitions(),
        generation: 4,
        rack: Some("r".into()),
    };
    let subscription = encode_subscription(&subscription).expect("a small subscription");
    let assignment = encode_assignment(&partitions()).expect("a small assignment");
    let old = b"\0\0\0\0\0\0\x01\0\x01a\xff\xff\xff\xff".to_vec();
    vec![[&[0], &subscription[..]].concat(), [&[1], &assignment[..]].concat(), old]
}

/// Records one after the other: the length of the key in two bytes, that of the value in two (all ones: none), both.
pub(crate) fn check_log(data: &[u8]) -> bool {
    let config = || Config::default();
    let mut coordinator = Coordinator::new(config(), [7; 16]);
    let mut accepted = false;
    let mut rest = data;
    while let Some((&[k0, k1, v0, v1], behind)) = rest.split_first_chunk::<4>() {
        let (key, behind) = behind.split_at(usize::from(u16::from_be_bytes([k0, k1])).min(behind.len()));
        let length = u16::from_be_bytes([v0, v1]);
        let (value, behind) = match length {
            u16::MAX => (None, behind),
            _ => {
                let (value, behind) = behind.split_at(usize::from(length).min(behind.len()));
                (Some(value), behind)
            }
        };
        rest = behind;
        let most = PER_BYTE * (key.len() + value.map_or(0, <[u8]>::len)) + FIXED;
        let replayed = within(most, "a record of the group log", || coordinator.replay(key, value));
        accepted |= replayed.is_ok() && value.is_some();
    }
    let state = coordinator.durable_records();
    let mut again = Coordinator::new(config(), [8; 16]);
    for record in &state {
        again.replay(&record.key, record.value.as_deref()).expect("a record of ours replays");
    }
    assert_eq!(again.durable_records(), state, "the state written down is the state");
    // What was restored is a group that lives on: its members' sessions end, its offsets expire.
    let mut now = Instant::ZERO;
    again.loaded(now);
    for _ in 0..64 {
        while again.poll_output().is_some() {}
        let Some(next) = again.next_timeout() else { break };
        now = next.max(now);
        again.handle_timeout(now, 1_700_000_000_000);
    }
    again.shutdown(now + Duration::from_secs(1));
    while again.poll_output().is_some() {}
    accepted
}

pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    let record = |key: &[u8], value: Option<&[u8]>| {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
        let value_length = value.map_or(u16::MAX.to_be_bytes(), length);
        [&length(key)[..], &value_length, key, value.unwrap_or_default()].concat()
    };
    let offset_key = b"\0\x01\0\x01g\0\x02to\0\0\0\x03";
    let offset = b"\0\x03\0\0\0\0\0\0\x01\x02\0\0\0\x05\0\x01m\0\0\0\0\0\0\0\x01";
    let expiring = b"\0\x01\0\0\0\0\0\0\x01\x02\0\x01m\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02";
    let group_key = b"\0\x02\0\x01g";
    let group = b"\0\x03\0\x08consumer\0\0\0\x07\0\x05range\0\x01m\0\0\0\0\0\0\0\x09\0\0\0\x01\
        \0\x01m\xff\xff\0\x01i\0\x01h\0\0\0\x3c\0\0\0\x2d\0\0\0\x01s\0\0\0\x02as";
    vec![
        [record(offset_key, Some(offset)), record(group_key, Some(group))].concat(),
        [record(offset_key, Some(expiring)), record(offset_key, None), record(group_key, Some(group))]
            .concat(),
        record(b"\0\x0f", Some(b"unknown")),
    ]
}
