//! The task that keeps the consumer in its group: sends what the member asks for and gives it the answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant as TokioInstant;
use tramline_core::group::member::{
    Disconnected, MemberRequest, RequestBody, RequestId, ResponseBody, find_coordinator, leave_group,
};
use tramline_core::time::Instant;
use tramline_wire::{Request, Str};

use super::fetch_task::FAR;
use super::shared::{Life, Shared};
use crate::cluster::{Cluster, Target};

/// How long until topics that are subscribed to and do not exist are asked for again.
const MISSING_TOPIC_RETRY: Duration = Duration::from_secs(1);

/// How old the leader of a group lets its view of the topics grow: partitions that were added have no reader until it
/// looks. Others need not look.
const LEADER_METADATA_AGE: Duration = Duration::from_secs(10);

enum Done {
    Answer(RequestId, Result<ResponseBody, Disconnected>),
    Metadata { answered: bool },
}

/// Runs until the consumer has ended.
pub(super) async fn run(shared: Arc<Shared>, cluster: Cluster, topics: Vec<Str>) {
    let mut exchanges = JoinSet::new();
    let mut metadata = cluster.watch_metadata();
    let (mut refreshed, mut found) = (TokioInstant::now(), true);
    with_member(&shared, |member, now| member.subscribe(now, topics));
    loop {
        let Some((requests, next)) = step(&shared) else { return };
        for request in requests {
            exchanges.spawn(exchange(cluster.clone(), request.0, request.1));
        }
        let wanted = shared.lock().membership.as_mut().and_then(|membership| membership.wanted_topics.take());
        if let Some(topics) = wanted {
            exchanges.spawn(refresh(cluster.clone(), topics));
        }
        tokio::select! {
            () = shared.grouping.notified() => {}
            Some(Ok(done)) = exchanges.join_next() => match done {
                Done::Answer(id, answer) => with_member(&shared, |member, now| member.handle_response(now, id, answer)),
                Done::Metadata { answered } => {
                    refreshed = TokioInstant::now();
                    found = answered && !is_missing(&shared, &cluster);
                    tell_counts(&shared, &cluster);
                }
            },
            Ok(()) = metadata.changed() => {
                metadata.mark_unchanged();
                tell_counts(&shared, &cluster);
            }
            () = tokio::time::sleep_until(next) => {}
            () = tokio::time::sleep_until(refreshed + metadata_age(&shared, &cluster, found)) => {
                refreshed = TokioInstant::now();
                let topics = member_topics(&shared);
                if !topics.is_empty() {
                    exchanges.spawn(refresh(cluster.clone(), topics));
                }
            }
        }
    }
}

fn with_member(shared: &Shared, act: impl FnOnce(&mut tramline_core::group::member::Member, Instant)) {
    let now = shared.now();
    if let Some(membership) = &mut shared.lock().membership {
        act(&mut membership.member, now);
    }
}

/// When to ask for the topics again.
fn metadata_age(shared: &Shared, cluster: &Cluster, found: bool) -> Duration {
    let configured = cluster.config().metadata_max_age;
    let leads = shared.lock().membership.as_ref().is_some_and(|membership| membership.member.is_leader());
    match (found, leads) {
        (false, _) => MISSING_TOPIC_RETRY,
        (true, true) => configured.min(LEADER_METADATA_AGE),
        (true, false) => configured,
    }
}

fn member_topics(shared: &Shared) -> Vec<Str> {
    let state = shared.lock();
    state.membership.iter().flat_map(|membership| membership.member.topics()).collect()
}

fn is_missing(shared: &Shared, cluster: &Cluster) -> bool {
    let view = cluster.metadata();
    member_topics(shared).iter().any(|topic| view.partition_count(topic).is_none())
}

fn tell_counts(shared: &Shared, cluster: &Cluster) {
    let (view, now) = (cluster.metadata(), shared.now());
    if let Some(membership) = &mut shared.lock().membership {
        membership.metadata_changed(&view, now);
    }
}

