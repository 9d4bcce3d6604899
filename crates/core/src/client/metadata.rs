//! What is known of the cluster: nodes, topics, leaders; and when to ask again.
//!
//! Knowledge does not go backwards: a partition row with an older leader epoch than the one known for the same topic id
//! comes from a node that lags, and is dropped. Told nothing else many times in a row it is believed all the same: a cluster
//! that was restored from older metadata has gone back, and would never be reached again. A topic under a new id is another topic and is adopted whole. A topic
//! that an answer calls unknown keeps its partitions (nodes that restart forget for a moment) and carries the error.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::messages::MetadataResponse;
use tramline_wire::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use tramline_wire::{Str, TopicPartition, Uuid};

use super::retry::Backoff;
use crate::time::Instant;

/// One broker of the cluster. The id is its identity; the address may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The broker's id.
    pub id: i32,
    /// The host name or address it advertises.
    pub host: Str,
    /// The port it advertises.
    pub port: i32,
    /// The rack it stands in, if told.
    pub rack: Option<Str>,
}

/// One partition as last described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// The partition's number.
    pub partition: i32,
    /// The node that leads it, unless there is none now.
    pub leader: Option<i32>,
    /// The epoch of that leader, -1 when the broker does not tell.
    pub leader_epoch: i32,
    /// The nodes that hold a copy.
    pub replicas: Vec<i32>,
    /// The nodes whose copy is complete.
    pub in_sync_replicas: Vec<i32>,
    /// The error code of this row, 0 for none.
    pub error_code: i16,
}

/// One topic as last described.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicView {
    /// The topic's id; zero when the broker does not tell.
    pub id: Uuid,
    /// Whether the cluster keeps its own data in it.
    pub is_internal: bool,
    /// The error code of the last answer about this topic, 0 for none. Partitions stay from before.
    pub error_code: i16,
    /// The partitions, by number.
    pub partitions: Vec<PartitionView>,
}

impl TopicView {
    /// The partition with this number.
    #[must_use]
    pub fn partition(&self, partition: i32) -> Option<&PartitionView> {
        let found = self.partitions.binary_search_by_key(&partition, |p| p.partition).ok()?;
        self.partitions.get(found)
    }
}

/// A leader and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// The leading node.
    pub node: i32,
    /// Its epoch, -1 when the broker does not tell.
    pub epoch: i32,
}

/// Everything known of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The cluster's id, once told.
    pub cluster_id: Option<Str>,
    /// The node that takes admin requests, once told.
    pub controller: Option<i32>,
    /// The nodes by id.
    pub nodes: BTreeMap<i32, Node>,
    /// The topics by name: those that were asked for.
    pub topics: BTreeMap<Str, TopicView>,
    /// How many rows in a row were dropped as older.
    dropped: BTreeMap<TopicPartition, u8>,
}

/// So many older rows in a row are not from a node that lags.
const BELIEVED_AFTER: u8 = 10;

impl ClusterView {
    /// Takes over what a node answered. Rows older than what is known are dropped.
    ///
    /// `every_topic`: the answer lists every topic there is, so that topics it does not list are gone.
    pub fn update(&mut self, answer: &MetadataResponse, every_topic: bool) {
        if answer.cluster_id.is_some() {
            self.cluster_id = answer.cluster_id.as_ref().map(Str::detached);
        }
        self.controller = (answer.controller_id >= 0).then_some(answer.controller_id);
        if !answer.brokers.is_empty() {
            self.nodes = answer
                .brokers
                .iter()
                .map(|b| {
                    (
                        b.node_id,
                        Node {
                            id: b.node_id,
                            // What is kept must not keep a whole answer alive.
                            host: b.host.detached(),
                            port: b.port,
                            rack: b.rack.as_ref().map(Str::detached),
                        },
                    )
                })
                .collect();
        }
        if every_topic {
            let listed: BTreeSet<&Str> =
                answer.topics.iter().filter_map(|topic| topic.name.as_ref()).collect();
            self.topics.retain(|name, _| listed.contains(name));
        }
        for topic in &answer.topics {
            self.update_topic(topic);
        }
    }

