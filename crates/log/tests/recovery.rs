//! Opening: what a crash left is cut, what was durable and is no more is reported, and nothing comes back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{
    NOW, append, assert_contiguous, decode, dir, exists, force, names, open, read_all, segment, sequenced,
    small, values_of,
};
use tramline_log::storage::{MemoryStorage, OpenMode, read_file};
use tramline_log::{Append, AppendOutcome, Damaged, Log, LogConfig, ReadError, RecoveryMode, Storage};

/// A log of `count` equal one-record batches, none of them forced, abandoned by its process.
fn abandoned(count: usize) -> (MemoryStorage, usize) {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &LogConfig { segment_bytes: 64 * 1024, ..small() });
    for n in 0..count {
        append(&mut log, &[&format!("value {n:03}")]);
    }
    let each = usize::try_from(log.reader().size_bytes()).unwrap() / count;
    (memory, each)
}

fn wide() -> LogConfig {
    LogConfig { segment_bytes: 64 * 1024, ..small() }
}

#[test]
fn a_reopened_log_has_the_same_offsets_segments_and_index_and_goes_on() {
    for close in [true, false] {
        let storage = common::memory().shared();
        let (mut log, _) = open(&storage, &small());
        for n in 0..50 {
            append(&mut log, &[&format!("value {n}")]);
        }
        let segments = log.reader().segment_count();
        if close {
            log.close().unwrap();
        } else {
            drop(log);
        }
        let (mut log, report) = open(&storage, &small());
        assert_eq!(report.clean, close, "{report}");
        assert_eq!((report.log_start, report.log_end, report.proven_batches), (0, 50, 50));
        assert_eq!(log.reader().segment_count(), segments);
        assert_eq!(append(&mut log, &["next"]), 50);
        assert_contiguous(&read_all(&log.reader(), 300), 0);
    }
}

#[test]
fn a_torn_tail_is_cut_and_its_offsets_reused() {
    let (memory, each) = abandoned(10);
    // The last batch reached the disk in part: everything from its middle on is zeros.
    let file = memory.shared().open(&segment(0), OpenMode::Existing).unwrap();
    let torn = 9 * each + each / 2;
    file.write_at(&[&vec![0; each]], torn as u64).unwrap();
    let (mut log, report) = open(&memory.shared(), &wide());
    assert_eq!((report.cut_at, report.log_end), (Some(9), 9), "{report}");
    assert!(report.cut_bytes > 0 && report.damaged.is_empty());
    assert_eq!(append(&mut log, &["again"]), 9);
    assert_eq!(values_of(&read_all(&log.reader(), 500)).last(), Some(&"again"));
}

#[test]
fn cut_bytes_are_kept_beside_the_segment() {
    let (memory, each) = abandoned(4);
    let storage = memory.shared();
    let before = read_file(&*storage, &segment(0)).unwrap().unwrap();
    memory.corrupt(&segment(0), (2 * each + 70) as u64, 1).unwrap();
    let (_, report) = open(&storage, &wide());
    // The last byte of a batch is a zero, which looks like the pre-sized rest of the file.
    assert_eq!((report.cut_at, report.cut_bytes), (Some(2), 2 * each as u64 - 1));
    assert_eq!(names(&*storage, ".cut"), [format!("{:020}.cut", 2)]);
    let kept = read_file(&*storage, &dir().join(format!("{:020}.cut", 2))).unwrap().unwrap();
    assert_eq!(kept[each..2 * each], before[3 * each..4 * each], "the fourth batch can be saved by hand");
    let kept =
        read_file(&*memory.durable_image().shared(), &dir().join(format!("{:020}.cut", 2))).unwrap().unwrap();
    assert!(kept.len() >= 2 * each, "kept durably before the segment was cut");
}

#[test]
fn a_power_cut_during_a_cut_loses_no_cut_byte() {
    for k in 1.. {
        let (memory, each) = abandoned(4);
        memory.corrupt(&segment(0), (2 * each + 70) as u64, 1).unwrap();
        let last = &read_file(&*memory.shared(), &segment(0)).unwrap().unwrap()[3 * each..4 * each];
        memory.crash_at(memory.effects() + k);
        let opened = Log::open(memory.shared(), dir(), wide(), NOW);
        let left = memory.durable_image().shared();
        let is_kept = left.list(&dir()).unwrap().iter().any(|entry| {
            let bytes = read_file(&*left, &dir().join(&entry.name)).unwrap().unwrap();
            bytes.windows(each).any(|window| window == last)
        });
        assert!(is_kept, "power off at call {k} of the recovery");
        if opened.is_ok() {
            break;
        }
    }
}

