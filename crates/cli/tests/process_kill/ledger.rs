//! What the log must hold: read through the wire, record by record, and held against what was sent and acknowledged.

use std::collections::{BTreeMap, HashMap, HashSet};

use tramline::wire::{RecordBatch, TopicPartition, batches, check_batch};

use crate::common::frames::Wire;
use crate::load::{Ack, Ledger, Numbered, is_forced};

type Topics = [(&'static str, i32, &'static str)];

/// One partition as far as it was read.
#[derive(Default)]
struct Partition {
    /// The record and the leader epoch at each offset.
    places: Vec<(Numbered, i32)>,
    batches: u64,
    newest_epoch: i32,
}

/// The log as far as it was read. Reading on checks bytes, offsets, order and that nothing is there twice.
pub struct Log {
    seed: u64,
    partitions: BTreeMap<TopicPartition, Partition>,
    /// The partition of each key, and how many of its records were read.
    keys: HashMap<(u32, u32), (TopicPartition, u64)>,
    /// The newest number of each producer in each partition.
    newest: HashMap<(u32, TopicPartition), u64>,
}

impl Log {
    fn new(seed: u64, topics: &Topics) -> Self {
        let places = topics.iter().flat_map(|(topic, partitions, _)| {
            (0..*partitions).map(|partition| (TopicPartition::new(*topic, partition), Partition::default()))
        });
        Self { seed, partitions: places.collect(), keys: HashMap::new(), newest: HashMap::new() }
    }

    /// Reads everything from the start.
    pub fn read_all(seed: u64, topics: &Topics, wire: &mut Wire) -> Self {
        let mut log = Self::new(seed, topics);
        log.read_on(wire);
        log
    }

    pub fn records(&self) -> usize {
        self.partitions.values().map(|partition| partition.places.len()).sum()
    }

    pub fn batches(&self) -> u64 {
        self.partitions.values().map(|partition| partition.batches).sum()
    }

    /// Reads on to the ends of now.
    fn read_on(&mut self, wire: &mut Wire) {
        let places: Vec<_> = self.partitions.keys().cloned().collect();
        for place in places {
            let end = wire.end(&place);
            let read = self.partitions[&place].places.len() as i64;
            assert!(end >= read, "{place} ended at {read} or later and ends at {end} now");
            loop {
                let next = self.partitions[&place].places.len() as i64;
                if next >= end {
                    break;
                }
                let fetched = wire.fetch(&place, next);
                assert!(!fetched.is_empty(), "nothing at {next} of {place}, which ends at {end}");
                for batch in batches(fetched) {
                    self.take(&place, &batch.unwrap().1);
                }
            }
        }
    }

    fn take(&mut self, place: &TopicPartition, bytes: &bytes::Bytes) {
        let header = check_batch(bytes).unwrap();
        let batch = RecordBatch::decode(place.clone(), bytes.clone()).unwrap();
        let partition = self.partitions.get_mut(place).unwrap();
        let (next, epoch) = (partition.places.len() as i64, header.partition_leader_epoch);
        assert_eq!(header.base_offset, next, "the batch after offset {} of {place}", next - 1);
        assert!(epoch >= partition.newest_epoch, "{place} at {next}: epoch {epoch} after a newer one");
        partition.newest_epoch = epoch;
        partition.batches += 1;
        for record in &batch {
            let found = Numbered::of(record.value().unwrap());
            let at = format!("{place} at {}: {found:?}", record.offset());
            assert_eq!(record.offset(), partition.places.len() as i64, "{at}");
            assert_eq!(record.key(), Some(found.key_text().as_bytes()), "{at}");
            assert_eq!(record.value(), Some(&*found.value(self.seed)), "{at}");
            assert_eq!(*place.topic, *found.topic(), "{at}");
            partition.places.push((found, epoch));

            let key = self.keys.entry((found.producer, found.key)).or_insert((place.clone(), 0));
            assert_eq!(key.0, *place, "{at}: the key was in another partition before");
            let newest = self.newest.get(&(found.producer, place.clone())).copied();
            // Without sequences a retry may be stored again; a record that is new may still not skip or overtake one.
            if !is_forced(found.producer) && newest.is_some_and(|newest| found.number <= newest) {
                assert!(found.of_key < key.1, "{at}: a record that comes late");
                continue;
            }
            assert!(
                newest.is_none_or(|newest| found.number > newest),
                "{at}: after number {newest:?}, doubled or late"
            );
            assert_eq!(
                found.of_key, key.1,
                "{at}: a record of the key is missing before it, or it is doubled"
            );
            key.1 += 1;
            self.newest.insert((found.producer, place.clone()), found.number);
        }
    }

