//! The records of the group log, in the key and value formats of Kafka's `__consumer_offsets`.
//!
//! Keys: versions 0 and 1 name an offset (group, topic, partition), version 2 a group. Values: an offset is
//! written in version 3, or 1 when it carries its own expiry; a group in version 3. None is flexible.

use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::{Str, TopicPartition};

use super::output::{GroupRecord, ReplayError};
use crate::time::Timestamp;

const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;

/// What a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The offset of one partition in one group.
    Offset(Str, TopicPartition),
    /// A group.
    Group(Str),
    /// Something this coordinator does not keep.
    Unknown,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OffsetValue {
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Str,
    pub commit_timestamp: Timestamp,
    pub expire_timestamp: Option<Timestamp>,
}

/// A group as it was when it last became Stable or Empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupValue {
    pub protocol_type: Str,
    pub generation: i32,
    pub protocol: Option<Str>,
    pub leader: Option<Str>,
    pub state_timestamp: Timestamp,
    pub members: Vec<MemberValue>,
}

/// A member of such a group. Timeouts are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberValue {
    pub member_id: Str,
    pub instance_id: Option<Str>,
    pub client_id: Str,
    pub client_host: Str,
    pub rebalance_timeout: i32,
    pub session_timeout: i32,
    pub subscription: Bytes,
    pub assignment: Bytes,
}

/// The record that stores `value`, or deletes the offset.
pub(super) fn offset_record(group: &Str, of: &TopicPartition, value: Option<&OffsetValue>) -> GroupRecord {
    let mut key = Vec::new();
    put_i16(&mut key, OFFSET_KEY);
    put_str(&mut key, group);
    put_str(&mut key, &of.topic);
    put_i32(&mut key, of.partition);
    let value = value.map(|value| {
        let mut out = Vec::new();
        put_i16(&mut out, if value.expire_timestamp.is_some() { 1 } else { 3 });
        put_i64(&mut out, value.offset);
        if value.expire_timestamp.is_none() {
            put_i32(&mut out, value.leader_epoch);
        }
        put_str(&mut out, &value.metadata);
        put_i64(&mut out, value.commit_timestamp);
        if let Some(expire) = value.expire_timestamp {
            put_i64(&mut out, expire);
        }
        Bytes::from(out)
    });
    GroupRecord { key: Bytes::from(key), value }
}

/// The record that stores `value`, or deletes the group.
pub(super) fn group_record(group: &Str, value: Option<&GroupValue>) -> GroupRecord {
    let mut key = Vec::new();
    put_i16(&mut key, GROUP_KEY);
    put_str(&mut key, group);
    let value = value.map(|value| {
        let mut out = Vec::new();
        put_i16(&mut out, 3);
        put_str(&mut out, &value.protocol_type);
        put_i32(&mut out, value.generation);
        put_nullable(&mut out, value.protocol.as_ref());
        put_nullable(&mut out, value.leader.as_ref());
        put_i64(&mut out, value.state_timestamp);
        put_i32(&mut out, value.members.len() as i32);
        for member in &value.members {
            put_str(&mut out, &member.member_id);
            put_nullable(&mut out, member.instance_id.as_ref());
            put_str(&mut out, &member.client_id);
            put_str(&mut out, &member.client_host);
            put_i32(&mut out, member.rebalance_timeout);
            put_i32(&mut out, member.session_timeout);
            put_bytes(&mut out, &member.subscription);
            put_bytes(&mut out, &member.assignment);
        }
        Bytes::from(out)
    });
    GroupRecord { key: Bytes::from(key), value }
}

pub(super) fn read_key(bytes: &[u8]) -> Result<Key, ReplayError> {
    let mut cursor = Cursor(bytes);
    match cursor.i16()? {
        0 | OFFSET_KEY => {
            let group = cursor.string()?;
            let topic = cursor.string()?;
            Ok(Key::Offset(group, TopicPartition { topic, partition: cursor.i32()? }))
        }
        GROUP_KEY => Ok(Key::Group(cursor.string()?)),
        _ => Ok(Key::Unknown),
    }
}

pub(super) fn read_offset(bytes: &[u8]) -> Result<OffsetValue, ReplayError> {
    let mut cursor = Cursor(bytes);
    let version = cursor.i16()?;
    if !(0..=3).contains(&version) {
        return Err(ReplayError { detail: "the version of the offset value is unknown" });
    }
    let offset = cursor.i64()?;
    let leader_epoch = if version == 3 { cursor.i32()? } else { -1 };
    let metadata = cursor.string()?;
    let commit_timestamp = cursor.i64()?;
    // Kafka writes -1 for "no expiry of its own".
    let expire_timestamp = if version == 1 { Some(cursor.i64()?).filter(|&at| at >= 0) } else { None };
    Ok(OffsetValue { offset, leader_epoch, metadata, commit_timestamp, expire_timestamp })
}

pub(super) fn read_group(bytes: &[u8]) -> Result<GroupValue, ReplayError> {
    let mut cursor = Cursor(bytes);
    let version = cursor.i16()?;
    if !(0..=3).contains(&version) {
        return Err(ReplayError { detail: "the version of the group value is unknown" });
    }
    let protocol_type = cursor.string()?;
    let generation = cursor.i32()?;
    let protocol = cursor.nullable()?;
    let leader = cursor.nullable()?;
    let state_timestamp = if version >= 2 { cursor.i64()? } else { -1 };
    let count = cursor.i32()?;
    let mut members = Vec::new();
    for _ in 0..count {
        let member_id = cursor.string()?;
        let instance_id = if version >= 3 { cursor.nullable()? } else { None };
        let client_id = cursor.string()?;
        let client_host = cursor.string()?;
        let rebalance_timeout = if version >= 1 { Some(cursor.i32()?) } else { None };
        let session_timeout = cursor.i32()?;
        members.push(MemberValue {
            member_id,
            instance_id,
            client_id,
            client_host,
            rebalance_timeout: rebalance_timeout.unwrap_or(session_timeout),
            session_timeout,
            subscription: cursor.bytes()?,
            assignment: cursor.bytes()?,
        });
    }
    Ok(GroupValue { protocol_type, generation, protocol, leader, state_timestamp, members })
}

