//! The accumulator: what is told of each record, and what is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tramline_core::client::accumulator::{
    Accumulator, AccumulatorConfig, Answer, Batch, NextOrder, ProducerId, RecordParts,
};
use tramline_core::client::metadata::{ClusterView, Leader};
use tramline_core::time::Instant;
use tramline_wire::{Str, TopicPartition};

use super::{Choices, LEADER_EPOCH, PARTITIONS, honest_metadata, later, learn, metadata};

const BUFFER: usize = 4096;
const IN_FLIGHT: usize = 5;

struct Stand {
    accumulator: Accumulator<u32>,
    view: ClusterView,
    now: Instant,
    /// Requests under way, by node, oldest first.
    pending: Vec<(i32, Vec<Batch<u32>>)>,
    tokens: u32,
    /// Records of each token: accepted, and told.
    records: BTreeMap<u32, (u32, BTreeSet<u32>)>,
    written: usize,
}

pub(super) fn check(mut choices: Choices<'_>) -> bool {
    let settings = choices.byte();
    let config = AccumulatorConfig {
        idempotent: settings & 1 == 0,
        batch_bytes: 200,
        batch_records: 3,
        linger: Duration::from_millis(if settings & 2 == 0 { 0 } else { 5 }),
        max_in_flight: IN_FLIGHT,
        max_request_bytes: 500,
        buffer_bytes: BUFFER,
        buffer_records: 64,
        ..AccumulatorConfig::default()
    };
    let mut stand = Stand {
        accumulator: Accumulator::new(config, 7),
        view: ClusterView::default(),
        now: Instant::ZERO,
        pending: Vec::new(),
        tokens: 0,
        records: BTreeMap::new(),
        written: 0,
    };
    stand.learn(honest_metadata());
    while !choices.is_over() {
        stand.step(&mut choices);
        stand.look();
    }
    stand.recover();
    stand.written > 0
}

impl Stand {
    fn learn(&mut self, answer: tramline_wire::messages::MetadataResponse) {
        learn(&mut self.view, answer);
        self.apply();
    }

    fn apply(&mut self) {
        if let Some(topic) = self.view.topics.get("t").filter(|topic| !topic.partitions.is_empty()) {
            self.accumulator.update_topic(&Str::from_static("t"), topic);
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0 | 1 => self.append(choices),
            2 | 3 => {
                self.send();
                self.answer(choices);
            }
            4 => self.tick(choices.wait()),
            5 => self.learn(metadata(choices)),
            6 => {
                let id = choices.number(9).max(0);
                self.accumulator.set_producer_id(ProducerId { id, epoch: 0 });
            }
            _ => self.hint(choices),
        }
    }

    fn append(&mut self, choices: &mut Choices<'_>) {
        let key = [choices.byte()];
        let record = RecordParts { timestamp: 1, key: Some(&key), value: Some(b"value"), headers: &[] };
        if !self.accumulator.budget().try_take(record.cost()) {
            return;
        }
        let Ok(slot) = self.accumulator.route("t", None, record.key) else {
            return self.accumulator.budget().give_back(record.cost(), 1);
        };
        let tokens = &mut self.tokens;
        let accepted = self.accumulator.append(slot, record, self.now, |_| {
            *tokens += 1;
            *tokens
        });
        if let Ok(accepted) = accepted {
            let (count, _) = self.records.entry(accepted.token).or_default();
            assert_eq!(*count, accepted.index, "a place of its own");
            *count += 1;
        }
    }

    /// Sends what may leave to every node that leads.
    fn send(&mut self) {
        while self.accumulator.poll_wake().is_some() {}
        let nodes: Vec<i32> = self.accumulator.nodes().collect();
        for node in nodes {
            for round in 0.. {
                let NextOrder::Send(order) = self.accumulator.poll_order(node, self.now) else { break };
                assert!(round < IN_FLIGHT, "more than may be under way");
                let mut places: Vec<&TopicPartition> =
                    order.batches.iter().map(Batch::topic_partition).collect();
                places.sort();
                places.dedup();
                assert_eq!(places.len(), order.batches.len(), "two batches of a partition in one request");
                self.pending.push((node, order.batches));
            }
            let under_way = self.pending.iter().filter(|(to, _)| *to == node).count();
            assert!(under_way <= IN_FLIGHT, "{under_way} requests under way to {node}");
            if self.accumulator.forget_node(node) {
                assert_eq!(under_way, 0, "a node is forgotten with requests under way");
            }
        }
        // One leads for each partition, or is still to answer.
        let busy = PARTITIONS as usize + 1 + self.pending.len();
        assert!(self.accumulator.nodes().count() <= busy, "{:?}", self.accumulator);
    }

    /// The oldest request of some node ends: each batch in its own way.
    fn answer(&mut self, choices: &mut Choices<'_>) {
        let Some((node, _)) = self.pending.get(choices.below(self.pending.len())) else { return };
        let node = *node;
        let Some(at) = self.pending.iter().position(|(to, _)| *to == node) else { return };
        let (_, batches) = self.pending.remove(at);
        let mut answers = Vec::new();
        for batch in batches {
            let answer = match choices.byte() {
                0..0x90 => {
                    Answer::Written { base_offset: choices.number(0), append_time: choices.number(-1) }
                }
                0x90..0xa0 => Answer::Lost,
                0xa0..0xb0 => Answer::NotSent,
                _ => Answer::Refused { code: choices.code(), message: None },
            };
            answers.push((batch, answer));
        }
        self.accumulator.handle_answers(node, answers, self.now, u32::from(choices.byte()) << 24);
    }

    /// A broker said with an error who leads.
    fn hint(&mut self, choices: &mut Choices<'_>) {
        let partition = TopicPartition::new("t", choices.small(0));
        let leader = Leader { node: choices.small(1), epoch: choices.small(LEADER_EPOCH + 1) };
        self.view.leader_hint(&partition, leader);
        self.apply();
    }

    fn tick(&mut self, wait: Duration) {
        self.now = later(self.now, None) + wait;
        self.accumulator.handle_timeout(self.now);
    }

    /// What was told: each record once, and none that was never accepted.
    fn look(&mut self) {
        while let Some(completion) = self.accumulator.poll_completion() {
            let (count, told) = self.records.get_mut(&completion.token).expect("a token of ours");
            for place in completion.first..completion.first + completion.count {
                assert!(place < *count && told.insert(place), "{place} of {count} is told twice");
            }
            self.written += usize::from(completion.outcome.is_ok());
        }
        let untold: usize = self.records.values().map(|(count, told)| *count as usize - told.len()).sum();
        assert_eq!(untold, self.accumulator.untold_records());
    }

    /// From here on the brokers are honest: everything is told before long, and the memory is free again.
    fn recover(&mut self) {
        let mut honest = Choices(&[]);
        for _ in 0..2_000 {
            if self.accumulator.untold_records() == 0 && self.pending.is_empty() {
                break;
            }
            if self.accumulator.wants_producer_id() {
                self.accumulator.set_producer_id(ProducerId { id: 1, epoch: 0 });
            }
            if self.accumulator.wants_metadata() {
                self.accumulator.take_stale();
                self.learn(honest_metadata());
            }
            self.send();
            while !self.pending.is_empty() {
                self.answer(&mut honest);
            }
            self.look();
            self.tick(Duration::from_millis(100));
        }
        assert_eq!(self.accumulator.untold_records(), 0, "something is never told: {:?}", self.accumulator);
        assert!(self.accumulator.budget().try_take(BUFFER), "memory is lost: {:?}", self.accumulator);
    }
}
