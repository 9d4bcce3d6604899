//! What the coordinator asks its driver to do.

use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::TopicPartition;
use tramline_wire::messages::{
    DeleteGroupsResponse, DescribeGroupsResponse, HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse,
    ListGroupsResponse, OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse, SyncGroupResponse,
};

use super::config::Token;

/// The number of an append, rising by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// One record of the group log, in the format of Kafka's `__consumer_offsets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// The key bytes.
    pub key: Bytes,
    /// The value bytes; `None` deletes the key.
    pub value: Option<Bytes>,
}

/// An offset that an append commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The partition the offset is of.
    pub topic_partition: TopicPartition,
    /// The committed offset: everything below it is processed.
    pub offset: i64,
}

/// One thing to do. Outputs are in order, and so are the appends among them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Output {
    /// Append all `records` as one batch and force them, then call `Coordinator::appended(seq)`, or
    /// `Coordinator::append_failed(seq, code)`. Every append is reported once, in the order of `seq`.
    Append {
        /// The number to report.
        seq: Seq,
        /// What to append.
        records: Vec<GroupRecord>,
        /// The data offsets these records commit. Each data partition has to be durable up to its offset
        /// before the records are, else a power cut could leave a commit above the end of the log.
        commits: Vec<CommittedOffset>,
    },
    /// Send `response`. A reply that speaks of an append comes only after that append was reported, so
    /// a driver can send replies the moment it sees them.
    Reply {
        /// The request that is answered.
        token: Token,
        /// The answer, made for the version of the request.
        response: Response,
    },
}

/// An answer of the coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Response {
    Join(JoinGroupResponse),
    Sync(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    Leave(LeaveGroupResponse),
    OffsetCommit(OffsetCommitResponse),
    OffsetFetch(OffsetFetchResponse),
    OffsetDelete(OffsetDeleteResponse),
    ListGroups(ListGroupsResponse),
    DescribeGroups(DescribeGroupsResponse),
    DeleteGroups(DeleteGroupsResponse),
}

/// A record of a known kind could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a group record could not be read: {detail}")]
pub struct ReplayError {
    /// What is wrong with it.
    pub detail: &'static str,
}
