//! Lanes in groups on a real broker: what is handed over, in which order, and from where.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::running::{Running, collector, committed};
use common::{Stand, assigned, soon, unique};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tramline::broker::BrokerConfig;
use tramline::client::{Assignor, Event, ProducerConfig, ProducerRecord};
use tramline::prelude::*;
use tramline::processor::Ordering;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t036_one_partition_blocks_the_other_finishes_and_both_are_committed_to_their_ends() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(2).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..3).await;
    stand.produce(&topic, 1, 0..3).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (send, mut seen) = mpsc::unbounded_channel();
    let gate = CancellationToken::new();
    let held = gate.clone();
    let handler = move |record: Record, _: Lane| {
        let (send, held) = (send.clone(), held.clone());
        async move {
            if record.partition() == 0 {
                held.cancelled().await;
            }
            send.send((record.partition(), record.offset())).unwrap();
            Ok::<_, String>(())
        }
    };
    let run = Running::for_each(consumer, |b| b, handler);
    for expected in 0..3 {
        assert_eq!(soon(seen.recv()).await, Some((1, expected)), "while the other is blocked");
    }
    gate.cancel();
    for expected in 0..3 {
        assert_eq!(soon(seen.recv()).await, Some((0, expected)));
    }
    let (result, consumer) = run.stop().await;
    result.unwrap();
    for partition in 0..2 {
        assert_eq!(committed(&admin, &group, &topic, partition).await, Some(3));
    }
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t037_offsets_keep_growing_in_each_partition_while_connections_break_and_come_back() {
    const EACH: i64 = 2_000;
    let mut stand = Stand::embedded(BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(4).await, unique("group"));
    let producer = stand.producer(ProducerConfig::new()).await;
    let mut written = 0;
    let (handler, mut seen) = collector();
    let consumer = stand.member(&topic, &group).max_poll_records(50).build().await.unwrap();
    let run = Running::for_each(consumer, |b| b, handler);
    for in_order in [true, false] {
        for partition in 0..4 {
            for _ in 0..EACH / 100 {
                let records = (0..100).map(|n| ProducerRecord::to(&*topic).value(n.to_string())).collect();
                soon(producer.send_batch(&*topic, partition, records)).await.unwrap();
            }
        }
        written += 4 * EACH;
        stand.restart(in_order).await;
    }
    let mut next = BTreeMap::new();
    for _ in 0..written {
        let (partition, offset) = soon(seen.recv()).await.unwrap();
        let expected = next.entry(partition).or_insert(0);
        assert_eq!(offset, *expected, "partition {partition}: none twice, none left out, none early");
        *expected += 1;
    }
    let (result, consumer) = run.stop().await;
    result.unwrap();
    soon(consumer.close()).await;
    soon(producer.close()).await.unwrap();
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t132_b074_a_coordinator_that_is_away_when_the_run_ends_is_looked_for_until_it_takes_the_last_commit()
{
    let mut stand = Stand::embedded(BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    while soon(seen.recv()).await.unwrap().1 < 9 {}
    stand.stop().await;
    run.stop.cancel();
    let ended = tokio::spawn(run.ended());
    stand.start_again().await;
    let (result, consumer) = soon(ended).await.unwrap();
    assert!(result.unwrap().uncommitted.is_empty());
    assert_eq!(committed(&stand.admin(), &group, &topic, 0).await, Some(10));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t250_nothing_of_a_revoked_partition_is_handed_out_although_it_was_read_ahead() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(4).await, unique("group"));
    for partition in 0..4 {
        stand.produce(&topic, partition, 0..300).await;
    }
    let one = stand.member(&topic, &group).prefetch(16 << 20).max_poll_records(1).build().await.unwrap();
    let mut events = one.events();
    let mut owned = BTreeSet::new();
    while owned.len() < 4 {
        assigned(&mut events, &mut owned).await;
    }
    let mut next = BTreeMap::from([(0, 0), (1, 0), (2, 0), (3, 0)]);
    let take = |record: &Record, next: &mut BTreeMap<i32, i64>| {
        let expected = next.get_mut(&record.partition()).unwrap();
        assert_eq!(record.offset(), *expected);
        *expected += 1;
    };
    for _ in 0..40 {
        take(&soon(one.recv()).await.unwrap(), &mut next);
    }
    // Everything is read ahead by now, or will be; a second member makes two partitions go.
    let two = stand.member(&topic, &group).build().await.unwrap();
    let revocation = loop {
        tokio::select! {
            biased;
            event = events.next() => match event.unwrap() {
                Event::Revoked(revocation) => break revocation,
                other => panic!("{other:?}"),
            },
            () = tokio::task::yield_now() => {}
        }
    };
    let gone: BTreeSet<i32> = revocation.partitions().iter().map(|tp| tp.partition).collect();
    assert_eq!(gone.len(), 2);
    let left: i64 =
        next.iter().filter(|(partition, _)| !gone.contains(partition)).map(|(_, at)| 300 - at).sum();
    let mut acknowledged = Some(revocation);
    for number in 0..left {
        let record = soon(one.recv()).await.unwrap();
        assert!(!gone.contains(&record.partition()), "{:?} is revoked", record.topic_partition());
        take(&record, &mut next);
        if number == left / 2 {
            drop(acknowledged.take());
        }
    }
    // Nobody committed: the new owner begins at the beginning, of those partitions only.
    let record = soon(two.recv()).await.unwrap();
    assert!(gone.contains(&record.partition()) && record.offset() == 0);
    drop(events);
    soon(one.close()).await;
    soon(two.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t254_a_static_member_that_stays_away_for_a_session_loses_its_partitions_until_it_is_back() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(4).await, unique("group"));
    let member = async |name: &str, session: u64| {
        let builder = stand.member(&topic, &group).instance_id(name);
        builder.session_timeout(Duration::from_secs(session)).build().await.unwrap()
    };
    let one = member("one", 1).await;
    let mut ones = BTreeSet::new();
    let mut events = one.events();
    while ones.len() < 4 {
        assigned(&mut events, &mut ones).await;
    }
    let two = member("two", 6).await;
    let (mut two_events, mut twos) = (two.events(), BTreeSet::new());
    while (ones.len(), twos.len()) != (2, 2) {
        tokio::select! {
            () = assigned(&mut events, &mut ones) => {}
            () = assigned(&mut two_events, &mut twos) => {}
        }
    }
    drop(events);
    soon(one.close()).await;
    while twos.len() < 4 {
        assigned(&mut two_events, &mut twos).await;
    }
    let one = member("one", 6).await;
    let (mut events, mut ones) = (one.events(), BTreeSet::new());
    while (ones.len(), twos.len()) != (2, 2) {
        tokio::select! {
            () = assigned(&mut events, &mut ones) => {}
            () = assigned(&mut two_events, &mut twos) => {}
        }
    }
    drop((events, two_events));
    soon(one.close()).await;
    soon(two.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t255_a_coordinator_that_dies_during_a_join_is_found_again_and_the_join_is_repeated() {
    let delay = Duration::from_millis(700);
    let mut stand = Stand::embedded(BrokerConfig::new().group_initial_rebalance_delay(delay)).await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..5).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    // The join is held back by the broker, which knows of the member then.
    let joining = async {
        while soon(stand.admin().describe_group(&*group)).await.is_ok_and(|group| group.members.is_empty()) {
            tokio::task::yield_now().await;
        }
    };
    soon(joining).await;
    assert!(seen.try_recv().is_err());
    stand.restart(false).await;
    for expected in 0..5 {
        assert_eq!(soon(seen.recv()).await, Some((0, expected)));
    }
    let (result, consumer) = run.stop().await;
    result.unwrap();
    assert_eq!(committed(&stand.admin(), &group, &topic, 0).await, Some(5));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t256_partitions_that_a_topic_gains_get_lanes_while_the_run_goes_on() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..2).await;
    let client = stand.client().metadata_max_age(Duration::from_millis(100));
    let builder = Consumer::builder(client).group(&*group).subscribe([&*topic]);
    let builder = builder.offset_reset(OffsetReset::Earliest).heartbeat_interval(Duration::from_millis(100));
    let consumer = builder.fetch_max_wait(Duration::from_millis(100)).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    assert_eq!(soon(seen.recv()).await, Some((0, 0)));
    assert_eq!(soon(seen.recv()).await, Some((0, 1)));
    soon(admin.create_partitions(&*topic, 3)).await.unwrap();
    stand.produce(&topic, 2, 0..1).await;
    assert_eq!(soon(seen.recv()).await, Some((2, 0)), "from its beginning");
    stand.produce(&topic, 0, 2..3).await;
    assert_eq!(soon(seen.recv()).await, Some((0, 2)), "and the old one goes on where it was");
    let (result, consumer) = run.stop().await;
    result.unwrap();
    assert_eq!(committed(&admin, &group, &topic, 2).await, Some(1));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t257_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..10).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    while soon(seen.recv()).await.unwrap().1 < 9 {}
    let (result, consumer) = run.stop().await;
    result.unwrap();
    soon(consumer.close()).await;
    assert_eq!(committed(&admin, &group, &topic, 0).await, Some(10));
    soon(admin.delete_topics([&*topic])).await.unwrap();
    assert_eq!(committed(&admin, &group, &topic, 0).await, None, "offsets of what is gone are gone");
    let made = soon(admin.create_topics([NewTopic::new(&topic, 1)])).await.unwrap();
    made[&*topic].as_ref().unwrap();
    stand.produce(&topic, 0, 0..20).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    for expected in 0..20 {
        assert_eq!(soon(seen.recv()).await, Some((0, expected)));
    }
    let (result, consumer) = run.stop().await;
    result.unwrap();
    assert_eq!(committed(&admin, &group, &topic, 0).await, Some(20));
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t259_b052_a_commit_inside_a_record_batch_is_exactly_where_reading_goes_on() {
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(1).await, unique("group"), stand.admin());
    stand.produce(&topic, 0, 0..10).await;
    let mut from = 0;
    for until in [1, 7, 9, 10] {
        let consumer = stand.member(&topic, &group).build().await.unwrap();
        let (send, mut seen) = mpsc::unbounded_channel();
        let handler = move |record: Record, lane: Lane| {
            let send = send.clone();
            async move {
                if record.offset() == until {
                    // Told to stop here: what comes from here on is left for the next.
                    lane.stopping().await;
                    return Err("left");
                }
                send.send(record.offset()).unwrap();
                Ok(())
            }
        };
        let run =
            Running::for_each(consumer, |b| b.stop(StopPolicy::Cancel, Duration::from_secs(30)), handler);
        for expected in from..until {
            assert_eq!(soon(seen.recv()).await, Some(expected), "until {until}");
        }
        let (result, consumer) = run.stop().await;
        assert!(result.is_ok() || until < 10, "{result:?}");
        assert_eq!(committed(&admin, &group, &topic, 0).await, Some(until));
        soon(consumer.close()).await;
        from = until;
    }
    stand.close().await;
}

