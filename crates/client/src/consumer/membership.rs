//! Membership in a group: the member machine, and the revocations that are held open.

use std::collections::BTreeMap;

use tramline_core::client::fetcher::Start;
use tramline_core::client::metadata::ClusterView;
use tramline_core::group::Seeded;
use tramline_core::group::member::{Event, Member, MemberConfig, MemberRequest, RevocationId};
use tramline_core::time::Instant;
use tramline_wire::{Str, TopicPartition};

use super::error::ConsumeError;
use super::shared::{Pending, State};

/// The member and what its owner has to remember.
#[derive(Debug)]
pub(super) struct Membership {
    pub member: Member,
    pub group: Str,
    held: BTreeMap<u64, Vec<TopicPartition>>,
    /// The program did not poll in time, and has not polled since.
    poll_expired: bool,
    /// The member has left, or cannot go on.
    pub left: bool,
    /// Topics whose partition counts the member waits for.
    pub wanted_topics: Option<Vec<Str>>,
}

impl Membership {
    pub(super) fn new(config: MemberConfig) -> Self {
        // Without a random source retries are merely not spread: ids come from the coordinator.
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).ok();
        let group = config.group_id.clone();
        let member = Member::new(config, Seeded::new(seed));
        Self { member, group, held: BTreeMap::new(), poll_expired: false, left: false, wanted_topics: None }
    }

    /// The program polls; whether it had stopped for too long.
    pub(super) fn poll_resumed(&mut self, now: Instant) -> bool {
        if !self.poll_expired {
            return false;
        }
        self.poll_expired = false;
        self.member.poll_resumed(now);
        true
    }

    /// The program has not polled for too long.
    pub(super) fn poll_stopped(&mut self, now: Instant) {
        if !self.poll_expired && !self.left {
            self.poll_expired = true;
            self.member.handle_poll_expired(now);
        }
    }

    pub(super) const fn is_poll_expired(&self) -> bool {
        self.poll_expired
    }

    /// Acknowledges a revocation. The partitions that are not ours from here on; none when it was over already.
    pub(super) fn release(&mut self, id: u64, now: Instant) -> Vec<TopicPartition> {
        let Some(partitions) = self.held.remove(&id) else { return Vec::new() };
        self.member.revocation_done(now, RevocationId(id));
        partitions
    }

    /// The partitions of a revocation that is not acknowledged yet.
    pub(super) fn held(&self, id: u64) -> Option<&[TopicPartition]> {
        self.held.get(&id).map(Vec::as_slice)
    }

    /// The partitions of revocations that ended without us: their deadline passed.
    fn expired(&mut self) -> Vec<TopicPartition> {
        let revoking = self.member.revoking();
        let over: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, partitions)| !partitions.iter().any(|tp| revoking.contains(tp)))
            .map(|(id, _)| *id)
            .collect();
        over.into_iter().filter_map(|id| self.held.remove(&id)).flatten().collect()
    }

    pub(super) fn metadata_changed(&mut self, view: &ClusterView, now: Instant) {
        let counts = view
            .topics
            .iter()
            .filter_map(|(name, topic)| Some((name.clone(), i32::try_from(topic.partitions.len()).ok()?)))
            .filter(|(_, count)| *count > 0)
            .collect();
        self.member.handle_metadata(now, &counts);
    }
}

impl State {
    /// Lets the member do what is due, carries out what it tells, and gives what it wants to send.
    pub(super) fn pump_membership(&mut self, now: Instant) -> Vec<MemberRequest> {
        let Some(membership) = &mut self.membership else { return Vec::new() };
        if membership.member.next_timeout().is_some_and(|at| at <= now) {
            membership.member.handle_timeout(now);
        }
        for topic_partition in membership.expired() {
            self.give_up(&topic_partition);
        }
        while let Some(event) = self.membership.as_mut().and_then(|membership| membership.member.poll_event())
        {
            self.handle_member_event(event, now);
        }
        let member = self.membership.as_mut().map(|membership| &mut membership.member);
        member.into_iter().flat_map(|member| std::iter::from_fn(|| member.poll_request())).collect()
    }

    fn handle_member_event(&mut self, event: Event, now: Instant) {
        let Some(membership) = &mut self.membership else { return };
        match event {
            Event::Assigned { generation, added } => {
                for topic_partition in &added {
                    self.fetcher.assign(topic_partition.clone(), generation, Start::Awaiting);
                }
                if !added.is_empty() {
                    self.publish(Pending::Assigned { generation, partitions: added });
                }
            }
            Event::Revoked { id, partitions, deadline } => {
                let generation = membership.member.generation();
                membership.held.insert(id.0, partitions.clone());
                for topic_partition in &partitions {
                    self.fetcher.withhold(topic_partition);
                }
                if self.has_event_handle() && !partitions.is_empty() {
                    self.publish(Pending::Revoked { id: id.0, generation, partitions, deadline });
                } else {
                    self.release(id.0, now);
                }
            }
            Event::Lost { partitions } => {
                for held in membership.held.values_mut() {
                    held.retain(|tp| !partitions.contains(tp));
                }
                membership.held.retain(|_, held| !held.is_empty());
                let generations = partitions.iter().filter_map(|tp| self.fetcher.owned(tp));
                let generation = generations.max().unwrap_or(-1);
                for topic_partition in &partitions {
                    self.give_up(topic_partition);
                }
                if !partitions.is_empty() {
                    self.publish(Pending::Lost { generation, partitions });
                }
            }
            Event::MetadataNeeded { topics } => membership.wanted_topics = Some(topics),
            Event::Left => membership.left = true,
            Event::Failed(error) => {
                membership.left = true;
                let (group, reason) = (membership.group.clone(), error.to_string());
                self.failed = Some(ConsumeError::Group { group, reason });
                self.wake_readers();
            }
            // The enum may grow; what is not understood changes nothing here.
            _ => {}
        }
    }
}
