//! What the handle and the background tasks of a producer share: one lock around the machine, and whom to wake.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tramline_core::client::accumulator::{Accumulator, Completion, FlushMark, Ticket};
use tramline_wire::Str;

use super::delivery::{BatchFate, DeliveryError};
use super::sender;
use crate::cluster::Cluster;

pub(crate) type Token = Arc<BatchFate>;

/// Everything behind the lock. The lock is never held across an await, and nobody is woken under it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) accumulator: Accumulator<Token>,
    /// Topics somebody waits to send to although nothing is known of them.
    pub(crate) wanted: BTreeSet<Str>,
    /// Who waits for memory.
    pub(crate) waiting: BTreeMap<Ticket, oneshot::Sender<()>>,
    /// The alarm of each node's sender.
    senders: BTreeMap<i32, Arc<Notify>>,
    /// Records that failed since the last flush, and how the first of them did.
    failed: usize,
    first_failure: Option<DeliveryError>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cluster: Cluster,
    pub(crate) stop: CancellationToken,
    /// How long a topic that is not there is waited for.
    pub(crate) propagation: Duration,
    state: Mutex<State>,
    runtime: Handle,
    /// Something was told.
    pub(crate) told: Notify,
    /// Metadata arrived.
    pub(crate) routes: Notify,
    pub(crate) metadata_wanted: Notify,
    pub(crate) producer_id_wanted: Notify,
}

/// What a change of the state asks to be done after the lock is released.
#[derive(Default)]
struct Effects {
    completions: Vec<Completion<Token>>,
    granted: Vec<oneshot::Sender<()>>,
    alarms: Vec<Arc<Notify>>,
    new_nodes: Vec<(i32, Arc<Notify>)>,
    metadata: bool,
    producer_id: bool,
}

impl State {
    fn effects(&mut self, effects: &mut Effects) {
        while let Some(completion) = self.accumulator.poll_completion() {
            if let Err(failure) = &completion.outcome {
                self.failed += completion.count as usize;
                self.first_failure.get_or_insert_with(|| failure.clone().into());
            }
            effects.completions.push(completion);
        }
        while let Some(ticket) = self.accumulator.budget().poll_granted() {
            effects.granted.extend(self.waiting.remove(&ticket));
        }
        while let Some(node) = self.accumulator.poll_wake() {
            let known = self.senders.len();
            let alarm = self.senders.entry(node).or_default().clone();
            if self.senders.len() > known {
                effects.new_nodes.push((node, alarm));
            } else {
                effects.alarms.push(alarm);
            }
        }
        effects.metadata = self.accumulator.wants_metadata() || !self.wanted.is_empty();
        effects.producer_id = self.accumulator.wants_producer_id();
    }

    /// Whether the sender of this node is done: it leads nothing any more, and nothing is on its way to it.
    pub(crate) fn retire(&mut self, node: i32) -> bool {
        let over = self.accumulator.forget_node(node);
        if over {
            self.senders.remove(&node);
        }
        over
    }

    /// What failed since the last time this was asked.
    pub(crate) fn take_failures(&mut self) -> (usize, Option<DeliveryError>) {
        (std::mem::take(&mut self.failed), self.first_failure.take())
    }
}

impl Shared {
    pub(crate) fn new(cluster: Cluster, accumulator: Accumulator<Token>, propagation: Duration) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            stop: CancellationToken::new(),
            propagation,
            state: Mutex::new(State {
                accumulator,
                wanted: BTreeSet::new(),
                waiting: BTreeMap::new(),
                senders: BTreeMap::new(),
                failed: 0,
                first_failure: None,
            }),
            runtime: Handle::current(),
            told: Notify::new(),
            routes: Notify::new(),
            metadata_wanted: Notify::new(),
            producer_id_wanted: Notify::new(),
        })
    }

    /// Changes the state under the lock, then wakes whoever that concerns.
    pub(crate) fn with<R>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> R) -> R {
        let mut effects = Effects::default();
        let result = {
            // A panic under the lock would be our own bug; going on tells the waiting records what is still known.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = change(&mut state);
            state.effects(&mut effects);
            result
        };
        let told = !effects.completions.is_empty();
        for completion in effects.completions {
            BatchFate::tell(completion);
        }
        if told {
            self.told.notify_waiters();
        }
        for granted in effects.granted {
            // A waiter that is gone gave its ticket back itself.
            granted.send(()).ok();
        }
        for alarm in effects.alarms {
            alarm.notify_one();
        }
        for (node, alarm) in effects.new_nodes {
            if !self.stop.is_cancelled() {
                self.runtime.spawn(sender::run(self.clone(), node, alarm));
            }
        }
        if effects.metadata {
            self.metadata_wanted.notify_one();
        }
        if effects.producer_id {
            self.producer_id_wanted.notify_one();
        }
        result
    }

    /// Waits until everything before the mark was told.
    pub(crate) async fn flushed(self: &Arc<Self>, mark: FlushMark) {
        loop {
            let told = self.told.notified();
            if self.with(|state| state.accumulator.is_flushed(mark)) {
                return;
            }
            told.await;
        }
    }
}
