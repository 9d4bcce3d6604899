//! The coordinator of every classic group of one node: a ledger machine.
//!
//! A request goes in through a `handle_*` method together with two clocks: `now` (monotonic, for timers)
//! and where offsets are stamped `wall` (milliseconds since 1970). What is to be done comes out of
//! [`Coordinator::poll_output`]: records to append, replies to send. Call it until it answers `None` after
//! every other call, and call [`Coordinator::handle_timeout`] when [`Coordinator::next_timeout`] is due.
//!
//! # What is durable, and when it is seen
//!
//! Two things are durable: committed offsets, and of each group the metadata (generation, protocol, leader,
//! members with their assignments) as it was when the group last became Stable or Empty. They change in
//! [`Coordinator::replay`] alone. A running coordinator calls `replay` itself, with the very bytes it asked
//! to append, when the driver reports them [`appended`](Coordinator::appended), that is, durable. So:
//!
//! * an offset is visible to `OffsetFetch` only once it would survive a power cut;
//! * a group is Stable, and a member learns its assignment, only once the record of it is durable;
//! * a failed append changes nothing durable: a commit is answered with a retriable code, and a failed
//!   record of assignments answers every waiting member with one, and makes the group rebalance.
//!
//! Everything else (who waits in a Join or Sync, ids given out, timers) is volatile and lives beside it.
//!
//! # Start
//!
//! Replay every record of the log in order, then call [`Coordinator::loaded`]. Until then requests are
//! answered "load in progress", heartbeats with success. After it each known member has a full session
//! timeout and goes on by heartbeat and commit in its old generation, without a rebalance.

mod config;
mod journal;
mod ledger;
mod output;
mod record;

use alloc::collections::VecDeque;

use tramline_wire::TopicPartition;
use tramline_wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest,
    ListGroupsRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};

pub use config::{Client, Config, Token};
pub use output::{CommittedOffset, GroupRecord, Output, ReplayError, Response, Seq};

use super::Seeded;
use crate::time::{Instant, Timestamp};

/// All classic groups of one node. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Coordinator {
    config: Config,
    ids: Seeded,
    outputs: VecDeque<Output>,
}

impl Coordinator {
    /// An empty coordinator that is loading. `seed` makes the member ids: pass random bytes, fresh at every
    /// start, so that no id is ever given out twice.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 16]) -> Self {
        Self { config, ids: Seeded::new(seed), outputs: VecDeque::new() }
    }

    /// Applies one record of the log. Keys of a kind or version that is not known are skipped.
    ///
    /// # Errors
    /// The record is of a known kind and cannot be read; nothing is changed by it.
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), ReplayError> {
        todo!()
    }

    /// Ends loading: every record of the log was replayed.
    pub fn loaded(&mut self, now: Instant) {
        todo!()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The append `seq`, and every one before it, is durable.
    pub fn appended(&mut self, now: Instant, seq: Seq) {
        todo!()
    }

    /// The append `seq` failed and will never be durable. `code` is why, as a Kafka error code; members get
    /// it when it is one they retry (14, 15, 16), else 15 COORDINATOR_NOT_AVAILABLE.
    pub fn append_failed(&mut self, now: Instant, seq: Seq, code: i16) {
        todo!()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do; `None` when nothing is waited for.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Does what is due at `now`: sessions, ids that never came back, rebalances. Stamps what it writes with `wall`.
    pub fn handle_timeout(&mut self, now: Instant, wall: Timestamp) {
        todo!()
    }

    /// The connection that sent request `token` is gone: its reply, if it is still waiting, is dropped.
    pub fn connection_closed(&mut self, now: Instant, token: Token) {
        todo!()
    }

    /// Answers every parked Join and Sync with 15, for a driver that shuts down.
    pub fn shutdown(&mut self) {
        todo!()
    }

    /// JoinGroup (11), versions 0 to 9.
    pub fn handle_join(&mut self, now: Instant, wall: Timestamp, client: &Client, request: JoinGroupRequest) {
        todo!()
    }

    /// SyncGroup (14), versions 0 to 5.
    pub fn handle_sync(&mut self, now: Instant, wall: Timestamp, client: &Client, request: SyncGroupRequest) {
        todo!()
    }

    /// Heartbeat (12), versions 0 to 4.
    pub fn handle_heartbeat(&mut self, now: Instant, client: &Client, request: &HeartbeatRequest) {
        todo!()
    }

    /// LeaveGroup (13), versions 0 to 5.
    pub fn handle_leave(&mut self, now: Instant, wall: Timestamp, client: &Client, request: &LeaveGroupRequest) {
        todo!()
    }

    /// OffsetCommit (8), versions 2 to 9 (topics by name; a driver that serves version 10 fills the names in).
    /// `exists` tells whether a partition exists; commits of others are refused with 3, one by one.
    pub fn handle_offset_commit(
        &mut self,
        now: Instant,
        wall: Timestamp,
        client: &Client,
        request: &OffsetCommitRequest,
        exists: impl FnMut(&TopicPartition) -> bool,
    ) {
        todo!()
    }

    /// OffsetFetch (9), versions 1 to 9.
    pub fn handle_offset_fetch(&mut self, client: &Client, request: &OffsetFetchRequest) {
        todo!()
    }

    /// ListGroups (16), versions 0 to 5.
    pub fn handle_list_groups(&mut self, client: &Client, request: &ListGroupsRequest) {
        todo!()
    }

    /// DescribeGroups (15), versions 0 to 6.
    pub fn handle_describe_groups(&mut self, client: &Client, request: &DescribeGroupsRequest) {
        todo!()
    }

    /// DeleteGroups (42), versions 0 to 2.
    pub fn handle_delete_groups(&mut self, client: &Client, request: &DeleteGroupsRequest) {
        todo!()
    }

    /// A topic was deleted: its offsets go from every group.
    pub fn topic_deleted(&mut self, topic: &str) {
        todo!()
    }

    /// Removes offsets whose retention is over and groups that are empty of members and offsets. Kafka does
    /// it every ten minutes.
    pub fn expire_offsets(&mut self, wall: Timestamp) {
        todo!()
    }

    /// The whole durable state as records: replayed into a new coordinator they give the same state. For
    /// rewriting a log that has grown, and for tests.
    #[must_use]
    pub fn durable_records(&self) -> alloc::vec::Vec<GroupRecord> {
        todo!()
    }
}
