//! Barriers and failures: what a ticket contains, and what happens when the storage refuses any one call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io;

use common::{
    NOW, append, append_bytes, assert_contiguous, batch, dir, force, open, read_all, segment, small,
};
use tramline_log::storage::MemoryStorage;
use tramline_log::storage::memory::CallKind;
use tramline_log::{Append, AppendOutcome, Log, LogError, SyncError};

#[test]
fn d1_an_ack_after_a_roll_vouches_for_the_sealed_file_and_the_directory_too() {
    // Elsewhere a forced append synced the active segment only. Three records and a barrier, three more of which the
    // first still fits the old segment and the others roll, a barrier: it reached the new file alone. The record at
    // the end of the sealed file was acknowledged as forced and was in no barrier, and the name of the new file was
    // never made durable at all. Here a roll puts the sealed file and the directory into the next ticket.
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    let third = "x".repeat(250);
    append(&mut log, &[&third]);
    append(&mut log, &[&third]);
    assert_eq!(force(&mut log), 2);
    memory.start_trace();
    let group = (0..3).map(|_| Append::check(batch(&[&third])).unwrap()).collect();
    log.append_group(group, 3, NOW).unwrap();
    assert_eq!(log.reader().segment_count(), 2, "the first of the three is in the old segment");
    let ticket = log.take_sync().unwrap();
    assert_eq!(ticket.up_to(), 5);
    let before = memory.trace().len();
    let forced = ticket.force().unwrap();
    let barriers = memory.trace()[before..].to_vec();
    for expected in
        [(CallKind::SyncData, segment(0)), (CallKind::SyncData, segment(3)), (CallKind::SyncDir, dir())]
    {
        assert!(barriers.contains(&expected), "{expected:?} is not among {barriers:?}");
    }
    assert_eq!(log.synced(forced).unwrap(), 5);
    let (after, report) = open(&memory.durable_image().shared(), &small());
    assert_eq!((report.log_end, report.mark), (5, 5), "the mark is on disk before the ack");
    assert_contiguous(&read_all(&after.reader(), 1000), 0);
}

#[test]
fn one_ticket_is_out_at_a_time_and_a_dropped_one_loses_nothing() {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    assert!(log.take_sync().is_none(), "a log that was just opened is durable");
    append(&mut log, &["a"]);
    let first = log.take_sync().unwrap();
    append(&mut log, &["b"]);
    assert!(log.take_sync().is_none());
    drop(first);
    let second = log.take_sync().unwrap();
    assert_eq!(second.up_to(), 2);
    append(&mut log, &["c"]);
    assert_eq!(log.synced(second.force().unwrap()).unwrap(), 2);
    assert_eq!(log.barriered_up_to(), 2);
    assert_eq!(force(&mut log), 3, "what came after the ticket was taken needs the next one");
    assert!(log.take_sync().is_none());
}

#[test]
fn a_failed_barrier_is_never_tried_again_and_no_later_one_is_believed() {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    append(&mut log, &["kept"]);
    force(&mut log);
    append(&mut log, &["lost"]);
    let ticket = log.take_sync().unwrap();
    memory.fail(CallKind::SyncData, 1, io::ErrorKind::Other);
    let error = ticket.force().unwrap_err();
    assert!(matches!(&error, SyncError::Storage { path, .. } if *path == segment(0)), "{error}");
    assert_eq!(error.code(), 56);
    // The owner has not heard of it yet; already nothing goes through.
    let barriers = memory.calls(CallKind::SyncData);
    assert!(log.is_fenced() && log.take_sync().is_none());
    assert!(matches!(append_bytes(&mut log, batch(&["x"])), Err(LogError::Fenced)));
    assert!(matches!(log.checkpoint(), Err(LogError::Fenced)));
    assert!(matches!(log.enforce_retention(NOW), Err(LogError::Fenced)));
    assert_eq!(read_all(&log.reader(), 1000).len(), 2, "reads go on");
    assert_eq!(log.barriered_up_to(), 1);
    assert!(matches!(log.close(), Err(LogError::Fenced)));
    assert_eq!(memory.calls(CallKind::SyncData), barriers);
    let (log, report) = open(&memory.durable_image().shared(), &small());
    assert_eq!((report.log_end, report.damaged.len()), (1, 0));
    assert_eq!(read_all(&log.reader(), 1000)[0].1, "kept");
}