#[test]
fn a_flipped_bit_in_the_first_batch_leaves_nothing_and_in_the_sixth_five() {
    for (bad, kept) in [(0, 0), (5, 5)] {
        for at in [4, 12, 16, 20, 30, 61, 70] {
            let (memory, each) = abandoned(10);
            if at == 12 {
                continue; // The leader epoch: outside the CRC, rewritten by every leader.
            }
            memory.corrupt(&segment(0), (bad * each + at) as u64, 0x04).unwrap();
            let (mut log, report) = open(&memory.shared(), &wide());
            assert_eq!(report.log_end, kept, "byte {at} of batch {bad}: {report}");
            assert_eq!(append(&mut log, &["reused"]), kept);
        }
    }
}

#[test]
fn d2_a_batch_that_was_cut_never_comes_back_behind_one_of_equal_size() {
    // Elsewhere a log was cut by zeroing the four bytes of the first bad length. A, B, C were stored, B rotted, a
    // restart kept A. The next append, as long as B had been, ended exactly where C began, and the restart after that
    // read on: a record that had been given up stood in the log again, under an offset it was never given. A CRC over
    // the content alone cannot notice. Here the file is cut for real and durably before anything is appended, and each
    // batch must carry exactly the offset that is next.
    let memory = common::memory();
    let storage = memory.shared();
    let (mut log, _) = open(&storage, &wide());
    append(&mut log, &["value 000"]);
    force(&mut log);
    log.checkpoint().unwrap();
    let each = usize::try_from(log.reader().size_bytes()).unwrap();
    for n in 1..4 {
        append(&mut log, &[&format!("value {n:03}")]);
    }
    drop(log);
    memory.corrupt(&segment(0), (each + 70) as u64, 1).unwrap();
    let (mut log, report) = open(&storage, &wide());
    assert_eq!((report.cut_at, report.mark), (Some(1), 1), "the cut is exactly at the mark");
    assert_eq!(append(&mut log, &["value 1b "]), 1);
    assert_eq!(log.reader().size_bytes(), 2 * each as u64, "of equal size, or this test shows nothing");
    // Whatever of the cut and the append reached the disk when the power fails now.
    for seed in 0..200 {
        let torn = memory.torn_image(seed).shared();
        let (log, _) = open(&torn, &wide());
        let records = read_all(&log.reader(), 1000);
        assert!(
            !values_of(&records).iter().any(|v| ["value 001", "value 002", "value 003"].contains(v)),
            "{seed}"
        );
    }
    drop(log);
    let (log, report) = open(&storage, &wide());
    assert_eq!((report.log_end, report.cut_at), (2, None));
    assert_eq!(values_of(&read_all(&log.reader(), 1000)), ["value 000", "value 1b "]);
}

#[test]
fn a_batch_with_another_offset_than_the_next_one_is_not_believed() {
    let (memory, each) = abandoned(4);
    let storage = memory.shared();
    let file = storage.open(&segment(0), OpenMode::Existing).unwrap();
    let content = read_file(&*storage, &segment(0)).unwrap().unwrap();
    // A sound batch of an earlier life: the fourth one, where the third belongs.
    file.write_at(&[&content[3 * each..4 * each]], 2 * each as u64).unwrap();
    let (log, report) = open(&storage, &wide());
    assert_eq!((report.log_end, report.cut_at), (2, Some(2)));
    assert_eq!(read_all(&log.reader(), 1000).len(), 2);
}

/// Bytes of one batch of one nine-byte record.
const EACH: u64 = 78;

/// A cleanly closed log of several segments, and the base offsets of the first three.
fn closed() -> (MemoryStorage, Vec<i64>) {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    for n in 0..40 {
        append(&mut log, &[&format!("value {n:03}")]);
    }
    assert_eq!(log.reader().size_bytes(), 40 * EACH);
    log.close().unwrap();
    let bases = names(&*memory.shared(), ".log").iter().map(|name| name[..20].parse().unwrap()).collect();
    (memory, bases)
}

