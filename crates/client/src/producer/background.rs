//! What a producer does by itself: keeps metadata, gets a producer id, ends what took too long.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tramline_core::client::accumulator::ProducerId;
use tramline_core::client::error_actions::{Operation, action};
use tramline_core::client::metadata::{ClusterView, RefreshPolicy};
use tramline_wire::messages::InitProducerIdRequest;
use tramline_wire::{ErrorCode, Str};

use super::shared::Shared;
use crate::cluster::{Target, jitter};
use crate::error::CallError;

pub(super) fn spawn(shared: &Arc<Shared>) {
    for task in [Task::Metadata, Task::ProducerId, Task::Expiry] {
        let shared = shared.clone();
        tokio::spawn(async move {
            let stop = shared.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = task.run(&shared) => {}
            }
        });
    }
}

#[derive(Clone, Copy)]
enum Task {
    Metadata,
    ProducerId,
    Expiry,
}

impl Task {
    async fn run(self, shared: &Arc<Shared>) {
        match self {
            Self::Metadata => keep_metadata(shared).await,
            Self::ProducerId => keep_producer_id(shared).await,
            Self::Expiry => expire(shared).await,
        }
    }
}

async fn expire(shared: &Arc<Shared>) {
    loop {
        let now = shared.cluster.now();
        let next = shared.with(|state| {
            state.accumulator.handle_timeout(now);
            // Whatever is accepted from now on cannot expire before a whole delivery timeout has passed.
            let whole = now + state.accumulator.config().delivery_timeout;
            state.accumulator.next_timeout().unwrap_or(whole)
        });
        tokio::time::sleep_until(shared.cluster.moment(next)).await;
    }
}

async fn keep_metadata(shared: &Arc<Shared>) {
    let cluster = &shared.cluster;
    let mut policy = RefreshPolicy::new(cluster.config().metadata_max_age, cluster.backoff());
    let mut changes = cluster.watch_metadata();
    // The nodes are known from connecting; topics are asked for when somebody sends to them.
    policy.handle_refreshed(cluster.now(), true, jitter());
    loop {
        let wanted = shared.with(|state| state.accumulator.wants_metadata() || !state.wanted.is_empty());
        if wanted {
            policy.want();
        }
        tokio::select! {
            () = tokio::time::sleep_until(cluster.moment(policy.next_refresh())) => {
                let satisfied = refresh(shared, wanted).await;
                policy.handle_refreshed(cluster.now(), satisfied, jitter());
            }
            () = shared.metadata_wanted.notified(), if !wanted => {}
            Ok(()) = changes.changed() => {
                let view = changes.borrow_and_update().clone();
                apply(shared, &view);
            }
        }
    }
}

/// Asks for every topic in use. True when nothing is missing afterwards.
async fn refresh(shared: &Arc<Shared>, wanted: bool) -> bool {
    let (stale, topics) = shared.with(|state| {
        let stale = state.accumulator.take_stale();
        let topics: BTreeSet<Str> = state.accumulator.topics().chain(&state.wanted).cloned().collect();
        (stale, topics.into_iter().collect::<Vec<_>>())
    });
    // Only a topic that somebody sends to may be created; asking by habit must not bring back a deleted one.
    match shared.cluster.refresh(Some(&topics), wanted).await {
        Ok(view) => apply(shared, &view),
        Err(error) => {
            tracing::debug!(%error, "metadata could not be refreshed");
            shared.with(|state| state.accumulator.mark_stale(stale));
        }
    }
    shared.routes.notify_waiters();
    shared.with(|state| !state.accumulator.wants_metadata() && state.wanted.is_empty())
}

fn apply(shared: &Arc<Shared>, view: &ClusterView) {
    shared.with(|state| {
        let topics: Vec<Str> = state.accumulator.topics().chain(&state.wanted).cloned().collect();
        for name in topics {
            if let Some(topic) = view.topics.get(&name).filter(|topic| !topic.partitions.is_empty()) {
                state.accumulator.update_topic(&name, topic);
                state.wanted.remove(&name);
            }
        }
    });
    shared.routes.notify_waiters();
}

async fn keep_producer_id(shared: &Arc<Shared>) {
    let mut backoff = shared.cluster.backoff();
    loop {
        if !shared.with(|state| state.accumulator.wants_producer_id()) {
            shared.producer_id_wanted.notified().await;
            continue;
        }
        match ask_producer_id(shared).await {
            Ok(producer) => {
                backoff.reset();
                shared.with(|state| state.accumulator.set_producer_id(producer));
            }
            Err(code) if action(Operation::InitProducerId, code).asks_again() => {
                tokio::time::sleep(backoff.next_wait(jitter())).await;
            }
            Err(code) => shared.with(|state| state.accumulator.fail(code.code())),
        }
    }
}

async fn ask_producer_id(shared: &Arc<Shared>) -> Result<ProducerId, ErrorCode> {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: i32::try_from(Duration::from_secs(60).as_millis()).unwrap_or(i32::MAX),
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    match shared.cluster.call(Target::Any, request).await {
        Ok(answer) if answer.error_code == 0 && (answer.producer_id < 0 || answer.producer_epoch < 0) => {
            // Batches under it would pass for those of a producer without sequences, and could be stored twice.
            tracing::warn!(
                answer.producer_id,
                answer.producer_epoch,
                "a broker gave a producer id that is none"
            );
            Err(ErrorCode::NetworkException)
        }
        Ok(answer) if answer.error_code == 0 => {
            Ok(ProducerId { id: answer.producer_id, epoch: answer.producer_epoch })
        }
        Ok(answer) => Err(ErrorCode::from(answer.error_code)),
        Err(CallError::Unsupported(_)) => Err(ErrorCode::UnsupportedVersion),
        Err(error) => {
            tracing::debug!(%error, "no producer id yet");
            Err(ErrorCode::NetworkException)
        }
    }
}
