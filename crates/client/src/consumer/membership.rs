//! Membership in a group: the member machine, and the revocations that are held open.

use tramline_core::time::Instant;
use tramline_wire::TopicPartition;

#[derive(Debug)]
pub(super) struct Membership {}

impl Membership {
    pub(super) fn poll_resumed(&mut self, _now: Instant) -> bool {
        false
    }
    pub(super) fn release(&mut self, _id: u64, _now: Instant) -> Vec<TopicPartition> {
        Vec::new()
    }
}
