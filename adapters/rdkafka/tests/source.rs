//! rdkafka's consumer as a source: what is in a record, pausing and moving, losses, commits, the poll interval, the end.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::time::{Duration, Instant};

use common::{Probe, Running, Stand, soon, tp, unique, until};
use rdkafka::Offset;
use tramline::client::{NewTopic, Producer, ProducerConfig, ProducerRecord};
use tramline::processor::{
    CommitErrorKind, CommitOffset, CommitPolicy, ConfigErrorKind, Ordering, PartitionedExt, Source,
    SourceBatch, SourceEvent, SourceEvents, StopPolicy,
};
use tramline::wire::Record;
use tramline::wire::batch::TimestampType;
use tramline_rdkafka::{BuildError, RdkafkaSource, SourceError};

fn source(stand: &Stand, topic: &str, group: &str) -> RdkafkaSource {
    RdkafkaSource::subscribe(&stand.rdkafka(group), &[topic]).unwrap()
}

/// A source that was assigned its partitions.
async fn assigned(stand: &Stand, topic: &str, group: &str) -> (RdkafkaSource, i32) {
    let source = source(stand, topic, group);
    let mut events = source.events();
    let Some(SourceEvent::Assigned { generation, .. }) = soon(events.next()).await else {
        panic!("assigned first")
    };
    (source, generation)
}

async fn poll(source: &RdkafkaSource) -> SourceBatch {
    soon(source.poll()).await.unwrap().unwrap()
}

fn commit(topic: &str, partition: i32, generation: i32, offset: i64) -> CommitOffset {
    let topic_partition = tp(topic, partition);
    CommitOffset { topic_partition, generation, offset, leader_epoch: None, metadata: String::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_in_a_record_comes_through() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let stamped = unique("stamped");
    let by_log = NewTopic::new(&stamped, 1).config("message.timestamp.type", "LogAppendTime");
    let admin = tramline::client::Admin::new(stand.client());
    admin.create_topics([by_log]).await.unwrap()[&*stamped].as_ref().unwrap();
    let producer = Producer::new(stand.client(), ProducerConfig::new()).await.unwrap();
    let plain = || ProducerRecord::to(&topic).timestamp(1234);
    let records = vec![
        plain().key("k").value("v").header("a", "1").header("a", "").null_header("b"),
        plain().value(""),
        plain().key(""),
    ];
    soon(producer.send_batch(&topic, 0, records)).await.unwrap();
    soon(producer.send_batch(&stamped, 0, vec![ProducerRecord::to(&stamped).value("x").timestamp(1)]))
        .await
        .unwrap();
    producer.close().await.unwrap();

    let config = stand.rdkafka(&unique("group"));
    let both = [(tp(&topic, 0), Offset::Beginning), (tp(&stamped, 0), Offset::Beginning)];
    let source = RdkafkaSource::assign(&config, both).unwrap();
    let mut records: Vec<Record> = Vec::new();
    while records.len() < 4 {
        records.extend(poll(&source).await.records);
    }
    records.sort_by_key(|record| (record.topic() == stamped, record.offset()));
    let headers: Vec<_> =
        records[0].headers().map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))).collect();
    let expected = [("a", Some(&b"1"[..])), ("a", Some(b"")), ("b", None)];
    let expected: Vec<_> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec))).collect();
    assert_eq!(headers, expected);
    let shape =
        |record: &Record| (record.offset(), record.key().map(<[u8]>::len), record.value().map(<[u8]>::len));
    assert_eq!(shape(&records[0]), (0, Some(1), Some(1)));
    assert_eq!(shape(&records[1]), (1, None, Some(0)), "null and empty are two things");
    assert_eq!(shape(&records[2]), (2, Some(0), None));
    assert_eq!((records[0].timestamp(), records[0].timestamp_type()), (1234, TimestampType::CreateTime));
    assert_eq!(records[3].timestamp_type(), TimestampType::LogAppendTime);
    assert!(records[3].timestamp() > 1234, "the broker's clock");
    soon(source.close()).await.unwrap();
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_and_loses_nothing_and_a_seek_is_not_lost_in_one() {
    let stand = Stand::start().await;
    let topic = stand.topic(2).await;
    for partition in 0..2 {
        stand.produce(&topic, partition, 0..1200).await;
    }
    let (source, _) = assigned(&stand, &topic, &unique("group")).await;
    let source = source.read_ahead(700);
    let mut next = [0, 0];
    let mut take = |batch: SourceBatch| {
        let at = usize::try_from(batch.topic_partition.partition).unwrap();
        assert_eq!((batch.first_offset, batch.records[0].offset()), (next[at], next[at]));
        next[at] = batch.next_offset;
        next
    };
    let mut at = take(poll(&source).await);
    while at[0] == 0 {
        at = take(poll(&source).await);
    }
    source.pause(&tp(&topic, 0));
    source.pause(&tp(&topic, 0));
    while at[1] < 1200 {
        let before = at[0];
        at = take(poll(&source).await);
        assert_eq!(at[0], before, "nothing of a paused partition");
    }
    // Resuming what is not paused moves nothing.
    source.resume(&tp(&topic, 1));
    source.resume(&tp(&topic, 0));
    while at[0] < 1200 {
        at = take(poll(&source).await);
    }
    source.pause(&tp(&topic, 0));
    source.seek(&tp(&topic, 0), 10);
    source.resume(&tp(&topic, 0));
    assert_eq!(poll(&source).await.first_offset, 10);
    source.seek(&tp(&topic, 0), 1199);
    let batch = poll(&source).await;
    assert_eq!((batch.first_offset, batch.next_offset), (1199, 1200), "what was read ahead is gone");
    soon(source.close()).await.unwrap();
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_fenced_by_assignment_and_told_per_partition() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    let (source, generation) = assigned(&stand, &topic, &group).await;
    soon(source.commit(vec![commit(&topic, 0, generation, 5), commit(&topic, 1, generation, 6)]))
        .await
        .unwrap();
    let old = source.commit(vec![commit(&topic, 0, generation - 1, 1), commit(&topic, 1, generation, 7)]);
    let error = soon(old).await.unwrap_err();
    assert_eq!((error.kind, &*error.partitions), (CommitErrorKind::Fenced, &[tp(&topic, 0)][..]));
    // A commit nobody waits for is made all the same, before the next one.
    drop(tokio::time::timeout(Duration::ZERO, source.commit(vec![commit(&topic, 0, generation, 8)])).await);
    soon(source.commit(vec![commit(&topic, 0, generation, 9)])).await.unwrap();
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(9));
    assert_eq!(stand.committed(&topic, &group, 1).await, Some(7));
    let metadata = source.group_metadata().unwrap();
    assert_eq!((metadata.group_id.as_str(), metadata.generation), (&*group, -1));
    let handle = source.group_handle();
    assert!(handle.metadata().is_some());
    soon(source.close()).await.unwrap();
    assert!(handle.metadata().is_none());
    stand.close().await;
}