#[test]
fn a_ticket_taken_before_another_failed_is_not_believed_either() {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    append(&mut log, &["a"]);
    let ticket = log.take_sync().unwrap();
    log.fence();
    let barriers = memory.calls(CallKind::SyncData);
    assert!(matches!(ticket.force(), Err(SyncError::Fenced)));
    assert_eq!(memory.calls(CallKind::SyncData), barriers, "no barrier after a fence");
}

#[test]
fn a_proof_that_arrives_after_the_fence_promises_nothing() {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    append(&mut log, &["a"]);
    let forced = log.take_sync().unwrap().force().unwrap();
    log.fence();
    assert!(matches!(log.synced(forced), Err(LogError::Fenced)));
    assert_eq!(log.barriered_up_to(), 0);
}

#[test]
fn a_full_disk_fails_the_whole_group_and_fences_while_reads_go_on() {
    let memory = common::memory();
    let (mut log, _) = open(&memory.shared(), &small());
    append(&mut log, &["a", "b"]);
    memory.fail(CallKind::Write, 1, io::ErrorKind::StorageFull);
    let group = (0..3).map(|_| Append::check(batch(&["x"])).unwrap()).collect();
    let error = log.append_group(group, 3, NOW).unwrap_err();
    let says =
        matches!(&error, LogError::Storage { source, .. } if source.kind() == io::ErrorKind::StorageFull);
    assert!(says, "{error}");
    assert_eq!((error.code(), error.is_retriable()), (56, false));
    assert!(
        matches!(append_bytes(&mut log, batch(&["y"])), Err(LogError::Fenced)),
        "also when there is space again"
    );
    assert_eq!(log.reader().log_end(), 2, "half a group is not shown");
    assert_eq!(read_all(&log.reader(), 1000).len(), 2);
}

/// Runs a workload until something is refused; returns what was promised by then.
fn workload(memory: &MemoryStorage) -> (Option<Log>, i64, Option<LogError>) {
    let (mut log, _) = match Log::open(memory.shared(), dir(), small(), NOW) {
        Ok(opened) => opened,
        Err(error) => return (None, 0, Some(error)),
    };
    let mut promised = 0;
    for n in 0..40 {
        let error = match append_bytes(&mut log, batch(&[&format!("value {n}")])) {
            Ok(AppendOutcome::Appended { .. }) if n % 3 == 0 => match log.take_sync().unwrap().force() {
                Ok(forced) => log.synced(forced).map(|up_to| promised = up_to).err(),
                Err(SyncError::Storage { path, source }) => {
                    Some(LogError::Storage { action: "syncing", path, source })
                }
                Err(_) => Some(LogError::Fenced),
            },
            Ok(_) if n % 7 == 0 => log.checkpoint().err(),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if error.is_some() {
            return (Some(log), promised, error);
        }
    }
    (Some(log), promised, None)
}

#[test]
fn a_failure_of_any_call_is_a_typed_error_and_costs_no_promise() {
    let plain = common::memory();
    let before = plain.effects();
    assert!(workload(&plain).2.is_none());
    for n in 1..=plain.effects() - before {
        let memory = common::memory();
        memory.fail_effect(n, io::ErrorKind::Other);
        let (log, promised, error) = workload(&memory);
        let context = format!("call {n} fails");
        let error = error.unwrap_or_else(|| panic!("{context}, and nobody notices"));
        assert!(matches!(error, LogError::Storage { .. }) && error.code() == 56, "{context}: {error}");
        if let Some(mut log) = log {
            assert!(log.is_fenced(), "{context}");
            assert!(matches!(append_bytes(&mut log, batch(&["y"])), Err(LogError::Fenced)), "{context}");
            assert!(log.take_sync().is_none(), "{context}");
            assert_contiguous(&read_all(&log.reader(), 500), 0);
            assert!(log.reader().log_end() >= promised, "{context}");
        }
        for image in [memory.durable_image(), memory.after_kill(), memory.torn_image(n)] {
            let (log, report) = open(&image.shared(), &small());
            assert!(report.damaged.is_empty() && report.log_end >= promised, "{context}: {report}");
            assert_contiguous(&read_all(&log.reader(), 500), 0);
        }
    }
}
