//! Cooperative sticky: even, moves little, and never gives away what is not given up (KIP-429).
//!
//! Three steps. *Claims*: of the members that say they own a partition, the one with the highest generation
//! is believed; when two say so for the same generation, none is. *Target*: believed claims stay where they
//! are as far as the load stays even; load is even when no partition can be passed on, directly or through
//! others, from a member to one that has at least two fewer. *Withhold*: what the target moves away from a
//! member that still holds it is left unassigned; that member sees it missing, gives it up and rejoins,
//! and the next run assigns it.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use tramline_wire::{Str, TopicPartition};

use super::{GroupAssignment, MemberSubscription, in_order, nothing_for, subscribers};

/// Assigns evenly, keeps what members own where it can, and leaves out, for this round, every partition that
/// would move from a member which has not given it up yet.
#[must_use]
pub fn cooperative_sticky(
    members: &[MemberSubscription],
    partition_counts: &BTreeMap<Str, i32>,
) -> GroupAssignment {
    let members = in_order(members);
    let mut assignment = nothing_for(&members);
    let wanting = subscribers(&members, partition_counts);
    let claims = claims(&members, partition_counts);
    let mut plan = Plan::new(members.len(), &wanting);
    plan.keep_claims(&claims);
    plan.deal_out_the_rest(partition_counts);
    plan.even_out();
    for (position, member) in members.iter().enumerate() {
        let list = assignment.entry(member.member_id.clone()).or_default();
        for (topic, partitions) in &plan.load[position] {
            for &partition in partitions {
                let held_by_another = match claims.get(&(*topic, partition)) {
                    None => false,
                    Some(Claim::Of(owner)) => *owner != position,
                    Some(Claim::Disputed) => true,
                };
                if !held_by_another {
                    list.push(TopicPartition::new(*topic, partition));
                }
            }
        }
    }
    assignment
}

/// Who is believed to hold a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The member at this position.
    Of(usize),
    /// Several members, with equal right: each has to give it up before anyone gets it.
    Disputed,
}

/// The claims on partitions that exist, wanted or not.
fn claims<'a>(
    members: &[&'a MemberSubscription],
    partition_counts: &BTreeMap<Str, i32>,
) -> BTreeMap<(&'a Str, i32), Claim> {
    let mut best: BTreeMap<(&Str, i32), (i32, Claim)> = BTreeMap::new();
    for (position, member) in members.iter().enumerate() {
        let owned: BTreeSet<&TopicPartition> = member.owned.iter().collect();
        for owned in owned {
            let exists = partition_counts
                .get(&owned.topic)
                .is_some_and(|&count| (0..count).contains(&owned.partition));
            if !exists {
                continue;
            }
            let mine = (member.generation, Claim::Of(position));
            let entry = best.entry((&owned.topic, owned.partition)).or_insert(mine);
            if entry.0 < member.generation {
                *entry = mine;
            } else if entry.0 == member.generation && entry.1 != Claim::Of(position) {
                entry.1 = Claim::Disputed;
            }
        }
    }
    best.into_iter().map(|(partition, (_, claim))| (partition, claim)).collect()
}

/// The target as it is being made. Topics are borrowed from the subscriptions.
struct Plan<'a> {
    /// Who wants which topic.
    wanting: &'a BTreeMap<&'a Str, Vec<usize>>,
    /// What each member would get.
    load: Vec<BTreeMap<&'a Str, BTreeSet<i32>>>,
    /// How many partitions that is.
    size: Vec<usize>,
    /// The members in order of load, for finding the least loaded.
    by_size: BTreeSet<(usize, usize)>,
    /// What is kept from before: moved only when nothing else helps.
    kept: BTreeSet<(&'a Str, i32)>,
}

impl<'a> Plan<'a> {
    fn new(members: usize, wanting: &'a BTreeMap<&'a Str, Vec<usize>>) -> Self {
        Self {
            wanting,
            load: vec![BTreeMap::new(); members],
            size: vec![0; members],
            by_size: (0..members).map(|position| (0, position)).collect(),
            kept: BTreeSet::new(),
        }
    }

    fn give(&mut self, position: usize, topic: &'a Str, partition: i32) {
        self.load[position].entry(topic).or_default().insert(partition);
        self.resize(position, self.size[position] + 1);
    }

