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

mod admin;
mod config;
mod group;
mod join;
mod journal;
mod ledger;
mod member;
mod membership;
mod memory;
mod offset_delete;
mod offsets;
mod output;
mod record;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use tramline_wire::Str;

pub use config::{Client, Config, Token};
pub use output::{CommittedOffset, GroupRecord, Output, ReplayError, Response, Seq};

use self::group::{Context, Group, State, join_response};
use self::journal::{Journal, Then};
use self::ledger::Ledger;
use self::memory::Memory;
use super::{Seeded, codes};
use crate::time::{Instant, Timestamp};

/// All classic groups of one node. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Coordinator {
    config: Config,
    ids: Seeded,
    loading: bool,
    ledger: Ledger,
    groups: BTreeMap<Str, Group>,
    journal: Journal,
    memory: Memory,
    /// When each group has to be looked at, in order, and the same by group.
    timers: BTreeSet<(Instant, Str)>,
    due: BTreeMap<Str, Instant>,
    /// The last wall-clock time that was told.
    wall: Timestamp,
}

impl Coordinator {
    /// An empty coordinator that is loading. `seed` makes the member ids: pass random bytes, fresh at every
    /// start, so that no id is ever given out twice.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 16]) -> Self {
        Self {
            config,
            ids: Seeded::new(seed),
            loading: true,
            ledger: Ledger::default(),
            groups: BTreeMap::new(),
            journal: Journal::default(),
            memory: Memory::default(),
            timers: BTreeSet::new(),
            due: BTreeMap::new(),
            wall: 0,
        }
    }

    /// Applies one record of the log. Keys of a kind or version that is not known are skipped.
    ///
    /// # Errors
    /// The record is of a known kind and cannot be read; nothing is changed by it.
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), ReplayError> {
        self.ledger.replay(key, value)
    }

    /// Ends loading: every record of the log was replayed.
    pub fn loaded(&mut self, now: Instant) {
        self.loading = false;
        for (id, value) in self.ledger.groups() {
            self.groups.insert(id.clone(), Group::restored(id.clone(), value, now));
        }
        let ids: Vec<Str> = self.groups.keys().cloned().collect();
        for id in ids {
            self.settle(&id);
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.journal.poll()
    }

    /// The append `seq`, and every one before it, is durable.
    pub fn appended(&mut self, now: Instant, seq: Seq) {
        while let Some(pending) = self.journal.take_up_to(seq) {
            for record in &pending.records {
                // The bytes were made by this coordinator; that they can be read is what the tests of the
                // format show, and bytes that cannot must not stop the group either way.
                let replayed = self.replay(&record.key, record.value.as_deref());
                debug_assert!(replayed.is_ok(), "an own record does not replay: {replayed:?}");
            }
            self.follow(now, pending.then);
        }
    }

    fn follow(&mut self, now: Instant, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Committed { token, response } => {
                self.journal.reply(token, Response::OffsetCommit(response));
            }
            Then::OffsetsDeleted { token, response } => {
                self.journal.reply(token, Response::OffsetDelete(response));
            }
            Then::Assigned { group, generation } => {
                self.with_group(now, &group, |group, cx| group.assigned(cx, generation));
            }
            Then::Replaced { token, version, response } => {
                self.journal.reply(token, join_response(version, response));
            }
            Then::Deleted { groups, reply } => {
                for id in groups {
                    self.groups.remove(&id);
                    self.settle(&id);
                }
                if let Some((token, response)) = reply {
                    self.journal.reply(token, Response::DeleteGroups(response));
                }
            }
        }
    }

    /// The append `seq` failed and will never be durable. `code` is why, as a Kafka error code; members get
    /// it when it is one they retry (14, 15, 16), else 15 COORDINATOR_NOT_AVAILABLE.
    pub fn append_failed(&mut self, now: Instant, seq: Seq, code: i16) {
        let Some(pending) = self.journal.take(seq) else { return };
        let retried =
            [codes::COORDINATOR_LOAD_IN_PROGRESS, codes::COORDINATOR_NOT_AVAILABLE, codes::NOT_COORDINATOR];
        let code = if retried.contains(&code) { code } else { codes::COORDINATOR_NOT_AVAILABLE };
        match pending.then {
            Then::Nothing => {}
            Then::Committed { token, mut response } => {
                for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                    if partition.error_code == codes::NONE {
                        partition.error_code = code;
                    }
                }
                self.journal.reply(token, Response::OffsetCommit(response));
            }
            Then::OffsetsDeleted { token, .. } => {
                let response =
                    tramline_wire::messages::OffsetDeleteResponse { error_code: code, ..Default::default() };
                self.journal.reply(token, Response::OffsetDelete(response));
            }
            Then::Assigned { group, generation } => {
                self.with_group(now, &group, |group, cx| group.not_assigned(cx, generation, code));
            }
            Then::Replaced { token, version, response } => {
                let failed = tramline_wire::messages::JoinGroupResponse {
                    error_code: code,
                    member_id: response.member_id,
                    ..Default::default()
                };
                self.journal.reply(token, join_response(version, failed));
            }
            Then::Deleted { groups, reply } => {
                for id in &groups {
                    self.with_group(now, id, |group, _| group.state = State::Empty);
                }
                if let Some((token, mut response)) = reply {
                    for result in
                        response.results.iter_mut().filter(|result| groups.contains(&result.group_id))
                    {
                        result.error_code = code;
                    }
                    self.journal.reply(token, Response::DeleteGroups(response));
                }
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do; `None` when nothing is waited for.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due at `now`: sessions, ids that never came back, rebalances. Stamps what it writes with `wall`.
    pub fn handle_timeout(&mut self, now: Instant, wall: Timestamp) {
        self.wall = wall;
        // Looked at once each: what a group sets anew for this very moment is done at the next call.
        let due: Vec<Str> =
            self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id.clone()).collect();
        for id in due {
            self.with_group(now, &id, Group::handle_timeout);
        }
    }

    /// The connection that sent request `token` is gone: its reply, if it is parked, is dropped. Replies that
    /// wait for an append still come; they can be thrown away.
    pub fn connection_closed(&mut self, now: Instant, token: Token) {
        if let Some(id) = self.journal.unpark(token) {
            self.with_group(now, &id, |group, cx| group.connection_closed(cx, token));
        }
    }

    /// Answers every parked Join and Sync with 15, for a driver that shuts down.
    pub fn shutdown(&mut self, now: Instant) {
        let ids: Vec<Str> = self.groups.keys().cloned().collect();
        for id in ids {
            self.with_group(now, &id, |group, cx| {
                group.answer_everybody(cx, codes::COORDINATOR_NOT_AVAILABLE);
            });
        }
    }

    /// The whole durable state as records: replayed into a new coordinator they give the same state. For
    /// rewriting a log that has grown, and for tests.
    #[must_use]
    pub fn durable_records(&self) -> Vec<GroupRecord> {
        self.ledger.records()
    }

    /// Runs `step` on a group that exists and sets its timer anew.
    fn with_group<R>(
        &mut self,
        now: Instant,
        id: &Str,
        step: impl FnOnce(&mut Group, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let group = self.groups.get_mut(id)?;
        let mut cx = Context { now, wall: self.wall, config: &self.config, journal: &mut self.journal };
        let result = step(group, &mut cx);
        self.settle(id);
        Some(result)
    }

    /// Sets a group's timer anew, and forgets a group of which nothing is left.
    fn settle(&mut self, id: &Str) {
        let void = self.groups.get(id).is_some_and(Group::is_void);
        if void && !self.ledger.groups().contains_key(id) && !self.journal.writes_group(id) {
            self.groups.remove(id);
        }
        if let Some(old) = self.due.remove(id) {
            self.timers.remove(&(old, id.clone()));
        }
        if let Some(at) = self.groups.get(id).and_then(Group::next_timeout) {
            self.timers.insert((at, id.clone()));
            self.due.insert(id.clone(), at);
        }
    }
}
