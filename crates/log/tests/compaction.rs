//! Compaction: what a key's newest record says survives every pass, restart and power cut; offsets never change.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use common::{NOW, Random, append_bytes, dir, force, memory, names, open, small};
use tramline_log::storage::MemoryStorage;
use tramline_log::{AppendOutcome, Compaction, CompactionReport, Log, LogConfig, LogError, LogReader};
use tramline_wire::{BatchBuilder, Compression, RecordBatch, TopicPartition};

const HOUR: i64 = 3_600_000;

fn compacting(compaction: Compaction) -> LogConfig {
    LogConfig { compaction: Some(compaction), ..small() }
}

fn eager() -> Compaction {
    Compaction { min_dirty_ratio: 0.0, delete_retention: Duration::from_secs(3600), ..Compaction::default() }
}

/// What the log should say: each key's newest value, and where every record was put.
#[derive(Clone, Debug, Default)]
struct Model {
    newest: BTreeMap<Vec<u8>, (i64, Option<Vec<u8>>)>,
    all: BTreeMap<i64, (Vec<u8>, Option<Vec<u8>>)>,
}

type Visible = Vec<(i64, Vec<u8>, Option<Vec<u8>>)>;

fn put(
    log: &mut Log,
    model: &mut Model,
    records: &[(&str, Option<&str>)],
    codec: Compression,
) -> Result<i64, LogError> {
    let mut builder = BatchBuilder::new(codec);
    let mut at = log.reader().log_end();
    for (key, value) in records {
        builder.append(NOW, Some(key.as_bytes()), value.map(str::as_bytes), &[]).unwrap();
        let value = value.map(|value| value.as_bytes().to_vec());
        model.newest.insert(key.as_bytes().to_vec(), (at, value.clone()));
        model.all.insert(at, (key.as_bytes().to_vec(), value));
        at += 1;
    }
    append_bytes(log, builder.build()).map(|_| at)
}

fn visible(reader: &LogReader, max_bytes: usize) -> Visible {
    let mut at = reader.log_start();
    let mut found = Vec::new();
    while at < reader.log_end() {
        let slice = reader.read(at, max_bytes, i64::MAX, true).unwrap();
        assert!(!slice.is_empty(), "a reader stands still at {at}, the log ends at {}", reader.log_end());
        for batch in tramline_wire::batches(slice.read().unwrap()) {
            let batch = RecordBatch::decode(TopicPartition::new("t", 0), batch.unwrap().1).unwrap();
            for record in batch.iter().filter(|record| record.offset() >= at) {
                let (key, value) = (record.key().unwrap().to_vec(), record.value().map(<[u8]>::to_vec));
                found.push((record.offset(), key, value));
            }
        }
        at = slice.next_offset();
    }
    found
}

/// Every record is one that was written, at its own offset; nobody misses the newest value of a key.
fn verify(log: &Log, model: &Model, max_bytes: usize, context: &str) -> Visible {
    let found = visible(&log.reader(), max_bytes);
    let mut state = BTreeMap::new();
    for (offset, key, value) in &found {
        assert_eq!(model.all.get(offset), Some(&(key.clone(), value.clone())), "{context}: offset {offset}");
        state.insert(key.clone(), value.clone());
    }
    assert!(found.is_sorted_by(|a, b| a.0 < b.0), "{context}");
    for (key, (_, value)) in &model.newest {
        // A tombstone may have gone, but nothing older may be back.
        assert_eq!(
            state.get(key).cloned().flatten(),
            *value,
            "{context}: key {}",
            String::from_utf8_lossy(key)
        );
    }
    found
}

fn pass(log: &mut Log, now: i64) -> Option<CompactionReport> {
    let done = log.plan_compaction(now)?.run(|| true).unwrap()?;
    Some(log.compacted(done).unwrap())
}

fn reopen(storage: &MemoryStorage, config: &LogConfig, context: &str) -> Log {
    let (log, report) = Log::open(storage.shared(), dir(), config.clone(), NOW).unwrap();
    assert!(report.damaged.is_empty(), "{context}: gaps of a compaction are no damage: {report}");
    log
}