/// The offset of the first record after an assignment that begins there.
async fn first_from(config: &rdkafka::ClientConfig, topic: &str, from: Offset) -> Result<i64, SourceError> {
    let source = RdkafkaSource::assign(config, [(tp(topic, 0), from)]).unwrap();
    let first = soon(source.poll()).await.map(|batch| batch.unwrap().records[0].offset());
    if first.is_err() {
        let again = soon(source.poll()).await;
        assert!(again.is_err(), "a run after the failed one does not go on behind it");
    }
    soon(source.close()).await.unwrap();
    first
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_begins_at_the_commit_or_where_the_settings_say() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..20).await;
    let mut config = stand.rdkafka(&group);
    assert_eq!(first_from(&config, &topic, Offset::Stored).await.unwrap(), 0, "earliest");
    assert_eq!(first_from(&config, &topic, Offset::Beginning).await.unwrap(), 0);
    assert_eq!(first_from(&config, &topic, Offset::Offset(7)).await.unwrap(), 7);
    assert_eq!(first_from(&config, &topic, Offset::OffsetTail(3)).await.unwrap(), 17);
    assert_eq!(first_from(&config, &topic, Offset::OffsetTail(100)).await.unwrap(), 0);
    config.set("auto.offset.reset", "error");
    let error = first_from(&config, &topic, Offset::Stored).await.unwrap_err();
    assert!(matches!(error, SourceError::Assign(_)), "{error}");
    // Nothing is set: librdkafka begins at the end then.
    config.remove("auto.offset.reset");
    let wanted = [(tp(&topic, 0), Offset::Stored)];
    let source = RdkafkaSource::assign(&config, wanted).unwrap();
    let mut events = source.events();
    let Some(SourceEvent::Assigned { generation, .. }) = soon(events.next()).await else {
        panic!("assigned first")
    };
    stand.produce(&topic, 0, 20..21).await;
    assert_eq!(poll(&source).await.first_offset, 20);
    soon(source.commit(vec![commit(&topic, 0, generation, 21)])).await.unwrap();
    drop(events);
    soon(source.close()).await.unwrap();
    stand.produce(&topic, 0, 21..23).await;
    assert_eq!(first_from(&config, &topic, Offset::Stored).await.unwrap(), 21, "the commit");
    // What was committed is not there (any more): said, instead of going on elsewhere.
    let error = first_from(&config, &topic, Offset::Offset(1000)).await.unwrap_err();
    assert!(matches!(error, SourceError::Partition { .. }), "{error}");
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_never_moves_back_within_an_assignment() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let (first, generation) = assigned(&stand, &topic, &group).await;
    soon(first.commit(vec![commit(&topic, 0, generation, 6)])).await.unwrap();
    let error = soon(first.commit(vec![commit(&topic, 0, generation, 5)])).await.unwrap_err();
    assert_eq!(error.kind, CommitErrorKind::Fenced);
    soon(first.commit(vec![commit(&topic, 0, generation, 6)])).await.unwrap();
    soon(first.close()).await.unwrap();
    // An assignment begins at the commit, and none of it goes below.
    let (second, generation) = assigned(&stand, &topic, &group).await;
    let error = soon(second.commit(vec![commit(&topic, 0, generation, 1)])).await.unwrap_err();
    assert_eq!(error.kind, CommitErrorKind::Fenced);
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(6));
    // Unless somebody went back.
    second.seek(&tp(&topic, 0), 2);
    assert_eq!(poll(&second).await.first_offset, 2);
    soon(second.commit(vec![commit(&topic, 0, generation, 3)])).await.unwrap();
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(3));
    soon(second.close()).await.unwrap();
    stand.close().await;
}

