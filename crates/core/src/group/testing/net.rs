//! Members and a coordinator on one network, in virtual time.
//!
//! The network keeps the order of one connection, as TCP does: each member has one connection to the
//! coordinator, which can break. Then everything on it is lost: a request that was not delivered, or an
//! answer, or both; the member learns of it within [`Faults::notice`]. A request may also be delivered twice.
//! A member can be paused: it does nothing, and counts as owning nothing once its session is over, because
//! the first thing it does afterwards is to notice.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::messages::OffsetCommitRequest;
use tramline_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tramline_wire::{Str, TopicPartition};

use super::node::{Node, Request};
use crate::group::Seeded;
use crate::group::coordinator::{Config, Response, Token};
use crate::group::member::{
    CommitContext, CommitVerdict, Event, Member, MemberConfig, RequestId, RevocationId,
};
use crate::time::Instant;

/// Which member; members are never removed from a [`Net`], they only stop.
pub type MemberIndex = usize;

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The shortest time on the way.
    pub min_delay: Duration,
    /// The longest time on the way.
    pub max_delay: Duration,
    /// How many requests in a hundred break their connection.
    pub breaks: u64,
    /// How many requests in a hundred are delivered twice.
    pub repeats: u64,
    /// The longest time until a break is noticed.
    pub notice: Duration,
}

impl Faults {
    /// A network that only delays, from one to five milliseconds.
    pub const NONE: Self = Self {
        min_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(5),
        breaks: 0,
        repeats: 0,
        notice: Duration::from_millis(5),
    };
}

/// What a member's owner does when partitions are revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoking {
    /// Gives them up at once.
    AtOnce,
    /// Gives them up after this long.
    After(Duration),
    /// Never: the deadline decides.
    Never,
    /// The test calls [`Net::revocation_done`].
    ByHand,
}

/// How a commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The coordinator answered; 0 is success.
    Answered {
        /// The code of the first partition.
        code: i16,
        /// What the member said about a failure.
        verdict: Option<CommitVerdict>,
    },
    /// No answer came.
    Disconnected,
}

/// One member and its owner.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) member: Member,
    pub(super) client: Str,
    pub(super) running: bool,
    pub(super) paused_until: Option<Instant>,
    pub(super) revoking: Revoking,
    /// Events that the test has not taken yet.
    pub(super) events: Vec<Event>,
    /// What the owner believes to own, from events alone.
    pub(super) owns: BTreeSet<TopicPartition>,
    pub(super) giving_up: Option<(RevocationId, Instant, Vec<TopicPartition>)>,
    /// Nothing overtakes on the way to the coordinator.
    pub(super) last_arrival: Instant,
    /// Changes when the connection breaks; what still comes on the old one is dropped.
    pub(super) connection: u64,
    pub(super) session_timeout: Duration,
    pub(super) last_ran: Instant,
    pub(super) commits: Vec<(u64, CommitOutcome)>,
}

/// Something on its way.
#[derive(Debug)]
pub(super) enum Message {
    /// To the coordinator.
    Request { from: MemberIndex, connection: u64, asked: Asked, request: Request, repeat: bool },
    /// To a member. `None` when the connection broke.
    Answer { to: MemberIndex, asked: Asked, response: Option<Response> },
    /// From any broker.
    Found { to: MemberIndex, id: RequestId },
    /// The owner gives up what was revoked.
    GiveUp { of: MemberIndex, id: RevocationId },
    /// Partition counts.
    Metadata { to: MemberIndex },
}

/// What was asked for, and how to hand the answer on.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Member(RequestId),
    Commit(u64, CommitContext),
}

/// Members and a coordinator. Step it with [`run_until`](Self::run_until); every step checks that no
/// partition has two owners.
#[derive(Debug)]
pub struct Net {
    /// The coordinator's side.
    pub node: Node,
    /// How bad the network is from now on.
    pub faults: Faults,
    /// The topics there are; members learn it when they ask, or by [`Net::tell_metadata`].
    pub partition_counts: BTreeMap<Str, i32>,
    /// Switches the check of owners off: two processes under one instance id overlap until the older is fenced.
    pub allows_two_owners: bool,
    pub(super) now: Instant,
    pub(super) seeded: Seeded,
    pub(super) seed: u64,
    pub(super) members: Vec<Endpoint>,
    pub(super) on_the_way: BTreeMap<(Instant, u64), Message>,
    /// Requests the coordinator has not answered.
    pub(super) asked: BTreeMap<Token, (MemberIndex, u64, Asked)>,
    pub(super) node_down_until: Option<Instant>,
    pub(super) counter: u64,
}

