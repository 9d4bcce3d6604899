//! What goes out next: one request for one node.

use alloc::vec::Vec;

use super::partition::Readiness;
use super::{Accumulator, Batch, ProducerId};
use crate::time::Instant;

/// One produce request: at most one batch per partition.
#[derive(Debug)]
pub struct Order<C> {
    /// The batches, to be sent in one request and brought back through `handle_answers` with what became of each.
    pub batches: Vec<Batch<C>>,
}

impl<C: Clone> Accumulator<C> {
    /// Whether nothing can be sent before the broker gave a producer id.
    #[must_use]
    pub const fn wants_producer_id(&self) -> bool {
        self.config.idempotent && self.producer.is_none() && self.fatal.is_none()
    }

    /// The id the broker gave.
    pub fn set_producer_id(&mut self, producer: ProducerId) {
        self.producer = Some(producer);
        self.wake_all();
    }

    /// The next request for this node; it counts as in flight from now on. `None` until something changes or
    /// [`next_timeout`](Self::next_timeout) is due.
    pub fn poll_order(&mut self, node: i32, now: Instant) -> Option<Order<C>> {
        let hurry = self.closing || self.budget.is_pressed();
        let queue = self.nodes.get_mut(&node)?;
        if queue.in_flight >= self.config.max_in_flight {
            return None;
        }
        let idle = queue.in_flight == 0;
        let (mut batches, mut bytes) = (Vec::new(), 0usize);
        let mut left_open = Vec::new();
        for _ in 0..queue.active.len() {
            let Some(slot) = queue.active.pop_front() else { break };
            let partition = &mut self.partitions[slot];
            if partition.is_idle() {
                partition.listed = false;
                continue;
            }
            queue.active.push_back(slot);
            let ready = partition.readiness(&self.config, node, now, idle, hurry) == Readiness::Ready;
            let Some(front) = partition.queue.front().filter(|_| ready) else { continue };
            let (solo, size, open) = (front.solo, front.size(), !front.closed);
            if !batches.is_empty() && (solo || bytes + size > self.config.max_request_bytes) {
                // It is the first to be served next time, or it would starve behind the same others for ever.
                queue.active.rotate_right(1);
                break;
            }
            let Some(batch) = partition.take(node, self.config.idempotent, self.producer) else { continue };
            if open {
                left_open.push(slot);
            }
            bytes += size;
            batches.push(batch);
            if solo || bytes >= self.config.max_request_bytes {
                break;
            }
        }
        for slot in left_open {
            self.batch_closed(slot);
        }
        if batches.is_empty() {
            return None;
        }
        self.nodes.entry(node).or_default().in_flight += 1;
        Some(Order { batches })
    }

    /// When [`poll_order`](Self::poll_order) for this node can give something without anything else happening.
    #[must_use]
    pub fn next_order(&self, node: i32, now: Instant) -> Option<Instant> {
        let queue = self.nodes.get(&node)?;
        if queue.in_flight >= self.config.max_in_flight {
            return None;
        }
        let at = |slot: &usize| match self.partitions[*slot].readiness(&self.config, node, now, true, false) {
            Readiness::At(at) => Some(at),
            Readiness::Ready | Readiness::Later => None,
        };
        queue.active.iter().filter_map(at).min()
    }
}
