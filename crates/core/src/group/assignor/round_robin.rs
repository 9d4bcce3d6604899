//! Round robin: all partitions dealt out in turn.

use alloc::collections::BTreeMap;

use tramline_wire::{Str, TopicPartition};

use super::{GroupAssignment, MemberSubscription, in_order, nothing_for, subscribers};

/// All partitions of all topics, in order, are dealt to the members in turn; a member that does not want the
/// topic is passed over.
#[must_use]
pub fn round_robin(members: &[MemberSubscription], partition_counts: &BTreeMap<Str, i32>) -> GroupAssignment {
    let members = in_order(members);
    let mut assignment = nothing_for(&members);
    let mut turn = 0;
    for (topic, wanting) in subscribers(&members, partition_counts) {
        for partition in 0..partition_counts[topic] {
            // The next in turn is the first subscriber at or after `turn`, else the first of all.
            let place = wanting.partition_point(|&position| position < turn);
            let position = wanting[if place == wanting.len() { 0 } else { place }];
            turn = (position + 1) % members.len();
            let list = assignment.entry(members[position].member_id.clone()).or_default();
            list.push(TopicPartition::new(topic, partition));
        }
    }
    assignment
}
