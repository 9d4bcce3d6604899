//! Commits: one at a time, so that two are never reordered, on a thread that may wait for them.
//!
//! rdkafka's asynchronous commits tell nobody how they went, and its waiting ones tell it only when every partition of the
//! request failed. What partitions fail for, they fail for by topic or all together; so there is one request per topic.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::Instant;
use tramline_processor::{CommitError, CommitErrorKind, CommitOffset, Committed};
use tramline_wire::{Str, TopicPartition};

use crate::context::Context;
use crate::shared::{Shared, State};

/// Longer than librdkafka tries.
const PATIENCE: Duration = Duration::from_secs(70);

/// The partitions that failed, and why.
type Failed = BTreeMap<TopicPartition, RDKafkaErrorCode>;

/// A commit that librdkafka has not answered, or whose answer nobody has taken.
pub(crate) struct InFlight {
    id: u64,
    result: Option<Failed>,
    /// It is not waited for any longer than this.
    until: Instant,
}

impl State {
    fn owns(&self, offset: &CommitOffset) -> bool {
        self.partitions.get(&offset.topic_partition).is_some_and(|partition| {
            partition.generation == offset.generation && partition.least <= offset.offset
        })
    }

    /// Whether no commit is under way.
    fn commit_is_over(&mut self) -> bool {
        let now = Instant::now();
        let is_over = |commit: &InFlight| commit.result.is_some() || commit.until <= now;
        let over = self.consumer.is_none() || self.commit.as_ref().is_none_or(is_over);
        if over {
            self.commit = None;
        }
        over
    }

    /// The partitions that failed, once there is an answer.
    fn take_answer(&mut self) -> Option<Result<Failed, CommitError>> {
        if let Some(failed) = self.commit.as_mut().and_then(|commit| commit.result.take()) {
            self.commit = None;
            return Some(Ok(failed));
        }
        if !self.commit_is_over() {
            return None;
        }
        let reason = KafkaError::ConsumerCommit(RDKafkaErrorCode::OperationTimedOut);
        Some(Err(CommitError::new(CommitErrorKind::Retriable, reason)))
    }
}

impl Shared {
    pub(crate) async fn commit(self: &Arc<Self>, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        let _turn = self.committing.lock().await;
        // One whose future was dropped may still be under way.
        self.wait(|state| state.commit_is_over().then_some(())).await;
        let (owned, foreign): (Vec<_>, Vec<_>) = {
            let state = self.lock();
            offsets.into_iter().partition(|offset| state.owns(offset))
        };
        let mut failed = Failed::new();
        if !owned.is_empty() {
            self.send(&owned)?;
            failed = self.wait(State::take_answer).await?;
        }
        let mut state = self.lock();
        for offset in owned.iter().filter(|offset| !failed.contains_key(&offset.topic_partition)) {
            let partition = state.partitions.get_mut(&offset.topic_partition);
            if let Some(partition) = partition.filter(|found| found.generation == offset.generation) {
                partition.least = partition.least.max(offset.offset);
                let end = partition.committed.take().and_then(|committed| committed.log_end);
                let committed = Committed::new(offset.offset, offset.metadata.clone());
                partition.committed = Some(committed.log_end(end.map(|end| end.max(partition.next))));
            }
        }
        let lost = (CommitErrorKind::Fenced, RDKafkaErrorCode::AssignmentLost);
        let mut worst = (!foreign.is_empty()).then_some(lost);
        for (topic_partition, code) in &failed {
            let of = |offset: &&CommitOffset| offset.topic_partition == *topic_partition;
            let kind = kind_of(*code, owned.iter().find(of).is_some_and(|offset| state.owns(offset)));
            if worst.is_none_or(|(worst, _)| severity(kind) > severity(worst)) {
                worst = Some((kind, *code));
            }
        }
        let Some((kind, code)) = worst else { return Ok(()) };
        let partitions = foreign.into_iter().map(|offset| offset.topic_partition).chain(failed.into_keys());
        let error = CommitError::new(kind, KafkaError::ConsumerCommit(code));
        Err(CommitError { partitions: partitions.collect(), ..error })
    }