#[test]
fn d3_b130_damage_in_a_sealed_segment_is_reported_and_never_a_silent_gap() {
    // Elsewhere every segment was cut at its first bad record, sealed ones too. The log still claimed its full range,
    // but offsets in the middle answered "out of range" for ever although they lay between start and end: a consumer
    // could neither read nor reset its way across, and nobody was told. Here sealed bytes stay as they are, the start
    // report names the lost offsets, a read there says so, and everything after them is served.
    let (memory, bases) = closed();
    let each = EACH;
    memory.corrupt(&segment(bases[1]), each + 70, 1).unwrap();
    let storage = memory.shared();
    let (mut log, report) = open(&storage, &small());
    let lost = bases[1] + 1;
    assert_eq!(report.damaged.len(), 1, "{report}");
    assert_eq!((report.damaged[0].from, report.damaged[0].next), (lost, lost + 1));
    assert_eq!((report.log_end, report.cut_at), (40, None));
    assert_eq!(names(&*storage, ".cut").len(), 0);
    let reader = log.reader();
    let before = reader.read(0, 100_000, i64::MAX, true).unwrap();
    assert_eq!(before.next_offset(), lost, "everything before it, and nothing of it");
    let error = reader.read(lost, 100, i64::MAX, true).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { from, next } if (from, next) == (lost, lost + 1)),
        "{error}"
    );
    assert_eq!(error.code(), 56);
    let after = reader.read(lost + 1, 100_000, i64::MAX, true).unwrap();
    assert_eq!(decode(after.read().unwrap()).len() as i64, 40 - lost - 1);
    assert_eq!(append(&mut log, &["next"]), 40);
    for offset in 0..41 {
        assert_eq!(reader.read(offset, 1, i64::MAX, true).is_ok(), offset != lost, "offset {offset}");
    }
}

type Damage = fn(&MemoryStorage, i64);

/// Flips a bit in the second batch of a segment, or in its only one.
fn flip(memory: &MemoryStorage, base: i64, at: u64) {
    let batch = if memory.corrupt(&segment(base), EACH + at, 0).is_ok() { EACH } else { 0 };
    memory.corrupt(&segment(base), batch + at, 0x40).unwrap();
}

#[test]
fn damage_of_every_shape_below_the_mark_is_kept_and_reported() {
    let shapes: [(&str, Damage); 4] = [
        ("a length field", |memory, base| flip(memory, base, 9)),
        ("a magic byte", |memory, base| flip(memory, base, 16)),
        ("a lost end", |memory, base| {
            memory.shared().open(&segment(base), OpenMode::Existing).unwrap().set_len(10).unwrap();
        }),
        ("a lost file", |memory, base| memory.shared().remove(&segment(base)).unwrap()),
    ];
    for (shape, damage) in shapes {
        for mode in [RecoveryMode::Tail, RecoveryMode::Full] {
            // The last segment, a sealed one, the first one.
            for which in [3, 1, 0] {
                let (memory, bases) = closed();
                damage(&memory, bases[which]);
                let config = LogConfig { recovery: mode, ..small() };
                let (mut log, report) = open(&memory.shared(), &config);
                let context = format!("{shape} of segment {which}, {mode:?}: {report}");
                assert!(!report.damaged.is_empty(), "{context}");
                assert_eq!((report.log_end, report.cut_at), (40, None), "{context}");
                assert_eq!(append(&mut log, &["next"]), 40, "{context}");
                assert_every_offset_is_accounted_for(&log, &report.damaged, &context);
                drop(log);
                let (log, report) = open(&memory.shared(), &config);
                assert_every_offset_is_accounted_for(
                    &log,
                    &report.damaged,
                    &format!("{context}, opened again"),
                );
            }
        }
    }
}

fn assert_every_offset_is_accounted_for(log: &Log, damaged: &[Damaged], context: &str) {
    let reader = log.reader();
    for offset in 0..reader.log_end() {
        let is_lost = damaged.iter().any(|lost| (lost.from..lost.next).contains(&offset));
        match reader.read(offset, 1, i64::MAX, true) {
            Ok(slice) => {
                assert!(!slice.is_empty() && !is_lost, "{context}: offset {offset}");
                assert_eq!(decode(slice.read().unwrap())[0].0, offset, "{context}");
            }
            Err(ReadError::Damaged { from, next }) => {
                assert!(is_lost && from <= offset && offset < next, "{context}: offset {offset}");
            }
            Err(ReadError::OutOfRange { start, .. }) => assert!(offset < start, "{context}: offset {offset}"),
            Err(other) => panic!("{context}: {other}"),
        }
    }
}

