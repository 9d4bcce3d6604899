//! Reads: whole batches, limits, segment boundaries, time, epochs, slices that outlive their segment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::{
    NOW, append, append_bytes, assert_contiguous, batch, batch_at, decode, dir, exists, force, open,
    read_all, segment, segments, small, values_of,
};
use tramline_log::storage::memory::CallKind;
use tramline_log::storage::{DiskStorage, MemoryStorage};
use tramline_log::{Append, AppendOutcome, Log, LogConfig, ReadError, Storage};

fn memory() -> Arc<dyn Storage> {
    MemoryStorage::new().shared()
}

#[test]
fn offsets_have_no_gap_and_what_is_read_is_what_was_written() {
    let (mut log, _) = open(&memory(), &LogConfig { segment_bytes: 64 * 1024, ..small() });
    let mut written = Vec::new();
    for n in 0..500usize {
        let value = format!("{n}-").repeat(n % 60 + 1);
        assert_eq!(append(&mut log, &[&value]), n as i64);
        written.push(value);
    }
    for max_bytes in [1, 100, 1000, 10_000, 1_000_000] {
        let records = read_all(&log.reader(), max_bytes);
        assert_contiguous(&records, 0);
        assert_eq!(values_of(&records), written, "in steps of {max_bytes}");
    }
}

#[test]
fn every_offset_is_found_whatever_lies_between_two_index_entries() {
    let (mut log, _) = open(&memory(), &LogConfig { segment_bytes: 20_000, ..small() });
    for n in 0..600 {
        append(&mut log, &["a", &format!("value {n}")]);
    }
    let reader = log.reader();
    for offset in 0..1200 {
        let slice = reader.read(offset, 1, i64::MAX, true).unwrap();
        let base = offset / 2 * 2;
        assert_eq!(
            (slice.base_offset(), slice.next_offset()),
            (base, base + 2),
            "the whole batch, from its start"
        );
        assert_eq!(decode(slice.read().unwrap())[1].1, format!("value {}", offset / 2));
    }
}

#[test]
fn a_first_batch_larger_than_asked_for_comes_only_when_asked_for() {
    let (mut log, _) = open(&memory(), &small());
    append(&mut log, &["a"]);
    append(&mut log, &["b"]);
    let reader = log.reader();
    assert!(reader.read(0, 10, i64::MAX, false).unwrap().is_empty());
    assert_eq!(reader.read(0, 10, i64::MAX, true).unwrap().next_offset(), 1);
    assert_eq!(reader.read(0, 0, i64::MAX, true).unwrap().next_offset(), 1);
    let one = batch(&["a"]).len();
    assert_eq!(reader.read(0, 2 * one - 1, i64::MAX, false).unwrap().next_offset(), 1);
    assert_eq!(reader.read(0, 2 * one, i64::MAX, false).unwrap().next_offset(), 2);
}

#[test]
fn nothing_at_or_above_the_limit_is_read() {
    let (mut log, _) = open(&memory(), &small());
    for n in 0..20 {
        append(&mut log, &["x", &format!("{n}")]);
    }
    let reader = log.reader();
    for limit in 0..=40 {
        let mut at = 0;
        while at < limit / 2 * 2 {
            let slice = reader.read(at, 300, limit, true).unwrap();
            assert!(!slice.is_empty(), "limit {limit}, at {at}");
            at = slice.next_offset();
        }
        assert_eq!(at, limit / 2 * 2, "a batch that reaches beyond the limit is not given");
        assert!(reader.read(at, 1_000, limit, true).unwrap().is_empty());
    }
    assert!(
        reader.read(40, 1000, i64::MAX, true).unwrap().is_empty(),
        "at the end there is nothing, no error"
    );
}

#[test]
fn outside_the_log_is_an_error_that_says_where_the_log_is() {
    let (mut log, _) = open(&memory(), &small());
    append(&mut log, &["a", "b"]);
    for offset in [-1, 3, i64::MAX] {
        let error = log.reader().read(offset, 100, i64::MAX, true).unwrap_err();
        let says = matches!(error, ReadError::OutOfRange { start: 0, end: 2, .. });
        assert!(says, "{offset}: {error}");
        assert_eq!(error.code(), 1);
    }
}