/// What all members did with each record, in the order in which they did it.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    entries: Vec<Entry>,
    different: BTreeSet<(i32, i64)>,
    lanes: BTreeMap<i32, BTreeSet<i32>>,
}

#[derive(Clone, Debug)]
struct Entry {
    partition: i32,
    offset: i64,
    key: Vec<u8>,
}

impl Diary {
    fn handler(&self, count: &watch::Sender<usize>) -> impl Handler + use<> {
        let (diary, count) = (self.clone(), count.clone());
        move |record: Record, lane: Lane| {
            let (diary, count) = (diary.clone(), count.clone());
            async move {
                let (partition, offset) = (record.partition(), record.offset());
                let different = {
                    let pages = &mut *diary.0.lock().unwrap();
                    let key = record.key().unwrap_or_default().to_vec();
                    pages.entries.push(Entry { partition, offset, key });
                    pages.lanes.entry(partition).or_default().insert(lane.generation());
                    pages.different.insert((partition, offset));
                    pages.different.len()
                };
                for _ in 0..offset % 4 {
                    tokio::task::yield_now().await;
                }
                count.send_modify(|count| *count = different.max(*count));
                Ok::<_, String>(())
            }
        }
    }

    fn lanes_of(&self, partition: i32) -> usize {
        self.0.lock().unwrap().lanes.get(&partition).map_or(0, BTreeSet::len)
    }
}