    /// The record and the leader epoch at the place of an acknowledgement; `None` when it was not read yet.
    fn at(&self, ack: &Ack) -> Option<(Numbered, i32)> {
        self.partitions[&ack.place].places.get(ack.offset as usize).copied()
    }

    /// Asserts that every acknowledged record is in its place and every record that was sent is there.
    pub fn holds(&self, ledger: &Ledger, sent: &[Vec<u64>]) {
        let mut places = HashSet::new();
        for ack in ledger.acks().iter() {
            let found = self.at(ack).map(|(record, _)| record);
            assert_eq!(found, Some(ack.record), "acknowledged for {} at {}", ack.place, ack.offset);
            assert!(places.insert((&ack.place, ack.offset)), "{ack:?}: the place was acknowledged before");
        }
        for (producer, keys) in sent.iter().enumerate() {
            for (key, sent) in keys.iter().enumerate() {
                let stored = self.keys.get(&(producer as u32, key as u32)).map_or(0, |key| key.1);
                assert_eq!(stored, *sent, "records of key {key} of producer {producer}");
            }
        }
        assert_eq!(ledger.acked(), sent.iter().flatten().sum::<u64>(), "every record was acknowledged");
    }
}

/// The log as it grew, read on after each start.
pub struct Model {
    log: Log,
    topics: &'static Topics,
    /// The leader epochs in each run of the broker.
    epochs: Vec<BTreeMap<TopicPartition, i32>>,
    /// Acknowledgements looked at.
    looked: usize,
    /// Acknowledgements whose offset was not readable yet.
    waiting: Vec<Ack>,
    deduplicated: u64,
}

impl Model {
    pub fn new(seed: u64, topics: &'static Topics) -> Self {
        let log = Log::new(seed, topics);
        Self { log, topics, epochs: vec![BTreeMap::new()], looked: 0, waiting: Vec::new(), deduplicated: 0 }
    }

    /// Acknowledgements of records that an earlier run of the broker had stored already.
    pub fn deduplicated(&self) -> u64 {
        self.deduplicated
    }

    /// Notes the leader epochs after a start, which are newer than any before.
    pub fn note_start(&mut self, wire: &mut Wire) {
        let mut epochs = BTreeMap::new();
        for (topic, ..) in self.topics {
            for (partition, epoch) in wire.epochs(topic).into_iter().enumerate() {
                let place = TopicPartition::new(*topic, partition as i32);
                let before = self.epochs.last().and_then(|epochs| epochs.get(&place)).copied();
                assert!(
                    before.is_none_or(|before| epoch > before),
                    "{place}: epoch {epoch} after {before:?}"
                );
                epochs.insert(place, epoch);
            }
        }
        self.epochs.push(epochs);
    }

    /// Reads on, and asserts that what was acknowledged is in its place.
    pub fn check(&mut self, wire: &mut Wire, ledger: &Ledger) {
        let mut due = std::mem::take(&mut self.waiting);
        {
            let acks = ledger.acks();
            due.extend_from_slice(&acks[self.looked..]);
            self.looked = acks.len();
        }
        self.log.read_on(wire);
        for ack in due {
            match self.log.at(&ack) {
                // Readers see what was only written once no forced batch before it waits for its barrier.
                None if !is_forced(ack.record.producer) => self.waiting.push(ack),
                found => {
                    let (record, epoch) = found.unwrap_or_else(|| panic!("{ack:?} is not in the log"));
                    assert_eq!(record, ack.record, "acknowledged for {} at {}", ack.place, ack.offset);
                    let now = self.epochs[ack.run].get(&ack.place);
                    self.deduplicated += u64::from(now.is_some_and(|now| epoch < *now));
                }
            }
        }
    }
}