#[test]
fn a_read_that_wants_more_than_a_sealed_segment_holds_goes_on_in_the_next() {
    // A fetch that waits for more bytes than the rest of a sealed segment would wait for ever if a read stopped there.
    let (mut log, _) = open(&memory(), &small());
    for n in 0..40 {
        append(&mut log, &[&format!("value {n}")]);
    }
    let reader = log.reader();
    let second = reader.segment_count();
    assert!(second > 3, "the log must have rolled");
    let slice = reader.read(0, 1_000_000, i64::MAX, true).unwrap();
    assert_eq!(slice.ranges().len(), second);
    assert_eq!(slice.next_offset(), 40);
    assert_contiguous(&decode(slice.read().unwrap()), 0);
    let last_of_first = {
        let base = segments_bases(&log)[1];
        reader.read(base - 1, 200, i64::MAX, true).unwrap()
    };
    assert!(
        last_of_first.ranges().len() >= 2,
        "one small batch at the end of a segment, then the next segment"
    );
}

fn segments_bases(log: &Log) -> Vec<i64> {
    let mut bases = Vec::new();
    let mut at = 0;
    while at < log.reader().log_end() {
        bases.push(at);
        let whole = log.reader().read(at, 1_000_000, i64::MAX, true).unwrap();
        let first = whole.ranges()[0].read().unwrap();
        at = decode(first).last().unwrap().0 + 1;
    }
    bases
}

#[test]
fn segments_roll_when_full_and_a_batch_larger_than_one_leaves_no_trace() {
    let storage = memory();
    let (mut log, _) = open(&storage, &small());
    let big = "x".repeat(2000);
    let refused = append_bytes(&mut log, batch(&[&big])).unwrap();
    assert!(matches!(&refused, AppendOutcome::Refused(error) if error.code() == 18), "{refused:?}");
    assert_eq!(log.reader().log_end(), 0);
    let quarter = "y".repeat(170);
    for _ in 0..12 {
        append(&mut log, &[&quarter]);
    }
    assert_eq!(segments(&*storage), [segment(0), segment(4), segment(8)]);
    let refused = append_bytes(&mut log, batch(&[&big])).unwrap();
    assert!(matches!(refused, AppendOutcome::Refused(_)));
    assert_eq!(segments(&*storage).len(), 3, "no stray file");
    assert_eq!(append(&mut log, &["z"]), 12);
}

#[test]
fn a_base_offset_beyond_four_billion_is_kept_whole() {
    let storage = memory();
    let far = (1i64 << 33) + 5;
    storage.create_dir_all(&dir()).unwrap();
    storage.open(&segment(far), tramline_log::storage::OpenMode::CreateNew).unwrap();
    let (mut log, report) = open(&storage, &small());
    assert_eq!((report.log_start, report.log_end), (far, far));
    for n in 0..30 {
        assert_eq!(append(&mut log, &["far"]), far + n);
    }
    assert_contiguous(&read_all(&log.reader(), 500), far);
    drop(log);
    let (log, report) = open(&storage, &small());
    assert_eq!(report.log_end, far + 30);
    assert_contiguous(&read_all(&log.reader(), 500), far);
}

#[test]
fn a_group_is_one_write_and_its_members_get_offsets_in_order() {
    let memory = MemoryStorage::new();
    let (mut log, _) = open(&memory.shared(), &LogConfig::default());
    append(&mut log, &["first"]);
    let before = memory.calls(tramline_log::storage::memory::CallKind::Write);
    let group: Vec<Append> = (0..50).map(|_| Append::check(batch(&["a", "b", "c"])).unwrap()).collect();
    let outcomes = log.append_group(group, 3, NOW).unwrap();
    for (n, outcome) in outcomes.iter().enumerate() {
        let base = 1 + 3 * n as i64;
        let expected =
            AppendOutcome::Appended { base_offset: base, last_offset: base + 2, log_append_time: None };
        assert_eq!(*outcome, expected);
    }
    assert_eq!(memory.calls(tramline_log::storage::memory::CallKind::Write), before + 1);
}