/// Writes records with one of twenty keys to each partition, a few ahead of those who read, until it is told to
/// stop; gives how many in each.
async fn keyed_flow(
    stand: &Stand,
    topic: &str,
    partitions: i32,
    mut counted: watch::Receiver<usize>,
) -> (CancellationToken, tokio::task::JoinHandle<i64>) {
    let producer = stand.producer(ProducerConfig::new()).await;
    let (stop, topic) = (CancellationToken::new(), topic.to_owned());
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let mut each = 0;
        while !stopped.is_cancelled() {
            for partition in 0..partitions {
                let record =
                    |n: i64| ProducerRecord::to(&*topic).key(format!("k{}", (each + n) * 7 % 20)).value("v");
                let records = (0..10).map(record).collect();
                producer.send_batch(&*topic, partition, records).await.unwrap();
            }
            each += 10;
            let behind = usize::try_from((each - 100).max(0) * i64::from(partitions)).unwrap();
            tokio::select! {
                _ = counted.wait_for(|count| behind <= *count) => {}
                () = stopped.cancelled() => {}
            }
        }
        producer.close().await.unwrap();
        each
    });
    (stop, task)
}

/// Three times a second member comes and goes while records flow; both drain what they are revoked. Each time so many
/// partitions get another lane.
async fn comings_and_goings(assignor: Assignor, ordering: Ordering, moving: usize) -> (Diary, i64, Vec<i64>) {
    const PARTITIONS: i32 = 4;
    let stand = Stand::start().await;
    let (topic, group, admin) = (stand.topic(PARTITIONS).await, unique("group"), stand.admin());
    let (diary, (count, mut counted)) = (Diary::default(), watch::channel(0));
    let member = async || {
        let builder = stand.member(&topic, &group).assignors([assignor]).max_poll_records(20);
        let consumer = builder.build().await.unwrap();
        let with = |b: tramline::processor::PartitionedBuilder<Consumer>| {
            b.ordering(ordering).max_concurrent_handlers(8).max_buffered_records(64)
        };
        Running::for_each(consumer, with, diary.handler(&count))
    };
    let (flowing, produced) = keyed_flow(&stand, &topic, PARTITIONS, counted.clone()).await;
    let first = member().await;
    let all_read = |_: &usize| (0..PARTITIONS).all(|at| diary.lanes_of(at) > 0);
    drop(soon(counted.wait_for(all_read)).await.unwrap());
    for _ in 0..3 {
        let now = || (0..PARTITIONS).map(|at| diary.lanes_of(at)).collect::<Vec<_>>();
        let all_moved = |before: &[usize]| {
            now().iter().zip(before).filter(|(now, before)| now > before).count() >= moving
        };
        let before = now();
        let second = member().await;
        drop(soon(counted.wait_for(|_| all_moved(&before))).await.unwrap());
        let before = now();
        let (result, consumer) = second.stop().await;
        result.unwrap();
        soon(consumer.close()).await;
        drop(soon(counted.wait_for(|_| all_moved(&before))).await.unwrap());
    }
    flowing.cancel();
    let each = soon(produced).await.unwrap();
    let all = usize::try_from(each * i64::from(PARTITIONS)).unwrap();
    drop(soon(counted.wait_for(|count| *count == all)).await.unwrap());
    let (result, consumer) = first.stop().await;
    result.unwrap();
    soon(consumer.close()).await;
    let mut ends = Vec::new();
    for partition in 0..PARTITIONS {
        ends.push(committed(&admin, &group, &topic, partition).await.unwrap());
    }
    stand.close().await;
    (diary, each, ends)
}

