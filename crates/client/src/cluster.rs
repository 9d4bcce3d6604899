//! One client's view of a cluster and its connections: who leads what, and a connection to whom.
//!
//! A `Cluster` dials its own connections and shares them with nobody. Per node it keeps one connection per [`Lane`]:
//! data, control, coordination; so that a long poll never holds up metadata or a heartbeat. Retries are not its work;
//! one [`call`](Cluster::call) is one attempt, waiting only for the reconnect backoff of the node it goes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant as TokioInstant;
use tramline_core::client::connection::Poison;
use tramline_core::client::metadata::{ClusterView, Leader, Node};
use tramline_core::client::retry::Backoff;
use tramline_core::group::member::{find_coordinator, found_coordinator};
use tramline_core::time::Instant;
use tramline_wire::messages::MetadataRequest;
use tramline_wire::messages::metadata_request::MetadataRequestTopic;
use tramline_wire::{ErrorCode, Request, Str, TopicPartition};

use crate::broker_connection::BrokerConnection;
use crate::config::ClientConfig;
use crate::error::CallError;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Any node, over its control connection.
    Any,
    /// The node that takes admin requests, over its control connection.
    Controller,
    /// This node, over its data connection: produce and fetch.
    Node(i32),
    /// This node, over its control connection: not queued behind a long poll.
    NodeControl(i32),
    /// The coordinator of this group, over that node's coordination connection. Found when not known;
    /// [`Cluster::forget_coordinator`] makes it be found again.
    Coordinator(Str),
}

/// What a connection is for. Answers come in the order of the requests, so that what must not wait for a long poll
/// needs another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Produce and fetch.
    Data,
    /// Metadata, offsets, admin.
    Control,
    /// Group membership and commits.
    Coordination,
}

/// How many nodes are tried before the configured addresses: with a list of thousands that are none, that would take for
/// ever.
const NODES_TRIED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LinkKey {
    Bootstrap(usize),
    Node(i32, Lane),
}

/// The connection to one place, if there is one, and when to dial again if there is none.
#[derive(Debug)]
struct Link {
    connection: Option<(String, BrokerConnection)>,
    backoff: Backoff,
    not_before: Option<TokioInstant>,
}

type SharedLink = Arc<tokio::sync::Mutex<Link>>;

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    started: TokioInstant,
    view: watch::Sender<Arc<ClusterView>>,
    links: Mutex<BTreeMap<LinkKey, SharedLink>>,
    coordinators: Mutex<BTreeMap<Str, i32>>,
}

/// A client's cluster. Cloning shares it; dropping the last clone closes its connections.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

