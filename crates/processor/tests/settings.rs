//! What a run does when nothing was set, and with limits as large as numbers go.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Probe, for_each, for_each_batch, lanes, run_on, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, Batch, CommitPolicy, Lane, LaneStream, Ordering, PartitionedBuilder, PartitionedExt, StopPolicy,
};
use tramline_wire::Record;

#[test]
fn t010_every_default_is_in_force_when_nothing_was_set() {
    let (source, _control) = MemorySource::new(&MemoryLog::new());
    let run = source.partitioned().build().unwrap();
    let shown = format!("{run:?}");
    for default in [
        "max_buffered_records: 256,",
        "max_buffered_bytes: 67108864,",
        "commit: OnRevoke,",
        "stop: Drain,",
        "stop_timeout: 30s,",
        "ordering: Partition,",
        "key_by: None,",
        "max_concurrent_handlers: 1,",
        "max_handler_batch_size: 1,",
        "attempts: 1,",
        "on_failure: StopRun",
    ] {
        assert!(shown.contains(default), "{default} is not in {shown}");
    }
    assert_eq!(CommitPolicy::default(), CommitPolicy::OnRevoke);
    assert_eq!(StopPolicy::default(), StopPolicy::Drain);
    assert_eq!(Ordering::default(), Ordering::Partition);
    let backoff = Backoff::default().without_jitter();
    assert_eq!((backoff.delay(1, 0).as_millis(), backoff.delay(99, 0).as_secs()), (100, 5));
}

#[tokio::test(start_paused = true)]
async fn t011_limits_as_large_as_numbers_go_reserve_nothing_for_one_record() {
    // Reserving for any of these would end in an overflow of capacity.
    fn largest(
        builder: PartitionedBuilder<MemorySource>,
        ordering: Ordering,
    ) -> PartitionedBuilder<MemorySource> {
        builder
            .max_buffered_records(usize::MAX)
            .max_buffered_bytes(usize::MAX)
            .max_concurrent_handlers(usize::MAX)
            .max_handler_batch_size(usize::MAX)
            .ordering(ordering)
    }
    for ordering in [Ordering::Partition, Ordering::Key, Ordering::Unordered] {
        let log = MemoryLog::new();
        log.produce_many(&tp(0), 1);
        let probe = Probe::default();
        let run = for_each(&log, &[0], |b| largest(b, ordering), probe.handler());
        settle().await;
        run.stop().await.0.unwrap();
        assert_eq!((probe.done(0), log.committed(&tp(0))), (vec![0], Some(1)), "{ordering:?}");

        let log = MemoryLog::new();
        log.produce_many(&tp(0), 1);
        let handler = |batch: Batch, _: Lane| async move {
            assert_eq!(batch.len(), 1);
            Ok::<_, String>(())
        };
        let run = for_each_batch(&log, &[0], |b| largest(b, ordering), handler);
        settle().await;
        run.stop().await.0.unwrap();
        assert_eq!(log.committed(&tp(0)), Some(1), "{ordering:?}");
    }
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 1);
    let processor = |mut lane: LaneStream| async move {
        while let Some(record) = lane.next().await {
            record.done();
        }
        Ok::<_, String>(())
    };
    let run = lanes(&log, &[0], |b| largest(b, Ordering::Partition), processor);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(1));
}

#[tokio::test(start_paused = true)]
async fn t012_records_come_in_batches_one_poll_for_many() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 100);
    let probe = Probe::default();
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(20);
    control.assign(&[tp(0)]);
    let run = run_on(source, control.clone(), |b| b, probe.handler());
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!((probe.done(0).len(), control.polls()), (100, 5));
}

#[tokio::test(start_paused = true)]
async fn t083_a_batch_can_be_kept_and_copied_and_reads_the_same_from_both_ends() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 6);
    let kept = Arc::new(Mutex::new(Vec::<Batch>::new()));
    let keep = Arc::clone(&kept);
    let handler = move |batch: Batch, _: Lane| {
        keep.lock().unwrap().push(batch.clone());
        async move {
            tokio::time::sleep(secs(1)).await;
            Ok::<_, String>(())
        }
    };
    let run = for_each_batch(&log, &[0], |b| b.max_handler_batch_size(3), handler);
    tokio::time::sleep(secs(5)).await;
    run.stop().await.0.unwrap();
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    let offsets = |batch: &Batch| batch.iter().map(Record::offset).collect::<Vec<_>>();
    assert_eq!(
        kept.iter().map(offsets).collect::<Vec<_>>(),
        [[0, 1, 2], [3, 4, 5]],
        "unchanged by what came later"
    );
    for batch in &kept {
        let mut backwards: Vec<i64> = batch.iter().rev().map(Record::offset).collect();
        backwards.reverse();
        assert_eq!(backwards, offsets(batch));
        let mut both = batch.into_iter();
        assert_eq!(both.len(), 3);
        let (first, last) = (both.next().unwrap().offset(), both.next_back().unwrap().offset());
        assert_eq!(last - first, 2);
        assert!(both.next().is_some() && both.next().is_none() && both.next_back().is_none());
        let copied: Vec<Record> = batch.to_vec();
        assert!(copied.iter().all(|record| record.value() == Some(record.offset().to_string().as_bytes())));
    }
}
