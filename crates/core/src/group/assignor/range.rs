//! Range: per topic, neighbouring partitions to each member.

use alloc::collections::BTreeMap;

use tramline_wire::{Str, TopicPartition};

use super::{GroupAssignment, MemberSubscription, in_order, nothing_for, subscribers};

/// Per topic, the partitions are cut into as many neighbouring ranges as the topic has subscribers; the
/// first ranges are one longer when it does not come out even.
#[must_use]
pub fn range(members: &[MemberSubscription], partition_counts: &BTreeMap<Str, i32>) -> GroupAssignment {
    let members = in_order(members);
    let mut assignment = nothing_for(&members);
    for (topic, wanting) in subscribers(&members, partition_counts) {
        let count = usize::try_from(partition_counts[topic]).unwrap_or(0);
        let (each, extra) = (count / wanting.len(), count % wanting.len());
        let mut next = 0;
        for (place, position) in wanting.into_iter().enumerate() {
            let length = each + usize::from(place < extra);
            let list = assignment.entry(members[position].member_id.clone()).or_default();
            list.extend((next..next + length).map(|partition| TopicPartition::new(topic, partition as i32)));
            next += length;
        }
    }
    assignment
}