type Outgoing = (Str, MemberRequest);

/// What to send now, and when to look again; `None` when the consumer has ended.
fn step(shared: &Arc<Shared>) -> Option<(Vec<Outgoing>, TokioInstant)> {
    let now = shared.now();
    let mut state = shared.lock();
    if state.life == Life::Ended {
        return None;
    }
    let expiry = state.poll_expires_at(shared.settings.max_poll_interval);
    let closing = state.life == Life::Closing;
    let begin_leaving = state.begin_leaving();
    let membership = state.membership.as_mut()?;
    if begin_leaving {
        membership.member.leave(now);
    } else if expiry.is_some_and(|at| at <= now) && !closing {
        membership.poll_stopped(now);
    }
    let expiry = expiry.filter(|_| !closing && !membership.is_poll_expired());
    let group = membership.group.clone();
    let requests = state.pump_membership(now);
    let due = state.membership.as_ref().and_then(|membership| membership.member.next_timeout());
    let next = due.into_iter().chain(expiry).min();
    let left = state.membership.as_ref().is_some_and(|membership| membership.left);
    drop(state);
    // Assignments and losses concern the other tasks; a spurious wake costs them one look.
    shared.fetching.notify_one();
    shared.offsets.notify_one();
    if left {
        shared.left();
    }
    let next = next.map_or_else(|| TokioInstant::now() + FAR, |at| shared.tokio_instant(at));
    Some((requests.into_iter().map(|request| (group.clone(), request)).collect(), next))
}

async fn exchange(cluster: Cluster, group: Str, request: MemberRequest) -> Done {
    let MemberRequest { id, to, timeout, overtakes, body, .. } = request;
    let answer = match to {
        None => {
            // The member is looking for its coordinator: what the cluster remembered of it is in doubt too.
            cluster.forget_coordinator(&group);
            send(&cluster, Target::Any, timeout, body).await
        }
        // A parked Join would hold it back on the connection the Join went out on.
        Some(node) if overtakes => send(&cluster, Target::NodeControl(node.node_id), timeout, body).await,
        Some(_) => send(&cluster, Target::Coordinator(group), timeout, body).await,
    };
    Done::Answer(id, answer)
}

async fn send(
    cluster: &Cluster,
    target: Target,
    timeout: Duration,
    body: RequestBody,
) -> Result<ResponseBody, Disconnected> {
    match body {
        RequestBody::FindCoordinator(group) => {
            let build = move |version| find_coordinator(version, group);
            call(cluster, target, timeout, build).await.map(ResponseBody::FindCoordinator)
        }
        RequestBody::Join(request) => {
            call(cluster, target, timeout, move |_| request).await.map(ResponseBody::Join)
        }
        RequestBody::Sync(request) => {
            call(cluster, target, timeout, move |_| request).await.map(ResponseBody::Sync)
        }
        RequestBody::Heartbeat(request) => {
            call(cluster, target, timeout, move |_| request).await.map(ResponseBody::Heartbeat)
        }
        RequestBody::Leave(group, member) => {
            let build = move |version| leave_group(version, group, member);
            call(cluster, target, timeout, build).await.map(ResponseBody::Leave)
        }
    }
}

async fn call<R: Request>(
    cluster: &Cluster,
    target: Target,
    timeout: Duration,
    build: impl FnOnce(i16) -> R + Send + 'static,
) -> Result<R::Response, Disconnected> {
    cluster.call_with(target, timeout, build).await.map_err(|error| {
        tracing::debug!(api = ?R::KEY, %error, "no answer from the group's coordinator");
        Disconnected
    })
}

async fn refresh(cluster: Cluster, topics: Vec<Str>) -> Done {
    let answer = cluster.refresh(Some(&topics), false).await;
    Done::Metadata { answered: answer.is_ok() }
}
