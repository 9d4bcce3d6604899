//! Ordered lanes over the real consumer and broker: rebalances, commits, stops and failures.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::running::{Running, collector, committed};
use common::{Stand, soon, tp, unique};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline::client::{Consumer, ProducerConfig, ProducerRecord, StartOffset};
use tramline::prelude::*;
use tramline::processor::{LaneCommitError, RunEndReason, RunError, StopReason};

/// What all members of a group did, judged as it happens.
#[derive(Default)]
struct Ledger {
    /// The generation that wrote last to each partition: a store that fences.
    newest: BTreeMap<i32, i32>,
    /// The next offset each lane expects.
    expected: BTreeMap<(i32, i32), i64>,
    live: BTreeSet<i32>,
    done: BTreeMap<i32, BTreeSet<i64>>,
    /// Which member worked last on each partition.
    owner: BTreeMap<i32, usize>,
    handled: u64,
    wrong: Vec<String>,
}

impl Ledger {
    fn enter(&mut self, member: usize, partition: i32, generation: i32, offset: i64) {
        self.owner.insert(partition, member);
        if !self.live.insert(partition) {
            self.wrong.push(format!("two live handlers of partition {partition}"));
        }
        let newest = self.newest.entry(partition).or_insert(generation);
        if *newest > generation {
            self.wrong.push(format!("generation {generation} of {partition} wrote after {newest}"));
        }
        *newest = generation.max(*newest);
        let done = self.done.entry(partition).or_default();
        let next = (0..).find(|offset| !done.contains(offset)).unwrap_or(0);
        // A new lane begins at a commit, which is never above the first record that is not done.
        let expected = self.expected.entry((partition, generation)).or_insert(offset);
        if offset != *expected || offset > next {
            self.wrong.push(format!("partition {partition}: {offset}, not {expected}; first undone {next}"));
        }
        *expected = offset + 1;
    }

    fn owned_by(&self, member: usize) -> usize {
        self.owner.values().filter(|owner| **owner == member).count()
    }

    fn leave(&mut self, partition: i32, offset: i64) {
        self.live.remove(&partition);
        self.done.entry(partition).or_default().insert(offset);
        self.handled += 1;
    }
}

fn ledger_handler(
    member: usize,
    ledger: &Arc<Mutex<Ledger>>,
    count: &watch::Sender<u64>,
) -> impl Handler + use<> {
    let (ledger, count) = (Arc::clone(ledger), count.clone());
    move |record: Record, lane: Lane| {
        let (ledger, count) = (Arc::clone(&ledger), count.clone());
        async move {
            let (partition, offset) = (record.partition(), record.offset());
            ledger.lock().unwrap().enter(member, partition, lane.generation(), offset);
            tokio::task::yield_now().await;
            if offset % 97 == 0 {
                // May meet a lane that was closed meanwhile; it says so.
                let _ = lane.commit().await;
            }
            let handled = {
                let mut ledger = ledger.lock().unwrap();
                ledger.leave(partition, offset);
                ledger.handled
            };
            count.send_replace(handled);
            Ok::<_, String>(())
        }
    }
}