#[test]
fn of_each_key_only_the_newest_record_stays_in_the_sealed_part() {
    let storage = memory();
    let config = compacting(eager());
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    for n in 0..200 {
        let (key, value) = (format!("key-{}", n % 7), format!("value-{n}"));
        put(&mut log, &mut model, &[(&key, Some(&value))], Compression::None).unwrap();
    }
    force(&mut log);
    let before = names(&*storage.shared(), ".log").len();
    let report = pass(&mut log, NOW).unwrap();
    assert!(report.records_removed > 150 && report.bytes_after < report.bytes_before / 5, "{report:?}");
    let found = verify(&log, &model, 300, "after a pass");
    let sealed_end = found.iter().rev().find(|(offset, ..)| found.iter().any(|f| f.0 + 1 == *offset));
    assert!(sealed_end.is_some() && found.len() < 40, "{} records left", found.len());
    assert!(names(&*storage.shared(), ".log").len() < before, "segments without a batch are removed");
    assert_eq!(pass(&mut log, NOW), None, "nothing is dirty");
    drop(log);
    verify(&reopen(&storage, &config, "restart"), &model, 300, "after a restart");
}

#[test]
fn random_histories_keep_their_meaning_over_passes_and_restarts() {
    for seed in 0..25 {
        let mut random = Random::new(seed);
        let config = compacting(Compaction {
            min_dirty_ratio: [0.0, 0.3, 0.6][random.below(3) as usize],
            key_memory: [200, 1 << 20][random.below(2) as usize],
            ..eager()
        });
        let storage = memory();
        let (mut log, _) = open(&storage.shared(), &config);
        let (mut model, mut now) = (Model::default(), NOW);
        for step in 0..80 {
            let context = format!("seed {seed}, step {step}");
            match random.below(12) {
                0..8 => {
                    let codec = [Compression::None, Compression::Lz4][random.below(2) as usize];
                    let mut owned = Vec::new();
                    for _ in 0..=random.below(4) {
                        let value = (!random.one_in(5)).then(|| format!("v{step}-{}", random.below(1000)));
                        owned.push((format!("k{}", random.below(12)), value));
                    }
                    let records: Vec<_> = owned.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
                    put(&mut log, &mut model, &records, codec).unwrap();
                }
                8 => {
                    force(&mut log);
                }
                9 => now += HOUR,
                10 => {
                    force(&mut log);
                    pass(&mut log, now);
                }
                _ => {
                    drop(log);
                    log = reopen(&storage, &config, &context);
                }
            }
            verify(&log, &model, 1 + random.below(500) as usize, &context);
        }
    }
}

#[test]
fn a_power_cut_at_every_call_of_a_pass_leaves_the_old_content_or_the_new() {
    let config = compacting(eager());
    let write = |storage: &MemoryStorage| {
        let (mut log, _) = open(&storage.shared(), &config);
        let mut model = Model::default();
        for n in 0..60 {
            let (key, value) = (format!("key-{}", n % 5), format!("value-{n}"));
            let value = (n % 11 != 0).then_some(value.as_str());
            put(&mut log, &mut model, &[(&key, value), ("once", Some("x"))], Compression::None).unwrap();
        }
        force(&mut log);
        (log, model)
    };
    let quiet = memory();
    let (mut log, _) = write(&quiet);
    let from = quiet.effects();
    pass(&mut log, NOW).unwrap();
    let to = quiet.effects();
    assert!(to > from + 20, "a pass of {} calls is no test", to - from);
    for n in from + 1..=to {
        let storage = memory();
        let (mut log, model) = write(&storage);
        storage.crash_at(n);
        let done = log.plan_compaction(NOW).unwrap().run(|| true);
        let _ = done.map(|done| log.compacted(done.unwrap()).map(drop));
        assert!(storage.has_crashed(), "power off at call {n}");
        for (name, image) in [
            ("durable", storage.durable_image()),
            ("torn", storage.torn_image(n)),
            ("kill", storage.after_kill()),
        ] {
            let context = format!("power off at call {n}, {name}");
            let mut log = reopen(&image, &config, &context);
            verify(&log, &model, 300, &context);
            pass(&mut log, NOW);
            assert!(verify(&log, &model, 300, &context).len() < 40, "{context}: the next pass does the rest");
            assert_eq!(names(&*image.shared(), ".tmp"), [""; 0], "{context}");
        }
    }
}

#[test]
fn a_tombstone_stays_for_its_time_after_the_first_pass_that_met_it() {
    let storage = memory();
    let config = compacting(eager());
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    put(&mut log, &mut model, &[("gone", Some("first")), ("stays", Some("x"))], Compression::None).unwrap();
    put(&mut log, &mut model, &[("gone", None)], Compression::None).unwrap();
    let mut dirty = |log: &mut Log| {
        for n in 0..30 {
            put(log, &mut model, &[("filler", Some(&format!("{n:060}")))], Compression::None).unwrap();
        }
        force(log);
    };
    let of_key = |log: &Log| -> Vec<Option<Vec<u8>>> {
        visible(&log.reader(), 1000)
            .into_iter()
            .filter(|(_, key, _)| key == b"gone")
            .map(|(.., v)| v)
            .collect()
    };
    dirty(&mut log);
    pass(&mut log, NOW).unwrap();
    assert_eq!(of_key(&log), [None], "the value went, the tombstone tells of it");
    dirty(&mut log);
    pass(&mut log, NOW + HOUR - 1).unwrap();
    assert_eq!(of_key(&log), [None], "its time is not over");
    dirty(&mut log);
    pass(&mut log, NOW + HOUR).unwrap();
    assert_eq!(of_key(&log), [], "whoever reads from now on need not know");
}

