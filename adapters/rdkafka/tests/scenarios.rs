//! The same scenarios over Tramline's own consumer and over rdkafka's, eager and cooperative, on the embedded broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::time::Duration;

use common::{Client, Ours, Probe, Rdkafka, Running, Stand, soon, unique, until};
use tramline::processor::{CommitPolicy, Ordering, StopPolicy};

const DRAIN: Duration = Duration::from_secs(30);

/// A record of one lane is held while a second member joins. The second member gets nothing of the first one's before
/// that record is done and committed, and the other lane goes on meanwhile.
async fn a_lane_goes_on_while_another_drains<C: Client>() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    for partition in 0..2 {
        stand.produce(&topic, partition, 0..60).await;
    }
    let probe = Probe::default();
    // Which lane moves is the group's choice, so both stand still in the middle of what they were given.
    let gates = [probe.hold(0, 9), probe.hold(1, 9)];
    let first = C::join(&stand, &topic, &group).await;
    let first = Running::start(first, |run| run.stop(StopPolicy::Drain, DRAIN), probe.handler());
    // Nine done, one in hand, all the others queued.
    until(|| first.monitor.snapshot().iter().filter(|lane| lane.queued == 50).count() == 2).await;

    let second = C::join(&stand, &topic, &group).await;
    let after = Probe::default();
    let second = Running::start(second, |run| run, after.handler());
    until(|| first.is_stopping(0) || first.is_stopping(1)).await;
    let moving = if C::COOPERATIVE { i32::from(first.is_stopping(1)) } else { 0 };
    let other = 1 - moving;
    assert_eq!(first.is_stopping(other), !C::COOPERATIVE, "only what moves is revoked");
    gates[usize::try_from(other).unwrap()].cancel();
    // The lane beside the one that drains finishes all it was given.
    until(|| probe.done(other).len() == 60).await;
    assert_eq!(probe.done(moving).len(), 9, "the other one still stands");
    assert!(after.begun(moving).is_empty(), "it is held");
    gates[usize::try_from(moving).unwrap()].cancel();

    until(|| second.lanes().len() == 1 && first.lanes().len() == 1).await;
    let [moved] = second.lanes().into_iter().collect::<Vec<_>>()[..] else { panic!("one lane") };
    stand.produce(&topic, moved, 60..61).await;
    until(|| after.done(moved).last() == Some(&60)).await;
    let redone = after.done(moved);
    assert_eq!(redone, [60], "everything before was drained and committed");
    let (_, source) = first.stop().await;
    C::leave(source).await;
    let (_, source) = second.stop().await;
    C::leave(source).await;
    for partition in 0..2 {
        let done = probe.done(partition).len() + after.done(partition).len();
        assert_eq!(stand.committed(&topic, &group, partition).await, Some(i64::try_from(done).unwrap()));
    }
    stand.close().await;
}

/// What is queued when the run stops is finished, committed, and the next member begins behind it.
async fn a_stop_drains_and_commits_and_the_next_member_goes_on_there<C: Client>() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(3).await, unique("group"));
    for partition in 0..3 {
        stand.produce(&topic, partition, 0..40).await;
    }
    let probe = Probe::default();
    let gate = probe.hold(1, 5);
    let run = Running::start(C::join(&stand, &topic, &group).await, |run| run, probe.handler());
    until(|| probe.begun(1).len() == 6 && probe.done(0).len() == 40 && probe.done(2).len() == 40).await;
    let stopping = tokio::spawn(run.stop());
    gate.cancel();
    let (report, source) = soon(stopping).await.unwrap();
    C::leave(source).await;
    assert_eq!(report.commit_failures, 0);
    for partition in 0..3 {
        let done = i64::try_from(probe.done(partition).len()).unwrap();
        assert_eq!(stand.committed(&topic, &group, partition).await, Some(done), "partition {partition}");
        stand.produce(&topic, partition, 40..41).await;
    }
    let next = Probe::default();
    let run = Running::start(C::join(&stand, &topic, &group).await, |run| run, next.handler());
    until(|| (0..3).all(|partition| next.done(partition).last() == Some(&40))).await;
    for partition in 0..3 {
        let expected: Vec<i64> = (i64::try_from(probe.done(partition).len()).unwrap()..41).collect();
        assert_eq!(next.done(partition), expected, "nothing twice, nothing left out");
    }
    let (_, source) = run.stop().await;
    C::leave(source).await;
    stand.close().await;
}