#[test]
fn a_start_reads_only_headers_of_what_was_durable_unless_told_to_prove_everything() {
    let (memory, bases) = closed();
    memory.corrupt(&segment(bases[1]), EACH + 75, 1).unwrap();
    let tail = LogConfig { recovery: RecoveryMode::Tail, ..small() };
    let (_, report) = open(&memory.shared(), &tail);
    assert!(report.damaged.is_empty() && report.trusted_batches > 20, "{report}");
    let (_, report) = open(&memory.shared(), &small());
    assert_eq!((report.damaged.len(), report.trusted_batches), (1, 0), "{report}");
}

#[test]
fn a_segment_lost_before_its_barrier_takes_the_later_ones_along_aside() {
    // Nothing was forced, the sealed segment lost its end in a power cut, the later files survived by luck.
    let memory = common::memory();
    let storage = memory.shared();
    let (mut log, _) = open(&storage, &small());
    for n in 0..40 {
        append(&mut log, &[&format!("value {n:03}")]);
    }
    drop(log);
    let bases: Vec<i64> = names(&*storage, ".log").iter().map(|name| name[..20].parse().unwrap()).collect();
    storage.open(&segment(bases[1]), OpenMode::Existing).unwrap().set_len(EACH).unwrap();
    let (mut log, report) = open(&storage, &small());
    assert_eq!((report.cut_at, report.damaged.len()), (Some(bases[1] + 1), 0), "{report}");
    assert!(!exists(&*storage, &segment(bases[2])));
    assert_eq!(names(&*storage, ".log.cut").len(), bases.len() - 2);
    assert_eq!(append(&mut log, &["next"]), bases[1] + 1);
    assert_contiguous(&read_all(&log.reader(), 1000), 0);
}

#[test]
fn truncation_frees_offsets_and_reuses_them() {
    let storage = common::memory().shared();
    let (mut log, _) = open(&storage, &small());
    for n in 0..40 {
        append(&mut log, &[&format!("value {n:03}")]);
    }
    for cut in [39, 25, 12, 0] {
        log = log.truncate_from(cut, NOW).unwrap();
        assert_eq!(log.reader().log_end(), cut);
        assert_eq!(read_all(&log.reader(), 1000).len() as i64, cut);
        assert_eq!(append(&mut log, &["new"]), cut);
        drop(log);
        let (reopened, report) = open(&storage, &small());
        assert!(report.damaged.is_empty() && report.log_end == cut + 1, "{report}");
        log = reopened;
    }
    assert_eq!(log.truncate_from(2, NOW).unwrap_err().code(), 1);
}

#[test]
fn a_retry_of_each_of_the_last_five_batches_is_known_after_a_kill_a_close_and_a_lost_snapshot() {
    for how in ["kill", "close", "lost snapshots", "damaged snapshots"] {
        let memory = common::memory();
        let storage: Arc<dyn Storage> = memory.shared();
        let (mut log, _) = open(&storage, &small());
        for n in 0..30 {
            let group = vec![Append::check(sequenced(9, 0, n * 2, &["a", "b"])).unwrap()];
            log.append_group(group, 3, NOW).unwrap();
        }
        if how == "close" {
            log.close().unwrap();
        } else {
            drop(log);
        }
        for name in names(&*storage, ".snapshot") {
            let path: PathBuf = dir().join(name);
            match how {
                "lost snapshots" => storage.remove(&path).unwrap(),
                "damaged snapshots" => memory.corrupt(&path, 20, 1).unwrap(),
                _ => {}
            }
        }
        let (mut log, report) = open(&storage, &small());
        assert_eq!(report.producers, 1);
        let retry = |log: &mut Log, sequence| {
            let group = vec![Append::check(sequenced(9, 0, sequence, &["a", "b"])).unwrap()];
            log.append_group(group, 3, NOW).unwrap().remove(0)
        };
        for n in 25..30i32 {
            let (base, last) = (i64::from(n) * 2, i64::from(n) * 2 + 1);
            let known = AppendOutcome::Duplicate { base_offset: base, last_offset: last, timestamp: NOW };
            assert_eq!(retry(&mut log, n * 2), known, "{how}");
        }
        let refused = retry(&mut log, 24 * 2);
        assert!(
            matches!(&refused, AppendOutcome::Refused(error) if error.code() == 45),
            "{how}: {refused:?}"
        );
        assert!(matches!(retry(&mut log, 60), AppendOutcome::Appended { base_offset: 60, .. }), "{how}");
    }
}