/// A random number for jitter.
pub(crate) fn jitter() -> u32 {
    // Without a random source waits are merely not spread.
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing below panics while it holds a lock, and the maps are whole between any two operations on them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// A cluster that was not contacted yet. Must be called inside a tokio runtime.
    pub(crate) fn new(config: ClientConfig) -> Self {
        let inner = Inner {
            config,
            started: TokioInstant::now(),
            view: watch::Sender::new(Arc::default()),
            links: Mutex::default(),
            coordinators: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A cluster of which at least one node answered, within the connect timeout.
    ///
    /// # Errors
    /// The last error, when none answered in time, or at once when trying again cannot help.
    pub(crate) async fn connect(config: ClientConfig) -> Result<Self, CallError> {
        let cluster = Self::new(config);
        let until = TokioInstant::now() + cluster.config().connect_timeout;
        let mut backoff = cluster.backoff();
        loop {
            let error = match cluster.refresh(Some(&[]), false).await {
                Ok(_) => return Ok(cluster),
                Err(error) => error,
            };
            let again = TokioInstant::now() + backoff.next_wait(jitter());
            if !error.is_retriable() || again >= until {
                return Err(error);
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// The settings this cluster was made from.
    pub(crate) fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// The time on this cluster's clock, for the machines.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_start(self.inner.started.elapsed())
    }

    /// The moment of the runtime's clock that the machines' `at` stands for.
    pub(crate) fn moment(&self, at: Instant) -> TokioInstant {
        self.inner.started + at.since_start()
    }

    /// A fresh retry backoff with the configured waits.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.inner.config.retry_backoff, self.inner.config.retry_backoff_max)
    }

    /// What is known now. Only topics that were asked for by [`refresh`](Self::refresh) are in it.
    pub(crate) fn metadata(&self) -> Arc<ClusterView> {
        self.inner.view.borrow().clone()
    }

    /// A receiver that is told of each change.
    pub(crate) fn watch_metadata(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.inner.view.subscribe()
    }

    /// Who leads this partition, as far as known; `None` asks for a refresh.
    pub(crate) fn leader(&self, partition: &TopicPartition) -> Option<Leader> {
        self.inner.view.borrow().leader(partition)
    }

    /// A broker told with an error who leads partitions now, and where those nodes are. Gives whether a leader was news.
    pub(crate) fn leader_hints(&self, leaders: &[(TopicPartition, Leader)], nodes: Vec<Node>) -> bool {
        let mut moved = false;
        self.inner.view.send_if_modified(|view| {
            let mut fresh = ClusterView::clone(view);
            let found = fresh.node_hints(nodes);
            for (partition, leader) in leaders {
                moved |= fresh.leader_hint(partition, *leader);
            }
            if found || moved {
                *view = Arc::new(fresh);
            }
            found || moved
        });
        moved
    }

    /// Asks any node for these topics (`None`: all there are; empty: only the nodes) and takes the answer over.
    /// With `create` a topic that does not exist may be created by the broker.
    ///
    /// Cancel-safe. Errors of single topics are in the view, not here.
    pub(crate) async fn refresh(
        &self,
        topics: Option<&[Str]>,
        create: bool,
    ) -> Result<Arc<ClusterView>, CallError> {
        self.refresh_told(topics, create).await.map(|(view, _)| view)
    }

    /// As [`refresh`](Self::refresh), with the topics that the answer spoke of: the view also holds what was known before.
    pub(crate) async fn refresh_told(
        &self,
        topics: Option<&[Str]>,
        create: bool,
    ) -> Result<(Arc<ClusterView>, BTreeSet<Str>), CallError> {
        let rows = topics.map(|names| {
            let row = |name: &Str| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
            names.iter().map(row).collect()
        });
        let asked = topics.map(|names| names.iter().cloned().collect::<BTreeSet<_>>());
        let build = move |version: i16| MetadataRequest {
            topics: rows,
            // Before version 4 the broker creates whatever it is asked for.
            allow_auto_topic_creation: create || version < 4,
            ..Default::default()
        };
        let mut answer = self.ask_any(build).await?;
        if let Some(asked) = &asked {
            // What was never asked for is not kept: with a new name in each answer it would grow for ever.
            answer.topics.retain(|row| row.name.as_ref().is_some_and(|name| asked.contains(name)));
        }
        self.inner.view.send_if_modified(|view| {
            let mut fresh = ClusterView::clone(view);
            fresh.update(&answer, asked.is_none());
            let changed = fresh != **view;
            if changed {
                *view = Arc::new(fresh);
            }
            changed
        });
        let view = self.metadata();
        self.forget_strangers(&view);
        Ok((view, answer.topics.into_iter().filter_map(|row| row.name).collect()))
    }

    /// Lets go of the connections to nodes that are none any more: hints may name new ones without end.
    fn forget_strangers(&self, view: &ClusterView) {
        let is_known = |key: &LinkKey| match key {
            LinkKey::Bootstrap(_) => true,
            LinkKey::Node(node, _) => view.nodes.contains_key(node),
        };
        locked(&self.inner.links).retain(|key, _| is_known(key));
    }

    /// One request, one attempt, within the request timeout. Nothing inside is retried.
    ///
    /// Dropping the future never loses or misassigns an answer: the exchange keeps its place on the connection.
    pub(crate) async fn call<R: Request>(
        &self,
        target: Target,
        request: R,
    ) -> Result<R::Response, CallError> {
        self.call_with(target, self.inner.config.request_timeout, move |_| request).await
    }

    /// As [`call`](Self::call) with another time for the answer: requests that the broker parks.
    pub(crate) async fn call_within<R: Request>(
        &self,
        target: Target,
        timeout: Duration,
        request: R,
    ) -> Result<R::Response, CallError> {
        self.call_with(target, timeout, move |_| request).await
    }

    /// As [`call_within`](Self::call_within) for a request whose content depends on the version spoken.
    pub(crate) async fn call_with<R, F>(
        &self,
        target: Target,
        timeout: Duration,
        build: F,
    ) -> Result<R::Response, CallError>
    where
        R: Request,
        F: FnOnce(i16) -> R + Send + 'static,
    {
        let connection = self.connection(target).await?;
        connection.start::<R, F>(build, timeout, true).await.unwrap_or(Err(CallError::Lost(Poison::Closed)))
    }

    async fn ask_any<R, F>(&self, build: F) -> Result<R::Response, CallError>
    where
        R: Request,
        F: FnOnce(i16) -> R + Send + 'static,
    {
        let answer = self.any().await?.start::<R, F>(build, self.inner.config.request_timeout, true);
        answer.await.unwrap_or(Err(CallError::Lost(Poison::Closed)))
    }

    /// A living connection to `target`, dialled when there is none.
    pub(crate) async fn connection(&self, target: Target) -> Result<BrokerConnection, CallError> {
        match target {
            Target::Any => self.any().await,
            Target::Controller => {
                let controller = self.inner.view.borrow().controller;
                self.node(controller.ok_or(CallError::NoController)?, Lane::Control).await
            }
            Target::Node(node) => self.node(node, Lane::Data).await,
            Target::NodeControl(node) => self.node(node, Lane::Control).await,
            Target::Coordinator(group) => {
                let node = self.coordinator(&group).await?;
                self.node(node, Lane::Coordination).await
            }
        }
    }

    /// The node that coordinates this group, asked for when not known.
    pub(crate) async fn coordinator(&self, group: &Str) -> Result<i32, CallError> {
        let known = locked(&self.inner.coordinators).get(group).copied();
        if let Some(node) = known {
            return Ok(node);
        }
        let key = group.clone();
        let build = move |version| find_coordinator(version, key);
        let answer = self.ask_any(build).await?;
        let found = found_coordinator(group, answer);
        let node = found.node_id;
        if found.error_code != 0 {
            return Err(CallError::NoCoordinator { code: ErrorCode::from(found.error_code) });
        }
        if !self.inner.view.borrow().nodes.contains_key(&node) {
            self.refresh(Some(&[]), false).await?;
        }
        locked(&self.inner.coordinators).insert(group.clone(), node);
        Ok(node)
    }

    /// The coordinator of this group said it is not, or does not answer: the next use finds it again.
    pub(crate) fn forget_coordinator(&self, group: &Str) {
        locked(&self.inner.coordinators).remove(group);
    }

    async fn node(&self, node: i32, lane: Lane) -> Result<BrokerConnection, CallError> {
        let address = {
            let view = self.inner.view.borrow();
            let node = view.nodes.get(&node).ok_or(CallError::UnknownNode(node))?;
            address(&node.host, node.port)
        };
        self.link(LinkKey::Node(node, lane), &address).await
    }

    /// A control connection to whichever node answers: a living one first, then the nodes known in an order that
    /// differs each time, then the configured addresses.
    async fn any(&self) -> Result<BrokerConnection, CallError> {
        if let Some(connection) = self.living_control() {
            return Ok(connection);
        }
        let mut nodes: Vec<i32> = self.inner.view.borrow().nodes.keys().copied().collect();
        if !nodes.is_empty() {
            let turn = jitter() as usize % nodes.len();
            nodes.rotate_left(turn);
        }
        let mut last = None;
        for node in nodes.into_iter().take(NODES_TRIED) {
            match self.node(node, Lane::Control).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        for (index, address) in self.inner.config.bootstrap.iter().enumerate() {
            match self.link(LinkKey::Bootstrap(index), address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| CallError::BadAddress(String::new())))
    }

    fn living_control(&self) -> Option<BrokerConnection> {
        let links = locked(&self.inner.links);
        let living = |key: &LinkKey, link: &SharedLink| {
            let control = matches!(key, LinkKey::Node(_, Lane::Control) | LinkKey::Bootstrap(_));
            let link = link.try_lock().ok().filter(|_| control)?;
            let (_, connection) = link.connection.as_ref()?;
            (!connection.is_closed()).then(|| connection.clone())
        };
        links.iter().rev().find_map(|(key, link)| living(key, link))
    }

    async fn link(&self, key: LinkKey, address: &str) -> Result<BrokerConnection, CallError> {
        let link = {
            let config = &self.inner.config;
            let fresh = || Link {
                connection: None,
                backoff: Backoff::new(config.reconnect_backoff, config.reconnect_backoff_max),
                not_before: None,
            };
            let mut links = locked(&self.inner.links);
            links.entry(key).or_insert_with(|| Arc::new(tokio::sync::Mutex::new(fresh()))).clone()
        };
        let mut link = link.lock().await;
        if let Some((to, connection)) = &link.connection
            && to == address
            && !connection.is_closed()
        {
            return Ok(connection.clone());
        }
        link.connection = None;
        if let Some(not_before) = link.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        if !address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        {
            return Err(CallError::BadAddress(address.to_owned()));
        }
        // A dial that is dropped half way counts as none: the next caller starts a fresh one.
        match BrokerConnection::dial(address, &self.inner.config).await {
            Ok(connection) => {
                link.backoff.reset();
                link.not_before = None;
                link.connection = Some((address.to_owned(), connection.clone()));
                Ok(connection)
            }
            Err(error) => {
                let wait = link.backoff.next_wait(jitter());
                link.not_before = Some(TokioInstant::now() + wait);
                Err(error)
            }
        }
    }
}

/// `host:port`, with the brackets an IPv6 address needs.
fn address(host: &str, port: i32) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests;
