//! The client's machines against peers that answer as the bytes say: whole messages, with the fields that lie chosen by
//! them. Whatever was answered, what is known stays bounded, nothing is handed out twice or out of order, and once the
//! peer is honest again the machine comes to where it should be.

mod consumer;
mod member;
mod producer;

use std::time::Duration;

use tramline_core::client::metadata::ClusterView;
use tramline_core::time::Instant;
use tramline_wire::messages::MetadataResponse;
use tramline_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use tramline_wire::{Str, Uuid};

/// Partitions of topic `t`, all led by node 1 while the peers are honest.
const PARTITIONS: i32 = 3;
const LEADER_EPOCH: i32 = 3;

/// The first byte says which machine; the rest is what happens to it. True when it got anywhere.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((mode, rest)) = data.split_first() else { return false };
    match mode % 3 {
        0 => consumer::check(Choices(rest)),
        1 => producer::check(Choices(rest)),
        _ => member::check(Choices(rest)),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let plain = |mode: u8, step: &[u8]| [&[mode], &step.repeat(12)[..]].concat();
    vec![
        plain(0, &[0, 0, 1, 0, 3, 0]),
        plain(0, &[1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 3, 1, 4, 2]),
        plain(1, &[0, 1, 1, 0, 2, 0]),
        plain(1, &[0, 0, 1, 0, 2, 3, 0, 3, 0, 4, 7]),
        plain(2, &[0, 0, 0, 0, 0]),
        plain(2, &[0, 0, 0, 0, 0, 4, 1, 0, 2, 0]),
    ]
}

/// What the bytes choose; when they are used up, always the first.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// Mostly `honest`; else a number near it, or one at which numbers end.
    fn number(&mut self, honest: i64) -> i64 {
        match self.byte() {
            0..0xc0 => honest,
            0xc0..0xd0 => honest.wrapping_add(1),
            0xd0..0xe0 => honest.wrapping_sub(1),
            0xe0 => i64::MAX,
            0xe1 => i64::MIN,
            0xe2 => -1,
            0xe3 => 1 << 40,
            0xe4 => i64::from(i32::MAX),
            0xe5 => 0,
            _ => i64::from(self.byte()),
        }
    }

    fn small(&mut self, honest: i32) -> i32 {
        // The edges are kept: what is cut off them are ends of the smaller numbers too.
        self.number(i64::from(honest)) as i32
    }

    /// Mostly no error.
    fn code(&mut self) -> i16 {
        match self.byte() {
            0..0xb0 => 0,
            0xb0 => 31_000,
            0xb1 => i16::MIN,
            _ => i16::from(self.byte().cast_signed()),
        }
    }

    fn wait(&mut self) -> Duration {
        Duration::from_millis(u64::from(self.byte()) * 20)
    }

    /// Leaves rows out, doubles them and changes their order.
    fn disorder<T: Clone>(&mut self, rows: &mut Vec<T>) {
        if !self.one_in(4) || rows.is_empty() {
            return;
        }
        let (at, to) = (self.below(rows.len()), self.below(rows.len()));
        match self.byte() % 4 {
            0 => drop(rows.remove(at)),
            1 => rows.insert(to, rows[at].clone()),
            2 => rows.swap(at, to),
            _ => rows.clear(),
        }
    }

    fn topic(&mut self) -> Str {
        Str::from_static(if self.one_in(16) { "u" } else { "t" })
    }

    fn topic_id(&mut self) -> Uuid {
        Uuid::from_bytes([if self.one_in(16) { self.byte() } else { 7 }; 16])
    }
}

/// Metadata of topic `t` as the bytes say.
fn metadata(choices: &mut Choices<'_>) -> MetadataResponse {
    let mut partitions = Vec::new();
    for partition in 0..PARTITIONS {
        partitions.push(MetadataResponsePartition {
            error_code: choices.code(),
            partition_index: choices.small(partition),
            leader_id: choices.small(1),
            leader_epoch: choices.small(LEADER_EPOCH),
            ..Default::default()
        });
    }
    choices.disorder(&mut partitions);
    let topic = MetadataResponseTopic {
        error_code: choices.code(),
        name: Some(choices.topic()),
        topic_id: choices.topic_id(),
        partitions,
        ..Default::default()
    };
    let mut topics = vec![topic];
    choices.disorder(&mut topics);
    let node_id = choices.small(1);
    let broker =
        MetadataResponseBroker { node_id, host: "h".into(), port: choices.small(9092), ..Default::default() };
    let mut brokers = vec![broker];
    choices.disorder(&mut brokers);
    MetadataResponse { brokers, controller_id: choices.small(1), topics, ..Default::default() }
}

/// Takes over what an answer says, as the driver does: never of a topic that was not asked for.
fn learn(view: &mut ClusterView, mut answer: MetadataResponse) {
    answer.topics.retain(|topic| topic.name.as_deref() == Some("t"));
    view.update(&answer, false);
    assert!(view.topics.len() <= 1 && view.nodes.len() <= 2, "{view:?}");
    for topic in view.topics.values() {
        let numbers: Vec<i32> = topic.partitions.iter().map(|row| row.partition).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert!(numbers.len() <= 4 && numbers.iter().all(|number| (0..4).contains(number)), "{numbers:?}");
    }
}

/// Metadata as it is.
fn honest_metadata() -> MetadataResponse {
    metadata(&mut Choices(&[]))
}

/// The machine's next moment, or a little later than now.
fn later(now: Instant, due: Option<Instant>) -> Instant {
    due.unwrap_or(now).max(now) + Duration::from_millis(1)
}