/// Sixteen rebalances while records flow. What a member reads is judged by [`Ledger`]; what is committed is
/// looked at after each rebalance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t251_members_come_and_go_and_nothing_is_lost_reordered_overlapped_or_committed_too_far() {
    const PARTITIONS: i32 = 6;
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(PARTITIONS).await, unique("group"), stand.admin());
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let (count, mut handled) = watch::channel(0);
    let (flowing, produced) = produce_until_told(&stand, &topic, PARTITIONS).await;
    let member = async |number| {
        let consumer = stand.member(&topic, &group).max_poll_records(20).build().await.unwrap();
        let policy = CommitPolicy::Periodic(Duration::from_millis(50));
        let handler = ledger_handler(number, &ledger, &count);
        Running::for_each(consumer, |b| b.commit(policy).max_buffered_records(32), handler)
    };
    let half = usize::try_from(PARTITIONS).unwrap() / 2;
    let first = member(0).await;
    let all = handled.wait_for(|_| ledger.lock().unwrap().owned_by(0) == 2 * half);
    drop(soon(all).await.unwrap());
    for round in 1..=8 {
        let second = member(round).await;
        let shared = handled.wait_for(|_| ledger.lock().unwrap().owned_by(round) == half);
        drop(soon(shared).await.unwrap());
        for partition in 0..PARTITIONS {
            let committed = committed(&admin, &group, &topic, partition).await.unwrap_or(0);
            let ledger = ledger.lock().unwrap();
            let done = ledger.done.get(&partition);
            let undone = (0..committed).find(|offset| done.is_none_or(|done| !done.contains(offset)));
            assert_eq!(undone, None, "round {round}: partition {partition} committed at {committed}");
        }
        let (result, consumer) = second.stop().await;
        result.unwrap_or_else(|error| panic!("round {round}: {error} {error:?}"));
        soon(consumer.close()).await;
        let back = handled.wait_for(|_| ledger.lock().unwrap().owned_by(0) == 2 * half);
        drop(soon(back).await.unwrap());
        let wrong = ledger.lock().unwrap().wrong.clone();
        assert_eq!(wrong, [] as [String; 0], "round {round}");
    }
    flowing.cancel();
    let ends = soon(produced).await.unwrap();
    let all: i64 = ends.values().sum();
    let done = || ledger.lock().unwrap().done.values().map(BTreeSet::len).sum::<usize>();
    while i64::try_from(done()).unwrap() < all {
        soon(handled.changed()).await.unwrap();
    }
    let (result, consumer) = first.stop().await;
    let report = result.unwrap();
    assert!(report.uncommitted.is_empty(), "{report:?}");
    soon(consumer.close()).await;
    for (&partition, &end) in &ends {
        assert_eq!(committed(&admin, &group, &topic, partition).await, Some(end), "partition {partition}");
    }
    {
        let ledger = ledger.lock().unwrap();
        assert_eq!(ledger.wrong, [] as [String; 0]);
        let lanes = ledger.expected.len();
        assert_eq!(lanes, 6 + 8 * 6, "each round moves half of the partitions, and back");
    }
    stand.close().await;
}