#[test]
fn a_producer_is_known_after_retention_removed_all_its_batches_and_the_power_failed() {
    let memory = common::memory();
    let storage = memory.shared();
    let config = LogConfig { retention_bytes: Some(1), ..small() };
    let (mut log, _) = open(&storage, &config);
    let group = vec![Append::check(sequenced(9, 0, 0, &["a", "b"])).unwrap()];
    log.append_group(group, 3, NOW).unwrap();
    for _ in 0..60 {
        append(&mut log, &["filler"]);
    }
    force(&mut log);
    log.enforce_retention(NOW).unwrap();
    assert!(log.reader().log_start() > 2);
    let known = |log: &Log| log.producer_count() == 1;
    assert!(known(&open(&memory.durable_image().shared(), &config).0), "by the snapshot of the retention");
    for _ in 0..3 {
        for _ in 0..60 {
            append(&mut log, &["filler"]);
        }
        force(&mut log);
    }
    drop(log);
    let (mut log, _) = open(&memory.durable_image().shared(), &config);
    assert!(known(&log), "by the snapshot of a roll, after which that one was removed");
    let again = vec![Append::check(sequenced(9, 0, 0, &["a", "b"])).unwrap()];
    let outcome = log.append_group(again, 3, NOW).unwrap().remove(0);
    assert!(matches!(outcome, AppendOutcome::Duplicate { base_offset: 0, .. }), "{outcome:?}");
    log.expire_producers(NOW + 24 * 60 * 60 * 1000 + 1);
    assert_eq!(log.producer_count(), 0);
}

#[test]
fn without_a_readable_checkpoint_the_log_opens_and_trusts_nothing() {
    let (memory, _) = closed();
    memory.corrupt(&dir().join("checkpoint"), 12, 1).unwrap();
    let (log, report) = open(&memory.shared(), &LogConfig { recovery: RecoveryMode::Tail, ..small() });
    assert_eq!((report.mark, report.log_end, report.clean), (0, 40, false));
    assert_eq!((report.proven_batches, report.trusted_batches), (40, 0));
    drop(log);
    assert!(open(&memory.shared(), &small()).1.clean, "and leaves a good one behind");
}

#[test]
fn the_report_is_one_short_line() {
    let (memory, bases) = closed();
    let (_, report) = open(&memory.shared(), &small());
    assert_eq!(
        report.to_string(),
        "offsets 0..40, 40 batches proven, 0 trusted, nothing cut, nothing damaged"
    );
    memory.corrupt(&segment(bases[0]), 70, 1).unwrap();
    let (_, report) = open(&memory.shared(), &small());
    assert!(report.to_string().ends_with("DAMAGED: 1 offsets lost, the first at 0"), "{report}");
}

#[test]
fn what_follows_a_damaged_end_of_the_log_survives_the_starts_after_it() {
    let config = LogConfig { recovery: RecoveryMode::Tail, ..wide() };
    let storage = common::memory();
    let (mut log, _) = open(&storage.shared(), &config);
    append(&mut log, &["durable"]);
    force(&mut log);
    log.checkpoint().unwrap();
    let each = log.reader().size_bytes();
    append(&mut log, &["not forced"]);
    drop(log);
    // The durable batch rots and the one behind it was torn: only the header of each is still right.
    storage.corrupt(&segment(0), each - 2, 1).unwrap();
    storage.corrupt(&segment(0), 2 * each - 2, 1).unwrap();
    let (mut log, report) = open(&storage.shared(), &config);
    assert_eq!((report.log_end, report.damaged.len()), (1, 1), "{report}");
    assert_eq!(append(&mut log, &["after the damage"]), 1);
    force(&mut log);
    drop(log);
    // Once more with the first segment sealed below the mark, so that its batches are not checked.
    let (log, report) = open(&storage.shared(), &config);
    assert_eq!((report.log_end, report.cut_at), (2, None), "{report}");
    let slice = log.reader().read(1, 4096, i64::MAX, true).unwrap();
    assert_eq!(values_of(&decode(slice.read().unwrap())), ["after the damage"]);
}
