//! Members of a group on the broker: death, handover, static names, restarts, growing topics, other assignors.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeSet;
use std::sync::mpsc as blocking;
use std::time::Duration;

use common::{PATIENCE, Stand, assigned, soon, tp, unique};
use tramline::broker::BrokerConfig;
use tramline::client::{Assignor, CommitFailure, Consumer, Event, Events, OffsetAndMetadata};

/// Waits until the consumer owns this many partitions.
async fn owns(events: &mut Events, owned: &mut BTreeSet<i32>, count: usize) {
    while owned.len() != count {
        assigned(events, owned).await;
    }
}

/// Waits until two members own this many partitions each, serving the events of both.
async fn share(one: (&mut Events, &mut BTreeSet<i32>), two: (&mut Events, &mut BTreeSet<i32>), each: usize) {
    while (one.1.len(), two.1.len()) != (each, each) {
        tokio::select! {
            () = assigned(one.0, one.1) => {}
            () = assigned(two.0, two.1) => {}
        }
    }
    assert!(one.1.is_disjoint(two.1), "{:?} {:?}", one.1, two.1);
}

/// A member on a runtime of its own that can be frozen, heartbeats and all, as a stopped process is.
fn frozen_member(
    stand: &Stand,
    topic: &str,
    group: &str,
) -> (std::thread::JoinHandle<()>, blocking::Receiver<()>, blocking::Sender<()>) {
    let builder = stand.member(topic, group).session_timeout(Duration::from_secs(1));
    let topic = topic.to_owned();
    let (ready, frozen) = blocking::channel();
    let (thaw, thawed) = blocking::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let consumer = builder.build().await.unwrap();
            let mut events = consumer.events();
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
            soon(consumer.commit([(tp(&topic, 0), OffsetAndMetadata::new(1))])).await.unwrap();
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 1);
            assert!(matches!(soon(events.next()).await, Some(Event::Assigned { .. })));
            // The only thread of the runtime waits here: nothing of this member goes on.
            ready.send(()).unwrap();
            thawed.recv_timeout(PATIENCE).unwrap();
            let lost = soon(events.next()).await;
            assert!(
                matches!(&lost, Some(Event::Lost { partitions, .. }) if *partitions == [tp(&topic, 0)]),
                "{lost:?}"
            );
            let late = consumer.commit([(tp(&topic, 0), OffsetAndMetadata::new(2))]).await.unwrap_err();
            assert_eq!(late.failed[&tp(&topic, 0)], CommitFailure::NotOwned);
            drop(events);
            soon(consumer.close()).await;
        });
    });
    (thread, frozen, thaw)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t252_a_member_that_stops_living_loses_its_partitions_and_hears_of_it_when_it_wakes() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let (thread, frozen, thaw) = frozen_member(&stand, &topic, &group);
    tokio::task::spawn_blocking(move || frozen.recv_timeout(PATIENCE).unwrap()).await.unwrap();
    let heir = stand.member(&topic, &group).build().await.unwrap();
    let record = soon(heir.recv()).await.unwrap();
    assert_eq!(record.offset(), 1, "what was read and not committed comes again");
    thaw.send(()).unwrap();
    tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    soon(heir.commit([(tp(&topic, 0), OffsetAndMetadata::after(&record))])).await.unwrap();
    let committed = stand.admin().group_offsets(&*group).await.unwrap();
    assert_eq!(committed[&tp(&topic, 0)].offset, 2);
    soon(heir.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_hands_over_at_once_and_not_after_a_session_timeout() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let session = PATIENCE * 10;
    let first = stand.member(&topic, &group).session_timeout(session).build().await.unwrap();
    let record = soon(first.recv()).await.unwrap();
    soon(first.commit([(tp(&topic, 0), OffsetAndMetadata::after(&record))])).await.unwrap();
    soon(first.close()).await;
    let second = stand.member(&topic, &group).session_timeout(session).build().await.unwrap();
    assert_eq!(soon(second.recv()).await.unwrap().offset(), 1);
    let members = soon(stand.admin().describe_group(&*group)).await.unwrap().members;
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].assignment, [tp(&topic, 0), tp(&topic, 1)]);
    soon(second.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t254_a_static_member_comes_back_to_its_partitions_without_a_rebalance() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(4).await, unique("group"));
    let member = async |name: &str| stand.member(&topic, &group).instance_id(name).build().await.unwrap();
    let (one, two) = (member("one").await, member("two").await);
    let (mut one_events, mut two_events) = (one.events(), two.events());
    let (mut ones, mut twos) = (BTreeSet::new(), BTreeSet::new());
    share((&mut one_events, &mut ones), (&mut two_events, &mut twos), 2).await;
    let generation = two.group_metadata().unwrap().generation;
    let (mut one, mut one_events) = (one, one_events);
    for _ in 0..3 {
        drop(one_events);
        let old = one.group_metadata().unwrap().member_id;
        soon(one.close()).await;
        one = member("one").await;
        one_events = one.events();
        let mut owned = BTreeSet::new();
        owns(&mut one_events, &mut owned, 2).await;
        assert_eq!(owned, ones, "the same partitions");
        let now = one.group_metadata().unwrap();
        assert_ne!(now.member_id, old, "the old incarnation is fenced");
        assert_eq!(now.generation, generation);
    }
    assert!(two_events.try_next().is_none(), "nobody else was bothered");
    drop((one_events, two_events));
    soon(one.close()).await;
    soon(two.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t255_a_broker_restart_does_not_rebalance_a_group() {
    for in_order in [true, false] {
        let mut stand = Stand::embedded(BrokerConfig::new()).await;
        let (topic, group) = (stand.topic(4).await, unique("group"));
        for partition in 0..4 {
            stand.produce(&topic, partition, 0..5).await;
        }
        let one = stand.member(&topic, &group).build().await.unwrap();
        let two = stand.member(&topic, &group).build().await.unwrap();
        let (mut one_events, mut two_events) = (one.events(), two.events());
        let (mut ones, mut twos) = (BTreeSet::new(), BTreeSet::new());
        share((&mut one_events, &mut ones), (&mut two_events, &mut twos), 2).await;
        let before = one.group_metadata().unwrap();
        stand.restart(in_order).await;
        // A commit and an answered heartbeat of each prove that the coordinator knows them again.
        for (member, owned) in [(&one, &ones), (&two, &twos)] {
            let offsets = owned.iter().map(|&partition| (tp(&topic, partition), OffsetAndMetadata::new(3)));
            soon(member.commit(offsets)).await.unwrap();
        }
        assert_eq!(one.group_metadata().unwrap(), before);
        assert!(one_events.try_next().is_none() && two_events.try_next().is_none());
        let committed = soon(stand.admin().group_offsets(&*group)).await.unwrap();
        assert!((0..4).all(|partition| committed[&tp(&topic, partition)].offset == 3), "{committed:?}");
        drop((one_events, two_events));
        soon(one.close()).await;
        soon(two.close()).await;
        stand.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_a_topic_gains_are_assigned_and_read_from_their_beginning() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    let client = stand.client().metadata_max_age(Duration::from_millis(100));
    let builder = Consumer::builder(client).group(&*group).subscribe([&*topic]);
    let reset = tramline::client::OffsetReset::Earliest;
    let builder = builder.offset_reset(reset).heartbeat_interval(Duration::from_millis(100));
    let consumer = builder.fetch_max_wait(Duration::from_millis(100)).build().await.unwrap();
    let mut events = consumer.events();
    let mut owned = BTreeSet::new();
    owns(&mut events, &mut owned, 1).await;
    soon(stand.admin().create_partitions(&*topic, 3)).await.unwrap();
    stand.produce(&topic, 2, 0..1).await;
    owns(&mut events, &mut owned, 3).await;
    let record = soon(consumer.recv()).await.unwrap();
    assert_eq!((record.partition(), record.offset()), (2, 0));
    drop(events);
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eager_assignors_share_too_and_everything_is_revoked_before_it_is_dealt_again() {
    for assignor in [Assignor::Range, Assignor::RoundRobin] {
        let stand = Stand::start().await;
        let (topic, group) = (stand.topic(4).await, unique("group"));
        let member = async || stand.member(&topic, &group).assignors([assignor]).build().await.unwrap();
        let one = member().await;
        let mut one_events = one.events();
        let mut ones = BTreeSet::new();
        owns(&mut one_events, &mut ones, 4).await;
        let two = member().await;
        let mut two_events = two.events();
        let mut twos = BTreeSet::new();
        let Some(Event::Revoked(revoked)) = soon(one_events.next()).await else { panic!("no revocation") };
        assert_eq!(revoked.partitions().len(), 4, "{assignor:?}");
        ones.clear();
        revoked.acknowledge();
        share((&mut one_events, &mut ones), (&mut two_events, &mut twos), 2).await;
        drop((one_events, two_events));
        soon(one.close()).await;
        soon(two.close()).await;
        stand.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_beside_an_offset_comes_back_and_unicode_with_it() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..1).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    soon(consumer.recv()).await.unwrap();
    for text in ["", "where we were", "\u{1f68b} \u{e9}"] {
        let offset = OffsetAndMetadata::new(1).metadata(text).leader_epoch(Some(0));
        soon(consumer.commit([(tp(&topic, 0), offset)])).await.unwrap();
        let committed = soon(consumer.committed(&[tp(&topic, 0)])).await.unwrap();
        let committed = committed[&tp(&topic, 0)].as_ref().unwrap();
        assert_eq!((committed.metadata.as_str(), committed.leader_epoch), (text, Some(0)));
    }
    soon(consumer.close()).await;
    stand.close().await;
}