    fn take(&mut self, position: usize, topic: &'a Str, partition: i32) {
        if let Some(partitions) = self.load[position].get_mut(topic)
            && partitions.remove(&partition)
        {
            self.resize(position, self.size[position] - 1);
        }
    }

    fn resize(&mut self, position: usize, size: usize) {
        self.by_size.remove(&(self.size[position], position));
        self.size[position] = size;
        self.by_size.insert((size, position));
    }

    fn keep_claims(&mut self, claims: &BTreeMap<(&'a Str, i32), Claim>) {
        for (&(topic, partition), claim) in claims {
            if let Claim::Of(position) = *claim
                && self.wanting.get(topic).is_some_and(|wanting| wanting.binary_search(&position).is_ok())
            {
                self.give(position, topic, partition);
                self.kept.insert((topic, partition));
            }
        }
    }

    /// Gives what nobody holds to the least loaded of those who want it; topics with few takers first, so
    /// that a choice is still there when it is needed.
    fn deal_out_the_rest(&mut self, partition_counts: &BTreeMap<Str, i32>) {
        let mut topics: Vec<(&'a Str, &'a Vec<usize>)> =
            self.wanting.iter().map(|(&topic, wanting)| (topic, wanting)).collect();
        topics.sort_by_key(|(topic, wanting)| (wanting.len(), *topic));
        for (topic, wanting) in topics {
            for partition in 0..partition_counts[topic] {
                if self.kept.contains(&(topic, partition)) {
                    continue;
                }
                let least = if wanting.len() == self.load.len() {
                    self.by_size.first().map(|&(_, position)| position)
                } else {
                    wanting.iter().copied().min_by_key(|&position| (self.size[position], position))
                };
                if let Some(position) = least {
                    self.give(position, topic, partition);
                }
            }
        }
    }

    /// Passes partitions on until no chain of moves leads from a member to one with at least two fewer. Each
    /// chain brings the loads nearer to each other, so this ends.
    fn even_out(&mut self) {
        let mut full: BTreeSet<usize> = (0..self.load.len()).collect();
        while let Some(from) = full.iter().copied().max_by_key(|&position| (self.size[position], position)) {
            if self.pass_on(from) {
                // Others may have become movable again through the chain.
                full.extend((0..self.load.len()).filter(|&position| self.size[position] >= self.size[from]));
            } else {
                full.remove(&from);
            }
        }
    }

    /// Finds the shortest chain of members from `from` to the least loaded one it can reach, where each owns a
    /// topic that the next one wants, and moves one partition along each link. False when no chain helps.
    fn pass_on(&mut self, from: usize) -> bool {
        if self.by_size.first().is_none_or(|&(least, _)| least + 2 > self.size[from]) {
            return false;
        }
        let mut came: Vec<Option<(usize, &'a Str)>> = vec![None; self.load.len()];
        let mut topics_done: BTreeSet<&Str> = BTreeSet::new();
        let mut queue = VecDeque::from([from]);
        let mut best: Option<usize> = None;
        while let Some(at) = queue.pop_front() {
            let topics = self.load[at].iter().filter(|(_, partitions)| !partitions.is_empty());
            for topic in topics.map(|(topic, _)| *topic) {
                // Whoever wants a topic was reached by its first holder already.
                if !topics_done.insert(topic) {
                    continue;
                }
                for &to in &self.wanting[topic] {
                    if to != from && came[to].is_none() {
                        came[to] = Some((at, topic));
                        queue.push_back(to);
                        if best.is_none_or(|best| self.size[to] < self.size[best]) {
                            best = Some(to);
                        }
                    }
                }
            }
        }
        let Some(mut to) = best.filter(|&to| self.size[to] + 2 <= self.size[from]) else { return false };
        while let Some((giver, topic)) = came[to] {
            if let Some(partition) = self.movable(giver, topic) {
                self.take(giver, topic, partition);
                self.give(to, topic, partition);
            }
            to = giver;
        }
        true
    }

    /// The partition of `topic` that costs least to take from a member: one that was not kept, else the last.
    fn movable(&self, position: usize, topic: &'a Str) -> Option<i32> {
        let partitions = self.load[position].get(topic)?;
        let fresh = partitions.iter().rev().find(|&&partition| !self.kept.contains(&(topic, partition)));
        fresh.or_else(|| partitions.last()).copied()
    }
}
