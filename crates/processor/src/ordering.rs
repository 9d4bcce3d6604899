//! How far records of one partition may run side by side, and what a key is.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tramline_wire::Record;

/// How far records of one partition may run side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// One after the other, in offset order.
    #[default]
    Partition,
    /// Records of one key one after the other, in offset order; different keys side by side.
    Key,
    /// All side by side.
    Unordered,
}

/// What makes two records follow each other in key order: equal keys never overlap. Compared byte by byte,
/// within one partition. No key and an empty key are two keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneKey(pub(crate) Option<Bytes>);

impl LaneKey {
    /// The key of records without one.
    pub const NULL: Self = Self(None);

    /// These bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(Some(bytes.into()))
    }

    /// The record's own key, as it is on the wire. This is what is used without
    /// [`key_by`](crate::PartitionedBuilder::key_by).
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self(record.key_bytes())
    }
}

impl From<Bytes> for LaneKey {
    fn from(bytes: Bytes) -> Self {
        Self::new(bytes)
    }
}

impl From<String> for LaneKey {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&str> for LaneKey {
    fn from(text: &str) -> Self {
        Self(Some(Bytes::copy_from_slice(text.as_bytes())))
    }
}

impl From<u64> for LaneKey {
    fn from(number: u64) -> Self {
        Self(Some(Bytes::copy_from_slice(&number.to_be_bytes())))
    }
}

/// The user's choice of a record's key.
#[derive(Clone)]
pub struct KeyBy(pub Arc<dyn Fn(&Record) -> LaneKey + Send + Sync>);

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBy").finish_non_exhaustive()
    }
}
