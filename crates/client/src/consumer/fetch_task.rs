//! The task that fetches: sends what the fetcher asks for, gives it the answers, wakes whoever waits for records.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant as TokioInstant;
use tramline_core::client::fetcher::{EpochTicket, FetchTicket, FetcherEvent, FetcherRequest, LookupTicket};
use tramline_wire::Str;
use tramline_wire::messages::{FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochResponse};

use super::shared::{Life, Pending, Shared};
use crate::cluster::{Cluster, Target};
use crate::error::CallError;

/// Longer than any deadline: "nothing is due".
pub(super) const FAR: Duration = Duration::from_secs(3600);

/// How one exchange of the fetcher's ended.
enum Done {
    Fetch(FetchTicket, Option<FetchResponse>),
    Lookup(LookupTicket, Option<ListOffsetsResponse>),
    Epochs(EpochTicket, Option<OffsetForLeaderEpochResponse>),
    /// The broker does not speak of epochs.
    NoEpochs(EpochTicket),
    Metadata {
        answered: bool,
    },
}

/// Runs until the consumer closes. Dropping the exchanges under way abandons their answers, nothing else.
pub(super) async fn run(shared: Arc<Shared>, cluster: Cluster) {
    let mut exchanges = JoinSet::new();
    let mut metadata = cluster.watch_metadata();
    let max_age = cluster.config().metadata_max_age;
    let mut refresh_at = TokioInstant::now() + max_age;
    loop {
        let Some(next) = step(&shared, &cluster, &mut exchanges) else { return };
        tokio::select! {
            () = shared.fetching.notified() => {}
            Some(Ok(done)) = exchanges.join_next() => apply(&shared, &cluster, done),
            Ok(()) = metadata.changed() => {
                let view = metadata.borrow_and_update().clone();
                shared.lock().fetcher.metadata_changed(&view);
            }
            () = tokio::time::sleep_until(next) => {}
            () = tokio::time::sleep_until(refresh_at) => {
                refresh_at = TokioInstant::now() + max_age;
                let topics = shared.lock().fetcher.topics();
                if !topics.is_empty() {
                    exchanges.spawn(refresh(cluster.clone(), topics));
                }
            }
        }
    }
}

/// Sends everything the fetcher wants now. When to look again; `None` when the consumer closes.
fn step(shared: &Arc<Shared>, cluster: &Cluster, exchanges: &mut JoinSet<Done>) -> Option<TokioInstant> {
    let now = shared.now();
    let mut state = shared.lock();
    if state.life > Life::Running {
        return None;
    }
    state.fetcher.handle_timeout(now);
    while let Some(request) = state.fetcher.poll_request(now) {
        exchanges.spawn(exchange(cluster.clone(), request));
    }
    Some(
        state.fetcher.next_timeout().map_or_else(|| TokioInstant::now() + FAR, |at| shared.tokio_instant(at)),
    )
}

async fn exchange(cluster: Cluster, request: FetcherRequest) -> Done {
    match request {
        FetcherRequest::Fetch { node, request, ticket } => {
            let parked = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
            let timeout = cluster.config().request_timeout + parked;
            let answer = cluster.call_within(Target::Node(node), timeout, request).await;
            Done::Fetch(
                ticket,
                answer.inspect_err(|error| tracing::debug!(node, %error, "fetch failed")).ok(),
            )
        }
        FetcherRequest::ListOffsets { node, request, ticket } => {
            let answer = cluster.call(Target::NodeControl(node), request).await;
            Done::Lookup(
                ticket,
                answer.inspect_err(|error| tracing::debug!(node, %error, "lookup failed")).ok(),
            )
        }
        FetcherRequest::Epochs { node, request, ticket } => {
            match cluster.call(Target::NodeControl(node), request).await {
                Ok(answer) => Done::Epochs(ticket, Some(answer)),
                Err(CallError::Unsupported(_)) => Done::NoEpochs(ticket),
                Err(error) => {
                    tracing::debug!(node, %error, "question about epochs failed");
                    Done::Epochs(ticket, None)
                }
            }
        }
        FetcherRequest::Metadata { topics } => refresh(cluster, topics).await,
        // The enum may grow; what is not understood cannot be sent.
        _ => Done::Metadata { answered: false },
    }
}

async fn refresh(cluster: Cluster, topics: Vec<Str>) -> Done {
    let answer = cluster.refresh(Some(&topics), false).await;
    Done::Metadata {
        answered: answer.inspect_err(|error| tracing::debug!(%error, "metadata failed")).is_ok(),
    }
}

fn apply(shared: &Arc<Shared>, cluster: &Cluster, done: Done) {
    let now = shared.now();
    let mut state = shared.lock();
    match done {
        Done::Fetch(ticket, answer) => state.fetcher.handle_fetch(ticket, answer, now),
        Done::Lookup(ticket, answer) => state.fetcher.handle_list_offsets(ticket, answer, now),
        Done::Epochs(ticket, answer) => state.fetcher.handle_epochs(ticket, answer, now),
        Done::NoEpochs(ticket) => state.fetcher.epochs_unsupported(ticket),
        Done::Metadata { answered } => {
            let view = answered.then(|| cluster.metadata());
            state.fetcher.handle_metadata(view.as_deref(), now);
        }
    }
    while let Some(event) = state.fetcher.poll_event() {
        match event {
            FetcherEvent::Reset { topic_partition, from, to } => {
                tracing::warn!(%topic_partition, ?from, to, "position was not in the log, moved by the reset policy");
                let generation = state.fetcher.owned(&topic_partition).unwrap_or(-1);
                if from.is_some_and(|from| to < from)
                    && let Some(auto) = &mut state.auto
                {
                    // What was done before counts for records that are gone.
                    auto.machine.forget(&topic_partition);
                }
                state.publish(Pending::Reset { generation, topic_partition, from, to });
            }
            FetcherEvent::NewLeader { topic_partition, leader, node } => {
                cluster.leader_hints(&[(topic_partition, leader)], node.into_iter().collect());
            }
            // The enum may grow; nothing depends on being told.
            _ => {}
        }
    }
    state.wake_readers();
}
