//! Commits and committed offsets, beginnings and ends: what the handle asks for and how long it waits.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio::time::Instant as TokioInstant;
use tramline_core::client::consumer_commits::{CommitFailure, CommitId, CommitOffset, CommitQueue};
use tramline_core::client::error_actions::{Action, Operation, action};
use tramline_core::client::fetcher::{IsolationLevel, OffsetSpec};
use tramline_core::client::retry::Backoff;
use tramline_wire::messages::ListOffsetsResponse;
use tramline_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::builder::Settings;
use super::error::{CommitError, OffsetsError};
use super::messages::{self, Committed};
use super::shared::Shared;
use super::types::{GroupMetadata, OffsetAndMetadata};
use crate::cluster::{Cluster, Target, jitter};
use crate::error::CallError;

type CommitReply = oneshot::Sender<Result<(), CommitError>>;

/// The commits under way and who waits for them.
#[derive(Debug)]
pub(super) struct Commits {
    pub queue: CommitQueue,
    replies: BTreeMap<CommitId, CommitReply>,
}

impl Commits {
    pub(super) fn new(settings: &Settings, backoff: Backoff) -> Self {
        Self { queue: CommitQueue::new(settings.commit_timeout, backoff), replies: BTreeMap::new() }
    }

    /// Tells whose commit it is that it is finished. Nobody may be listening any more; the commit is made all the same.
    pub(super) fn reply(&mut self, id: CommitId, failed: BTreeMap<TopicPartition, CommitFailure>) {
        let outcome = if failed.is_empty() { Ok(()) } else { Err(CommitError { failed }) };
        if let Some(reply) = self.replies.remove(&id) {
            reply.send(outcome).ok();
        }
    }
}

impl Shared {
    pub(super) async fn commit(
        &self,
        offsets: BTreeMap<TopicPartition, OffsetAndMetadata>,
    ) -> Result<(), CommitError> {
        if self.settings.group.is_none() {
            let failed =
                offsets.into_keys().map(|tp| (tp, CommitFailure::NoGroup)).collect::<BTreeMap<_, _>>();
            return if failed.is_empty() { Ok(()) } else { Err(CommitError { failed }) };
        }
        let wanted = offsets.into_iter().map(|(tp, offset)| (tp, commit_offset(offset))).collect();
        let (reply, outcome) = oneshot::channel();
        {
            let now = self.now();
            let mut state = self.lock();
            let id = state.commits.queue.push(wanted, now);
            state.commits.replies.insert(id, reply);
            state.finish_commits(now);
        }
        self.offsets.notify_one();
        // The reply is dropped only with the whole consumer.
        outcome.await.unwrap_or_else(|_| Err(CommitError { failed: BTreeMap::new() }))
    }

    pub(super) async fn committed(
        &self,
        cluster: &Cluster,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, OffsetsError> {
        let Some(group) = &self.settings.group else { return Err(OffsetsError::NoGroup) };
        let mut patience = Patience::new(self, cluster);
        loop {
            let answer = fetch_committed(cluster, group, partitions.to_vec()).await;
            if let Some(code) = refused_for_good(&answer) {
                return Err(OffsetsError::GroupRefused(code));
            }
            let last = match answer {
                Ok(Ok(rows)) => match settled(rows, partitions)? {
                    Ok(offsets) => return Ok(offsets),
                    Err(why) => why,
                },
                Ok(Err(code)) => code.to_string(),
                Err(error) => error.to_string(),
            };
            patience.pause(last).await?;
        }
    }

    /// Where `spec` is in each partition, asked of the leaders.
    pub(super) async fn list_offsets(
        &self,
        cluster: &Cluster,
        partitions: &[TopicPartition],
        spec: OffsetSpec,
    ) -> Result<BTreeMap<TopicPartition, i64>, OffsetsError> {
        let isolation = self.settings.fetcher.isolation_level;
        let mut found = BTreeMap::new();
        let mut patience = Patience::new(self, cluster);
        loop {
            let mut last = String::from("a partition has no leader");
            let mut by_leader: BTreeMap<i32, Vec<(TopicPartition, i32)>> = BTreeMap::new();
            for topic_partition in partitions.iter().filter(|tp| !found.contains_key(*tp)) {
                if let Some(leader) = cluster.leader(topic_partition) {
                    by_leader.entry(leader.node).or_default().push((topic_partition.clone(), leader.epoch));
                }
            }
            for (node, wanted) in by_leader {
                match cluster.call(Target::NodeControl(node), list_request(&wanted, spec, isolation)).await {
                    Ok(answer) => last = take_offsets(answer, &wanted, &mut found)?.unwrap_or(last),
                    Err(error) => last = error.to_string(),
                }
            }
            if partitions.iter().all(|tp| found.contains_key(tp)) {
                return Ok(found);
            }
            let topics: Vec<Str> = partitions.iter().map(|tp| tp.topic.clone()).collect();
            // A first look is not a failure to wait after; one that fails shows in the next round.
            if patience.rounds == 0 {
                patience.rounds = 1;
            } else {
                patience.pause(last).await?;
            }
            cluster.refresh(Some(&topics), false).await.ok();
        }
    }

    pub(super) fn group_metadata(&self) -> Option<GroupMetadata> {
        let group_id = self.settings.group.clone()?;
        let instance_id = self.settings.instance_id.clone();
        let state = self.lock();
        let (generation, member_id) = state.membership.as_ref().map_or((-1, Str::new()), |membership| {
            (membership.member.generation(), membership.member.member_id().clone())
        });
        Some(GroupMetadata { group_id, generation, member_id, instance_id })
    }
}

pub(super) fn commit_offset(offset: OffsetAndMetadata) -> CommitOffset {
    let OffsetAndMetadata { offset, leader_epoch, metadata, generation } = offset;
    CommitOffset { offset, leader_epoch, metadata, generation }
}

/// Repeats a question with growing pauses until the time limit.
struct Patience<'a> {
    shared: &'a Shared,
    until: TokioInstant,
    backoff: Backoff,
    rounds: u32,
}