/// One record waits while those behind it are done: a restart runs only the one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_above_the_commit_is_not_done_again_after_a_restart() {
    const SHORT: Duration = Duration::from_secs(1);
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..20).await;
    let probe = Probe::default();
    drop(probe.hold(0, 3));
    let often = |run: tramline::processor::PartitionedBuilder<RdkafkaSource>| {
        let run = run.ordering(Ordering::Unordered).max_concurrent_handlers(4);
        run.commit(CommitPolicy::Periodic(Duration::from_millis(20))).stop(StopPolicy::Cancel, SHORT)
    };
    let run = Running::start(source(&stand, &topic, &group), often, probe.handler());
    until(|| probe.done(0).len() == 19).await;
    let (_, stopped) = run.end().await;
    soon(stopped.close()).await.unwrap();
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(3));
    let again = Probe::default();
    stand.produce(&topic, 0, 20..21).await;
    let run = Running::start(source(&stand, &topic, &group), often, again.handler());
    until(|| again.done(0).contains(&20)).await;
    let (_, source) = run.stop().await;
    assert_eq!(again.done(0), [3, 20]);
    soon(source.close()).await.unwrap();
    stand.close().await;
}

/// The broker is away for longer than the session: the lane is cancelled, nothing of it is committed, and the member comes
/// back by itself and begins at the last commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_partition_is_cancelled_never_committed_and_read_again_after_the_member_came_back() {
    let mut stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let mut config = stand.rdkafka(&group);
    config.set("session.timeout.ms", "1000").set("max.poll.interval.ms", "60000");
    let source = RdkafkaSource::subscribe(&config, &[&topic]).unwrap();
    let probe = Probe::default();
    let gate = probe.hold(0, 4);
    let run = Running::start(source, |run| run, probe.handler());
    until(|| probe.begun(0).len() == 5).await;
    stand.stop().await;
    until(|| probe.dropped() == [(0, 4)]).await;
    until(|| run.lanes().is_empty()).await;
    gate.cancel();
    stand.start_again().await;
    until(|| probe.done(0).len() == 14).await;
    assert_eq!(probe.done(0)[4..], (0..10).collect::<Vec<_>>(), "nothing of the lost lane was committed");
    let (_, source) = run.stop().await;
    soon(source.close()).await.unwrap();
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(10));
    stand.close().await;
}

