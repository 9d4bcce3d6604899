//! What a reader does when the log is not what it was: cut shorter than the commit, deleted and made again.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::time::Duration;

use common::running::{Running, collector, committed};
use common::{Stand, soon, tp, unique};
use tramline::broker::BrokerConfig;
use tramline::client::{
    ConsumeError, Consumer, Event, Events, FetchError, NewTopic, OffsetAndMetadata, OffsetReset, StartOffset,
};

/// Deletes the topic and makes it again under the same name.
async fn made_again(stand: &Stand, topic: &str) {
    let admin = stand.admin();
    soon(admin.delete_topics([topic])).await.unwrap();
    let made = soon(admin.create_topics([NewTopic::new(topic, 1)])).await.unwrap();
    made[topic].as_ref().unwrap();
}

async fn told(events: &mut Events) -> (Option<i64>, i64) {
    loop {
        if let Event::PositionReset { from, to, .. } = soon(events.next()).await.unwrap() {
            return (from, to);
        }
    }
}

/// The group commits an offset that the log does not have (yet, or any more): where its epoch is known, the broker says
/// where that epoch ends; where it is not, the offset is out of range.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b094_a_commit_beyond_the_log_is_found_out_and_the_reset_policy_decides() {
    let stand = Stand::start().await;
    let topic = stand.topic(1).await;
    stand.produce(&topic, 0, 0..100).await;
    let far = 1_000_000_000;
    for with_epoch in [true, false] {
        let group = unique("group");
        let member = |reset| {
            let builder = Consumer::builder(stand.client()).group(&*group).offset_reset(reset);
            builder.assign([(tp(&topic, 0), StartOffset::Committed)]).build()
        };
        let consumer = member(OffsetReset::Earliest).await.unwrap();
        let epoch = soon(consumer.recv()).await.unwrap().leader_epoch().filter(|_| with_epoch);
        assert_eq!(epoch.is_some(), with_epoch);
        let offset = OffsetAndMetadata::new(far).leader_epoch(epoch);
        soon(consumer.commit([(tp(&topic, 0), offset)])).await.unwrap();
        soon(consumer.close()).await;

        let consumer = member(OffsetReset::None).await.unwrap();
        match soon(consumer.recv()).await.unwrap_err() {
            ConsumeError::Partition(FetchError::Truncated { offset, diverging_offset, .. }) => {
                assert_eq!((offset, diverging_offset, with_epoch), (far, 100, true));
            }
            ConsumeError::Partition(FetchError::OffsetOutOfRange { offset, .. }) => {
                assert_eq!((offset, with_epoch), (far, false));
            }
            other => panic!("{other:?}"),
        }
        soon(consumer.close()).await;

        let consumer = member(OffsetReset::Earliest).await.unwrap();
        let mut events = consumer.events();
        let to = if with_epoch { 100 } else { 0 };
        let reset = tokio::select! {
            reset = told(&mut events) => reset,
            // Somebody has to ask for records.
            end = async { loop { if let Err(error) = consumer.recv().await { break error } } } => panic!("{end}"),
        };
        assert_eq!(reset, (Some(far), to), "epoch known: {with_epoch}");
        drop(events);
        soon(consumer.close()).await;
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b089_a_topic_made_again_is_read_from_its_beginning_beside_another_in_the_same_session() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    let (gone, kept) = (stand.topic(1).await, stand.topic(1).await);
    stand.produce(&gone, 0, 0..10).await;
    stand.produce(&kept, 0, 0..10).await;
    let client = stand.client().metadata_max_age(Duration::from_millis(100));
    let builder = Consumer::builder(client).fetch_max_wait(Duration::from_millis(100));
    let start = [(tp(&gone, 0), StartOffset::Earliest), (tp(&kept, 0), StartOffset::Earliest)];
    let consumer = builder.offset_reset(OffsetReset::Earliest).assign(start).build().await.unwrap();
    let mut events = consumer.events();
    for _ in 0..20 {
        soon(consumer.recv()).await.unwrap();
    }
    made_again(&stand, &gone).await;
    stand.produce(&gone, 0, 0..5).await;
    stand.produce(&kept, 0, 10..13).await;
    let mut seen = (Vec::new(), Vec::new());
    while seen.0.len() < 5 || seen.1.len() < 3 {
        let record = soon(consumer.recv()).await.unwrap();
        if record.topic() == gone { &mut seen.0 } else { &mut seen.1 }.push(record.offset());
    }
    assert_eq!(seen, (vec![0, 1, 2, 3, 4], vec![10, 11, 12]));
    assert_eq!(told(&mut events).await, (Some(10), 0));
    drop(events);
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b089_lanes_of_a_topic_made_again_begin_anew_and_no_old_offset_is_committed_to_it() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let client = stand.client().metadata_max_age(Duration::from_millis(100));
    let builder = Consumer::builder(client).group(&*group).subscribe([&*topic]);
    let builder = builder.offset_reset(OffsetReset::Earliest).heartbeat_interval(Duration::from_millis(100));
    let consumer = builder.fetch_max_wait(Duration::from_millis(100)).build().await.unwrap();
    let (handler, mut seen) = collector();
    let run = Running::for_each(consumer, |b| b, handler);
    while soon(seen.recv()).await.unwrap().1 < 9 {}
    made_again(&stand, &topic).await;
    stand.produce(&topic, 0, 0..5).await;
    for expected in 0..5 {
        let Some(next) = soon(seen.recv()).await else { panic!("{:?}", run.ended().await.0) };
        assert_eq!(next, (0, expected));
    }
    let (result, consumer) = run.stop().await;
    result.unwrap();
    assert_eq!(committed(&stand.admin(), &group, &topic, 0).await, Some(5));
    soon(consumer.close()).await;
    stand.close().await;
}