#[test]
fn a_producer_whose_records_are_all_gone_still_cannot_write_them_twice() {
    let storage = memory();
    let config = compacting(eager());
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    let from_producer = |sequence: i32| -> Bytes {
        let mut builder = BatchBuilder::new(Compression::None);
        builder.append(NOW, Some(b"k"), Some(b"theirs"), &[]).unwrap();
        builder.append(NOW, Some(b"k"), Some(b"theirs"), &[]).unwrap();
        builder.producer(9, 0, sequence).build()
    };
    append_bytes(&mut log, from_producer(0)).unwrap();
    for n in 0..40 {
        put(&mut log, &mut model, &[("k", Some(&format!("{n:060}")))], Compression::None).unwrap();
    }
    force(&mut log);
    pass(&mut log, NOW).unwrap();
    drop(log);
    // Without a snapshot only the log itself can tell.
    for name in names(&*storage.shared(), ".snapshot") {
        storage.shared().remove(&dir().join(name)).unwrap();
    }
    let mut log = reopen(&storage, &config, "without snapshots");
    let again = append_bytes(&mut log, from_producer(0)).unwrap();
    assert!(matches!(again, AppendOutcome::Duplicate { base_offset: 0, last_offset: 1, .. }), "{again:?}");
    let next = append_bytes(&mut log, from_producer(2)).unwrap();
    assert!(matches!(next, AppendOutcome::Appended { .. }), "{next:?}");
}

#[test]
fn appends_and_retention_go_on_while_a_pass_runs() {
    let storage = memory();
    let config = LogConfig { retention_bytes: Some(3000), ..compacting(eager()) };
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    for n in 0..60 {
        let key = format!("key-{}", n % 3);
        put(&mut log, &mut model, &[(&key, Some(&format!("{n:040}")))], Compression::None).unwrap();
    }
    force(&mut log);
    let done = log.plan_compaction(NOW).unwrap().run(|| true).unwrap().unwrap();
    put(&mut log, &mut model, &[("key-0", Some("meanwhile"))], Compression::None).unwrap();
    assert!(log.enforce_retention(NOW).unwrap() > 0);
    log.compacted(done).unwrap();
    assert_eq!(names(&*storage.shared(), ".tmp"), [""; 0], "files for segments that went are removed");
    verify(&log, &model, 300, "after retention in the middle of a pass");
    drop(log);
    verify(&reopen(&storage, &config, "restart"), &model, 300, "after a restart");
}

#[test]
fn a_pass_waits_until_enough_is_dirty_and_old_enough() {
    let config = compacting(Compaction { min_lag: Duration::from_secs(60), ..Compaction::default() });
    let storage = memory();
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    let mut fill = |log: &mut Log, count: usize| {
        for n in 0..count {
            put(log, &mut model, &[(&format!("key-{n}"), Some("value"))], Compression::None).unwrap();
        }
        force(log);
    };
    fill(&mut log, 200);
    assert!(log.plan_compaction(NOW).is_none(), "everything is too young");
    assert!(log.plan_compaction(NOW + 60_001).is_some());
    pass(&mut log, NOW + 60_001).unwrap();
    fill(&mut log, 60);
    assert!(log.plan_compaction(NOW + 60_001).is_none(), "a quarter is dirty");
    let impatient = Compaction { max_lag: Duration::from_secs(60), ..Compaction::default() };
    log.set_config(compacting(impatient)).unwrap();
    assert!(log.plan_compaction(NOW + 60_001).is_some(), "it has waited for long enough");
    log.set_config(small()).unwrap();
    assert!(log.plan_compaction(i64::MAX).is_none(), "the settings do not ask for it");
}