#[test]
fn b167_a_reader_that_holds_a_slice_finishes_it_after_retention_removed_the_file() {
    let storage = memory();
    let (mut log, _) = open(&storage, &LogConfig { retention_bytes: Some(1), ..small() });
    for n in 0..40 {
        append(&mut log, &[&format!("value {n}")]);
    }
    let slice = log.reader().read(0, 100_000, i64::MAX, true).unwrap();
    force(&mut log);
    assert!(log.enforce_retention(NOW).unwrap() > 2);
    assert!(!exists(&*storage, &segment(0)));
    assert_eq!(decode(slice.read().unwrap()).len(), 40);
    let start = log.reader().log_start();
    let error = log.reader().read(0, 100, i64::MAX, true).unwrap_err();
    assert!(matches!(error, ReadError::OutOfRange { offset: 0, .. }) && start > 0);
}

#[test]
fn an_offset_is_found_by_time_record_by_record() {
    let (mut log, _) = open(&memory(), &small());
    for (n, timestamp) in [100, 300, 200, 500, 400].into_iter().enumerate() {
        append_bytes(&mut log, batch_at(timestamp, &["a", &format!("{n}")])).unwrap();
    }
    let mut mixed = tramline_wire::BatchBuilder::new(tramline_wire::Compression::Gzip);
    for timestamp in [450, 700, 600] {
        mixed.append(timestamp, None, Some(b"m"), &[]).unwrap();
    }
    append_bytes(&mut log, mixed.build()).unwrap();
    let reader = log.reader();
    let at = |timestamp, limit| {
        reader.offset_for_time(timestamp, limit).unwrap().map(|found| (found.offset, found.timestamp))
    };
    assert_eq!(at(0, i64::MAX), Some((0, 100)));
    assert_eq!(at(101, i64::MAX), Some((2, 300)));
    assert_eq!(at(301, i64::MAX), Some((6, 500)));
    assert_eq!(at(501, i64::MAX), Some((11, 700)), "inside a compressed batch");
    assert_eq!(at(701, i64::MAX), None);
    assert_eq!(at(501, 11), None, "what is not visible is not found");
    let newest = reader.max_timestamp(i64::MAX).unwrap().unwrap();
    assert_eq!((newest.offset, newest.timestamp, newest.leader_epoch), (11, 700, 3));
    let (empty, _) = open(&memory(), &small());
    assert_eq!(empty.reader().max_timestamp(i64::MAX).unwrap(), None);
}

#[test]
fn batches_are_stamped_with_the_append_time_when_the_topic_says_so() {
    let storage = memory();
    let config = LogConfig { log_append_time: true, ..small() };
    let (mut log, _) = open(&storage, &config);
    let group = vec![Append::check(batch_at(5, &["a"])).unwrap()];
    let outcome = log.append_group(group, 3, 777).unwrap().remove(0);
    assert_eq!(
        outcome,
        AppendOutcome::Appended { base_offset: 0, last_offset: 0, log_append_time: Some(777) }
    );
    drop(log);
    let (log, report) = open(&storage, &config);
    assert_eq!((report.proven_batches, report.cut_at), (1, None), "the CRC is right after stamping");
    assert_eq!(log.reader().offset_for_time(6, i64::MAX).unwrap().unwrap().timestamp, 777);
}

#[test]
fn the_end_of_a_leader_epoch_is_known_also_after_a_restart_without_checkpoint() {
    let storage = memory();
    let (mut log, _) = open(&storage, &small());
    log.begin_epoch(1).unwrap();
    let add = |log: &mut Log, epoch, values: &[&str]| {
        log.append_group(vec![Append::check(batch(values)).unwrap()], epoch, NOW).unwrap();
    };
    add(&mut log, 1, &["a", "b"]);
    add(&mut log, 4, &["c"]);
    assert_eq!(
        log.append_group(Vec::new(), 3, NOW).unwrap_err().code(),
        -1,
        "an older epoch is a bug of the owner"
    );
    let check = |log: &Log| {
        let reader = log.reader();
        assert_eq!(reader.epoch_end(1), (1, 2));
        assert_eq!(reader.epoch_end(3), (1, 2));
        assert_eq!(reader.epoch_end(4), (4, 3));
        assert_eq!(reader.epoch_end(5), (-1, -1));
        assert_eq!(reader.latest_epoch(), Some(4));
    };
    check(&log);
    drop(log);
    storage.remove(&dir().join("checkpoint")).unwrap();
    check(&open(&storage, &small()).0);
}

