//! Consumers that commit by themselves, and the guard that keeps runs off those that would commit what was not processed.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Stand, assigned, soon, tp, unique};
use tramline::broker::BrokerConfig;
use tramline::client::{
    BuildConsumerError, CommitMode, Consumer, Event, NewTopic, OffsetAndMetadata, OffsetReset, StartOffset,
    StoreOffsetError,
};
use tramline::processor::{CommitPolicy, ConfigErrorKind, Lane, PartitionedExt};
use tramline::wire::Record;

/// Longer than any of these tests: nothing is committed because of the time.
const NEVER: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(50);

const fn auto(interval: Duration, store: bool) -> CommitMode {
    CommitMode::Auto { interval, store }
}

async fn committed(consumer: &Consumer, topic: &str, partition: i32) -> Option<i64> {
    let tp = tp(topic, partition);
    soon(consumer.committed(std::slice::from_ref(&tp))).await.unwrap()[&tp].as_ref().map(|at| at.offset)
}

/// Waits until the group has committed this offset, and fails when it commits another one above it first.
async fn until_committed(consumer: &Consumer, topic: &str, partition: i32, offset: i64) {
    soon(async {
        while committed(consumer, topic, partition).await.unwrap_or(-1) < offset {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(committed(consumer, topic, partition).await, Some(offset));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_program_asked_past_is_committed_after_the_interval_and_on_close_and_the_last_record_is_not()
{
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..100).await;
    let consumer = stand.member(&topic, &group).commit_mode(auto(SOON, true)).build().await.unwrap();
    for expected in 0..40 {
        assert_eq!(soon(consumer.recv()).await.unwrap().offset(), expected);
    }
    until_committed(&consumer, &topic, 0, 39).await;
    let late = stand.member(&topic, &unique("other")).commit_mode(auto(NEVER, true)).build().await.unwrap();
    for expected in 0..10 {
        assert_eq!(soon(late.recv()).await.unwrap().offset(), expected);
    }
    assert_eq!(committed(&late, &topic, 0).await, None, "its interval is not over");
    let other = late.group_metadata().unwrap().group_id;
    soon(late.close()).await;
    let next = stand.member(&topic, &other).build().await.unwrap();
    assert_eq!(soon(next.recv()).await.unwrap().offset(), 9, "nobody asked past the tenth");
    soon(next.close()).await;
    soon(consumer.close()).await;
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_the_program_stores_is_committed_and_nothing_beyond_what_it_was_given() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let consumer = stand.member(&topic, &group).commit_mode(auto(SOON, false)).build().await.unwrap();
    let mut last = None;
    for _ in 0..10 {
        last = Some(soon(consumer.recv()).await.unwrap());
    }
    let last = last.unwrap();
    assert_eq!(committed(&consumer, &topic, 0).await, None, "nothing was stored");
    let beyond = consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(11)).unwrap_err();
    assert!(
        matches!(beyond, StoreOffsetError::BeyondHandedOut { offset: 11, handed_out: Some(10), .. }),
        "{beyond}"
    );
    let foreign = consumer.store_offset(&tp(&topic, 7), OffsetAndMetadata::new(0)).unwrap_err();
    assert_eq!(foreign, StoreOffsetError::NotAssigned(tp(&topic, 7)));
    let stale = OffsetAndMetadata::new(1).assigned_in(-5);
    assert!(matches!(consumer.store_offset(&tp(&topic, 0), stale), Err(StoreOffsetError::NotAssigned(_))));
    consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(4).metadata("four")).unwrap();
    until_committed(&consumer, &topic, 0, 4).await;
    consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::after(&last)).unwrap();
    soon(consumer.close()).await;
    let next = stand.member(&topic, &group).build().await.unwrap();
    assert_eq!(committed(&next, &topic, 0).await, Some(10), "stored before it was closed");
    soon(next.close()).await;
    let manual = stand.member(&topic, &group).build().await.unwrap();
    let mut events = manual.events();
    assigned(&mut events, &mut BTreeSet::new()).await;
    let refused = manual.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(0)).unwrap_err();
    assert_eq!(refused, StoreOffsetError::NotStored(CommitMode::Manual));
    drop(events);
    soon(manual.close()).await;
    stand.close().await;
}

/// The interval is never over: what the second member starts from was committed because of the revocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_done_is_committed_before_a_revocation_is_acknowledged() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    for partition in 0..2 {
        stand.produce(&topic, partition, 0..10).await;
    }
    for store in [true, false] {
        let group = format!("{group}-{store}");
        let first = stand.member(&topic, &group).commit_mode(auto(NEVER, store)).build().await.unwrap();
        let mut next_of = [0, 0];
        while next_of != [10, 10] {
            let record = soon(first.recv()).await.unwrap();
            next_of[usize::try_from(record.partition()).unwrap()] = record.offset() + 1;
            if !store {
                first.store_offset(record.topic_partition(), OffsetAndMetadata::after(&record)).unwrap();
            }
        }
        // Without a record: it asks past what it has, and goes on polling while the second one joins.
        let polling = async { first.recv().await.unwrap() };
        let second = async {
            let second = stand.member(&topic, &group).build().await.unwrap();
            let (mut events, mut owned) = (second.events(), BTreeSet::new());
            while owned.is_empty() {
                assigned(&mut events, &mut owned).await;
            }
            let moved = owned.pop_first().unwrap();
            assert_eq!(committed(&second, &topic, moved).await, Some(10), "store: {store}");
            assert_eq!(committed(&second, &topic, 1 - moved).await, None, "what stays is not due yet");
            drop(events);
            soon(second.close()).await;
        };
        tokio::select! {
            record = polling => panic!("nothing is left to read, got {record:?}"),
            () = second => {}
        }
        soon(first.close()).await;
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_with_partitions_of_its_own_choice_commits_by_itself_too() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let start = [(tp(&topic, 0), StartOffset::Earliest)];
    let builder = Consumer::builder(stand.client()).group(&*group).assign(start);
    let consumer = builder.commit_mode(auto(NEVER, true)).build().await.unwrap();
    for _ in 0..6 {
        soon(consumer.recv()).await.unwrap();
    }
    soon(consumer.close()).await;
    let start = [(tp(&topic, 0), StartOffset::Committed)];
    let next = Consumer::builder(stand.client()).group(&*group).assign(start).build().await.unwrap();
    assert_eq!(soon(next.recv()).await.unwrap().offset(), 5);
    soon(next.close()).await;
    stand.close().await;
}