#[test]
fn readers_reach_the_end_when_nothing_of_the_last_batch_stays() {
    let storage = memory();
    let config = compacting(eager());
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    put(&mut log, &mut model, &[("k", Some("v"))], Compression::None).unwrap();
    // As of before the topic was compacted: without a key there is no telling what is newest.
    let mut keyless = BatchBuilder::new(Compression::None);
    keyless.append(NOW, None, Some(b"nobody's"), &[]).unwrap();
    append_bytes(&mut log, keyless.build()).unwrap();
    log.seal_active().unwrap();
    force(&mut log);
    assert_eq!(pass(&mut log, NOW).unwrap().records_removed, 1);
    assert_eq!(verify(&log, &model, 300, "after a pass").len(), 1);
}

#[test]
fn a_pass_that_is_told_to_stop_leaves_everything_as_it_was() {
    let storage = memory();
    let (mut log, _) = open(&storage.shared(), &compacting(eager()));
    let mut model = Model::default();
    for n in 0..60 {
        put(&mut log, &mut model, &[("k", Some(&format!("{n:040}")))], Compression::None).unwrap();
    }
    force(&mut log);
    let before = verify(&log, &model, 300, "before");
    for stop_after in 0..200 {
        let asked = std::cell::Cell::new(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            asked.get() <= stop_after
        };
        let job = log.plan_compaction(NOW).unwrap();
        let Some(done) = job.run(go_on).unwrap() else {
            assert_eq!(names(&*storage.shared(), ".tmp"), [""; 0], "stopped after {stop_after}");
            assert_eq!(verify(&log, &model, 300, "stopped"), before);
            continue;
        };
        assert!(stop_after > 60, "it was never asked in between");
        log.compacted(done).unwrap();
        verify(&log, &model, 300, "after all");
        return;
    }
    panic!("it never came to an end");
}

#[test]
fn gaps_are_no_damage_when_the_checkpoint_is_lost() {
    let storage = memory();
    let config = compacting(eager());
    let (mut log, _) = open(&storage.shared(), &config);
    let mut model = Model::default();
    for n in 0..80 {
        let key = format!("key-{}", n % 6);
        put(&mut log, &mut model, &[(&key, Some(&format!("{n:040}")))], Compression::None).unwrap();
    }
    force(&mut log);
    pass(&mut log, NOW).unwrap();
    drop(log);
    storage.shared().remove(&dir().join("checkpoint")).unwrap();
    let mut log = reopen(&storage, &config, "without a checkpoint");
    verify(&log, &model, 300, "without a checkpoint");
    pass(&mut log, NOW);
    verify(&log, &model, 300, "after one more pass");
}

/// A compacted log of several files, at the end of which stands one that nothing was appended to.
fn with_gaps(config: &LogConfig) -> (MemoryStorage, Vec<std::path::PathBuf>) {
    let storage = memory();
    let (mut log, _) = open(&storage.shared(), config);
    let mut model = Model::default();
    for n in 0..120 {
        let key = if n % 12 == 5 { format!("once-{n}") } else { format!("key-{}", n % 3) };
        put(&mut log, &mut model, &[(&key, Some(&format!("{n:0200}")))], Compression::None).unwrap();
    }
    log.seal_active().unwrap();
    force(&mut log);
    pass(&mut log, NOW).unwrap();
    log.close().unwrap();
    let files = common::segments(&*storage.shared());
    assert!(files.len() > 3, "{files:?}");
    (storage, files)
}

#[test]
fn a_gap_of_compaction_with_damage_behind_it_never_holds_a_reader_up() {
    let config = LogConfig { segment_bytes: 1200, ..compacting(eager()) };
    let (_, files) = with_gaps(&config);
    // Each single file, and each file with all that follow: its first batch is not to be believed any more.
    for (first, all) in (0..files.len()).flat_map(|first| [(first, false), (first, true)]) {
        for without_checkpoint in [false, true] {
            let (storage, files) = with_gaps(&config);
            for file in &files[first..if all { files.len() } else { first + 1 }] {
                storage.corrupt(file, 70, 1).ok();
            }
            if without_checkpoint {
                storage.shared().remove(&dir().join("checkpoint")).unwrap();
            }
            for start in ["the first start", "the next one"] {
                let context = format!("{first} {all} {without_checkpoint}, {start}");
                let (log, report) = open(&storage.shared(), &config);
                let reader = log.reader();
                let mut at = reader.log_start();
                while at < reader.log_end() {
                    let before = at;
                    at = match reader.read(at, 300, i64::MAX, true) {
                        Ok(slice) => slice.next_offset(),
                        Err(tramline_log::ReadError::Damaged { next, .. }) => next,
                        Err(error) => panic!("{context}: {error} at {at}"),
                    };
                    assert!(at > before, "{context}: held up at {at} below {}, {report}", reader.log_end());
                }
            }
        }
    }
}