/// Produces to all partitions until the token is cancelled; gives the number of records per partition.
async fn produce_until_told(
    stand: &Stand,
    topic: &str,
    partitions: i32,
) -> (CancellationToken, JoinHandle<BTreeMap<i32, i64>>) {
    let producer = stand.producer(ProducerConfig::new()).await;
    let (stop, topic) = (CancellationToken::new(), topic.to_owned());
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let mut ends = BTreeMap::new();
        while !stopped.is_cancelled() {
            for partition in 0..partitions {
                let records = (0..5).map(|n| ProducerRecord::to(&*topic).value(n.to_string())).collect();
                let base = producer.send_batch(&*topic, partition, records).await.unwrap().unwrap();
                ends.insert(partition, base + 5);
            }
        }
        producer.close().await.unwrap();
        ends
    });
    (stop, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lanes_own_commit_reaches_the_group_under_user_managed_and_nothing_else_does() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..10).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, lane: Lane| {
        let send = send.clone();
        async move {
            if record.offset() == 4 {
                lane.commit().await?;
            }
            send.send(record.offset()).unwrap();
            Ok::<_, LaneCommitError>(())
        }
    };
    let run = Running::for_each(consumer, |b| b.commit(CommitPolicy::UserManaged), handler);
    while soon(seen.recv()).await.unwrap() < 9 {}
    let (result, consumer) = run.stop().await;
    assert_eq!(result.unwrap().commits, 1);
    soon(consumer.close()).await;
    assert_eq!(committed(&admin, &group, &topic, 0).await, Some(4));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn periodic_commits_arrive_while_the_run_goes_on() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..10).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, _seen) = collector();
    let policy = CommitPolicy::Periodic(Duration::from_millis(20));
    let run = Running::for_each(consumer, |b| b.commit(policy), handler);
    let arrives = async { while committed(&admin, &group, &topic, 0).await != Some(10) {} };
    soon(arrives).await;
    let (result, consumer) = run.stop().await;
    assert_eq!(result.unwrap().reason, RunEndReason::Shutdown);
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_finishes_what_is_queued_and_cancel_leaves_it_for_the_next_run() {
    for policy in [StopPolicy::Drain, StopPolicy::Cancel] {
        let stand = Stand::start().await;
        let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
        stand.produce(&topic, 0, 0..50).await;
        let consumer = stand.member(&topic, &group).build().await.unwrap();
        let (send, mut seen) = mpsc::unbounded_channel();
        let gate = CancellationToken::new();
        let held = gate.clone();
        let handler = move |record: Record, lane: Lane| {
            let (send, held) = (send.clone(), held.clone());
            async move {
                send.send(record.offset()).unwrap();
                match policy {
                    _ if record.offset() != 2 => {}
                    StopPolicy::Cancel => lane.stopping().await,
                    _ => held.cancelled().await,
                }
                Ok::<_, String>(())
            }
        };
        let run = Running::for_each(consumer, |b| b.stop(policy, Duration::from_secs(30)), handler);
        while soon(seen.recv()).await.unwrap() < 2 {}
        run.stop.cancel();
        gate.cancel();
        let (result, consumer) = run.ended().await;
        let report = result.unwrap();
        let expected = if policy == StopPolicy::Drain { 50 } else { 3 };
        assert_eq!(report.records_completed, u64::try_from(expected).unwrap(), "{policy:?}");
        assert_eq!(committed(&admin, &group, &topic, 0).await, Some(expected));
        // What was taken and not handled comes again, on the very same consumer.
        let (handler, mut seen) = collector();
        let run = Running::for_each(consumer, |b| b, handler);
        stand.produce(&topic, 0, 50..51).await;
        assert_eq!(soon(seen.recv()).await, Some((0, expected)), "{policy:?}");
        while expected < 50 && soon(seen.recv()).await.unwrap().1 < 50 {}
        let (result, consumer) = run.stop().await;
        result.unwrap();
        assert_eq!(committed(&admin, &group, &topic, 0).await, Some(51));
        soon(consumer.close()).await;
        stand.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_or_panicking_handler_ends_the_run_and_the_next_one_goes_on_at_the_frontier() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(2).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..10).await;
    stand.produce(&topic, 1, 0..10).await;
    let mut consumer = stand.member(&topic, &group).build().await.unwrap();
    for (bad, panics) in [(4, false), (7, true)] {
        let handler = move |record: Record, _: Lane| async move {
            if record.partition() == 0 && record.offset() == bad {
                assert!(!panics, "cannot do {bad}");
                return Err(format!("no {bad}"));
            }
            Ok(())
        };
        let (result, back) = Running::for_each(consumer, |b| b, handler).ended().await;
        let error = result.unwrap_err();
        match &error {
            RunError::Handler { lane, offset, source, .. } if !panics => {
                assert_eq!((&lane.topic_partition, *offset), (&tp(&topic, 0), Some(bad)));
                assert_eq!(source.to_string(), "no 4");
            }
            RunError::Panicked { message, .. } if panics => assert_eq!(message, "cannot do 7"),
            other => panic!("{other:?}"),
        }
        assert_eq!(committed(&admin, &group, &topic, 0).await, Some(bad));
        assert_eq!(back.position(&tp(&topic, 0)), Some(bad));
        consumer = back;
    }
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    let mut mine = Vec::new();
    while mine.last() != Some(&9) {
        let (partition, offset) = soon(seen.recv()).await.unwrap();
        if partition == 0 {
            mine.push(offset);
        }
    }
    assert_eq!(mine, [7, 8, 9]);
    let (result, consumer) = run.stop().await;
    result.unwrap();
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_returns_ends_the_run_with_a_typed_timeout() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..5).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let send = send.clone();
        async move {
            send.send(record.offset()).unwrap();
            if record.offset() == 3 {
                std::future::pending::<()>().await;
            }
            Ok::<_, String>(())
        }
    };
    let run = Running::for_each(consumer, |b| b.stop(StopPolicy::Drain, Duration::from_millis(50)), handler);
    while soon(seen.recv()).await.unwrap() < 3 {}
    let (result, consumer) = run.stop().await;
    let RunError::StopTimeout { lanes, still_running, .. } = result.unwrap_err() else {
        panic!("no timeout")
    };
    assert_eq!((lanes.len(), still_running.len()), (1, 0));
    assert_eq!(committed(&admin, &group, &topic, 0).await, Some(3));
    assert_eq!(consumer.position(&tp(&topic, 0)), Some(3));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lived_processors_complete_out_of_order_and_end_with_their_partition() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(2).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..6).await;
    stand.produce(&topic, 1, 0..6).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (send, mut ended) = mpsc::unbounded_channel();
    let (full, mut filled) = mpsc::unbounded_channel();
    let processor = move |mut lane: LaneStream| {
        let (send, full) = (send.clone(), full.clone());
        async move {
            let mut kept = Vec::new();
            while let Some(record) = lane.next().await {
                assert_eq!(record.offset(), lane.lane().frontier().unwrap_or(0) + kept.len() as i64);
                kept.push(record);
                if kept.len() == 3 {
                    // The youngest first: the frontier waits for the oldest.
                    while let Some(record) = kept.pop() {
                        record.done();
                    }
                    if lane.last_processed() == Some(5) {
                        full.send(lane.topic_partition().partition).unwrap();
                    }
                }
            }
            send.send((lane.topic_partition().partition, lane.stop_reason())).unwrap();
            Ok::<_, String>(())
        }
    };
    let run = consumer.partitioned().build_lanes().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(run.lanes(stop.clone().cancelled_owned(), processor));
    soon(filled.recv()).await.unwrap();
    soon(filled.recv()).await.unwrap();
    // A second member takes one of the two.
    let other = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let second = Running::for_each(other, |b| b, handler);
    let (moved, reason) = soon(ended.recv()).await.unwrap();
    assert_eq!(reason, Some(StopReason::Revoke));
    stand.produce(&topic, moved, 6..7).await;
    assert_eq!(soon(seen.recv()).await, Some((moved, 6)), "exactly at the commit of its predecessor");
    stop.cancel();
    let (result, consumer) = soon(task).await.unwrap();
    assert_eq!(result.unwrap().records_abandoned, 0);
    assert_eq!(soon(ended.recv()).await, Some((1 - moved, Some(StopReason::Shutdown))));
    soon(consumer.close()).await;
    let (result, consumer) = second.stop().await;
    result.unwrap();
    soon(consumer.close()).await;
    assert_eq!(committed(&admin, &group, &topic, moved).await, Some(7));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_live_through_a_broker_restart() {
    let mut stand = Stand::embedded(tramline::broker::BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    stand.produce(&topic, 0, 0..5).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let policy = CommitPolicy::Periodic(Duration::from_millis(50));
    let run = Running::for_each(consumer, |b| b.commit(policy), handler);
    for in_order in [true, false] {
        while soon(seen.recv()).await.unwrap().1 % 5 < 4 {}
        stand.restart(in_order).await;
        let next = if in_order { 5 } else { 10 };
        stand.produce(&topic, 0, next..next + 5).await;
    }
    while soon(seen.recv()).await.unwrap().1 < 14 {}
    let (result, consumer) = run.stop().await;
    let report = result.unwrap();
    assert_eq!(report.records_completed, 15, "{report:?}");
    assert!(report.uncommitted.is_empty(), "{report:?}");
    soon(consumer.close()).await;
    assert_eq!(committed(&stand.admin(), &group, &topic, 0).await, Some(15));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_group_the_positions_are_the_programs_and_nothing_is_committed() {
    let stand = Stand::start().await;
    let topic = stand.topic(2).await;
    stand.produce(&topic, 0, 0..5).await;
    stand.produce(&topic, 1, 0..5).await;
    let builder = Consumer::builder(stand.client());
    let consumer = builder.assign_topic(&*topic, StartOffset::At(2)).build().await.unwrap();
    let (send, mut seen) = mpsc::unbounded_channel();
    let handler = move |record: Record, lane: Lane| {
        let send = send.clone();
        async move {
            send.send((record.offset(), lane.commit().await)).unwrap();
            Ok::<_, String>(())
        }
    };
    let run = Running::for_each(consumer, |b| b, handler);
    for _ in 0..6 {
        let (offset, commit) = soon(seen.recv()).await.unwrap();
        assert!(offset >= 2);
        assert_eq!(commit, Err(LaneCommitError::NoGroup));
    }
    let (result, consumer) = run.stop().await;
    let report = result.unwrap();
    assert_eq!((report.commits, report.commit_failures), (0, 0));
    let frontiers: Vec<_> = report.lanes.iter().map(|lane| lane.frontier).collect();
    assert_eq!(frontiers, [Some(5), Some(5)]);
    assert_eq!(consumer.position(&tp(&topic, 0)), Some(5));
    soon(consumer.close()).await;
    stand.close().await;
}
