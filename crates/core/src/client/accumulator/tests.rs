//! The rules of the accumulator, one test each, on virtual time.

mod broker;
mod errors;
mod model;
mod rules;
mod sequences;

use core::time::Duration;
use std::vec::Vec;

use super::*;
use crate::client::metadata::PartitionView;

pub(super) fn at(ms: u64) -> Instant {
    Instant::from_start(Duration::from_millis(ms))
}

pub(super) const JITTER: u32 = u32::MAX / 2;

/// The token of a batch in tests: its partition and the number it was opened under.
pub(super) type Token = (i32, u32);

/// An accumulator with one topic `t`, and the small steps tests are made of.
pub(super) struct Bench {
    pub(super) acc: Accumulator<Token>,
    pub(super) opened: u32,
}

pub(super) fn row(partition: i32, leader: Option<i32>) -> PartitionView {
    PartitionView {
        partition,
        leader,
        leader_epoch: 0,
        replicas: Vec::new(),
        in_sync_replicas: Vec::new(),
        error_code: 0,
    }
}

pub(super) fn view(leaders: &[i32]) -> TopicView {
    let rows = leaders.iter().enumerate();
    TopicView { partitions: rows.map(|(p, l)| row(p as i32, Some(*l))).collect(), ..TopicView::default() }
}

impl Bench {
    /// As [`fresh`](Self::fresh), where the broker knows the producer already.
    pub(super) fn new(config: AccumulatorConfig, leaders: &[i32]) -> Self {
        let mut bench = Self::fresh(config, leaders);
        bench.acc.partitions.iter_mut().for_each(|partition| partition.established = true);
        bench
    }

    /// Partitions led by these nodes, with a producer id where one is needed.
    pub(super) fn fresh(config: AccumulatorConfig, leaders: &[i32]) -> Self {
        let idempotent = config.idempotent;
        let mut acc = Accumulator::new(config, 1);
        acc.update_topic(&"t".into(), &view(leaders));
        if idempotent {
            acc.set_producer_id(ProducerId { id: 7, epoch: 0 });
        }
        Self { acc, opened: 0 }
    }

    pub(super) fn send(&mut self, partition: i32, value: &str, now: u64) -> (Token, u32) {
        let slot = self.acc.route("t", Some(partition), None).unwrap();
        let parts = RecordParts { timestamp: 0, key: None, value: Some(value.as_bytes()), headers: &[] };
        assert!(self.acc.budget().try_take(parts.cost()), "memory");
        let opened = &mut self.opened;
        let token = |tp: &TopicPartition| {
            *opened += 1;
            (tp.partition, *opened)
        };
        let appended = self.acc.append(slot, parts, at(now), token).unwrap();
        (appended.token, appended.index)
    }

    pub(super) fn order(&mut self, now: u64) -> Option<Vec<Batch<Token>>> {
        self.order_of(1, now).ok()
    }

    /// The next request for a node, or when to ask again.
    pub(super) fn order_of(&mut self, node: i32, now: u64) -> Result<Vec<Batch<Token>>, Option<Instant>> {
        match self.acc.poll_order(node, at(now)) {
            NextOrder::Send(order) => Ok(order.batches),
            NextOrder::At(again) => Err(Some(again)),
            NextOrder::Later => Err(None),
        }
    }

    /// Nothing is to be sent at `now`; when to ask again.
    pub(super) fn quiet_until(&mut self, now: u64) -> Option<Instant> {
        self.order_of(1, now).expect_err("nothing may leave yet")
    }

    pub(super) fn answer(&mut self, batches: Vec<Batch<Token>>, answer: Answer, now: u64) {
        let answers = batches.into_iter().map(|batch| (batch, answer.clone()));
        self.acc.handle_answers(1, answers, at(now), JITTER);
    }

    pub(super) fn written(&mut self, batches: Vec<Batch<Token>>, base_offset: i64, now: u64) {
        self.answer(batches, Answer::Written { base_offset, append_time: -1 }, now);
    }

    pub(super) fn refused(&mut self, batches: Vec<Batch<Token>>, code: i16, now: u64) {
        self.answer(batches, Answer::Refused { code, message: None }, now);
    }

    pub(super) fn completions(&mut self) -> Vec<Completion<Token>> {
        core::iter::from_fn(|| self.acc.poll_completion()).collect()
    }
}

pub(super) fn stamp<C>(batch: &Batch<C>) -> (i16, i32) {
    let stamp = batch.stamp.unwrap();
    (stamp.producer.epoch, stamp.sequence)
}