/// Eight handlers per partition: records of a key are finished in order, and one key that waits holds up no other.
async fn keys_keep_their_order<C: Client>() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce_keyed(&topic, 0, 0..200, 8).await;
    let probe = Probe::default();
    let gate = probe.hold(0, 3);
    let source = C::join(&stand, &topic, &group).await;
    let by_key = |run: tramline::processor::PartitionedBuilder<C::Source>| {
        run.ordering(Ordering::Key)
            .max_concurrent_handlers(8)
            .max_buffered_records(400)
            .commit(CommitPolicy::Periodic(Duration::from_millis(50)))
    };
    let run = Running::start(source, by_key, probe.handler());
    until(|| probe.done(0).len() == 175).await;
    assert!(
        stand.committed(&topic, &group, 0).await.is_none_or(|offset| offset <= 3),
        "a record below is unfinished"
    );
    gate.cancel();
    until(|| probe.done(0).len() == 200).await;
    for (key, offsets) in probe.by_key() {
        assert!(offsets.is_sorted(), "{key:?}: {offsets:?}");
        assert_eq!(offsets.len(), 25);
    }
    let (_, source) = run.stop().await;
    C::leave(source).await;
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(200));
    stand.close().await;
}

/// A second member comes and goes ten times under load: every record is done, none that was committed is done again after,
/// and order is kept within each delivery.
async fn every_record_is_done_over_twenty_rebalances<C: Client>() {
    const RECORDS: i64 = 1500;
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(4).await, unique("group"));
    let probe = Probe::default();
    let often = |run: tramline::processor::PartitionedBuilder<C::Source>| {
        run.commit(CommitPolicy::Periodic(Duration::from_millis(20)))
    };
    let stays = Running::start(C::join(&stand, &topic, &group).await, often, probe.handler());
    until(|| stays.lanes().len() == 4).await;
    let mut next = 0;
    for _ in 0..10 {
        let comes = Running::start(C::join(&stand, &topic, &group).await, often, probe.handler());
        for partition in 0..4 {
            stand.produce(&topic, partition, next..next + RECORDS / 20).await;
        }
        until(|| comes.lanes().len() == 2 && stays.lanes().len() == 2).await;
        next += RECORDS / 20;
        for partition in 0..4 {
            stand.produce(&topic, partition, next..next + RECORDS / 20).await;
        }
        next += RECORDS / 20;
        let (_, source) = comes.stop().await;
        C::leave(source).await;
        until(|| stays.lanes().len() == 4).await;
    }
    let all: Vec<i64> = (0..RECORDS).collect();
    let missing = |partition| {
        let mut done = probe.done(partition);
        done.sort_unstable();
        done.dedup();
        done != all
    };
    until(|| (0..4).all(|partition| !missing(partition))).await;
    let (report, source) = stays.stop().await;
    C::leave(source).await;
    let done: usize = (0..4).map(|partition| probe.done(partition).len()).sum();
    println!("{done} records done, {} of them again, {} commits", done - 4 * all.len(), report.commits);
    assert_eq!(done, 4 * all.len(), "every member drained and committed before it gave a partition up");
    for partition in 0..4 {
        assert!(probe.done(partition).is_sorted());
        assert_eq!(stand.committed(&topic, &group, partition).await, Some(RECORDS));
    }
    stand.close().await;
}

macro_rules! scenarios {
    ($($client:ident: $over:ty;)*) => {$(
        mod $client {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_lane_goes_on_while_another_drains() {
                super::a_lane_goes_on_while_another_drains::<$over>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_stop_drains_and_commits_and_the_next_member_goes_on_there() {
                super::a_stop_drains_and_commits_and_the_next_member_goes_on_there::<$over>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn keys_keep_their_order() {
                super::keys_keep_their_order::<$over>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn every_record_is_done_over_twenty_rebalances() {
                super::every_record_is_done_over_twenty_rebalances::<$over>().await;
            }
        }
    )*};
}

scenarios! {
    ours_cooperative: Ours<true>;
    ours_eager: Ours<false>;
    rdkafka_cooperative: Rdkafka<true>;
    rdkafka_eager: Rdkafka<false>;
}
