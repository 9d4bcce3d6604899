//! The task for the group's offsets: commits go out, committed offsets come in, one question at a time; and it sees the
//! consumer's end.
//!
//! A committed offset is never asked for while an offset of the same partition waits to be committed, so that a partition
//! that comes back at once does not start from before the last commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant as TokioInstant;
use tramline_core::client::consumer_commits::{CommitFailure, CommitOffset, CommitResult};
use tramline_core::client::error_actions::{Action, Operation, action};
use tramline_core::client::fetcher::{FetchError, Position};
use tramline_core::client::retry::Backoff;
use tramline_core::group::member::{CommitContext, CommitVerdict};
use tramline_wire::messages::OffsetCommitResponse;
use tramline_wire::{ErrorCode, Str, TopicPartition};

use super::error::ConsumeError;
use super::fetch_task::FAR;
use super::messages::{self, Committed};
use super::offsets::{fetch_committed, refused_for_good};
use super::shared::{Life, Shared, State};
use super::types::OffsetAndMetadata;
use crate::cluster::{Cluster, Target, jitter};
use crate::error::CallError;

enum Work {
    Commit(CommitContext, Vec<(TopicPartition, CommitOffset)>),
    Lookup(Vec<TopicPartition>, BTreeMap<TopicPartition, i32>),
    Wait(Option<TokioInstant>),
    End,
}

