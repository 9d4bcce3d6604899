//! Consumers on the embedded broker: self-kept positions, and groups that share, hand over, hold and lose partitions.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use tramline::broker::{Broker, BrokerConfig, BrokerHandle};
use tramline::client::{
    Admin, ClientConfig, CommitFailure, ConsumeError, Consumer, ConsumerBuilder, Event, Events, FetchError,
    NewTopic, OffsetAndMetadata, OffsetReset, Producer, ProducerConfig, ProducerRecord, StartOffset,
};
use tramline::wire::TopicPartition;

/// Longer than anything here takes; a hang fails the test instead of the suite.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stand {
    broker: BrokerHandle,
    _directory: tempfile::TempDir,
}

impl Stand {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = BrokerConfig::new().group_initial_rebalance_delay(Duration::from_millis(50));
        let broker =
            Broker::builder(directory.path()).listen("127.0.0.1:0").config(config).start().await.unwrap();
        Self { broker, _directory: directory }
    }

    async fn with_topic(name: &str, partitions: i32) -> Self {
        let stand = Self::start().await;
        Admin::new(stand.client()).create_topics([NewTopic::new(name, partitions)]).await.unwrap();
        stand
    }

    fn client(&self) -> ClientConfig {
        ClientConfig::new(self.broker.local_addr().to_string())
    }

    async fn produce(&self, topic: &str, partition: i32, values: std::ops::Range<i64>) {
        let producer = Producer::new(self.client(), ProducerConfig::new()).await.unwrap();
        let records = values.map(|n| ProducerRecord::to(topic).value(n.to_string())).collect();
        producer.send_batch(topic, partition, records).await.unwrap();
        producer.close().await.unwrap();
    }

    fn member(&self, group: &str) -> ConsumerBuilder {
        Consumer::builder(self.client())
            .group(group)
            .subscribe(["t"])
            .offset_reset(OffsetReset::Earliest)
            .session_timeout(Duration::from_secs(6))
            .heartbeat_interval(Duration::from_millis(200))
    }
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Waits for a change of the assignment, and carries it out: revocations are given up at once.
async fn assigned(events: &mut Events, owned: &mut BTreeSet<i32>) {
    match soon(events.next()).await.expect("the consumer lives") {
        Event::Assigned { partitions, .. } => owned.extend(partitions.iter().map(|tp| tp.partition)),
        Event::Revoked(revocation) => {
            for tp in revocation.partitions() {
                owned.remove(&tp.partition);
            }
        }
        Event::Lost { partitions, .. } => {
            for tp in partitions {
                owned.remove(&tp.partition);
            }
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_without_a_group_reads_seeks_and_reports_what_is_out_of_range() {
    let stand = Stand::with_topic("t", 2).await;
    stand.produce("t", 0, 0..1000).await;
    stand.produce("t", 1, 0..10).await;
    let consumer =
        Consumer::builder(stand.client()).assign([(tp(0), StartOffset::Earliest)]).build().await.unwrap();
    for expected in 0..1000 {
        let record = soon(consumer.recv()).await.unwrap();
        assert_eq!(record.offset(), expected);
        assert_eq!(record.value(), Some(expected.to_string().as_bytes()));
        assert_eq!(consumer.position(&tp(0)), Some(expected + 1));
    }
    assert_eq!(consumer.lag(&tp(0)), Some(0));
    consumer.seek(&tp(0), 500).unwrap();
    let fetched = soon(consumer.next_batch()).await.unwrap();
    assert_eq!((fetched.records[0].offset(), fetched.next_offset), (500, 1000));
    consumer.seek(&tp(0), 5000).unwrap();
    let error = soon(consumer.next_batch()).await.unwrap_err();
    assert!(
        matches!(error, ConsumeError::Partition(FetchError::OffsetOutOfRange { offset: 5000, .. })),
        "{error:?}"
    );
    consumer.seek_to(&tp(0), StartOffset::Latest).unwrap();
    let (next, ()) = tokio::join!(soon(consumer.recv()), stand.produce("t", 0, 1000..1001));
    assert_eq!(next.unwrap().offset(), 1000);
    let both = [tp(0), tp(1)];
    let ends = consumer.end_offsets(&both).await.unwrap();
    assert_eq!(ends, BTreeMap::from([(tp(0), 1001), (tp(1), 10)]));
    let starts = consumer.beginning_offsets(&both).await.unwrap();
    assert_eq!(starts, BTreeMap::from([(tp(0), 0), (tp(1), 0)]));
    soon(consumer.close()).await;
    assert!(matches!(consumer.recv().await, Err(ConsumeError::Closed)));
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_topic_is_read_without_naming_its_partitions() {
    let stand = Stand::with_topic("t", 3).await;
    for partition in 0..3 {
        stand.produce("t", partition, 0..100).await;
    }
    let consumer =
        Consumer::builder(stand.client()).assign_topic("t", StartOffset::Earliest).build().await.unwrap();
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
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_resumes_where_the_group_committed() {
    let stand = Stand::with_topic("t", 1).await;
    stand.produce("t", 0, 0..100).await;
    let first = stand.member("g").build().await.unwrap();
    for expected in 0..40 {
        let record = soon(first.recv()).await.unwrap();
        assert_eq!(record.offset(), expected);
        if expected == 29 {
            let offset = OffsetAndMetadata::after(&record).metadata("thirty");
            soon(first.commit([(tp(0), offset)])).await.unwrap();
        }
    }
    let committed = first.committed(&[tp(0)]).await.unwrap()[&tp(0)].clone().unwrap();
    assert_eq!((committed.offset, committed.metadata.as_str()), (30, "thirty"));
    let group = first.group_metadata().unwrap();
    assert!(group.generation >= 1 && !group.member_id.is_empty(), "{group:?}");
    soon(first.close()).await;
    let second = stand.member("g").build().await.unwrap();
    assert_eq!(soon(second.recv()).await.unwrap().offset(), 30);
    soon(second.close()).await;
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_member_takes_over_at_the_commit_made_while_the_revocation_was_held() {
    let stand = Stand::with_topic("t", 4).await;
    for partition in 0..4 {
        stand.produce("t", partition, 0..50).await;
    }
    let first = stand.member("g").build().await.unwrap();
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
    let second = stand.member("g").build().await.unwrap();
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
    stand.produce("t", moving[0].partition, 50..51).await;
    let record = soon(second.recv()).await.unwrap();
    assert_eq!((record.topic_partition(), record.offset()), (&moving[0], 50), "not from the beginning");
    let late = first.commit([(moving[0].clone(), OffsetAndMetadata::new(1))]).await.unwrap_err();
    assert_eq!(late.failed[&moving[0]], CommitFailure::NotOwned);
    drop((events, second_events));
    soon(second.close()).await;
    soon(first.close()).await;
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_come_back_when_the_other_member_leaves() {
    let stand = Stand::with_topic("t", 4).await;
    let first = stand.member("g").build().await.unwrap();
    let second = stand.member("g").build().await.unwrap();
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
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_holds_the_revocation_until_the_last_commit_is_made() {
    let stand = Stand::with_topic("t", 1).await;
    stand.produce("t", 0, 0..10).await;
    let consumer = stand.member("g").build().await.unwrap();
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
                    let offset = OffsetAndMetadata::new(consumer.position(&tp(0)).unwrap());
                    soon(consumer.commit([(tp(0), offset)])).await.unwrap();
                    revocation.acknowledge();
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    tokio::join!(closing, committing);
    let after = stand.member("g").build().await.unwrap();
    assert_eq!(after.committed(&[tp(0)]).await.unwrap()[&tp(0)].as_ref().unwrap().offset, 10);
    soon(after.close()).await;
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t253_a_program_that_stops_polling_loses_its_partitions_and_gets_them_back_when_it_polls() {
    let stand = Stand::with_topic("t", 1).await;
    stand.produce("t", 0, 0..10).await;
    let consumer = stand.member("g").max_poll_interval(Duration::from_millis(700)).build().await.unwrap();
    let mut events = consumer.events();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
    assert!(matches!(soon(events.next()).await, Some(Event::Assigned { .. })));
    let lost = soon(events.next()).await;
    assert!(matches!(&lost, Some(Event::Lost { partitions, .. }) if *partitions == [tp(0)]), "{lost:?}");
    let refused = consumer.commit([(tp(0), OffsetAndMetadata::new(1))]).await.unwrap_err();
    assert_eq!(refused.failed[&tp(0)], CommitFailure::NotOwned);
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0, "nothing was committed: from the beginning");
    drop(events);
    soon(consumer.close()).await;
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_records_counts_as_polling() {
    let stand = Stand::with_topic("t", 1).await;
    let consumer = stand.member("g").max_poll_interval(Duration::from_millis(300)).build().await.unwrap();
    let mut events = consumer.events();
    let mut records = pin!(consumer.stream());
    let record = poll_fn(|cx| tramline::client::Stream::poll_next(records.as_mut(), cx));
    let producing = async {
        // Four poll intervals with an idle topic, then a record.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        stand.produce("t", 0, 0..1).await;
    };
    let (record, ()) = tokio::join!(soon(record), producing);
    assert_eq!(record.unwrap().unwrap().offset(), 0);
    assert!(matches!(events.try_next(), Some(Event::Assigned { .. })));
    assert!(events.try_next().is_none(), "nothing was lost");
    drop(events);
    soon(consumer.close()).await;
    stand.broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_restart_is_survived_with_position_and_membership() {
    let directory = tempfile::tempdir().unwrap();
    let start = |port: u16| {
        let config = BrokerConfig::new().group_initial_rebalance_delay(Duration::from_millis(50));
        Broker::builder(directory.path()).listen(format!("127.0.0.1:{port}")).config(config).start()
    };
    let broker = start(0).await.unwrap();
    let port = broker.local_addr().port();
    let client = ClientConfig::new(broker.local_addr().to_string());
    Admin::new(client.clone()).create_topics([NewTopic::new("t", 1)]).await.unwrap();
    let producer = Producer::new(client.clone(), ProducerConfig::new()).await.unwrap();
    let send = |n: i64| {
        let record = ProducerRecord::to("t").value(n.to_string());
        async { producer.send(record).await.unwrap().await.unwrap() }
    };
    send(0).await;
    let builder = Consumer::builder(client).group("g").subscribe(["t"]).offset_reset(OffsetReset::Earliest);
    let consumer = builder.build().await.unwrap();
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 0);
    soon(consumer.commit([(tp(0), OffsetAndMetadata::new(1))])).await.unwrap();
    broker.abort().await;
    let broker = start(port).await.unwrap();
    soon(send(1)).await;
    assert_eq!(soon(consumer.recv()).await.unwrap().offset(), 1);
    soon(consumer.commit([(tp(0), OffsetAndMetadata::new(2))])).await.unwrap();
    soon(consumer.close()).await;
    producer.close().await.unwrap();
    broker.shutdown().await.unwrap();
}
