//! Runs on several threads: completions that race with commits, and handlers that do not let go.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Running, for_each, run_on, tp};
use tokio::sync::mpsc;
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    CommitPolicy, Delivered, Lane, LaneOutcome, LaneReport, LaneStream, PartitionedExt, RunError, StopPolicy,
};
use tramline_wire::Record;

const PATIENCE: Duration = Duration::from_secs(60);

/// Sixteen records share a leader epoch, so that a commit whose two numbers come from different completions shows.
const RECORDS: i64 = 10_000;
const PER_EPOCH: i64 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t097_t100_b019_completions_on_other_threads_race_with_commits_and_every_commit_is_whole() {
    let log = MemoryLog::new();
    for epoch in 0..RECORDS / PER_EPOCH {
        log.set_leader_epoch(&tp(0), i32::try_from(epoch).unwrap());
        log.produce_many(&tp(0), usize::try_from(PER_EPOCH).unwrap());
    }
    // Which records are completed, as far as anyone outside knows: noted before each completion.
    let completing = Arc::new(Mutex::new(vec![false; usize::try_from(RECORDS).unwrap()]));
    let (left, mut done) = mpsc::unbounded_channel();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (send, mut receive) = mpsc::unbounded_channel::<Delivered>();
            let (completing, left) = (Arc::clone(&completing), left.clone());
            tokio::spawn(async move {
                while let Some(record) = receive.recv().await {
                    if record.offset() % 7 == 0 {
                        tokio::task::yield_now().await;
                    }
                    completing.lock().unwrap()[usize::try_from(record.offset()).unwrap()] = true;
                    record.done();
                    left.send(()).unwrap();
                }
            });
            send
        })
        .collect();
    let processor = move |mut lane: LaneStream| {
        let workers = workers.clone();
        async move {
            while let Some(record) = lane.next().await {
                let worker = usize::try_from(record.offset()).unwrap() % workers.len();
                let commit = record.offset() % 100 == 0;
                workers[worker].send(record).unwrap();
                if commit {
                    lane.commit().await.unwrap();
                }
            }
            Ok::<_, String>(())
        }
    };
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    let policy = CommitPolicy::Periodic(Duration::from_millis(1));
    let run = source.partitioned().commit(policy).max_buffered_records(64).build_lanes().unwrap();
    let run = Running::of_lanes(run, control, processor);
    for _ in 0..RECORDS {
        tokio::time::timeout(PATIENCE, done.recv()).await.unwrap().unwrap();
    }
    let report = run.stop().await.0.unwrap();
    assert_eq!((report.lanes[0].frontier, log.committed(&tp(0))), (Some(RECORDS), Some(RECORDS)));
    let commits = log.commits();
    assert!(commits.iter().all(|commit| commit.failure.is_none()));
    // The beginning itself, beside what is completed above it, says nothing of an epoch.
    for offset in commits.iter().flat_map(|commit| &commit.offsets).filter(|offset| offset.offset > 0) {
        let epoch = i32::try_from((offset.offset - 1) / PER_EPOCH).unwrap();
        assert_eq!(offset.leader_epoch, Some(epoch), "committed {}", offset.offset);
    }
    assert!(log.commits_of(&tp(0)).is_sorted());
    assert!(completing.lock().unwrap().iter().all(|done| *done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t192_t193_a_lane_at_its_limit_is_never_left_paused_and_never_holds_more_than_a_batch_above_it() {
    let log = MemoryLog::new();
    for partition in 0..4 {
        log.produce_many(&tp(partition), 5_000);
    }
    let (send, mut handled) = mpsc::unbounded_channel();
    let handler = move |record: Record, lane: Lane| {
        let send = send.clone();
        async move {
            assert!(lane.queued() <= 3 + 2, "{} queued", lane.queued());
            if record.offset() % 3 == 0 {
                tokio::task::yield_now().await;
            }
            send.send(record.partition()).unwrap();
            Ok::<_, String>(())
        }
    };
    let (source, control) = MemorySource::new(&log);
    control.max_poll_records(3);
    control.assign(&[tp(0), tp(1), tp(2), tp(3)]);
    let run = run_on(source, control, |b| b.max_buffered_records(3), handler);
    for _ in 0..4 * 5_000 {
        tokio::time::timeout(PATIENCE, handled.recv()).await.expect("left paused").unwrap();
    }
    assert!(run.control.pauses().len() > 100, "the limit was met often enough to prove something");
    let control = run.control.clone();
    run.stop().await.0.unwrap();
    assert!(control.paused().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t147_t233_handlers_that_block_their_thread_are_told_by_name_and_keep_their_record() {
    let log = MemoryLog::new();
    for partition in 0..3 {
        log.produce_many(&tp(partition), 3);
    }
    let (blocked, mut waiting) = mpsc::unbounded_channel();
    let (free, gate) = blocking::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let (over, mut ended) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let (blocked, gate, over) = (blocked.clone(), Arc::clone(&gate), over.clone());
        async move {
            // Two of three never reach an await; the third obeys at once.
            if record.partition() < 2 {
                blocked.send(record.partition()).unwrap();
                gate.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                // Whatever it reads then is still there.
                over.send(record.value().unwrap().to_vec()).unwrap();
            } else {
                blocked.send(record.partition()).unwrap();
                std::future::pending::<()>().await;
            }
            Ok::<_, String>(())
        }
    };
    let run = for_each(&log, &[0, 1, 2], |b| b.stop(StopPolicy::Drain, Duration::from_millis(20)), handler);
    let control = run.control.clone();
    for _ in 0..3 {
        tokio::time::timeout(PATIENCE, waiting.recv()).await.unwrap().unwrap();
    }
    let (result, source) = run.stop().await;
    let RunError::StopTimeout { lanes, still_running, report } = result.unwrap_err() else {
        panic!("no timeout")
    };
    let names = |lanes: &[tramline_processor::LaneId]| {
        lanes.iter().map(|lane| lane.topic_partition.partition).collect::<Vec<_>>()
    };
    assert_eq!((names(&lanes), names(&still_running)), (vec![0, 1, 2], vec![0, 1]));
    let outcome_of = |partition| {
        let of = |lane: &&LaneReport| lane.lane.topic_partition == tp(partition);
        report.lanes.iter().find(of).map(|lane| lane.outcome)
    };
    let expected = [LaneOutcome::Abandoned, LaneOutcome::Abandoned, LaneOutcome::Aborted];
    assert_eq!([0, 1, 2].map(outcome_of), expected.map(Some));
    assert_eq!(report.records_completed, 0);
    assert!(log.commits().is_empty());
    assert_eq!(control.position(&tp(0)), Some(0), "they come again in the next run");
    for _ in 0..2 {
        free.send(()).unwrap();
        let value = tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
        assert_eq!(value, b"0");
    }
    assert!(log.commits().is_empty(), "what they complete now counts no more");
    drop(source);
}