/// Runs until the consumer has ended, and ends it.
pub(super) async fn run(shared: Arc<Shared>, cluster: Cluster) {
    let mut lookups = Lookups { backoff: cluster.backoff(), not_before: TokioInstant::now() };
    loop {
        match next_work(&shared, lookups.not_before) {
            Work::Commit(context, offsets) => commit(&shared, &cluster, context, offsets).await,
            Work::Lookup(partitions, generations) => {
                lookups.look_up(&shared, &cluster, partitions, &generations).await;
            }
            Work::Wait(until) => {
                let until = until.unwrap_or_else(|| TokioInstant::now() + FAR);
                tokio::select! {
                    () = shared.offsets.notified() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
            Work::End => break,
        }
    }
    {
        let now = shared.now();
        let mut state = shared.lock();
        state.commits.queue.close();
        state.finish_commits(now);
    }
    shared.ended();
}

fn next_work(shared: &Arc<Shared>, look_up_from: TokioInstant) -> Work {
    let now = shared.now();
    let mut state = shared.lock();
    let life = state.life;
    state.queue_due_commits(now);
    let State { fetcher, membership, commits, close_deadline, .. } = &mut *state;
    let left = membership.as_ref().is_none_or(|membership| membership.left);
    let overdue = close_deadline.is_some_and(|at| at <= now);
    if life == Life::Ended || (life == Life::Closing && (overdue || (left && commits.queue.is_idle()))) {
        return Work::End;
    }
    let context = match (membership.as_ref(), &shared.settings.group) {
        (Some(membership), _) => membership.member.commit_context(),
        (None, group) => group.clone().map(|group_id| CommitContext {
            group_id,
            member_id: Str::new(),
            generation: -1,
            instance_id: None,
        }),
    };
    let shares = membership.is_some();
    let owned = |tp: &TopicPartition, generation: Option<i32>| match fetcher.owned(tp) {
        Some(assigned) => generation.is_none_or(|generation| generation == assigned),
        None => !shares && generation.is_none(),
    };
    let wanted = match context {
        Some(context) => commits.queue.poll_send(now, owned).map(|offsets| (context, offsets)),
        None => {
            // Without a generation nothing is ours to commit.
            commits.queue.poll_send(now, |_, _| false);
            None
        }
    };
    if state.finish_commits(now) {
        shared.grouping.notify_one();
    }
    if let Some((context, offsets)) = wanted {
        return Work::Commit(context, offsets);
    }
    let State { fetcher, commits, close_deadline, .. } = &*state;
    let mut until = commits.queue.next_timeout().into_iter().chain(*close_deadline).min();
    until = until.into_iter().chain(state.next_automatic_commit()).min();
    let awaiting: BTreeMap<TopicPartition, i32> = fetcher
        .awaiting_position()
        .filter(|(tp, _)| !commits.queue.concerns(tp))
        .map(|(tp, generation)| (tp.clone(), generation))
        .collect();
    if !awaiting.is_empty() {
        if look_up_from <= TokioInstant::now() {
            return Work::Lookup(awaiting.keys().cloned().collect(), awaiting);
        }
        let from = tramline_core::time::Instant::from_start(shared.since_start(look_up_from));
        until = until.into_iter().chain([from]).min();
    }
    Work::Wait(until.map(|at| shared.tokio_instant(at)))
}

async fn commit(
    shared: &Arc<Shared>,
    cluster: &Cluster,
    context: CommitContext,
    offsets: Vec<(TopicPartition, CommitOffset)>,
) {
    let answer = send_commit(cluster, context.clone(), offsets.clone()).await;
    let now = shared.now();
    let mut state = shared.lock();
    match answer {
        Ok(response) => {
            let results = state.commit_results(cluster, &context, &offsets, response, now);
            for (tp, at) in offsets {
                if results.get(&tp) == Some(&CommitResult::Done) {
                    let known = OffsetAndMetadata::new(at.offset).leader_epoch(at.leader_epoch);
                    state.note_committed(&tp, Some(known.metadata(at.metadata)));
                }
            }
            state.commits.queue.handle_answer(&results, now);
        }
        Err(error) => {
            cluster.forget_coordinator(&context.group_id);
            match final_code(&error) {
                Some(code) => {
                    let refused = CommitResult::Failed(CommitFailure::Refused(code));
                    let results = offsets.into_iter().map(|(tp, _)| (tp, refused.clone())).collect();
                    state.commits.queue.handle_answer(&results, now);
                }
                None => {
                    if let Some(membership) = &mut state.membership {
                        membership.member.coordinator_lost(now);
                    }
                    state.commits.queue.handle_no_answer(error.to_string(), now);
                }
            }
        }
    }
    state.finish_commits(now);
    drop(state);
    shared.grouping.notify_one();
}

async fn send_commit(
    cluster: &Cluster,
    context: CommitContext,
    offsets: Vec<(TopicPartition, CommitOffset)>,
) -> Result<OffsetCommitResponse, CallError> {
    let node = cluster.coordinator(&context.group_id).await?;
    let build = move |version| messages::offset_commit(version, context, offsets);
    cluster.call_with(Target::NodeControl(node), cluster.config().request_timeout, build).await
}

/// The code to report when asking again cannot help.
fn final_code(error: &CallError) -> Option<ErrorCode> {
    match error {
        CallError::NoCoordinator { code } if !error.is_retriable() => Some(*code),
        CallError::Unsupported(_) | CallError::Encode(_) => Some(ErrorCode::UnsupportedVersion),
        _ => None,
    }
}

impl State {
    /// What became of each of these offsets. A row for anything else, or a second one, says nothing about the member.
    fn commit_results(
        &mut self,
        cluster: &Cluster,
        context: &CommitContext,
        offsets: &[(TopicPartition, CommitOffset)],
        response: OffsetCommitResponse,
        now: tramline_core::time::Instant,
    ) -> BTreeMap<TopicPartition, CommitResult> {
        let mut unsaid: BTreeSet<&TopicPartition> = offsets.iter().map(|(tp, _)| tp).collect();
        let mut results = BTreeMap::new();
        for (tp, code) in messages::commit_codes(response) {
            if unsaid.remove(&tp) {
                results.insert(tp, self.commit_result(cluster, context, code, now));
            }
        }
        results
    }

    fn commit_result(
        &mut self,
        cluster: &Cluster,
        context: &CommitContext,
        code: ErrorCode,
        now: tramline_core::time::Instant,
    ) -> CommitResult {
        if code == ErrorCode::None {
            return CommitResult::Done;
        }
        if action(Operation::OffsetCommit, code) == Action::FindCoordinator {
            cluster.forget_coordinator(&context.group_id);
        }
        let verdict = match &mut self.membership {
            Some(membership) => membership.member.commit_failed(now, context, code.code()),
            None => CommitVerdict::without_membership(code.code()),
        };
        match verdict {
            CommitVerdict::Retry | CommitVerdict::RetryAfterRebalance => {
                CommitResult::Retry(code.to_string())
            }
            CommitVerdict::Fenced => CommitResult::Failed(CommitFailure::Fenced(code)),
            CommitVerdict::Refused => CommitResult::Failed(CommitFailure::Refused(code)),
        }
    }
}

struct Lookups {
    backoff: Backoff,
    not_before: TokioInstant,
}

impl Lookups {
    /// Finds out where partitions start, and waits a while before the next try when some are left.
    async fn look_up(
        &mut self,
        shared: &Arc<Shared>,
        cluster: &Cluster,
        partitions: Vec<TopicPartition>,
        generations: &BTreeMap<TopicPartition, i32>,
    ) {
        let Some(group) = &shared.settings.group else { return };
        let answer = fetch_committed(cluster, group, partitions).await;
        let again = {
            let mut state = shared.lock();
            state.take_committed(group, answer, generations)
        };
        if again {
            self.not_before = TokioInstant::now() + self.backoff.next_wait(jitter());
        } else {
            self.backoff.reset();
        }
        shared.fetching.notify_one();
    }
}

impl State {
    /// Starts partitions at their committed offsets. Whether some have to be asked for again.
    fn take_committed(
        &mut self,
        group: &Str,
        answer: Result<Committed, CallError>,
        generations: &BTreeMap<TopicPartition, i32>,
    ) -> bool {
        if let Some(code) = refused_for_good(&answer) {
            let reason = format!("its offsets were refused with {code}");
            self.failed = Some(ConsumeError::Group { group: group.clone(), reason });
            self.wake_readers();
            return true;
        }
        let mut rows = match answer {
            Ok(Ok(rows)) => rows,
            Ok(Err(code)) => {
                tracing::debug!(%code, "committed offsets are not to be had yet");
                return true;
            }
            Err(error) => {
                tracing::debug!(%error, "committed offsets are not to be had yet");
                return true;
            }
        };
        let mut again = false;
        for (topic_partition, &generation) in generations {
            match rows.remove(topic_partition) {
                Some(Ok(Some(at))) => {
                    let position = Position { offset: at.offset, leader_epoch: at.leader_epoch };
                    self.fetcher.position_known(topic_partition, generation, position);
                    if self.fetcher.owned(topic_partition) == Some(generation) {
                        self.note_committed(topic_partition, Some(at));
                    }
                }
                Some(Ok(None)) => {
                    self.fetcher.no_position(topic_partition, generation);
                    self.note_committed(topic_partition, None);
                }
                Some(Err(code)) if !action(Operation::OffsetFetch, code).asks_again() => {
                    let error = FetchError::Refused { topic_partition: topic_partition.clone(), code };
                    self.fetcher.fail(topic_partition, generation, error);
                }
                Some(Err(_)) | None => again = true,
            }
        }
        self.wake_readers();
        again
    }
}
