//! What the tests over whole logs share: batches with a known content, a model, a seeded source of numbers.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tramline_log::storage::MemoryStorage;
use tramline_log::{
    Append, AppendOutcome, Log, LogConfig, LogError, LogReader, RecoveryMode, RecoveryReport, Storage,
};
use tramline_wire::{BatchBuilder, Compression, RecordBatch, TopicPartition};

pub const NOW: i64 = 1_700_000_000_000;
pub const EPOCH: i32 = 3;

pub fn dir() -> PathBuf {
    PathBuf::from("data/flights-0")
}

/// A disk with a data directory that is there for good: that one is the business of whoever owns it.
pub fn memory() -> MemoryStorage {
    let memory = MemoryStorage::new();
    memory.create_dir_all(dir().parent().unwrap()).unwrap();
    memory.sync_dir(Path::new("")).unwrap();
    memory
}

/// Small segments, so that every test rolls.
pub fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 1024,
        presize_bytes: 512,
        index_interval_bytes: 200,
        recovery: RecoveryMode::Full,
        ..LogConfig::default()
    }
}

/// A batch with these record values.
pub fn batch(values: &[&str]) -> Bytes {
    batch_at(NOW, values)
}

pub fn batch_at(timestamp: i64, values: &[&str]) -> Bytes {
    builder(timestamp, values).build()
}

pub fn builder(timestamp: i64, values: &[&str]) -> BatchBuilder {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        builder.append(timestamp, Some(b"k"), Some(value.as_bytes()), &[]).unwrap();
    }
    builder
}

pub fn sequenced(producer: i64, epoch: i16, sequence: i32, values: &[&str]) -> Bytes {
    let mut builder = builder(NOW, values);
    builder.producer(producer, epoch, sequence);
    builder.build()
}

pub fn open(storage: &Arc<dyn Storage>, config: &LogConfig) -> (Log, RecoveryReport) {
    Log::open(Arc::clone(storage), dir(), config.clone(), NOW).unwrap()
}

pub fn append_bytes(log: &mut Log, bytes: Bytes) -> Result<AppendOutcome, LogError> {
    let group = vec![Append::check(bytes).unwrap()];
    Ok(log.append_group(group, EPOCH, NOW)?.remove(0))
}

/// Appends one batch and returns its base offset.
pub fn append(log: &mut Log, values: &[&str]) -> i64 {
    match append_bytes(log, batch(values)).unwrap() {
        AppendOutcome::Appended { base_offset, .. } => base_offset,
        other => panic!("{other:?}"),
    }
}

/// One barrier, as the committer does it.
pub fn force(log: &mut Log) -> i64 {
    match log.take_sync() {
        Some(ticket) => log.synced(ticket.force().unwrap()).unwrap(),
        None => log.barriered_up_to(),
    }
}

/// Every record of the log as (offset, value), read in steps of `max_bytes`.
pub fn read_all(reader: &LogReader, max_bytes: usize) -> Vec<(i64, String)> {
    let mut at = reader.log_start();
    let mut records = Vec::new();
    while at < reader.log_end() {
        let slice = reader.read(at, max_bytes, i64::MAX, true).unwrap();
        assert!(!slice.is_empty(), "nothing at {at} although the log ends at {}", reader.log_end());
        records.extend(decode(slice.read().unwrap()).into_iter().filter(|(offset, _)| *offset >= at));
        at = slice.next_offset();
    }
    records
}

pub fn decode(bytes: Bytes) -> Vec<(i64, String)> {
    let mut batches = tramline_wire::batches(bytes);
    let mut records = Vec::new();
    for found in batches.by_ref() {
        let (header, bytes) = found.unwrap();
        let batch = RecordBatch::decode(TopicPartition::new("flights", 0), bytes).unwrap();
        assert_eq!(header.base_offset, batch.header().base_offset);
        for record in &batch {
            records.push((record.offset(), String::from_utf8(record.value().unwrap().to_vec()).unwrap()));
        }
    }
    assert_eq!(batches.remainder().bytes, 0, "a read returns whole batches only");
    records
}

pub fn values_of(records: &[(i64, String)]) -> Vec<&str> {
    records.iter().map(|(_, value)| value.as_str()).collect()
}

/// Offsets from `start` on without a gap.
pub fn assert_contiguous(records: &[(i64, String)], start: i64) {
    for (n, (offset, _)) in records.iter().enumerate() {
        assert_eq!(*offset, start + n as i64, "{records:?}");
    }
}

/// The segment files, in order.
pub fn segments(storage: &dyn Storage) -> Vec<PathBuf> {
    names(storage, ".log").into_iter().map(|name| dir().join(name)).collect()
}

pub fn names(storage: &dyn Storage, suffix: &str) -> Vec<String> {
    let listed = storage.list(&dir()).unwrap();
    listed.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(suffix)).collect()
}

pub fn segment(base: i64) -> PathBuf {
    dir().join(format!("{base:020}.log"))
}

pub fn exists(storage: &dyn Storage, path: &Path) -> bool {
    storage.open(path, tramline_log::storage::OpenMode::ReadOnly).is_ok()
}

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