/// With the range assignor everything is revoked and dealt again, so that the first member gets back at once what
/// it just gave up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t261_b080_a_partition_that_comes_back_to_the_same_member_goes_on_at_the_frontier() {
    let (diary, each, ends) = comings_and_goings(Assignor::Range, Ordering::Partition, 4).await;
    let entries = diary.0.lock().unwrap().entries.clone();
    for partition in 0..4 {
        let offsets: Vec<i64> =
            entries.iter().filter(|e| e.partition == partition).map(|e| e.offset).collect();
        assert_eq!(
            offsets,
            (0..each).collect::<Vec<_>>(),
            "partition {partition}: none again, none left out"
        );
    }
    assert!((0..4).all(|partition| diary.lanes_of(partition) > 6), "three times there and back");
    assert_eq!(ends, [each; 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t262_in_key_order_every_key_keeps_its_order_over_rebalances() {
    let (diary, each, ends) = comings_and_goings(Assignor::CooperativeSticky, Ordering::Key, 2).await;
    let entries = diary.0.lock().unwrap().entries.clone();
    let mut last: BTreeMap<(i32, Vec<u8>), i64> = BTreeMap::new();
    for entry in &entries {
        // Both members drain before they give up, so that nothing is even repeated.
        let before = last.insert((entry.partition, entry.key.clone()), entry.offset);
        assert!(before.is_none_or(|before| before < entry.offset), "{entry:?} after {before:?}");
    }
    assert_eq!(entries.len() as i64, each * 4);
    assert_eq!(ends, [each; 4]);
}
