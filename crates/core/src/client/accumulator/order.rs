//! What goes out next: one request for one node.

use alloc::vec::Vec;

use super::partition::Readiness;
use super::{Accumulator, Batch, ProducerId};
use crate::time::Instant;

/// What a node gets now.
#[derive(Debug)]
pub enum NextOrder<C> {
    /// This.
    Send(Order<C>),
    /// Nothing until this moment, unless something changes earlier.
    At(Instant),
    /// Nothing until something changes.
    Later,
}

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

    /// The next request for this node, which counts as in flight from now on, or when to ask again. Both come from one
    /// look at one time: a timer computed apart could miss the moment that passed in between.
    pub fn poll_order(&mut self, node: i32, now: Instant) -> NextOrder<C> {
        let hurry = self.closing || self.budget.is_pressed();
        let Some(queue) = self.nodes.get_mut(&node) else { return NextOrder::Later };
        if queue.in_flight >= self.config.max_in_flight {
            return NextOrder::Later;
        }
        let idle = queue.in_flight == 0;
        let (mut batches, mut bytes) = (Vec::new(), 0usize);
        let mut again: Option<Instant> = None;
        let mut left_open = Vec::new();
        for _ in 0..queue.active.len() {
            let Some(slot) = queue.active.pop_front() else { break };
            let partition = &mut self.partitions[slot];
            if partition.is_idle() {
                partition.listed = false;
                continue;
            }
            queue.active.push_back(slot);
            let ready = match partition.readiness(&self.config, node, now, idle, hurry) {
                Readiness::Ready => true,
                Readiness::At(at) => {
                    again = Some(again.map_or(at, |earlier| earlier.min(at)));
                    false
                }
                Readiness::Later => false,
            };
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
            return again.map_or(NextOrder::Later, NextOrder::At);
        }
        self.nodes.entry(node).or_default().in_flight += 1;
        NextOrder::Send(Order { batches })
    }
}