    fn update_topic(&mut self, row: &MetadataResponseTopic) {
        let Some(name) = &row.name else { return };
        let name = match self.topics.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None => name.detached(),
        };
        let known = self.topics.entry(name.clone()).or_default();
        known.error_code = row.error_code;
        if row.error_code != 0 && row.partitions.is_empty() {
            return;
        }
        let same_topic = row.topic_id.is_zero() || known.id.is_zero() || row.topic_id == known.id;
        let old = core::mem::take(&mut known.partitions);
        if !row.topic_id.is_zero() {
            known.id = row.topic_id;
        }
        known.is_internal = row.is_internal;
        let dropped = &mut self.dropped;
        known.partitions = row
            .partitions
            .iter()
            // The partitions of a topic are numbered from 0 without gaps, and programs make a place for each number: one
            // row about the last number there is must not stand for two thousand million of them.
            .filter(|p| usize::try_from(p.partition_index).is_ok_and(|number| number < row.partitions.len()))
            .map(|p| {
                let fresh = partition_view(p);
                let partition = TopicPartition { topic: name.clone(), partition: fresh.partition };
                let before = old
                    .binary_search_by_key(&fresh.partition, |o| o.partition)
                    .ok()
                    .and_then(|at| old.get(at));
                let Some(before) = before.filter(|before| same_topic && is_older(&fresh, before)) else {
                    dropped.remove(&partition);
                    return fresh;
                };
                let times = dropped.entry(partition).or_default();
                *times += 1;
                if *times < BELIEVED_AFTER {
                    return before.clone();
                }
                *times = 0;
                fresh
            })
            .collect();
        known.partitions.sort_by_key(|p| p.partition);
        known.partitions.dedup_by_key(|p| p.partition);
    }

    /// A broker said, with an error, who leads a partition now. Gives whether that was news.
    pub fn leader_hint(&mut self, partition: &TopicPartition, leader: Leader) -> bool {
        let row = self.topics.get_mut(&partition.topic).and_then(|topic| {
            let found = topic.partitions.binary_search_by_key(&partition.partition, |p| p.partition).ok()?;
            topic.partitions.get_mut(found)
        });
        match row {
            Some(row) if leader.node >= 0 && leader.epoch > row.leader_epoch => {
                row.leader = Some(leader.node);
                row.leader_epoch = leader.epoch;
                true
            }
            _ => false,
        }
    }

    /// A broker said, with an error, where nodes are. Gives whether that was news.
    pub fn node_hints(&mut self, nodes: impl IntoIterator<Item = Node>) -> bool {
        let mut news = false;
        for node in nodes {
            news |= self.nodes.get(&node.id) != Some(&node);
            self.nodes.insert(node.id, node);
        }
        news
    }

    /// Who leads this partition, as far as known.
    #[must_use]
    pub fn leader(&self, partition: &TopicPartition) -> Option<Leader> {
        let row = self.topics.get(&partition.topic)?.partition(partition.partition)?;
        row.leader.map(|node| Leader { node, epoch: row.leader_epoch })
    }

    /// How many partitions the topic has, if that is known.
    #[must_use]
    pub fn partition_count(&self, topic: &str) -> Option<usize> {
        self.topics.get(topic).map(|t| t.partitions.len()).filter(|count| *count > 0)
    }

    /// The name of the topic with this id.
    #[must_use]
    pub fn topic_by_id(&self, id: Uuid) -> Option<&Str> {
        self.topics.iter().find(|(_, topic)| topic.id == id && !id.is_zero()).map(|(name, _)| name)
    }
}

fn is_older(fresh: &PartitionView, before: &PartitionView) -> bool {
    fresh.leader_epoch >= 0 && fresh.leader_epoch < before.leader_epoch
}

fn partition_view(row: &MetadataResponsePartition) -> PartitionView {
    PartitionView {
        partition: row.partition_index,
        leader: (row.leader_id >= 0).then_some(row.leader_id),
        leader_epoch: row.leader_epoch,
        replicas: row.replica_nodes.clone(),
        in_sync_replicas: row.isr_nodes.clone(),
        error_code: row.error_code,
    }
}

/// When to ask for metadata again: at a steady age, or soon (with a growing backoff) while something is missing.
#[derive(Debug, Clone)]
pub struct RefreshPolicy {
    max_age: Duration,
    backoff: Backoff,
    last: Option<Instant>,
    earliest: Instant,
    wanted: bool,
}

impl RefreshPolicy {
    /// Refreshes every `max_age`, and with `backoff` between attempts while something is wanted.
    #[must_use]
    pub const fn new(max_age: Duration, backoff: Backoff) -> Self {
        Self { max_age, backoff, last: None, earliest: Instant::ZERO, wanted: false }
    }

    /// Something is missing or was proven stale: refresh as soon as the backoff allows.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// When to refresh next; in the past means now.
    #[must_use]
    pub fn next_refresh(&self) -> Instant {
        match self.last {
            Some(last) if !self.wanted => last + self.max_age,
            _ => self.earliest,
        }
    }