    /// Hands the offsets to librdkafka, on a thread that waits for the answer.
    fn send(self: &Arc<Self>, offsets: &[CommitOffset]) -> Result<(), CommitError> {
        let refused = |error: KafkaError| CommitError::new(CommitErrorKind::Fenced, error);
        let mut requests: BTreeMap<Str, TopicPartitionList> = BTreeMap::new();
        for offset in offsets {
            let TopicPartition { topic, partition } = &offset.topic_partition;
            let list = requests.entry(topic.clone()).or_default();
            let mut entry = list.add_partition(topic, *partition);
            entry.set_offset(Offset::Offset(offset.offset)).map_err(refused)?;
            if !offset.metadata.is_empty() {
                entry.set_metadata(&offset.metadata);
            }
        }
        let mut state = self.lock();
        let Some(consumer) = state.consumer.clone() else { return Err(refused(KafkaError::Canceled)) };
        state.commits += 1;
        let id = state.commits;
        state.commit = Some(InFlight { id, result: None, until: Instant::now() + PATIENCE });
        let shared = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("rdkafka commit".into());
        let spawned = thread.spawn(move || answer(&shared, id, consumer, requests));
        spawned.map(drop).map_err(|error| {
            state.commit = None;
            CommitError::new(CommitErrorKind::Retriable, error)
        })
    }
}

/// Commits and tells how it went, if anybody is left to be told.
fn answer(
    shared: &Weak<Shared>,
    id: u64,
    consumer: Arc<BaseConsumer<Context>>,
    requests: BTreeMap<Str, TopicPartitionList>,
) {
    let mut failed = Failed::new();
    for (topic, list) in requests {
        let code = match consumer.commit(&list, CommitMode::Sync) {
            Ok(()) => continue,
            Err(error) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail),
        };
        let partitions = list.elements().into_iter().map(|element| element.partition());
        failed.extend(partitions.map(|partition| (TopicPartition { topic: topic.clone(), partition }, code)));
    }
    // Before anybody is told: a close that follows waits for whoever has the consumer.
    drop(consumer);
    let Some(shared) = shared.upgrade() else { return };
    if let Some(commit) = shared.lock().commit.as_mut().filter(|commit| commit.id == id) {
        commit.result = Some(failed);
    }
    shared.changed.notify_waiters();
}

fn kind_of(code: RDKafkaErrorCode, owned: bool) -> CommitErrorKind {
    match code {
        RDKafkaErrorCode::GroupAuthorizationFailed
        | RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::ClusterAuthorizationFailed => CommitErrorKind::Unauthorised,
        RDKafkaErrorCode::UnknownMemberId
        | RDKafkaErrorCode::FencedInstanceId
        | RDKafkaErrorCode::FencedMemberEpoch
        | RDKafkaErrorCode::UnreleasedInstanceId
        | RDKafkaErrorCode::AssignmentLost
        | RDKafkaErrorCode::InvalidCommitOffsetSize => CommitErrorKind::Fenced,
        RDKafkaErrorCode::OffsetMetadataTooLarge => CommitErrorKind::MetadataTooLarge,
        // With cooperative assignors the generation grows while partitions are kept: the same commit works a moment later.
        RDKafkaErrorCode::IllegalGeneration | RDKafkaErrorCode::StaleMemberEpoch if !owned => {
            CommitErrorKind::Fenced
        }
        _ => CommitErrorKind::Retriable,
    }
}

/// When partitions of one request failed in different ways, the worst decides what the run does.
const fn severity(kind: CommitErrorKind) -> u8 {
    match kind {
        CommitErrorKind::Unauthorised => 3,
        CommitErrorKind::Fenced => 2,
        CommitErrorKind::MetadataTooLarge => 1,
        _ => 0,
    }
}
