//! The small values every layer speaks of: shared strings, topic ids, partitions.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;

use bytes::Bytes;

/// A UTF-8 string that shares the frame it was decoded from. Cloning costs a reference count.
#[derive(Clone, Default)]
pub struct Str(Bytes);

impl Str {
    /// The empty string.
    #[must_use]
    pub const fn new() -> Self {
        Self(Bytes::new())
    }

    /// A string that lives as long as the program, without allocation.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Takes the bytes over when they are UTF-8, without copying them.
    ///
    /// # Errors
    /// The position of the first byte that is not UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, std::str::Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Self(bytes))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The bytes were checked when the value was made, and are immutable since; checking them again
        // is the price of having no `unsafe` here. An empty string can therefore never be the answer to bad bytes.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The bytes of the text, shared.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// A copy that no longer keeps the frame it came from alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl Deref for Str {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Str {
    fn from(text: String) -> Self {
        Self(Bytes::from(text.into_bytes()))
    }
}

impl From<&String> for Str {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&Str> for Str {
    fn from(text: &Str) -> Self {
        text.clone()
    }
}

impl From<Str> for String {
    fn from(text: Str) -> Self {
        text.as_str().to_owned()
    }
}

impl PartialEq for Str {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Str {}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialOrd for Str {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Str {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl Hash for Str {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Sixteen bytes that name a topic for its whole life, printed as Kafka prints them (URL-safe base64).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Uuid {
    /// All zero: "no id".
    pub const ZERO: Self = Self([0; 16]);

    /// The id with these bytes, as they are.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A version 4 id from sixteen random bytes.
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// The sixteen bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether this is the zero id, which means "none" on the wire.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(22);
        for chunk in self.0.chunks(3) {
            let mut block = [0u8; 3];
            block[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from(block[0]) << 16 | u32::from(block[1]) << 8 | u32::from(block[2]);
            for place in 0..=chunk.len() {
                let index = (bits >> (18 - 6 * place)) & 0x3f;
                text.push(char::from(BASE64_URL[index as usize]));
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 22 characters of URL-safe base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a topic id is 22 characters of URL-safe base64")]
pub struct ParseUuidError;

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        if text.len() != 22 {
            return Err(ParseUuidError);
        }
        let mut bits: u128 = 0;
        let mut spare = 0u8;
        for (place, letter) in text.bytes().enumerate() {
            let value = BASE64_URL.iter().position(|&b| b == letter).ok_or(ParseUuidError)? as u128;
            if place < 21 {
                bits = bits << 6 | value;
            } else {
                bits = bits << 2 | value >> 4;
                spare = (value & 0x0f) as u8;
            }
        }
        if spare != 0 { Err(ParseUuidError) } else { Ok(Self(bits.to_be_bytes())) }
    }
}

/// One partition of one topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Str,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// The partition `partition` of `topic`.
    pub fn new(topic: impl Into<Str>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_id_prints_as_kafka_prints_it_and_reads_back() {
        let zero = Uuid::ZERO.to_string();
        assert_eq!(zero, "AAAAAAAAAAAAAAAAAAAAAA");
        // The id of the KRaft metadata topic, as Kafka prints it: 00..01.
        let one = Uuid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(one.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        for seed in 0..=255u8 {
            let id = Uuid::from_random([seed.wrapping_mul(37); 16]);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!("AAAAAAAAAAAAAAAAAAAAAB".parse::<Uuid>(), Err(ParseUuidError));
        assert_eq!("short".parse::<Uuid>(), Err(ParseUuidError));
    }

    #[test]
    fn a_string_refuses_bytes_that_are_not_utf8() {
        assert!(Str::from_utf8(Bytes::from_static(&[0xff, 0xfe])).is_err());
        assert_eq!(Str::from_utf8(Bytes::from_static("Straße".as_bytes())).unwrap(), "Straße");
    }
}
