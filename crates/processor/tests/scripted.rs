//! A source that hands out exactly what a test wrote: memory that must not stay, and contracts that are broken.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{Running, secs, settle, tp};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tramline_processor::{
    Backoff, CommitConfiguration, CommitError, CommitOffset, CommitPolicy, ErrorPolicy, GroupMetadata,
    Handler, Lane, LaneCommitError, LaneOutcome, LaneState, LaneStream, Ordering as RecordOrder,
    PartitionedBuilder, PartitionedExt, RevocationHold, RunError, Source, SourceBatch, SourceEvent,
    SourceEvents, StopPolicy, StopReason, WaitingFor,
};
use tramline_wire::Record;

/// What [`Script`] does at one poll.
enum Act {
    Event(SourceEvent),
    Batch(SourceBatch),
}

#[derive(Default)]
struct Shared {
    acts: Mutex<VecDeque<Act>>,
    events: Mutex<VecDeque<SourceEvent>>,
    changed: Notify,
    committed: Mutex<Vec<(i32, i64)>>,
    sought: Mutex<Vec<(i32, i64)>>,
    paused: Mutex<Vec<i32>>,
}

/// Plays its acts in order: an event becomes known in the very poll that goes on to hand out the next batch.
#[derive(Clone, Default)]
struct Script(Arc<Shared>);

impl Script {
    fn event(&self, event: SourceEvent) {
        self.0.events.lock().unwrap().push_back(event);
        self.0.changed.notify_waiters();
    }

    fn act(&self, act: Act) {
        self.0.acts.lock().unwrap().push_back(act);
        self.0.changed.notify_waiters();
    }

    fn assign(&self, generation: i32) {
        self.event(SourceEvent::Assigned { generation, partitions: vec![tp(0)] });
    }

    fn batch(&self, generation: i32, records: Vec<Record>) {
        self.act(Act::Batch(batch(generation, records)));
    }
}

impl Source for Script {
    type Error = CommitError;
    type Events = Self;

    async fn poll(&self) -> Result<Option<SourceBatch>, CommitError> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            let act = self.0.acts.lock().unwrap().pop_front();
            match act {
                Some(Act::Batch(batch)) => return Ok(Some(batch)),
                Some(Act::Event(event)) => self.0.events.lock().unwrap().push_back(event),
                None => changed.await,
            }
        }
    }

    fn pause(&self, tp: &tramline_wire::TopicPartition) {
        self.0.paused.lock().unwrap().push(tp.partition);
    }

    fn resume(&self, tp: &tramline_wire::TopicPartition) {
        self.0.paused.lock().unwrap().retain(|paused| *paused != tp.partition);
    }

    fn seek(&self, tp: &tramline_wire::TopicPartition, offset: i64) {
        self.0.sought.lock().unwrap().push((tp.partition, offset));
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        let offsets = offsets.into_iter().map(|at| (at.generation, at.offset));
        self.0.committed.lock().unwrap().extend(offsets);
        Ok(())
    }

    fn events(&self) -> Self {
        self.clone()
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        Some(CommitConfiguration { group: Some("g".into()), ..Default::default() })
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        None
    }
}

impl SourceEvents for Script {
    async fn next(&mut self) -> Option<SourceEvent> {
        let shared = Arc::clone(&self.0);
        loop {
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            changed.await;
        }
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        self.0.events.lock().unwrap().pop_front()
    }
}

fn batch(generation: i32, records: Vec<Record>) -> SourceBatch {
    let first_offset = records.first().map_or(0, Record::offset);
    let next_offset = records.last().map_or(0, |last| last.offset() + 1);
    SourceBatch { topic_partition: tp(0), generation, records, first_offset, next_offset, leader_epoch: None }
}

fn record(offset: i64) -> Record {
    Record::from_parts(tp(0), offset, -1, None, Some(Bytes::from_static(b"v")), Vec::new())
}

/// Counts the values that are still in memory.
#[derive(Clone, Default)]
struct Pinned(Arc<AtomicUsize>);