#[test]
fn the_same_on_a_real_disk_with_file_ranges_for_sendfile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flights-0");
    let config = small();
    let (mut log, _) = Log::open(DiskStorage::shared(), path.clone(), config.clone(), NOW).unwrap();
    for n in 0..60 {
        append(&mut log, &[&format!("value {n}")]);
        if n % 7 == 0 {
            force(&mut log);
        }
    }
    let big: Vec<Append> = (0..200).map(|_| Append::check(batch(&[&"z".repeat(800)])).unwrap()).collect();
    log.append_group(big, 3, NOW).unwrap();
    let slice = log.reader().read(0, 1 << 20, 60, true).unwrap();
    assert!(slice.ranges().iter().all(|range| range.as_std().is_some() && !range.is_empty()));
    assert_eq!(slice.next_offset(), 60);
    log.close().unwrap();
    let (log, report) = Log::open(DiskStorage::shared(), path, config, NOW).unwrap();
    assert!(report.clean, "{report}");
    let records = read_all(&log.reader(), 3000);
    assert_contiguous(&records, 0);
    assert_eq!(records.len(), 260);
}

#[test]
fn a_time_is_found_where_the_index_says_and_as_a_walk_over_everything_finds_it() {
    for seed in 0..20 {
        let mut random = common::Random::new(seed);
        let (mut log, _) = open(&memory(), &LogConfig { segment_bytes: 4096, ..small() });
        let mut times = Vec::new();
        for _ in 0..200 {
            // Mostly growing, as clocks of several producers do.
            let time = NOW + times.len() as i64 * 10 - random.below(500) as i64;
            append_bytes(&mut log, batch_at(time, &["some value"])).unwrap();
            times.push(time);
        }
        force(&mut log);
        let start = random.below(60) as i64;
        log.delete_records(start).unwrap();
        let reader = log.reader();
        for _ in 0..200 {
            let limit = start + random.below(201 - start as u64) as i64;
            let wanted = NOW - 600 + random.below(2800) as i64;
            let within = || (start..limit).map(|offset| (offset, times[offset as usize]));
            let found = reader.offset_for_time(wanted, limit).unwrap();
            assert_eq!(
                found.map(|f| f.offset),
                within().find(|(_, t)| *t >= wanted).map(|(o, _)| o),
                "seed {seed}"
            );
            let max = within().map(|(_, time)| time).max();
            let first = max.and_then(|max| within().find(|(_, time)| *time == max));
            let found = reader.max_timestamp(limit).unwrap().map(|f| (f.offset, f.timestamp));
            assert_eq!(found, first, "seed {seed}, from {start} below {limit}");
        }
    }
}

#[test]
fn a_time_near_the_end_of_a_long_log_is_found_without_reading_it() {
    let storage = MemoryStorage::new();
    let (mut log, _) = open(&storage.shared(), &LogConfig { segment_bytes: 1 << 20, ..small() });
    for n in 0..3000 {
        append_bytes(&mut log, batch_at(NOW + n, &["some value"])).unwrap();
    }
    let reads = |ask: &dyn Fn()| {
        let before = storage.calls(CallKind::Read);
        ask();
        storage.calls(CallKind::Read) - before
    };
    let reader = log.reader();
    assert!(reads(&|| assert!(reader.offset_for_time(NOW + 2990, i64::MAX).unwrap().is_some())) <= 3);
    assert!(reads(&|| assert!(reader.max_timestamp(i64::MAX).unwrap().is_some())) <= 3);
    assert!(reads(&|| assert!(reader.max_timestamp(2990).unwrap().is_some())) <= 5);
}