    /// An attempt ended. `satisfied`: nothing that was wanted is missing any more.
    pub fn handle_refreshed(&mut self, now: Instant, satisfied: bool, jitter: u32) {
        self.last = Some(now);
        self.wanted = !satisfied;
        // After success the next question is a new one and may be asked at once.
        self.earliest = now;
        if satisfied {
            self.backoff.reset();
        } else {
            self.earliest += self.backoff.next_wait(jitter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use tramline_wire::messages::metadata_response::MetadataResponseBroker;

    fn id(n: u8) -> Uuid {
        Uuid::from_bytes([n; 16])
    }

    fn row(partition: i32, leader: i32, epoch: i32) -> MetadataResponsePartition {
        MetadataResponsePartition {
            partition_index: partition,
            leader_id: leader,
            leader_epoch: epoch,
            replica_nodes: vec![leader],
            isr_nodes: vec![leader],
            ..Default::default()
        }
    }

    fn answer(topic: &str, id: Uuid, rows: Vec<MetadataResponsePartition>) -> MetadataResponse {
        MetadataResponse {
            controller_id: 1,
            topics: vec![MetadataResponseTopic {
                name: Some(topic.into()),
                topic_id: id,
                partitions: rows,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn leader(view: &ClusterView, partition: i32) -> (i32, i32) {
        view.leader(&TopicPartition::new("t", partition)).map_or((-1, -1), |l| (l.node, l.epoch))
    }

    #[test]
    fn a_leader_epoch_never_goes_back_for_the_same_topic_id() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 5), row(1, 1, 5)]), false);
        view.update(&answer("t", id(1), vec![row(0, 2, 4), row(1, 2, 6)]), false);
        assert_eq!(leader(&view, 0), (1, 5));
        assert_eq!(leader(&view, 1), (2, 6));
        view.update(&answer("t", id(1), vec![row(0, 3, 5)]), false);
        assert_eq!(leader(&view, 0), (3, 5), "the same epoch may be described again");
    }

    #[test]
    fn b091_an_epoch_that_stays_lower_is_believed_in_the_end_and_one_newer_row_starts_the_count_anew() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 5)]), false);
        let older = answer("t", id(1), vec![row(0, 2, 4)]);
        for _ in 1..BELIEVED_AFTER {
            view.update(&older, false);
        }
        view.update(&answer("t", id(1), vec![row(0, 1, 5)]), false);
        for _ in 1..BELIEVED_AFTER {
            view.update(&older, false);
            assert_eq!(leader(&view, 0), (1, 5));
        }
        view.update(&older, false);
        assert_eq!(leader(&view, 0), (2, 4));
    }

    #[test]
    fn a_recreated_topic_is_adopted_although_its_epochs_are_lower() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 50), row(1, 1, 50)]), false);
        view.update(&answer("t", id(2), vec![row(0, 2, 0)]), false);
        assert_eq!(leader(&view, 0), (2, 0));
        assert_eq!(view.partition_count("t"), Some(1));
        assert_eq!(view.topic_by_id(id(1)), None);
        assert_eq!(view.topic_by_id(id(2)).map(Str::as_str), Some("t"));
    }

    #[test]
    fn a_topic_that_vanishes_for_a_moment_keeps_its_partitions() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 5)]), false);
        let mut gone = answer("t", Uuid::ZERO, vec![]);
        gone.topics[0].error_code = 3;
        view.update(&gone, false);
        assert_eq!(leader(&view, 0), (1, 5));
        assert_eq!(view.topics["t"].error_code, 3);
    }

    #[test]
    fn a_list_of_every_topic_removes_the_others() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 5)]), false);
        view.update(&answer("u", id(2), vec![row(0, 1, 5)]), true);
        assert_eq!(view.partition_count("t"), None);
        assert_eq!(view.partition_count("u"), Some(1));
    }

    #[test]
    fn a_partition_without_a_leader_has_none() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, -1, 5), row(-7, 1, 1)]), false);
        assert_eq!(view.leader(&TopicPartition::new("t", 0)), None);
        assert_eq!(view.partition_count("t"), Some(1), "a negative partition number is not a partition");
    }

    #[test]
    fn b115_the_id_is_the_identity_of_a_node_and_its_address_is_refreshed() {
        let mut view = ClusterView::default();
        let broker =
            |port| MetadataResponseBroker { node_id: 1, host: "h".into(), port, ..Default::default() };
        view.update(&MetadataResponse { brokers: vec![broker(9092)], ..Default::default() }, false);
        view.update(&MetadataResponse { brokers: vec![broker(9999)], ..Default::default() }, false);
        assert_eq!(view.nodes.len(), 1);
        assert_eq!(view.nodes[&1].port, 9999);
    }

    #[test]
    fn a_hint_with_a_newer_epoch_moves_the_leader() {
        let mut view = ClusterView::default();
        view.update(&answer("t", id(1), vec![row(0, 1, 5)]), false);
        let partition = TopicPartition::new("t", 0);
        assert!(!view.leader_hint(&partition, Leader { node: 2, epoch: 5 }));
        assert!(view.leader_hint(&partition, Leader { node: 2, epoch: 6 }));
        assert_eq!(leader(&view, 0), (2, 6));
    }

    #[test]
    fn refreshes_are_spaced_by_the_backoff_while_something_is_missing() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let mut policy = RefreshPolicy::new(Duration::from_secs(300), backoff);
        let at = |ms| Instant::from_start(Duration::from_millis(ms));
        let half = u32::MAX / 2;
        assert_eq!(policy.next_refresh(), Instant::ZERO);
        policy.handle_refreshed(at(0), false, half);
        assert_eq!(policy.next_refresh(), at(100));
        policy.handle_refreshed(at(100), false, half);
        assert_eq!(policy.next_refresh(), at(300));
        policy.handle_refreshed(at(300), true, half);
        assert_eq!(policy.next_refresh(), at(300_300), "then by age");
        policy.want();
        assert_eq!(policy.next_refresh(), at(300), "and at once when something new is missing");
    }
}
