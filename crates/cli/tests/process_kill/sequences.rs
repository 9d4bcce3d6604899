//! What a producer may retry across a SIGKILL, frame by frame: each of its last five batches.

use tramline::client::{Admin, ClientConfig, NewTopic};
use tramline::wire::{RecordBatch, TopicPartition, batches};

use crate::common::frames::{Wire, sequenced};
use crate::common::{Random, Serve, seed};
use crate::kills;

const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;

/// A batch that was sent.
#[derive(Clone)]
struct Sent {
    sequence: i32,
    values: Vec<Vec<u8>>,
    base_offset: i64,
}

/// An idempotent producer of one partition.
struct Producer {
    place: TopicPartition,
    id: (i64, i16),
    next_sequence: i32,
    sent: Vec<Sent>,
}

impl Producer {
    fn new(wire: &mut Wire, place: TopicPartition) -> Self {
        Self { place, id: wire.producer_id(), next_sequence: 0, sent: Vec::new() }
    }

    /// A batch of one to four records of up to 2 kB: in a log of small segments the last five span several.
    fn next(&mut self, random: &mut Random) -> Sent {
        let sequence = self.next_sequence;
        let value = |random: &mut Random, n: i32| {
            let text = format!("{}/{n}/", self.id.0);
            text.repeat(1 + random.below(200) as usize).into_bytes()
        };
        let count = 1 + random.below(4) as i32;
        let values = (0..count).map(|n| value(random, sequence + n)).collect();
        self.next_sequence += count;
        Sent { sequence, values, base_offset: -1 }
    }

    fn bytes(&self, sent: &Sent) -> bytes::Bytes {
        sequenced(&sent.values, self.id, sent.sequence)
    }

    fn produce(&mut self, wire: &mut Wire, random: &mut Random) {
        let mut sent = self.next(random);
        let end = wire.end(&self.place);
        assert_eq!(wire.produce(&self.place, self.bytes(&sent)), (0, end), "a new batch of {}", self.place);
        sent.base_offset = end;
        self.sent.push(sent);
    }

    fn retry(&self, wire: &mut Wire, sent: &Sent) -> (i16, i64) {
        wire.produce(&self.place, self.bytes(sent))
    }
}

fn start(folder: &std::path::Path) -> Serve {
    let serve = Serve::start(folder, &[]);
    let admin = Admin::new(ClientConfig::new(&serve.address));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let topic = NewTopic::new("small", 2).config("segment.bytes", "8192");
    runtime.block_on(admin.create_topics([topic])).unwrap();
    serve
}

#[test]
fn a_retry_of_each_of_the_last_five_batches_after_a_kill_returns_its_old_offset() {
    let seed = seed("TRAMLINE_KILL_SEED");
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut serve = start(folder.path());
    let mut wire = Wire::connect(&serve.address).unwrap();
    let places = [0, 0, 1].map(|partition| TopicPartition::new("small", partition));
    let mut producers = places.map(|place| Producer::new(&mut wire, place));

    for _ in 0..kills().clamp(3, 20) {
        for _ in 0..6 + random.below(3) {
            for producer in &mut producers {
                producer.produce(&mut wire, &mut random);
            }
        }
        serve = serve.kill().restart();
        wire = Wire::connect(&serve.address).unwrap();
        for producer in &mut producers {
            let end = wire.end(&producer.place);
            let (older, last_five) = producer.sent.split_at(producer.sent.len() - 5);
            // Twice: recognising a retry changes nothing.
            for sent in last_five.iter().chain(last_five) {
                assert_eq!(
                    producer.retry(&mut wire, sent),
                    (0, sent.base_offset),
                    "sequence {}",
                    sent.sequence
                );
            }
            let sixth = producer.retry(&mut wire, older.last().unwrap());
            assert_eq!(sixth, (OUT_OF_ORDER_SEQUENCE_NUMBER, -1));
            assert_eq!(wire.end(&producer.place), end, "a retry appended something");

            let oldest = last_five[0].clone();
            producer.produce(&mut wire, &mut random);
            assert_eq!(producer.retry(&mut wire, &oldest), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1));
        }
    }
}

#[test]
fn batches_in_flight_at_a_kill_are_stored_once_however_many_were_answered() {
    let seed = seed("TRAMLINE_KILL_SEED");
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut serve = start(folder.path());
    let mut wire = Wire::connect(&serve.address).unwrap();
    let place = TopicPartition::new("small", 0);
    let mut producer = Producer::new(&mut wire, place.clone());
    let mut expected: Vec<Vec<u8>> = Vec::new();

    for _ in 0..kills().clamp(3, 20) {
        let in_flight: Vec<Sent> = (0..5).map(|_| producer.next(&mut random)).collect();
        for sent in &in_flight {
            wire.send_batch(&place, producer.bytes(sent)).unwrap();
        }
        let mut answered = Vec::new();
        for _ in 0..random.below(6) {
            let row = wire.receive_batch().unwrap();
            assert_eq!(row.error_code, 0);
            answered.push(row.base_offset);
        }
        serve = serve.kill().restart();
        wire = Wire::connect(&serve.address).unwrap();
        for (n, sent) in in_flight.iter().enumerate() {
            let expected_offset = expected.len() as i64;
            assert_eq!(producer.retry(&mut wire, sent), (0, expected_offset), "batch {n}");
            assert!(
                answered.get(n).is_none_or(|offset| *offset == expected_offset),
                "batch {n} was answered elsewhere"
            );
            expected.extend(sent.values.iter().cloned());
        }
        assert_eq!(wire.end(&place), expected.len() as i64);
    }
    assert_eq!(values(&mut wire, &place), expected);
}

/// Every value of the partition.
fn values(wire: &mut Wire, place: &TopicPartition) -> Vec<Vec<u8>> {
    let end = wire.end(place);
    let mut values = Vec::new();
    while (values.len() as i64) < end {
        for batch in batches(wire.fetch(place, values.len() as i64)) {
            let batch = RecordBatch::decode(place.clone(), batch.unwrap().1).unwrap();
            values.extend(batch.iter().map(|record| record.value().unwrap().to_vec()));
        }
    }
    values
}