/// The broker is away for longer than a commit is tried: the failure is told, and what is done is committed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_automatic_commit_is_told_and_tried_again() {
    let mut stand = Stand::embedded(tramline::broker::BrokerConfig::new()).await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..10).await;
    let start = [(tp(&topic, 0), StartOffset::Earliest)];
    let builder = Consumer::builder(stand.client()).group(&*group).assign(start);
    let builder = builder.commit_mode(auto(SOON, false)).commit_timeout(Duration::from_millis(200));
    let consumer = builder.build().await.unwrap();
    let mut events = consumer.events();
    for _ in 0..10 {
        soon(consumer.recv()).await.unwrap();
    }
    stand.stop().await;
    consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(7)).unwrap();
    let error = loop {
        match soon(events.next()).await.unwrap() {
            Event::CommitFailed { error } => break error,
            Event::Assigned { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(error.failed.contains_key(&tp(&topic, 0)) && error.is_retriable(), "{error}");
    stand.start_again().await;
    until_committed(&consumer, &topic, 0, 7).await;
    drop(events);
    soon(consumer.close()).await;
    stand.close().await;
}

/// The guard's table on our consumer: mode, automatic store and policy; a consumer without a group cannot be told to
/// commit by itself in the first place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t020_t021_t022_t023_t024_the_guard_follows_the_whole_table_on_our_consumer() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    let policies = [CommitPolicy::UserManaged, CommitPolicy::OnRevoke, CommitPolicy::Periodic(SOON)];
    for mode in [CommitMode::Manual, auto(NEVER, false), auto(NEVER, true)] {
        let mut consumer = stand.member(&topic, &group).commit_mode(mode).build().await.unwrap();
        for policy in policies {
            let refused = mode == auto(NEVER, true) && policy != CommitPolicy::UserManaged;
            consumer = match consumer.partitioned().commit(policy).build() {
                Err(error) => {
                    assert!(refused, "{mode:?} {policy:?}");
                    assert_eq!(error.kind, ConfigErrorKind::AutoCommit);
                    error.source
                }
                Ok(run) => {
                    assert!(!refused, "{mode:?} {policy:?}");
                    let nothing = |_: Record, _: Lane| async { Ok::<(), std::io::Error>(()) };
                    let (result, consumer) = soon(run.for_each(std::future::ready(()), nothing)).await;
                    result.unwrap();
                    consumer
                }
            };
        }
        soon(consumer.close()).await;
    }
    let start = [(tp(&topic, 0), StartOffset::Earliest)];
    let without = Consumer::builder(stand.client()).assign(start);
    let refused = without.clone().commit_mode(auto(NEVER, true)).build().await.unwrap_err();
    assert!(matches!(refused, BuildConsumerError::NeedsGroup("CommitMode::Auto")), "{refused}");
    let consumer = without.build().await.unwrap();
    let (result, _) = consumer
        .partitioned()
        .build()
        .map_err(|error| error.kind)
        .unwrap()
        .for_each(std::future::ready(()), |_: Record, _: Lane| async { Ok::<(), std::io::Error>(()) })
        .await;
    result.unwrap();
    stand.close().await;
}

/// The interval is never over, so that the close alone commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_before_a_topic_was_made_again_is_not_committed_to_the_new_one() {
    let stand = Stand::embedded(BrokerConfig::new()).await;
    for stores_again in [false, true] {
        let (topic, group) = (stand.topic(1).await, unique("group"));
        stand.produce(&topic, 0, 0..10).await;
        let client = stand.client().metadata_max_age(SOON);
        let builder = Consumer::builder(client).group(&*group).commit_mode(auto(NEVER, false));
        let start = [(tp(&topic, 0), StartOffset::Earliest)];
        let builder = builder.offset_reset(OffsetReset::Earliest).fetch_max_wait(SOON).assign(start);
        let consumer = builder.build().await.unwrap();
        for _ in 0..10 {
            soon(consumer.recv()).await.unwrap();
        }
        consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(8)).unwrap();
        let admin = stand.admin();
        soon(admin.delete_topics([topic.as_str()])).await.unwrap();
        let made = soon(admin.create_topics([NewTopic::new(&topic, 1)])).await.unwrap();
        made[topic.as_str()].as_ref().unwrap();
        stand.produce(&topic, 0, 0..3).await;
        for expected in 0..3 {
            assert_eq!(soon(consumer.recv()).await.unwrap().offset(), expected);
        }
        if stores_again {
            consumer.store_offset(&tp(&topic, 0), OffsetAndMetadata::new(2)).unwrap();
        }
        soon(consumer.close()).await;
        let later = stand.member(&topic, &group).build().await.unwrap();
        assert_eq!(committed(&later, &topic, 0).await, stores_again.then_some(2));
        soon(later.close()).await;
    }
    stand.close().await;
}
