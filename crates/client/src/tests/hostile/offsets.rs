//! Committed offsets: asked for, and committed.

use tramline_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use tramline_wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use tramline_wire::messages::*;

use super::*;
use crate::common::fetch::{each, log};
use crate::common::group::{coordinate, one_member};
use crate::{CommitFailure, OffsetAndMetadata};

fn place(partition_index: i32, committed_offset: i64, error_code: i16) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions { partition_index, committed_offset, error_code, ..Default::default() }
}

fn told(group: &str, topic: &str, rows: Vec<OffsetFetchResponsePartitions>) -> OffsetFetchResponseGroup {
    let topics =
        vec![OffsetFetchResponseTopics { name: topic.into(), partitions: rows, ..Default::default() }];
    OffsetFetchResponseGroup { group_id: group.into(), topics, ..Default::default() }
}

type Odd = fn() -> Vec<OffsetFetchResponseGroup>;

/// Answers that say nothing of what was asked, whatever else they say.
const ODD: [(&str, Odd); 8] = [
    ("nothing", Vec::new),
    ("no topic", || vec![OffsetFetchResponseGroup { group_id: "g".into(), ..Default::default() }]),
    ("no row", || vec![told("g", "t", vec![])]),
    ("another partition", || {
        vec![told("g", "t", vec![place(1, 8, 0), place(-1, 8, 29), place(i32::MAX, 8, 0)])]
    }),
    ("another topic", || vec![told("g", "u", vec![place(0, 8, 0)])]),
    ("another group", || vec![told("h", "t", vec![place(0, 8, 0)])]),
    ("another group refused", || {
        vec![OffsetFetchResponseGroup { error_code: 30, ..told("h", "t", vec![place(0, 8, 0)]) }]
    }),
    ("loading", || vec![OffsetFetchResponseGroup { error_code: 14, ..told("g", "t", vec![place(0, 8, 0)]) }]),
];

/// A peer where the group has committed 4, but the first answers about that are `odd`.
fn committed_oddly(name: &str, odd: Odd) -> Peer {
    let peer = peer(name);
    coordinate(&peer);
    one_member(&peer, "t");
    peer.answer::<FetchRequest>(|request, _| each(&request, |asked| log(asked, 10)));
    let count = Count::default();
    peer.answer::<OffsetFetchRequest>(move |_, _| {
        let honest = || vec![told("g", "t", vec![place(0, 4, 0), place(0, 8, 29)]), told("g", "t", vec![])];
        let groups = if next(&count) < 3 { odd() } else { honest() };
        OffsetFetchResponse { throttle_time_ms: i32::MAX, groups, ..Default::default() }
    });
    peer
}

