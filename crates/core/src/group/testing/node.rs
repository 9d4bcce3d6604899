//! A coordinator with its log, in memory.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use tramline_wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest,
    ListGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, SyncGroupRequest,
};
use tramline_wire::{Str, TopicPartition};

use crate::group::Seeded;
use crate::group::coordinator::{
    Client, CommittedOffset, Config, Coordinator, GroupRecord, Output, Response, Seq, Token,
};
use crate::time::{Instant, Timestamp};

/// When appends become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once.
    AtOnce,
    /// When [`Node::make_durable`] or [`Node::fail_append`] is called.
    ByHand,
}

/// A coordinator, the log its records go to, and the replies it gave.
#[derive(Debug)]
pub struct Node {
    /// The coordinator itself.
    pub coordinator: Coordinator,
    /// When appends become durable.
    pub durability: Durability,
    /// The partitions that exist, by topic; commits of others are refused.
    pub partition_counts: BTreeMap<Str, i32>,
    config: Config,
    seeded: Seeded,
    now: Instant,
    log: Vec<GroupRecord>,
    waiting: VecDeque<(Seq, Vec<GroupRecord>, Vec<CommittedOffset>)>,
    replies: VecDeque<(Token, Response)>,
    tokens: u64,
}

/// A request of any kind that a coordinator answers.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Request {
    Join(JoinGroupRequest),
    Sync(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveGroupRequest),
    OffsetCommit(OffsetCommitRequest),
    OffsetFetch(OffsetFetchRequest),
    List(ListGroupsRequest),
    Describe(DescribeGroupsRequest),
    Delete(DeleteGroupsRequest),
    OffsetDelete(OffsetDeleteRequest),
}

impl Node {
    /// A node that has loaded an empty log, with the topic `t` of eight partitions.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let mut seeded = Seeded::from_number(seed);
        let mut coordinator = Coordinator::new(config.clone(), new_seed(&mut seeded));
        coordinator.loaded(Instant::ZERO);
        Self {
            coordinator,
            durability: Durability::AtOnce,
            partition_counts: BTreeMap::from([(Str::from_static("t"), 8)]),
            config,
            seeded,
            now: Instant::ZERO,
            log: Vec::new(),
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            tokens: 0,
        }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The present as wall-clock time.
    #[must_use]
    pub fn wall(&self) -> Timestamp {
        i64::try_from(self.now.since_start().as_millis()).unwrap_or(i64::MAX)
    }

    /// Lets time pass up to `now`, with every timer on its way at its own time.
    pub fn advance_to(&mut self, now: Instant) {
        while let Some(at) = self.coordinator.next_timeout().filter(|at| *at <= now) {
            self.now = self.now.max(at);
            let wall = self.wall();
            self.coordinator.handle_timeout(self.now, wall);
            self.collect();
        }
        self.now = self.now.max(now);
    }

    /// Hands a request over; the replies, this one's and any it set free, are in [`take_reply`](Self::take_reply).
    pub fn handle(&mut self, version: i16, client: &str, request: Request) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        let client = Client { id: Str::from(client), host: Str::from_static("/127.0.0.1"), version, token };
        let (now, wall) = (self.now, self.wall());
        let coordinator = &mut self.coordinator;
        let counts = &self.partition_counts;
        let exists = |of: &TopicPartition| {
            counts.get(&of.topic).is_some_and(|count| (0..*count).contains(&of.partition))
        };
        match request {
            Request::Join(request) => coordinator.handle_join(now, wall, &client, &request),
            Request::Sync(request) => coordinator.handle_sync(now, wall, &client, &request),
            Request::Heartbeat(request) => coordinator.handle_heartbeat(now, &client, &request),
            Request::Leave(request) => coordinator.handle_leave(now, wall, &client, &request),
            Request::OffsetCommit(request) => {
                coordinator.handle_offset_commit(now, wall, &client, &request, exists);
            }
            Request::OffsetDelete(request) => {
                coordinator.handle_offset_delete(&client, &request, exists);
            }
            Request::OffsetFetch(request) => coordinator.handle_offset_fetch(&client, &request),
            Request::List(request) => coordinator.handle_list_groups(&client, &request),
            Request::Describe(request) => coordinator.handle_describe_groups(&client, &request),
            Request::Delete(request) => coordinator.handle_delete_groups(&client, &request),
        }
        self.collect();
        token
    }

    /// Takes what the coordinator wants done. Call it after calling the coordinator directly.
    pub fn collect(&mut self) {
        while let Some(output) = self.coordinator.poll_output() {
            match output {
                Output::Reply { token, response } => self.replies.push_back((token, response)),
                Output::Append { seq, records, commits } => {
                    self.waiting.push_back((seq, records, commits));
                    if self.durability == Durability::AtOnce {
                        self.make_durable();
                    }
                }
            }
        }
    }

    /// Makes the oldest append durable. False when there is none.
    pub fn make_durable(&mut self) -> bool {
        let Some((seq, records, _)) = self.waiting.pop_front() else { return false };
        self.log.extend(records);
        self.coordinator.appended(self.now, seq);
        self.collect();
        true
    }

    /// Lets the oldest append fail with this error code. False when there is none.
    pub fn fail_append(&mut self, code: i16) -> bool {
        let Some((seq, ..)) = self.waiting.pop_front() else { return false };
        self.coordinator.append_failed(self.now, seq, code);
        self.collect();
        true
    }

    /// The data offsets that the oldest append commits.
    #[must_use]
    pub fn next_commits(&self) -> &[CommittedOffset] {
        self.waiting.front().map_or(&[], |(_, _, commits)| commits)
    }

    /// The oldest reply.
    pub fn take_reply(&mut self) -> Option<(Token, Response)> {
        self.replies.pop_front()
    }

    /// The reply to one request, when it was given.
    pub fn take_reply_to(&mut self, token: Token) -> Option<Response> {
        let place = self.replies.iter().position(|(of, _)| *of == token)?;
        self.replies.remove(place).map(|(_, response)| response)
    }

    /// Crashes and starts again at `now` from the durable log. What was not durable is gone, and so are the replies.
    pub fn restart(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.waiting.clear();
        self.replies.clear();
        self.coordinator = Coordinator::new(self.config.clone(), new_seed(&mut self.seeded));
        for record in &self.log {
            let replayed = self.coordinator.replay(&record.key, record.value.as_deref());
            assert!(replayed.is_ok(), "{replayed:?}");
        }
        self.coordinator.loaded(self.now);
    }

    /// Every durable record, the oldest first.
    #[must_use]
    pub fn log(&self) -> &[GroupRecord] {
        &self.log
    }

    /// The committed offset of a partition, as OffsetFetch gives it.
    pub fn committed(&mut self, group: &str, of: &TopicPartition) -> i64 {
        use tramline_wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
        let topic =
            OffsetFetchRequestTopic { name: of.topic.clone(), partition_indexes: [of.partition].into() };
        let request = OffsetFetchRequest {
            group_id: Str::from(group),
            topics: Some([topic].into()),
            ..Default::default()
        };
        let token = self.handle(5, "admin", Request::OffsetFetch(request));
        match self.take_reply_to(token) {
            Some(Response::OffsetFetch(response)) => response.topics[0].partitions[0].committed_offset,
            other => panic!("OffsetFetch was answered with {other:?}"),
        }
    }
}

fn new_seed(seeded: &mut Seeded) -> [u8; 16] {
    let bits = (u128::from(seeded.next_u64()) << 64) | u128::from(seeded.next_u64());
    bits.to_be_bytes()
}