impl<'a> Patience<'a> {
    fn new(shared: &'a Shared, cluster: &Cluster) -> Self {
        let until = TokioInstant::now() + shared.settings.commit_timeout;
        Self { shared, until, backoff: cluster.backoff(), rounds: 0 }
    }

    async fn pause(&mut self, last: String) -> Result<(), OffsetsError> {
        self.rounds += 1;
        if self.shared.lock().life > super::shared::Life::Running {
            return Err(OffsetsError::Closed);
        }
        let again = TokioInstant::now() + self.backoff.next_wait(jitter());
        if again >= self.until {
            return Err(OffsetsError::TimedOut { limit: self.shared.settings.commit_timeout, last });
        }
        tokio::time::sleep_until(again).await;
        Ok(())
    }
}

/// Asks the group's coordinator, past the connection on which joins are parked. Forgets a coordinator that is none.
pub(super) async fn fetch_committed(
    cluster: &Cluster,
    group: &Str,
    partitions: Vec<TopicPartition>,
) -> Result<Committed, CallError> {
    let node = cluster.coordinator(group).await?;
    let group_id = group.clone();
    let build = move |version| messages::offset_fetch(version, group_id, partitions);
    let timeout = cluster.config().request_timeout;
    let answer = cluster.call_with(Target::NodeControl(node), timeout, build).await;
    let committed = answer.map(|answer| messages::committed_offsets(group, answer));
    let moved = |code: &ErrorCode| action(Operation::OffsetFetch, *code) == Action::FindCoordinator;
    let forget = match &committed {
        Ok(Ok(rows)) => rows.values().any(|row| row.as_ref().is_err_and(moved)),
        Ok(Err(code)) => moved(code),
        Err(_) => true,
    };
    if forget {
        cluster.forget_coordinator(group);
    }
    committed
}

/// The code with which committed offsets were refused altogether, when asking again cannot help.
pub(super) fn refused_for_good(answer: &Result<Committed, CallError>) -> Option<ErrorCode> {
    match answer {
        Ok(Err(code)) if !action(Operation::OffsetFetch, *code).asks_again() => Some(*code),
        Err(error @ CallError::NoCoordinator { code }) if !error.is_retriable() => Some(*code),
        _ => None,
    }
}

type Offsets = BTreeMap<TopicPartition, Option<OffsetAndMetadata>>;

/// A row for each of `asked`, or why to ask again.
fn settled(
    mut rows: BTreeMap<TopicPartition, Result<Option<OffsetAndMetadata>, ErrorCode>>,
    asked: &[TopicPartition],
) -> Result<Result<Offsets, String>, OffsetsError> {
    let mut offsets = BTreeMap::new();
    let mut again = None;
    for topic_partition in asked {
        let topic_partition = topic_partition.clone();
        match rows.remove(&topic_partition) {
            Some(Ok(offset)) => {
                offsets.insert(topic_partition, offset);
            }
            Some(Err(code)) if action(Operation::OffsetFetch, code).asks_again() => {
                again = Some(code.to_string());
            }
            Some(Err(code)) => return Err(OffsetsError::Refused { topic_partition, code }),
            None if offsets.contains_key(&topic_partition) => {}
            None => again = Some(format!("the answer says nothing about {topic_partition}")),
        }
    }
    Ok(again.map_or(Ok(offsets), Err))
}

fn list_request(
    wanted: &[(TopicPartition, i32)],
    spec: OffsetSpec,
    isolation: IsolationLevel,
) -> ListOffsetsRequest {
    let mut topics: Vec<ListOffsetsTopic> = Vec::new();
    for (topic_partition, epoch) in wanted {
        let partition = ListOffsetsPartition {
            partition_index: topic_partition.partition,
            current_leader_epoch: *epoch,
            timestamp: spec.wire_timestamp(),
        };
        match topics.iter_mut().find(|topic| topic.name == topic_partition.topic) {
            Some(topic) => topic.partitions.push(partition),
            None => topics
                .push(ListOffsetsTopic { name: topic_partition.topic.clone(), partitions: vec![partition] }),
        }
    }
    ListOffsetsRequest {
        replica_id: -1,
        isolation_level: isolation.wire_level(),
        topics,
        ..Default::default()
    }
}

/// Takes the offsets of what was wanted over; the last error because of which to ask again.
fn take_offsets(
    answer: ListOffsetsResponse,
    wanted: &[(TopicPartition, i32)],
    found: &mut BTreeMap<TopicPartition, i64>,
) -> Result<Option<String>, OffsetsError> {
    let mut unsaid: BTreeSet<&TopicPartition> = wanted.iter().map(|(place, _)| place).collect();
    let mut again = None;
    for topic in answer.topics {
        for row in topic.partitions {
            let topic_partition =
                TopicPartition { topic: topic.name.clone(), partition: row.partition_index };
            if !unsaid.remove(&topic_partition) {
                continue;
            }
            match ErrorCode::from(row.error_code) {
                ErrorCode::None if row.offset >= 0 => {
                    found.insert(topic_partition, row.offset);
                }
                ErrorCode::None => again = Some(format!("{topic_partition} has no such offset")),
                code if action(Operation::ListOffsets, code).asks_again() => again = Some(code.to_string()),
                code => return Err(OffsetsError::Refused { topic_partition, code }),
            }
        }
    }
    Ok(again)
}
