//! Random appends, rolls, truncations and reopens against a plain list of records, in memory and on a disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{EPOCH, NOW, Random, batch, decode, read_all, sequenced};
use tramline_log::storage::{DiskStorage, MemoryStorage};
use tramline_log::{Append, AppendOutcome, Log, LogConfig, RecoveryMode, Storage};

/// One producer's last five batches and its next sequence, as the broker's rules have it.
#[derive(Default)]
struct Producer {
    next: i32,
    last: Vec<(i32, usize, i64)>,
}

struct Model {
    records: Vec<String>,
    producers: [Producer; 3],
    /// The id of the first producer.
    generation: i64,
}

fn steps(seed: u64, storage: &Arc<dyn Storage>, dir: &Path, count: usize) {
    let mut random = Random::new(seed);
    let config = LogConfig {
        segment_bytes: 500 + random.below(3000) as u32,
        presize_bytes: 1 + random.below(2000) as u32,
        index_interval_bytes: 1 + random.below(500) as u32,
        recovery: if random.one_in(2) { RecoveryMode::Tail } else { RecoveryMode::Full },
        ..LogConfig::default()
    };
    let mut log = Log::open(Arc::clone(storage), dir.to_path_buf(), config.clone(), NOW).unwrap().0;
    let mut model = Model { records: Vec::new(), producers: Default::default(), generation: 0 };
    for step in 0..count {
        let context = format!("seed {seed}, step {step}");
        match random.below(24) {
            0..14 => append(&mut log, &mut model, &mut random, &context),
            14..17 => {
                if let Some(ticket) = log.take_sync() {
                    let up_to = log.synced(ticket.force().unwrap()).unwrap();
                    assert_eq!(up_to, model.records.len() as i64, "{context}");
                }
            }
            17..20 => read_somewhere(&log, &model, &mut random, &context),
            20 => {
                let cut = random.below(model.records.len() as u64 + 1) as i64;
                log = log.truncate_from(cut, NOW).unwrap();
                let end = log.reader().log_end();
                assert!(end <= cut && cut - end < 5, "{context}: cut at {cut}, ends at {end}");
                model.records.truncate(end as usize);
                // What a truncation leaves of the sequences is not worth modelling: other producers go on.
                model.producers = Default::default();
                model.generation += 3;
            }
            how => {
                if how == 21 {
                    log.close().unwrap();
                } else {
                    drop(log);
                }
                let (opened, report) =
                    Log::open(Arc::clone(storage), dir.to_path_buf(), config.clone(), NOW).unwrap();
                assert_eq!(report.log_end, model.records.len() as i64, "{context}: {report}");
                assert!(report.cut_at.is_none() && report.damaged.is_empty(), "{context}: {report}");
                log = opened;
            }
        }
    }
    let read = read_all(&log.reader(), 700);
    let values: Vec<String> = read.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, model.records, "seed {seed}");
}

fn append(log: &mut Log, model: &mut Model, random: &mut Random, context: &str) {
    let mut group = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..=random.below(4) {
        let values: Vec<String> =
            (0..=random.below(4)).map(|n| format!("{}-{n}", "v".repeat(random.below(60) as usize))).collect();
        let refs: Vec<&str> = values.iter().map(String::as_str).collect();
        let base = model.records.len() as i64;
        let last = base + values.len() as i64 - 1;
        let which = random.below(4) as usize;
        let id = model.generation + which as i64;
        let Some(producer) = model.producers.get_mut(which) else {
            group.push(batch(&refs));
            expected.push(AppendOutcome::Appended {
                base_offset: base,
                last_offset: last,
                log_append_time: None,
            });
            model.records.extend(values);
            continue;
        };
        if let Some((sequence, count, known)) = producer.last.get(random.below(8) as usize).copied() {
            let again: Vec<&str> = vec!["again"; count];
            group.push(sequenced(id, 0, sequence, &again));
            let last_offset = known + count as i64 - 1;
            expected.push(AppendOutcome::Duplicate { base_offset: known, last_offset, timestamp: NOW });
            continue;
        }
        group.push(sequenced(id, 0, producer.next, &refs));
        expected.push(AppendOutcome::Appended {
            base_offset: base,
            last_offset: last,
            log_append_time: None,
        });
        producer.last.push((producer.next, values.len(), base));
        if producer.last.len() > 5 {
            producer.last.remove(0);
        }
        producer.next += values.len() as i32;
        model.records.extend(values);
    }
    let group = group.into_iter().map(|bytes| Append::check(bytes).unwrap()).collect();
    assert_eq!(log.append_group(group, EPOCH, NOW).unwrap(), expected, "{context}");
    assert_eq!(log.reader().log_end(), model.records.len() as i64, "{context}");
}

fn read_somewhere(log: &Log, model: &Model, random: &mut Random, context: &str) {
    let end = model.records.len() as i64;
    let offset = random.below(end as u64 + 1) as i64;
    let limit = random.below(end as u64 + 10) as i64;
    let max_bytes = random.below(2000) as usize;
    let slice = log.reader().read(offset, max_bytes, limit, random.one_in(2)).unwrap();
    let records = decode(slice.read().unwrap());
    assert!(slice.ranges().len() < 2 || slice.len() <= max_bytes, "{context}");
    for (n, (at, value)) in records.iter().enumerate() {
        assert_eq!(*at, slice.base_offset() + n as i64, "{context}");
        assert_eq!(*value, model.records[*at as usize], "{context}");
        assert!(*at < limit, "{context}");
    }
    if let Some((last, _)) = records.last() {
        assert!(slice.base_offset() <= offset && offset <= *last, "{context}");
        assert_eq!(slice.next_offset(), last + 1, "{context}");
    }
}

#[test]
fn a_log_in_memory_behaves_like_a_list() {
    for seed in 0..200 {
        steps(seed, &MemoryStorage::new().shared(), &PathBuf::from("data/p-0"), 80);
    }
}

#[test]
fn a_log_on_a_disk_behaves_like_a_list() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 1000..1012 {
        steps(seed, &DiskStorage::shared(), &folder.path().join(format!("p-{seed}")), 60);
    }
}
