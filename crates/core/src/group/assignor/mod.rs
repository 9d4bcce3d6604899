//! Who gets which partition: pure functions from subscriptions and partition counts to an assignment.

mod cooperative_sticky;
mod range;
mod round_robin;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use tramline_wire::{Str, TopicPartition};

pub use cooperative_sticky::cooperative_sticky;
pub use range::range;
pub use round_robin::round_robin;

/// What one member wants and has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSubscription {
    /// Its id.
    pub member_id: Str,
    /// The instance id of a static member.
    pub instance_id: Option<Str>,
    /// The topics it wants; order and repetitions do not matter.
    pub topics: Vec<Str>,
    /// The partitions it says it owns (empty in subscriptions before version 1).
    pub owned: Vec<TopicPartition>,
    /// The generation in which it owned them; -1 when unknown (subscriptions before version 2).
    pub generation: i32,
}

/// The partitions of each member, sorted. Every member has an entry, if only an empty one.
pub type GroupAssignment = BTreeMap<Str, Vec<TopicPartition>>;

/// The assignors a member can offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Assignor {
    /// Per topic, neighbouring partitions to each member. Partitions of equal number in different topics meet
    /// at the same member; the first members get more.
    Range,
    /// All partitions dealt out in turn. Even, and moves much when members change.
    RoundRobin,
    /// Even, moves as little as possible, and moves a partition only after its owner has given it up.
    CooperativeSticky,
}

impl Assignor {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::RoundRobin => "roundrobin",
            Self::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// The assignor with this name on the wire.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Range, Self::RoundRobin, Self::CooperativeSticky]
            .into_iter()
            .find(|known| known.name() == name)
    }

    /// Whether members may keep partitions through a rebalance under this assignor.
    #[must_use]
    pub const fn is_cooperative(self) -> bool {
        matches!(self, Self::CooperativeSticky)
    }

    /// Assigns the partitions of `partition_counts` to `members`. Topics without an entry have no partitions.
    #[must_use]
    pub fn assign(
        self,
        members: &[MemberSubscription],
        partition_counts: &BTreeMap<Str, i32>,
    ) -> GroupAssignment {
        match self {
            Self::Range => range(members, partition_counts),
            Self::RoundRobin => round_robin(members, partition_counts),
            Self::CooperativeSticky => cooperative_sticky(members, partition_counts),
        }
    }
}

/// The members in the order Kafka's assignors use, each id once: static ones first by instance id, then by member id.
fn in_order(members: &[MemberSubscription]) -> Vec<&MemberSubscription> {
    let mut seen = BTreeSet::new();
    let mut ordered: Vec<_> = members.iter().filter(|member| seen.insert(&member.member_id)).collect();
    ordered.sort_by_key(|member| (member.instance_id.is_none(), &member.instance_id, &member.member_id));
    ordered
}

/// An empty list for each member.
fn nothing_for(members: &[&MemberSubscription]) -> GroupAssignment {
    members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect()
}

/// For each topic that exists and is wanted, the positions in `members` of those who want it.
fn subscribers<'a>(
    members: &[&'a MemberSubscription],
    partition_counts: &BTreeMap<Str, i32>,
) -> BTreeMap<&'a Str, Vec<usize>> {
    let mut by_topic: BTreeMap<&Str, Vec<usize>> = BTreeMap::new();
    for (position, member) in members.iter().enumerate() {
        let topics: BTreeSet<&Str> = member.topics.iter().collect();
        for topic in topics.into_iter().filter(|topic| partition_counts.contains_key(*topic)) {
            by_topic.entry(topic).or_default().push(position);
        }
    }
    by_topic
}

#[cfg(test)]
mod tests;