impl Net {
    /// A network with a coordinator and the topic `t` of eight partitions.
    #[must_use]
    pub fn new(config: Config, faults: Faults, seed: u64) -> Self {
        let node = Node::new(config, seed);
        Self {
            partition_counts: node.partition_counts.clone(),
            node,
            faults,
            allows_two_owners: false,
            now: Instant::ZERO,
            seeded: Seeded::from_number(seed),
            seed,
            members: Vec::new(),
            on_the_way: BTreeMap::new(),
            asked: BTreeMap::new(),
            node_down_until: None,
            counter: 0,
        }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The stream of numbers everything here is drawn from.
    pub fn seeded(&mut self) -> &mut Seeded {
        &mut self.seeded
    }

    /// Adds a member that subscribes to `topics`.
    pub fn add(&mut self, config: MemberConfig, revoking: Revoking, topics: &[&str]) -> MemberIndex {
        let seeded = Seeded::from_number(self.seeded.next_u64());
        let index = self.members.len();
        self.members.push(Endpoint {
            client: Str::from(alloc::format!("client-{index}")),
            session_timeout: config.session_timeout,
            member: Member::new(config, seeded),
            running: true,
            paused_until: None,
            revoking,
            events: Vec::new(),
            owns: BTreeSet::new(),
            giving_up: None,
            last_arrival: self.now,
            connection: 0,
            last_ran: self.now,
            commits: Vec::new(),
        });
        let topics: Vec<Str> = topics.iter().map(|topic| Str::from(*topic)).collect();
        self.with_member(index, |member, now| member.subscribe(now, topics));
        index
    }

    /// A member, to look at.
    #[must_use]
    pub fn member(&self, index: MemberIndex) -> &Member {
        &self.members[index].member
    }

    /// Does something with a member and carries out what follows.
    pub fn with_member<R>(
        &mut self,
        index: MemberIndex,
        action: impl FnOnce(&mut Member, Instant) -> R,
    ) -> R {
        let result = action(&mut self.members[index].member, self.now);
        self.carry_out(index);
        self.check();
        result
    }

    /// The events of a member since the last call.
    pub fn take_events(&mut self, index: MemberIndex) -> Vec<Event> {
        core::mem::take(&mut self.members[index].events)
    }

    /// The outcomes of a member's commits since the last call, by the number [`commit`](Self::commit) gave.
    pub fn take_commits(&mut self, index: MemberIndex) -> Vec<(u64, CommitOutcome)> {
        core::mem::take(&mut self.members[index].commits)
    }

    /// The owner gives up a revocation ([`Revoking::ByHand`]).
    pub fn revocation_done(&mut self, index: MemberIndex, id: RevocationId) {
        let endpoint = &mut self.members[index];
        if endpoint.giving_up.as_ref().is_some_and(|(of, ..)| *of == id)
            && let Some((_, _, partitions)) = endpoint.giving_up.take()
        {
            for of in partitions {
                endpoint.owns.remove(&of);
            }
        }
        self.with_member(index, |member, now| member.revocation_done(now, id));
    }

    /// Tells a member the partition counts, as a metadata refresh does.
    pub fn tell_metadata(&mut self, index: MemberIndex) {
        let counts = self.partition_counts.clone();
        self.with_member(index, |member, now| member.handle_metadata(now, &counts));
    }

    /// The member's process dies: nothing more comes from it.
    pub fn kill(&mut self, index: MemberIndex) {
        self.members[index].running = false;
        self.break_connection(index, false);
    }

    /// The member's process stands still for this long.
    pub fn pause(&mut self, index: MemberIndex, length: Duration) {
        self.members[index].paused_until = Some(self.now + length);
    }

    /// The coordinator crashes; after `length` it starts again from what is durable.
    pub fn restart_node(&mut self, length: Duration) {
        for index in 0..self.members.len() {
            self.break_connection(index, true);
        }
        self.asked.clear();
        self.node_down_until = Some(self.now + length);
    }

    /// Sends a commit in `context`, with whatever it is worth by now.
    pub fn commit(
        &mut self,
        index: MemberIndex,
        context: CommitContext,
        offsets: &[(TopicPartition, i64)],
    ) -> u64 {
        self.counter += 1;
        let number = self.counter;
        let topics = offsets.iter().map(|(of, offset)| OffsetCommitRequestTopic {
            name: of.topic.clone(),
            partitions: [OffsetCommitRequestPartition {
                partition_index: of.partition,
                committed_offset: *offset,
                ..Default::default()
            }]
            .into(),
            ..Default::default()
        });
        let request = OffsetCommitRequest {
            group_id: context.group_id.clone(),
            generation_id_or_member_epoch: context.generation,
            member_id: context.member_id.clone(),
            group_instance_id: context.instance_id.clone(),
            topics: topics.collect(),
            ..Default::default()
        };
        self.send(index, Asked::Commit(number, context), Request::OffsetCommit(request));
        number
    }

    /// Runs up to `until`, step by step.
    pub fn run_until(&mut self, until: Instant) {
        self.send_replies();
        while self.step(until) {}
        self.now = self.now.max(until);
        self.node_advance();
    }

    /// Runs for this long.
    pub fn run_for(&mut self, length: Duration) {
        self.run_until(self.now + length);
    }

    /// Runs until `done`, but no longer than `limit`; tells whether it was done.
    pub fn run_until_true(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let until = self.now + limit;
        while !done(self) {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    /// Whether every partition of every topic has an owner.
    #[must_use]
    pub fn everything_is_owned(&self) -> bool {
        let owned: BTreeSet<_> = (0..self.members.len()).flat_map(|index| self.owned_by(index)).collect();
        let all = self.partition_counts.iter().flat_map(|(topic, count)| {
            (0..*count).map(|partition| TopicPartition { topic: topic.clone(), partition })
        });
        all.into_iter().all(|of| owned.contains(&of))
    }

    /// What a member owns at this instant; nothing when it is dead, or paused past its session.
    #[must_use]
    pub fn owned_by(&self, index: MemberIndex) -> BTreeSet<TopicPartition> {
        let endpoint = &self.members[index];
        let asleep =
            endpoint.paused_until.is_some() && self.now >= endpoint.last_ran + endpoint.session_timeout / 2;
        if !endpoint.running || asleep {
            return BTreeSet::new();
        }
        endpoint.member.assignment().union(endpoint.member.revoking()).cloned().collect()
    }

    /// The next thing that happens, when it is not after `until`. Members come before the coordinator when
    /// their times are equal.
    fn step(&mut self, until: Instant) -> bool {
        let message = self.on_the_way.first_key_value().map(|((at, _), _)| *at);
        let wakes = |endpoint: &Endpoint| {
            let timer = endpoint.member.next_timeout().filter(|_| endpoint.running)?;
            Some(endpoint.paused_until.map_or(timer, |paused| paused.max(timer)))
        };
        let member = self
            .members
            .iter()
            .enumerate()
            .filter_map(|(index, endpoint)| Some((wakes(endpoint)?, index)))
            .min();
        let node = match self.node_down_until {
            Some(at) => Some(at),
            None => self.node.coordinator.next_timeout(),
        };
        let Some(at) = [message, member.map(|(at, _)| at), node].into_iter().flatten().min() else {
            return false;
        };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        if let Some((_, index)) = member.filter(|(when, _)| *when == at) {
            self.wake(index);
        } else if node == Some(at) {
            self.node_advance();
        } else if let Some((_, message)) = self.on_the_way.pop_first() {
            self.deliver(message);
        }
        self.check();
        true
    }

    /// A member runs: first of all it looks at its timers.
    pub(super) fn wake(&mut self, index: MemberIndex) {
        let endpoint = &mut self.members[index];
        endpoint.paused_until = endpoint.paused_until.filter(|until| *until > self.now);
        endpoint.last_ran = self.now;
        endpoint.member.handle_timeout(self.now);
        self.carry_out(index);
    }

    pub(super) fn node_advance(&mut self) {
        match self.node_down_until {
            Some(at) if at > self.now => return,
            Some(_) => {
                self.node_down_until = None;
                self.node.restart(self.now);
            }
            None => {}
        }
        self.node.partition_counts = self.partition_counts.clone();
        self.node.advance_to(self.now);
        self.send_replies();
    }

    pub(super) fn send(&mut self, from: MemberIndex, asked: Asked, request: Request) {
        let delay = self.delay();
        let endpoint = &mut self.members[from];
        let at = (self.now + delay).max(endpoint.last_arrival);
        endpoint.last_arrival = at;
        let connection = endpoint.connection;
        let breaks = self.seeded.percent(self.faults.breaks) || self.node_down_until.is_some();
        let arrives = !breaks || self.seeded.percent(50);
        if self.seeded.percent(self.faults.repeats) && arrives {
            let (asked, request) = (asked.clone(), request.clone());
            self.post(at, Message::Request { from, connection, asked, request, repeat: true });
        }
        if arrives {
            let asked = asked.clone();
            self.post(at, Message::Request { from, connection, asked, request, repeat: breaks });
        }
        if breaks {
            let at = self.now + self.notice();
            self.post(at, Message::Answer { to: from, asked, response: None });
        }
    }

    /// Everything that waits for an answer on this connection gets none.
    pub(super) fn break_connection(&mut self, index: MemberIndex, node_died: bool) {
        self.members[index].connection += 1;
        let broken: Vec<Token> =
            self.asked.iter().filter(|(_, (from, ..))| *from == index).map(|(token, _)| *token).collect();
        for token in broken {
            if let Some((to, _, asked)) = self.asked.remove(&token) {
                let at = self.now + self.notice();
                self.post(at, Message::Answer { to, asked, response: None });
            }
            if !node_died {
                self.node.coordinator.connection_closed(self.now, token);
            }
        }
        let undelivered: Vec<_> = self
            .on_the_way
            .iter()
            .filter_map(|(key, message)| match message {
                Message::Request { from, asked, repeat: false, .. } if *from == index => {
                    Some((*key, asked.clone()))
                }
                _ => None,
            })
            .collect();
        for (key, asked) in undelivered {
            self.on_the_way.remove(&key);
            let at = self.now + self.notice();
            self.post(at, Message::Answer { to: index, asked, response: None });
        }
        if !node_died {
            self.node.collect();
            self.send_replies();
        }
    }

    pub(super) fn send_replies(&mut self) {
        while let Some((token, response)) = self.node.take_reply() {
            let Some((to, connection, asked)) = self.asked.remove(&token) else { continue };
            if connection == self.members[to].connection {
                let at = self.now + self.delay();
                self.post(at, Message::Answer { to, asked, response: Some(response) });
            }
        }
    }

    pub(super) fn post(&mut self, at: Instant, message: Message) {
        self.counter += 1;
        self.on_the_way.insert((at, self.counter), message);
    }

    pub(super) fn delay(&mut self) -> Duration {
        let spread = self.faults.max_delay.saturating_sub(self.faults.min_delay);
        self.faults.min_delay + self.up_to(spread)
    }

    fn notice(&mut self) -> Duration {
        self.up_to(self.faults.notice)
    }

    fn up_to(&mut self, spread: Duration) -> Duration {
        Duration::from_micros(self.seeded.below(spread.as_micros() as u64 + 1))
    }

    /// No partition has two owners, and every owner was told what the member knows.
    fn check(&self) {
        if self.allows_two_owners {
            return;
        }
        let mut owner: BTreeMap<TopicPartition, MemberIndex> = BTreeMap::new();
        for (index, endpoint) in self.members.iter().enumerate() {
            for of in self.owned_by(index) {
                if let Some(other) = owner.insert(of.clone(), index) {
                    let about = |index: MemberIndex| {
                        let member = &self.members[index].member;
                        (index, member.state(), member.generation(), self.members[index].paused_until)
                    };
                    let (one, two) = (about(other), about(index));
                    panic!("{of} is owned by {one:?} and {two:?} at {:?}, seed {}", self.now, self.seed);
                }
            }
            let known: BTreeSet<_> =
                endpoint.member.assignment().union(endpoint.member.revoking()).cloned().collect();
            assert_eq!(endpoint.owns, known, "member {index} told its owner otherwise, seed {}", self.seed);
        }
    }
}