fn put_i16(out: &mut Vec<u8>, value: i16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_str(out: &mut Vec<u8>, text: &Str) {
    // What comes here arrived in a message or a configured limit keeps it short, and both are below 32 KiB;
    // cutting is still better than a length that lies.
    let mut end = text.len().min(i16::MAX as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_i16(out, end as i16);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn put_nullable(out: &mut Vec<u8>, text: Option<&Str>) {
    match text {
        Some(text) => put_str(out, text),
        None => put_i16(out, -1),
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &Bytes) {
    put_i32(out, bytes.len() as i32);
    out.extend_from_slice(bytes);
}

const SHORT: ReplayError = ReplayError { detail: "it ends too early" };

/// Reads from the front of a slice; never allocates more than the slice holds.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ReplayError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReplayError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn i16(&mut self) -> Result<i16, ReplayError> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, ReplayError> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, ReplayError> {
        self.array().map(i64::from_be_bytes)
    }

    fn nullable(&mut self) -> Result<Option<Str>, ReplayError> {
        let Ok(length) = usize::try_from(self.i16()?) else { return Ok(None) };
        let bytes = Bytes::copy_from_slice(self.take(length)?);
        Str::from_utf8(bytes).map(Some).map_err(|_| ReplayError { detail: "a text is not UTF-8" })
    }

    fn string(&mut self) -> Result<Str, ReplayError> {
        self.nullable()?.ok_or(ReplayError { detail: "a text is missing" })
    }

    fn bytes(&mut self) -> Result<Bytes, ReplayError> {
        let length = usize::try_from(self.i32()?).map_err(|_| SHORT)?;
        Ok(Bytes::copy_from_slice(self.take(length)?))
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn tp(topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(topic, partition)
    }

    #[test]
    fn an_offset_record_has_the_bytes_kafka_writes() {
        let value = OffsetValue {
            offset: 258,
            leader_epoch: 5,
            metadata: "m".into(),
            commit_timestamp: 1,
            expire_timestamp: None,
        };
        let record = offset_record(&"g".into(), &tp("to", 3), Some(&value));
        assert_eq!(&record.key[..], b"\0\x01\0\x01g\0\x02to\0\0\0\x03");
        let bytes = record.value.unwrap();
        assert_eq!(&bytes[..], b"\0\x03\0\0\0\0\0\0\x01\x02\0\0\0\x05\0\x01m\0\0\0\0\0\0\0\x01");
        assert_eq!(read_offset(&bytes), Ok(value));
        assert_eq!(read_key(&record.key), Ok(Key::Offset("g".into(), tp("to", 3))));
    }

    #[test]
    fn an_offset_with_its_own_expiry_is_written_in_version_1() {
        let value = OffsetValue {
            offset: 1,
            leader_epoch: -1,
            metadata: Str::new(),
            commit_timestamp: 2,
            expire_timestamp: Some(3),
        };
        let bytes = offset_record(&"g".into(), &tp("t", 0), Some(&value)).value.unwrap();
        assert_eq!(bytes[..2], [0, 1]);
        assert_eq!(read_offset(&bytes), Ok(value));
    }

    #[test]
    fn a_group_record_has_the_bytes_kafka_writes() {
        let value = GroupValue {
            protocol_type: "c".into(),
            generation: 7,
            protocol: Some("r".into()),
            leader: Some("m".into()),
            state_timestamp: 9,
            members: vec![MemberValue {
                member_id: "m".into(),
                instance_id: None,
                client_id: "i".into(),
                client_host: "h".into(),
                rebalance_timeout: 60,
                session_timeout: 45,
                subscription: Bytes::from_static(b"s"),
                assignment: Bytes::from_static(b"as"),
            }],
        };
        let record = group_record(&"g".into(), Some(&value));
        assert_eq!(&record.key[..], b"\0\x02\0\x01g");
        let bytes = record.value.unwrap();
        let head = b"\0\x03\0\x01c\0\0\0\x07\0\x01r\0\x01m\0\0\0\0\0\0\0\x09\0\0\0\x01";
        let member = b"\0\x01m\xff\xff\0\x01i\0\x01h\0\0\0\x3c\0\0\0\x2d\0\0\0\x01s\0\0\0\x02as";
        assert_eq!(&bytes[..], [&head[..], &member[..]].concat());
        assert_eq!(read_group(&bytes), Ok(value.clone()));
        assert_eq!(read_key(&record.key), Ok(Key::Group("g".into())));
        for end in 0..bytes.len() {
            assert!(read_group(&bytes[..end]).is_err(), "a value cut at {end} was read");
        }
    }

    #[test]
    fn keys_of_other_kinds_are_unknown_and_not_errors() {
        assert_eq!(read_key(&[0, 3, 1, 2, 3]), Ok(Key::Unknown));
        assert_eq!(read_key(&[0, 15]), Ok(Key::Unknown));
        assert!(read_key(&[0]).is_err());
        assert!(read_key(&[0, 2, 0, 9, b'g']).is_err());
    }

    #[test]
    fn a_count_of_members_that_lies_is_an_error() {
        let mut bytes = b"\0\x03\0\x01c\0\0\0\x07\xff\xff\xff\xff\0\0\0\0\0\0\0\x09".to_vec();
        bytes.extend_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(read_group(&bytes), Err(SHORT));
    }
}