struct Counted(Arc<AtomicUsize>, Vec<u8>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pinned {
    fn records(&self, offsets: std::ops::Range<i64>) -> Vec<Record> {
        let record = |offset: i64| {
            self.0.fetch_add(1, Ordering::SeqCst);
            let text = |what: &str| format!("{what} {offset}").into_bytes();
            let value = Bytes::from_owner(Counted(Arc::clone(&self.0), text("value")));
            let headers = vec![("name".into(), Some(Bytes::from(text("header"))))];
            Record::from_parts(tp(0), offset, -1, Some(Bytes::from(text("key"))), Some(value), headers)
        };
        offsets.map(record).collect()
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn for_each<H: Handler>(
    script: &Script,
    with: impl FnOnce(PartitionedBuilder<Script>) -> PartitionedBuilder<Script>,
    handler: H,
) -> Running<Script, ()> {
    Running::of(with(script.clone().partitioned()).build().unwrap(), (), handler)
}

#[tokio::test(start_paused = true)]
async fn b040_b043_what_is_announced_during_a_poll_is_known_before_the_batch_of_that_poll() {
    let script = Script::default();
    let assigned = SourceEvent::Assigned { generation: 1, partitions: vec![tp(0)] };
    script.act(Act::Event(assigned));
    script.batch(1, vec![record(0), record(1)]);
    script.batch(1, vec![record(2)]);
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        send.send(record.offset()).unwrap();
        async { Ok::<_, String>(()) }
    };
    let run = for_each(&script, |b| b, handler);
    for expected in 0..3 {
        assert_eq!(seen.recv().await, Some(expected));
    }
    assert_eq!(run.stop().await.0.unwrap().stale_batches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_crosses_its_own_revocation_is_dropped_and_counted() {
    let script = Script::default();
    script.assign(1);
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        send.send(record.offset()).unwrap();
        async { Ok::<_, String>(()) }
    };
    let run = for_each(&script, |b| b, handler);
    settle().await;
    script.act(Act::Event(SourceEvent::Revoked {
        partitions: vec![tp(0)],
        deadline: None,
        hold: RevocationHold::new(()),
    }));
    script.batch(1, vec![record(0)]);
    settle().await;
    assert_eq!(run.stop().await.0.unwrap().stale_batches, 1);
    assert!(seen.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_comes_again_or_goes_back_ends_the_run_and_what_came_before_is_committed() {
    for (bad, behind) in [(4, "offset 4 of t-0 in generation 1 came after 5"), (5, "offset 5 of t-0 in")] {
        let script = Script::default();
        script.assign(1);
        script.batch(1, vec![record(3), record(5)]);
        script.batch(1, vec![record(bad), record(6)]);
        let run = for_each(&script, |b| b, |_: Record, _: Lane| async { Ok::<_, String>(()) });
        let (result, script) = run.ended().await;
        let error = result.unwrap_err();
        let RunError::SourceContract { what, .. } = &error else { panic!("{error}") };
        assert!(what.starts_with(behind), "{what}");
        assert_eq!(error.report().lanes[0].outcome, LaneOutcome::Broken);
        assert_eq!(*script.0.committed.lock().unwrap(), [(1, 6)]);
        assert_eq!(*script.0.sought.lock().unwrap(), [(0, bad)], "read again from what was not taken");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_nobody_announced_ends_the_run() {
    let script = Script::default();
    script.assign(1);
    script.act(Act::Batch(SourceBatch { topic_partition: tp(7), ..batch(2, vec![record(0)]) }));
    let run = for_each(&script, |b| b, |_: Record, _: Lane| async { Ok::<_, String>(()) });
    let error = run.ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::SourceContract { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn t230_key_value_and_headers_are_readable_across_awaits_and_gone_after_the_handler() {
    let (script, pinned) = (Script::default(), Pinned::default());
    script.assign(1);
    script.batch(1, pinned.records(0..20));
    let handler = |record: Record, _: Lane| async move {
        tokio::time::sleep(secs(1)).await;
        let offset = record.offset();
        assert_eq!(record.key(), Some(format!("key {offset}").as_bytes()));
        assert_eq!(record.value(), Some(format!("value {offset}").as_bytes()));
        let header = format!("header {offset}");
        assert_eq!(record.headers().next().unwrap().1, Some(header.as_bytes()));
        Ok::<_, String>(())
    };
    let run = for_each(&script, |b| b, handler);
    for left in (0..20).rev() {
        tokio::time::sleep(secs(1)).await;
        settle().await;
        assert_eq!(pinned.count(), left, "each is released when its handler is done");
    }
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t105_t234_a_processor_holds_the_record_it_holds_and_no_other() {
    let (script, pinned) = (Script::default(), Pinned::default());
    script.assign(1);
    script.batch(1, pinned.records(0..128));
    let go = Arc::new(Notify::new());
    let step = Arc::clone(&go);
    let processor = move |mut lane: LaneStream| {
        let step = Arc::clone(&step);
        async move {
            // Never one is completed, and none is kept.
            while let Some(record) = lane.next().await {
                step.notified().await;
                drop(record);
            }
            Ok::<_, String>(())
        }
    };
    let run = script.clone().partitioned().build_lanes().unwrap();
    let run = Running::of_lanes(run, (), processor);
    settle().await;
    for left in (1..=128).rev() {
        assert_eq!(pinned.count(), left);
        go.notify_one();
        settle().await;
    }
    assert_eq!(pinned.count(), 0, "nobody holds what was dropped, completed or not");
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.records_abandoned, report.records_completed), (128, 0));
    assert!(script.0.committed.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t231_after_a_failure_nothing_is_held() {
    let (script, pinned) = (Script::default(), Pinned::default());
    script.assign(1);
    script.batch(1, pinned.records(0..50));
    let handler =
        |record: Record, _: Lane| async move { if record.offset() == 7 { Err("no") } else { Ok(()) } };
    let run = for_each(&script, |b| b, handler);
    let (result, script) = run.ended().await;
    assert!(result.is_err());
    assert_eq!(pinned.count(), 0);
    assert_eq!(*script.0.sought.lock().unwrap(), [(0, 7)]);
}

#[tokio::test(start_paused = true)]
async fn t232_t233_t235_what_is_queued_goes_at_once_with_a_loss_and_the_active_record_with_its_handler() {
    for lost in [true, false] {
        let (script, pinned) = (Script::default(), Pinned::default());
        script.assign(1);
        script.batch(1, pinned.records(0..40));
        let gate = CancellationToken::new();
        let held = gate.clone();
        let handler = move |record: Record, _: Lane| {
            let held = held.clone();
            async move {
                held.cancelled().await;
                drop(record);
                Ok::<_, String>(())
            }
        };
        let with = |b: PartitionedBuilder<Script>| b.stop(StopPolicy::Cancel, secs(30));
        let run = for_each(&script, with, handler);
        settle().await;
        assert_eq!(pinned.count(), 40);
        script.event(if lost {
            SourceEvent::Lost { partitions: vec![tp(0)] }
        } else {
            SourceEvent::Revoked { partitions: vec![tp(0)], deadline: None, hold: RevocationHold::new(()) }
        });
        settle().await;
        assert_eq!(pinned.count(), 1, "the one a handler works on");
        // A batch under way for the assignment that is gone is refused and kept nowhere.
        script.batch(1, pinned.records(40..50));
        settle().await;
        assert_eq!(pinned.count(), 1);
        gate.cancel();
        settle().await;
        assert_eq!(pinned.count(), 0);
        run.stop().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn parked_batches_of_a_partition_that_leaves_again_are_not_kept() {
    let (script, pinned) = (Script::default(), Pinned::default());
    script.assign(1);
    script.batch(1, pinned.records(0..1));
    let gate = CancellationToken::new();
    let held = gate.clone();
    let handler = move |record: Record, _: Lane| {
        let held = held.clone();
        async move {
            held.cancelled().await;
            drop(record);
            Ok::<_, String>(())
        }
    };
    let run = for_each(&script, |b| b, handler);
    settle().await;
    script.event(SourceEvent::Lost { partitions: vec![tp(0)] });
    script.assign(2);
    settle().await;
    script.batch(2, pinned.records(0..10));
    settle().await;
    assert_eq!((pinned.count(), script.0.paused.lock().unwrap().len()), (11, 1));
    script.event(SourceEvent::Lost { partitions: vec![tp(0)] });
    settle().await;
    assert_eq!(pinned.count(), 1);
    gate.cancel();
    assert_eq!(run.stop().await.0.unwrap().lanes_started, 1);
    assert_eq!(pinned.count(), 0);
}

fn set_back() -> SourceEvent {
    SourceEvent::SetBack { generation: 1, partitions: vec![tp(0)] }
}

#[tokio::test(start_paused = true)]
async fn when_offsets_begin_anew_the_old_lane_commits_nothing_and_the_new_one_begins_after_its_end() {
    let script = Script::default();
    script.assign(1);
    script.batch(1, (5..8).map(record).collect());
    let (seen, gate) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let (noted, held) = (Arc::clone(&seen), gate.clone());
    let handler = move |record: Record, lane: Lane| {
        let (seen, held) = (Arc::clone(&noted), held.clone());
        async move {
            seen.lock().unwrap().push(record.offset());
            if record.offset() == 6 {
                held.cancelled().await;
                assert_eq!(lane.commit().await, Err(LaneCommitError::LaneClosed));
            }
            Ok::<_, String>(())
        }
    };
    let run = for_each(&script, |b| b.commit(CommitPolicy::Periodic(secs(60))), handler);
    settle().await;
    script.event(set_back());
    script.batch(1, vec![record(2), record(3)]);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(*seen.lock().unwrap(), [5, 6], "its processor has not ended");
    assert_eq!(run.monitor.snapshot()[0].state, LaneState::Cancelling);
    gate.cancel();
    settle().await;
    assert_eq!(*seen.lock().unwrap(), [5, 6, 2, 3], "7 was dropped with the offsets it had");
    let report = run.stop().await.0.unwrap();
    let ends: Vec<_> = report.lanes.iter().map(|lane| (lane.reason, lane.frontier)).collect();
    assert_eq!(ends, [(Some(StopReason::Lost), Some(7)), (Some(StopReason::Shutdown), Some(4))]);
    assert_eq!(*script.0.committed.lock().unwrap(), [(1, 4)], "nothing of the old offsets");
}

#[tokio::test(start_paused = true)]
async fn when_offsets_begin_anew_what_a_failed_lane_had_completed_is_not_passed_over_by_the_next() {
    let script = Script::default();
    script.assign(1);
    script.batch(1, (5..8).map(record).collect());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |record: Record, _: Lane| {
        let mut seen = noted.lock().unwrap();
        seen.push(record.offset());
        let fails = seen.len() == 1;
        async move {
            tokio::task::yield_now().await;
            if fails { Err("no") } else { Ok(()) }
        }
    };
    let with = |b: PartitionedBuilder<Script>| {
        let again = ErrorPolicy::RestartLane(Backoff::every(secs(60)));
        b.ordering(RecordOrder::Unordered).max_concurrent_handlers(3).on_error(again)
    };
    let run = for_each(&script, with, handler);
    settle().await;
    assert!(matches!(run.monitor.snapshot()[0].waiting_for, WaitingFor::Restart { .. }));
    script.event(set_back());
    script.batch(1, (5..8).map(record).collect());
    settle().await;
    assert_eq!(*seen.lock().unwrap(), [5, 6, 7, 5, 6, 7], "others, under the same offsets, and at once");
    run.stop().await.0.unwrap();
}
