//! Consumers on the broker: self-kept positions, and groups that share, hand over, hold and lose partitions.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use common::{Stand, assigned, soon, unique};
use tramline::broker::BrokerConfig;
use tramline::client::{
    CommitFailure, ConsumeError, Consumer, ConsumerBuilder, Event, FetchError, OffsetAndMetadata,
    ProducerConfig, ProducerRecord, StartOffset,
};
use tramline::wire::TopicPartition;

/// A group of its own over a topic of its own.
struct Group {
    stand: Stand,
    topic: String,
    name: String,
}

impl Group {
    async fn over(partitions: i32) -> Self {
        let stand = Stand::start().await;
        Self { topic: stand.topic(partitions).await, name: unique("group"), stand }
    }

    async fn produce(&self, partition: i32, values: Range<i64>) {
        self.stand.produce(&self.topic, partition, values).await;
    }

    fn member(&self) -> ConsumerBuilder {
        self.stand.member(&self.topic, &self.name)
    }

    fn tp(&self, partition: i32) -> TopicPartition {
        TopicPartition::new(&*self.topic, partition)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_without_a_group_reads_seeks_and_reports_what_is_out_of_range() {
    let group = Group::over(2).await;
    group.produce(0, 0..1000).await;
    group.produce(1, 0..10).await;
    let consumer = Consumer::builder(group.stand.client())
        .assign([(group.tp(0), StartOffset::Earliest)])
        .build()
        .await
        .unwrap();
    for expected in 0..1000 {
        let record = soon(consumer.recv()).await.unwrap();
        assert_eq!(record.offset(), expected);
        assert_eq!(record.value(), Some(expected.to_string().as_bytes()));
        assert_eq!(consumer.position(&group.tp(0)), Some(expected + 1));
    }
    assert_eq!(consumer.lag(&group.tp(0)), Some(0));
    consumer.seek(&group.tp(0), 500).unwrap();
    let fetched = soon(consumer.next_batch()).await.unwrap();
    assert_eq!((fetched.records[0].offset(), fetched.next_offset), (500, 1000));
    consumer.seek(&group.tp(0), 5000).unwrap();
    let error = soon(consumer.next_batch()).await.unwrap_err();
    assert!(
        matches!(error, ConsumeError::Partition(FetchError::OffsetOutOfRange { offset: 5000, .. })),
        "{error:?}"
    );
    consumer.seek_to(&group.tp(0), StartOffset::Latest).unwrap();
    let (next, ()) = tokio::join!(soon(consumer.recv()), group.produce(0, 1000..1001));
    assert_eq!(next.unwrap().offset(), 1000);
    let both = [group.tp(0), group.tp(1)];
    let ends = consumer.end_offsets(&both).await.unwrap();
    assert_eq!(ends, BTreeMap::from([(group.tp(0), 1001), (group.tp(1), 10)]));
    let starts = consumer.beginning_offsets(&both).await.unwrap();
    assert_eq!(starts, BTreeMap::from([(group.tp(0), 0), (group.tp(1), 0)]));
    soon(consumer.close()).await;
    assert!(matches!(consumer.recv().await, Err(ConsumeError::Closed)));
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_topic_is_read_without_naming_its_partitions() {
    let group = Group::over(3).await;
    for partition in 0..3 {
        group.produce(partition, 0..100).await;
    }
    let consumer = Consumer::builder(group.stand.client())
        .assign_topic(&*group.topic, StartOffset::Earliest)
        .build()
        .await
        .unwrap();
    let mut next = BTreeMap::from([(0, 0), (1, 0), (2, 0)]);
    while next.values().any(|next| *next < 100) {
        let fetched = soon(consumer.next_batch()).await.unwrap();
        let next = next.get_mut(&fetched.topic_partition.partition).unwrap();
        for record in &fetched.records {
            assert_eq!(record.offset(), *next);
            *next += 1;
        }
    }
    soon(consumer.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_resumes_where_the_group_committed() {
    let group = Group::over(1).await;
    group.produce(0, 0..100).await;
    let first = group.member().build().await.unwrap();
    for expected in 0..40 {
        let record = soon(first.recv()).await.unwrap();
        assert_eq!(record.offset(), expected);
        if expected == 29 {
            let offset = OffsetAndMetadata::after(&record).metadata("thirty");
            soon(first.commit([(group.tp(0), offset)])).await.unwrap();
        }
    }
    let committed = first.committed(&[group.tp(0)]).await.unwrap()[&group.tp(0)].clone().unwrap();
    assert_eq!((committed.offset, committed.metadata.as_str()), (30, "thirty"));
    let metadata = first.group_metadata().unwrap();
    assert!(metadata.generation >= 1 && !metadata.member_id.is_empty(), "{metadata:?}");
    soon(first.close()).await;
    let second = group.member().build().await.unwrap();
    assert_eq!(soon(second.recv()).await.unwrap().offset(), 30);
    soon(second.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_member_takes_over_at_the_commit_made_while_the_revocation_was_held() {
    let group = Group::over(4).await;
    for partition in 0..4 {
        group.produce(partition, 0..50).await;
    }
    let first = group.member().build().await.unwrap();
    let mut events = first.events();
    let mut owned = BTreeSet::new();
    while owned.len() < 4 {
        assigned(&mut events, &mut owned).await;
    }
    let mut handed: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    while handed.values().sum::<i64>() < 200 {
        let fetched = soon(first.next_batch()).await.unwrap();
        handed.insert(fetched.topic_partition, fetched.next_offset);
    }
    let second = group.member().build().await.unwrap();
    let mut second_events = second.events();
    let Some(Event::Revoked(revocation)) = soon(events.next()).await else { panic!("no revocation") };
    assert_eq!(revocation.partitions().len(), 2, "only what moves is revoked");
    let moving = revocation.partitions().to_vec();
    assert_eq!(first.assignment().len(), 2);
    assert_eq!(first.position(&moving[0]), Some(50), "the position is readable while it is held");
    // Held open over several heartbeats: the second member must not get the partitions meanwhile.
    let held = tokio::time::timeout(Duration::from_millis(1500), async {
        loop {
            let mut owned = BTreeSet::new();
            assigned(&mut second_events, &mut owned).await;
            assert!(owned.is_empty(), "{owned:?} moved before it was released");
        }
    });
    assert!(held.await.is_err());
    let offsets = moving.iter().map(|tp| (tp.clone(), OffsetAndMetadata::new(handed[tp]).metadata("moved")));
    soon(first.commit(offsets)).await.unwrap();
    revocation.acknowledge();
    let mut owned = BTreeSet::new();
    while owned.len() < 2 {
        assigned(&mut second_events, &mut owned).await;
    }
    assert_eq!(owned, moving.iter().map(|tp| tp.partition).collect());
    group.produce(moving[0].partition, 50..51).await;
    let record = soon(second.recv()).await.unwrap();
    assert_eq!((record.topic_partition(), record.offset()), (&moving[0], 50), "not from the beginning");
    let late = first.commit([(moving[0].clone(), OffsetAndMetadata::new(1))]).await.unwrap_err();
    assert_eq!(late.failed[&moving[0]], CommitFailure::NotOwned);
    drop((events, second_events));
    soon(second.close()).await;
    soon(first.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_come_back_when_the_other_member_leaves() {
    let group = Group::over(4).await;
    let first = group.member().build().await.unwrap();
    let second = group.member().build().await.unwrap();
    let (mut first_events, mut second_events) = (first.events(), second.events());
    let (mut one, mut two) = (BTreeSet::new(), BTreeSet::new());
    while (one.len(), two.len()) != (2, 2) {
        tokio::select! {
            () = assigned(&mut first_events, &mut one) => {}
            () = assigned(&mut second_events, &mut two) => {}
        }
    }
    assert!(one.is_disjoint(&two));
    drop(second_events);
    soon(second.close()).await;
    while one.len() < 4 {
        assigned(&mut first_events, &mut one).await;
    }
    drop(first_events);
    soon(first.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_holds_the_revocation_until_the_last_commit_is_made() {
    let group = Group::over(1).await;
    group.produce(0, 0..10).await;
    let consumer = group.member().build().await.unwrap();
    let mut events = consumer.events();
    for _ in 0..10 {
        soon(consumer.recv()).await.unwrap();
    }
    let closing = async {
        soon(consumer.close()).await;
    };
    let committing = async {
        loop {
            match soon(events.next()).await {
                Some(Event::Revoked(revocation)) => {
                    let offset = OffsetAndMetadata::new(consumer.position(&group.tp(0)).unwrap());
                    soon(consumer.commit([(group.tp(0), offset)])).await.unwrap();
                    revocation.acknowledge();
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    tokio::join!(closing, committing);
    let after = group.member().build().await.unwrap();
    assert_eq!(after.committed(&[group.tp(0)]).await.unwrap()[&group.tp(0)].as_ref().unwrap().offset, 10);
    soon(after.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t253_b067_a_program_that_stops_polling_loses_its_partitions_and_gets_them_back_when_it_polls() {
    let group = Group::over(1).await;
    group.produce(0, 0..10).await;
    let consumer = group.member().max_poll_interval(Duration::from_millis(700)).build().await.unwrap();
    let mut events = consumer.events();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
    assert!(matches!(soon(events.next()).await, Some(Event::Assigned { .. })));
    let lost = soon(events.next()).await;
    assert!(
        matches!(&lost, Some(Event::Lost { partitions, .. }) if *partitions == [group.tp(0)]),
        "{lost:?}"
    );
    let refused = consumer.commit([(group.tp(0), OffsetAndMetadata::new(1))]).await.unwrap_err();
    assert_eq!(refused.failed[&group.tp(0)], CommitFailure::NotOwned);
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0, "nothing was committed: from the beginning");
    drop(events);
    soon(consumer.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_records_counts_as_polling() {
    let group = Group::over(1).await;
    let consumer = group.member().max_poll_interval(Duration::from_millis(300)).build().await.unwrap();
    let mut events = consumer.events();
    let mut records = pin!(consumer.stream());
    let record = poll_fn(|cx| tramline::client::Stream::poll_next(records.as_mut(), cx));
    let producing = async {
        // Four poll intervals with an idle topic, then a record.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        group.produce(0, 0..1).await;
    };
    let (record, ()) = tokio::join!(soon(record), producing);
    assert_eq!(record.unwrap().unwrap().offset(), 0);
    assert!(matches!(events.try_next(), Some(Event::Assigned { .. })));
    assert!(events.try_next().is_none(), "nothing was lost");
    drop(events);
    soon(consumer.close()).await;
    group.stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_restart_is_survived_with_position_and_membership() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    let mut group = Group { topic: stand.topic(1).await, name: unique("group"), stand };
    let producer = group.stand.producer(ProducerConfig::new()).await;
    let send = |n: i64| {
        let record = ProducerRecord::to(&*group.topic).value(n.to_string());
        let producer = &producer;
        async move { producer.send(record).await.unwrap().await.unwrap() }
    };
    send(0).await;
    let consumer = group.member().build().await.unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
    soon(consumer.commit([(group.tp(0), OffsetAndMetadata::new(1))])).await.unwrap();
    group.stand.restart(false).await;
    soon(send(1)).await;
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 1);
    soon(consumer.commit([(group.tp(0), OffsetAndMetadata::new(2))])).await.unwrap();
    soon(consumer.close()).await;
    producer.close().await.unwrap();
    group.stand.close().await;
}