#[tokio::test(start_paused = true)]
async fn a_member_begins_where_its_own_group_has_committed_and_nowhere_else() {
    for (what, odd) in ODD {
        let peer = committed_oddly("odd-committed", odd);
        let builder = Consumer::builder(ClientConfig::new(peer.address())).group("g").subscribe(["t"]);
        let consumer = builder.build().await.unwrap();
        assert_eq!(offsets(&consumer, 6).await, (4..10).collect::<Vec<_>>(), "{what}");
        assert_eq!(peer.count(ApiKey::OffsetFetch), 4, "{what}");
        assert_eq!(consumer.last_committed(&tp()).map(|at| at.offset), Some(4), "{what}");
        consumer.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn committed_offsets_are_told_of_what_was_asked_about_and_of_nothing_else() {
    for (what, odd) in ODD {
        let peer = committed_oddly("odd-questions", odd);
        let consumer = reads(&peer, StartOffset::At(0)).group("g").build().await.unwrap();
        let committed = consumer.committed(&[tp(), tp()]).await.unwrap();
        let committed: Vec<_> = committed.into_iter().map(|(tp, at)| (tp, at.map(|at| at.offset))).collect();
        assert_eq!(committed, [(tp(), Some(4))], "{what}");
        consumer.close().await;
    }
}

fn codes(topic: &str, rows: &[(i32, i16)]) -> OffsetCommitResponse {
    let row = |(partition_index, error_code): &(i32, i16)| OffsetCommitResponsePartition {
        partition_index: *partition_index,
        error_code: *error_code,
    };
    let partitions = rows.iter().map(row).collect();
    let topics = vec![OffsetCommitResponseTopic { name: topic.into(), partitions, ..Default::default() }];
    OffsetCommitResponse { throttle_time_ms: i32::MAX, topics }
}

#[tokio::test(start_paused = true)]
async fn a_commit_counts_when_its_own_row_says_so_and_no_other_row_ends_the_member() {
    // 82 ends a member, 22 and 25 take its partitions: but these rows are about nothing that was committed.
    type Odd = fn() -> OffsetCommitResponse;
    let odd: [(&str, Odd); 5] = [
        ("nothing", OffsetCommitResponse::default),
        ("no row", || codes("t", &[])),
        ("other partitions", || codes("t", &[(1, 82), (-1, 25), (i32::MAX, 22)])),
        ("another topic", || codes("u", &[(0, 82)])),
        ("loading", || codes("t", &[(0, 14), (0, 82)])),
    ];
    for (what, odd) in odd {
        let peer = committed_oddly("odd-commits", || vec![told("g", "t", vec![place(0, 0, 0)])]);
        let count = Count::default();
        peer.answer::<OffsetCommitRequest>(move |_, _| {
            if next(&count) < 3 { odd() } else { codes("t", &[(0, 0), (0, 82)]) }
        });
        let builder = Consumer::builder(ClientConfig::new(peer.address())).group("g").subscribe(["t"]);
        let consumer = builder.build().await.unwrap();
        assert_eq!(offsets(&consumer, 3).await, [0, 1, 2], "{what}");
        consumer.commit([(tp(), OffsetAndMetadata::new(3))]).await.unwrap();
        assert_eq!(peer.count(ApiKey::OffsetCommit), 4, "{what}");
        assert_eq!(consumer.assignment(), [tp()], "{what}");
        assert_eq!(offsets(&consumer, 7).await, (3..10).collect::<Vec<_>>(), "{what}");
        consumer.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_never_spoken_of_fails_after_its_time_and_is_asked_with_growing_pauses() {
    let peer = committed_oddly("silent-commits", || vec![told("g", "t", vec![place(0, 0, 0)])]);
    peer.answer::<OffsetCommitRequest>(|_, _| codes("t", &[(1, 0)]));
    let consumer = reads(&peer, StartOffset::At(0)).group("g").build().await.unwrap();
    let (outcome, took) = timed(consumer.commit([(tp(), OffsetAndMetadata::new(3))])).await;
    let error = outcome.unwrap_err();
    assert!(matches!(&error.failed[&tp()], CommitFailure::TimedOut { .. }), "{error}");
    assert!(took >= 60 * SECOND && took < 70 * SECOND, "{took:?}");
    assert!((30..80).contains(&peer.count(ApiKey::OffsetCommit)), "{}", peer.count(ApiKey::OffsetCommit));
    consumer.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_under_a_commit_costs_a_retry() {
    for reply in broken_connections() {
        let peer = committed_oddly("broken-commits", || vec![told("g", "t", vec![place(0, 0, 0)])]);
        peer.answer::<OffsetCommitRequest>(|_, _| codes("t", &[(0, 0)]));
        peer.script(ApiKey::OffsetCommit, [reply.clone()]);
        let consumer = reads(&peer, StartOffset::At(0)).group("g").build().await.unwrap();
        consumer.commit([(tp(), OffsetAndMetadata::new(3))]).await.unwrap();
        let asked = peer.count(ApiKey::OffsetCommit);
        assert!((1..=2).contains(&asked), "{reply:?}: {asked}");
        consumer.close().await;
    }
}