/// A handler takes several poll intervals: the run goes on polling, so the partition stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handlers_do_not_exceed_the_poll_interval() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..3).await;
    let mut config = stand.rdkafka(&group);
    config.set("session.timeout.ms", "1000").set("max.poll.interval.ms", "1000");
    let probe = Probe::default();
    let gate = probe.hold(0, 1);
    let run =
        Running::start(RdkafkaSource::subscribe(&config, &[&topic]).unwrap(), |run| run, probe.handler());
    until(|| probe.begun(0).len() == 2).await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    gate.cancel();
    until(|| probe.done(0).len() == 3).await;
    assert_eq!((probe.begun(0), probe.dropped()), (vec![0, 1, 2], vec![]), "nothing was lost");
    let (report, source) = run.stop().await;
    assert_eq!(report.lanes_started, 1);
    soon(source.close()).await.unwrap();
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_left_and_came_back_is_readable_and_begins_at_the_commit() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let (first, generation) = assigned(&stand, &topic, &group).await;
    assert_eq!(poll(&first).await.first_offset, 0);
    soon(first.commit(vec![commit(&topic, 0, generation, 3)])).await.unwrap();
    // One partition, two members: it moves to one of them, and comes back when that one leaves.
    let mut events = first.events();
    assert!(matches!(soon(events.next()).await, Some(SourceEvent::Assigned { .. })));
    let second = source(&stand, &topic, &group);
    let polling = async {
        loop {
            soon(second.poll()).await.unwrap();
        }
    };
    let revoked = async {
        loop {
            if let Some(SourceEvent::Revoked { partitions, .. }) = events.next().await {
                assert_eq!(partitions, [tp(&topic, 0)]);
                return;
            }
        }
    };
    tokio::select! {
        () = polling => {}
        () = revoked => {}
    }
    soon(second.close()).await.unwrap();
    loop {
        match soon(events.next()).await.unwrap() {
            SourceEvent::Assigned { generation: new, partitions } if !partitions.is_empty() => {
                assert!(new > generation);
                break;
            }
            SourceEvent::Assigned { .. } | SourceEvent::Revoked { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(poll(&first).await.first_offset, 3);
    drop(events);
    soon(first.close()).await.unwrap();
    stand.close().await;
}

/// The end never hangs: with a revocation that nobody releases, without a broker, and by being dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_does_not_hang() {
    let mut stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    let (first, _) = assigned(&stand, &topic, &group).await;
    let mut events = first.events();
    assert!(matches!(soon(events.next()).await, Some(SourceEvent::Assigned { .. })));
    let second = source(&stand, &topic, &group);
    let mut held = None;
    while held.is_none() {
        tokio::select! {
            event = events.next() => held = Some(event.unwrap()),
            _ = second.poll() => {}
        }
    }
    let begun = Instant::now();
    soon(first.close()).await.unwrap();
    assert!(soon(events.next()).await.is_none(), "the events end with it");
    drop(held);
    drop(second);
    let alone = source(&stand, &topic, &unique("group"));
    drop(tokio::time::timeout(Duration::from_millis(300), alone.poll()).await);
    stand.stop().await;
    println!("closed with a held revocation in {:?}", begun.elapsed());
    let begun = Instant::now();
    println!("closed without a broker: {:?} in {:?}", soon(alone.close()).await, begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t020_t021_t022_t023_the_guard_follows_the_whole_table_on_rdkafka() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    let policies =
        [CommitPolicy::UserManaged, CommitPolicy::OnRevoke, CommitPolicy::Periodic(Duration::from_secs(1))];
    for (auto, store) in [(true, true), (true, false), (false, true), (false, false)] {
        for policy in policies {
            let mut config = stand.rdkafka(&unique("group"));
            config.set("enable.auto.commit", auto.to_string());
            config.set("enable.auto.offset.store", store.to_string());
            let built =
                RdkafkaSource::subscribe(&config, &[&topic]).unwrap().partitioned().commit(policy).build();
            let refused = auto && store && policy != CommitPolicy::UserManaged;
            let kind = built.err().map(|error| error.kind);
            assert_eq!(kind, refused.then_some(ConfigErrorKind::AutoCommit), "{auto} {store} {policy:?}");
        }
    }
    // librdkafka's defaults are the pair that is refused.
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", &stand.address).set("group.id", "g");
    let built = RdkafkaSource::subscribe(&config, &[&topic]).unwrap().partitioned().build();
    assert_eq!(built.unwrap_err().kind, ConfigErrorKind::AutoCommit);
    config.remove("group.id");
    let without = RdkafkaSource::subscribe(&config, &[&topic]).unwrap_err();
    assert!(matches!(without, BuildError::NoGroup), "{without}");
    assert!(matches!(RdkafkaSource::subscribe(&config, &[]), Err(BuildError::NothingToRead)));
    stand.close().await;
}

/// librdkafka commits by itself: what the program asked past, although more was read ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn automatic_commits_of_librdkafka_count_what_was_asked_past_and_not_what_was_read_ahead() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..1200).await;
    let mut config = stand.rdkafka(&group);
    config.set("enable.auto.commit", "true");
    let source = RdkafkaSource::subscribe(&config, &[&topic]).unwrap();
    let first = poll(&source).await;
    let second = poll(&source).await;
    assert!(second.next_offset > first.next_offset);
    soon(source.close()).await.unwrap();
    assert_eq!(stand.committed(&topic, &group, 0).await, Some(first.next_offset));
    stand.close().await;
}
