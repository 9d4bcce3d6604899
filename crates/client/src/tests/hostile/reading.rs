//! Fetches, lookups, questions about epochs, and metadata while records are read.

use bytes::{Bytes, BytesMut};
use tramline_wire::batch::set_base_offset_and_epoch;
use tramline_wire::messages::fetch_response::{
    EpochEndOffset as Diverging, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use tramline_wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use tramline_wire::messages::*;
use tramline_wire::{ErrorCode, Uuid};

use super::*;
use crate::common::fetch::{batch, data, each, log, refused};
use crate::common::topic_id;
use crate::{ConsumeError, FetchError, OffsetReset};

/// Answers fetches of a log of ten records, but the first ones as `odd` says, until it says nothing.
fn oddly(peer: &Peer, mut odd: impl FnMut(usize, &FetchRequest) -> Option<FetchResponse> + Send + 'static) {
    let count = Count::default();
    peer.answer::<FetchRequest>(move |request, _| {
        odd(next(&count), &request).unwrap_or_else(|| each(&request, |asked| log(asked, 10)))
    });
}

fn lookup_of(name: &str, rows: Vec<ListOffsetsPartitionResponse>) -> ListOffsetsResponse {
    let topics = vec![ListOffsetsTopicResponse { name: name.into(), partitions: rows }];
    ListOffsetsResponse { throttle_time_ms: i32::MAX, topics }
}

fn place(partition_index: i32, offset: i64, error_code: i16) -> ListOffsetsPartitionResponse {
    ListOffsetsPartitionResponse { partition_index, offset, error_code, ..Default::default() }
}

/// Answers lookups with offset 4, but the first ones as `odd` says.
fn looks_up_oddly(peer: &Peer, odd: impl Fn(usize) -> Option<ListOffsetsResponse> + Send + 'static) {
    let count = Count::default();
    peer.answer::<ListOffsetsRequest>(move |_, _| {
        odd(next(&count)).unwrap_or_else(|| lookup_of("t", vec![place(0, 4, 0)]))
    });
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_under_any_question_of_a_reader_costs_a_retry_and_no_record() {
    for key in [ApiKey::Fetch, ApiKey::ListOffsets, ApiKey::Metadata] {
        for reply in broken_connections() {
            let peer = peer("broken-connection");
            oddly(&peer, |_, _| None);
            looks_up_oddly(&peer, |_| None);
            let consumer = reads(&peer, StartOffset::Earliest).build().await.unwrap();
            peer.script(key, [reply.clone()]);
            assert_eq!(offsets(&consumer, 6).await, [4, 5, 6, 7, 8, 9], "{key} {reply:?}");
            assert_eq!(peer.script_left(key), 0, "{key} {reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_to_a_fetch_is_nobodys() {
    let peer = peer("late-answer");
    oddly(&peer, |n, request| (n == 0).then(|| each(request, |_| data(3, batch(0, 3, 0)))));
    let held = Arc::new(tokio::sync::Notify::new());
    peer.script(ApiKey::Fetch, [Reply::Hold(held.clone())]);
    let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
    assert_eq!(offsets(&consumer, 2).await, [0, 1]);
    held.notify_one();
    assert_eq!(offsets(&consumer, 8).await, [2, 3, 4, 5, 6, 7, 8, 9], "each once, in order");
}

#[tokio::test(start_paused = true)]
async fn rows_that_are_missing_doubled_or_never_asked_for_cost_a_retry_and_no_record() {
    type Odd = fn(&FetchRequest) -> FetchResponse;
    fn other(topic: &str, partition_index: i32) -> FetchableTopicResponse {
        let row = PartitionData { partition_index, ..data(90, batch(0, 90, 0)) };
        FetchableTopicResponse { topic_id: topic_id(topic), partitions: vec![row], ..Default::default() }
    }
    let odd: [(&str, Odd); 9] = [
        ("no row", |_| FetchResponse::default()),
        ("no partition", |request| {
            let mut answer = each(request, |asked| log(asked, 10));
            answer.responses[0].partitions.clear();
            answer
        }),
        ("another partition", |_| FetchResponse { responses: vec![other("t", 1)], ..Default::default() }),
        ("the last number", |_| FetchResponse {
            responses: vec![other("t", i32::MAX), other("t", -1)],
            ..Default::default()
        }),
        ("another topic", |_| FetchResponse { responses: vec![other("u", 0)], ..Default::default() }),
        ("a topic without an id", |request| {
            let mut answer = each(request, |asked| log(asked, 10));
            answer.responses[0].topic_id = Uuid::ZERO;
            answer
        }),
        ("twice", |request| {
            let mut answer = each(request, |asked| log(asked, 10));
            let again = PartitionData { error_code: 1, ..answer.responses[0].partitions[0].clone() };
            answer.responses[0].partitions.push(again);
            answer.responses.push(other("t", 0));
            answer
        }),
        ("an unknown code of the whole", |_| FetchResponse { error_code: 31_000, ..Default::default() }),
        ("an unknown code of the row", |request| each(request, |_| refused(ErrorCode::from(31_000)))),
    ];
    for (what, odd) in odd {
        let peer = peer("odd-rows");
        oddly(&peer, move |n, request| (n < 3).then(|| odd(request)));
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{what}");
        assert!(peer.count(ApiKey::Fetch) < 10, "{what}: {}", peer.count(ApiKey::Fetch));
    }
}

#[tokio::test(start_paused = true)]
async fn ends_and_times_that_cannot_be_change_nothing() {
    for mark in [0, 1, 3, -1, i64::MIN, i64::MAX] {
        let peer = peer("odd-marks");
        oddly(&peer, move |_, request| {
            let row = |asked: &fetch_request::FetchPartition| PartitionData {
                high_watermark: mark,
                last_stable_offset: mark,
                log_start_offset: mark,
                ..log(asked, 10)
            };
            Some(FetchResponse { throttle_time_ms: i32::MAX, ..each(request, row) })
        });
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{mark}");
        assert!(consumer.lag(&tp()).is_some_and(|lag| lag >= 0), "{mark}");
    }
}

#[tokio::test(start_paused = true)]
async fn batches_from_before_the_position_or_out_of_order_are_never_handed_out_twice() {
    let peer = peer("old-batches");
    let parts =
        [batch(0, 3, 0), batch(2, 4, 0), batch(1, 1, 0), batch(6, 2, 0), batch(0, 8, 0), batch(8, 2, 0)];
    let parts = Bytes::from(parts.concat());
    oddly(&peer, move |_, request| Some(each(request, |_| data(10, parts.clone()))));
    let consumer = reads(&peer, StartOffset::At(1)).build().await.unwrap();
    assert_eq!(offsets(&consumer, 9).await, (1..10).collect::<Vec<_>>());
    let error = consumer.recv().await.unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Partition(FetchError::BrokenPeer { offset: 10, .. })),
        "nothing but old batches: {error}"
    );
    assert_eq!(consumer.position(&tp()), Some(10));
}

#[tokio::test(start_paused = true)]
async fn a_leap_past_the_end_or_to_no_offset_is_an_error_at_the_position_and_resuming_goes_on() {
    let at = |base: i64, bytes: Bytes| {
        let mut bytes = BytesMut::from(&bytes[..]);
        set_base_offset_and_epoch(&mut bytes, base, 0);
        bytes.freeze()
    };
    let leaps = [
        at(1 << 40, batch(0, 2, 0)),
        at(10, batch(0, 1, 0)),
        at(i64::MAX, batch(0, 1, 0)),
        at(i64::MAX - 1, batch(0, 2, 0)),
        at(i64::MAX, batch(0, 5, 0)),
        at(-1, batch(0, 5, 0)),
    ];
    for leap in leaps {
        let peer = peer("leaps");
        let sent = leap.clone();
        oddly(&peer, move |n, request| {
            (n == 0).then(|| each(request, |_| data(10, [batch(0, 3, 0), sent.clone()].concat().into())))
        });
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        assert_eq!(offsets(&consumer, 3).await, [0, 1, 2]);
        let error = consumer.recv().await.unwrap_err();
        assert!(
            matches!(&error, ConsumeError::Partition(FetchError::BrokenPeer { offset: 3, .. })),
            "{error}"
        );
        assert_eq!(consumer.position(&tp()), Some(3));
        consumer.resume([&tp()]);
        assert_eq!(offsets(&consumer, 7).await, (3..10).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn gaps_that_compaction_leaves_are_passed() {
    let peer = peer("gaps");
    oddly(&peer, |_, request| {
        let parts = [batch(3, 1, 0), batch(70, 2, 0), batch(98, 1, 0)];
        Some(each(request, |_| data(100, Bytes::from(parts.concat()))))
    });
    let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
    assert_eq!(offsets(&consumer, 4).await, [3, 70, 71, 98]);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_answers_with_nothing_at_once_is_asked_at_the_pace_of_retries() {
    type Odd = fn(&FetchRequest) -> FetchResponse;
    let nothing: [Odd; 3] = [
        |request| each(request, |_| data(0, Bytes::new())),
        |request| FetchResponse { session_id: 7, ..each(request, |_| data(0, Bytes::new())) },
        // Every second fetch is told that its session is none.
        |request| {
            let error_code = if request.session_epoch > 0 { 70 } else { 0 };
            FetchResponse { session_id: 7, error_code, ..each(request, |_| data(0, Bytes::new())) }
        },
    ];
    for odd in nothing {
        let peer = peer("at-once");
        oddly(&peer, move |_, request| Some(odd(request)));
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        let reading = async { consumer.recv().await.map(|record| record.offset()) };
        tokio::select! {
            record = reading => panic!("{record:?}"),
            asked = asked_within(20 * SECOND, &peer, ApiKey::Fetch) => {
                assert!((100..250).contains(&asked), "ten times a second, not {asked} times in all");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_is_never_in_the_log_is_looked_for_with_growing_pauses() {
    let peer = peer("never-in-range");
    oddly(&peer, |_, request| Some(each(request, |_| refused(ErrorCode::OffsetOutOfRange))));
    looks_up_oddly(&peer, |_| None);
    let consumer =
        reads(&peer, StartOffset::At(0)).offset_reset(OffsetReset::Earliest).build().await.unwrap();
    tokio::select! {
        record = consumer.recv() => panic!("{record:?}"),
        asked = asked_within(30 * SECOND, &peer, ApiKey::ListOffsets) => {
            assert!((20..45).contains(&asked), "once a second in the end, not {asked} times");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn logs_that_part_lower_each_time_are_followed_with_growing_pauses() {
    for buffered in [false, true] {
        let peer = peer("parting");
        oddly(&peer, move |n, request| {
            Some(each(request, |asked| match n % 2 {
                0 if buffered => data(1 << 41, batch(asked.fetch_offset, 2, 0)),
                _ => {
                    let end = Diverging { epoch: 0, end_offset: asked.fetch_offset - 1 };
                    PartitionData { diverging_epoch: end, ..data(1 << 41, Bytes::new()) }
                }
            }))
        });
        peer.answer::<OffsetForLeaderEpochRequest>(|_, _| OffsetForLeaderEpochResponse::default());
        let builder = reads(&peer, StartOffset::At(1 << 40)).offset_reset(OffsetReset::Latest);
        let consumer = builder.prefetch(1 << 20).build().await.unwrap();
        let asked = asked_within(20 * SECOND, &peer, ApiKey::Fetch).await;
        assert!((10..80).contains(&asked), "buffered {buffered}: {asked} times");
        drop(consumer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fragment_that_grows_with_what_is_asked_for_ends_in_the_limit() {
    let peer = peer("growing");
    oddly(&peer, |_, request| {
        Some(each(request, |asked| {
            let mut head = BytesMut::from(&batch(0, 1, 0)[..20]);
            head[8..12].copy_from_slice(&(asked.partition_max_bytes - 11).to_be_bytes());
            data(10, head.freeze())
        }))
    });
    let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
    let error = consumer.recv().await.unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Partition(FetchError::RecordExceedsMaxBytes { offset: 0, .. })),
        "{error}"
    );
    assert!(peer.count(ApiKey::Fetch) < 20, "{}", peer.count(ApiKey::Fetch));
}

#[tokio::test(start_paused = true)]
async fn leaders_named_without_end_cost_pauses_and_leave_no_connections() {
    let peer = peer("named-leaders");
    let count = Count::default();
    let host = peer.address();
    let (host, port) = host.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    peer.answer::<FetchRequest>(move |request, _| {
        let node = 100 + i32::try_from(next(&count)).unwrap();
        let mut answer = each(&request, |_| PartitionData {
            current_leader: LeaderIdAndEpoch { leader_id: node, leader_epoch: node },
            ..refused(ErrorCode::NotLeaderOrFollower)
        });
        answer.node_endpoints =
            vec![NodeEndpoint { node_id: node, host: host.as_str().into(), port, rack: None }];
        answer
    });
    let builder = reads(&peer, StartOffset::At(0));
    let consumer = builder.build().await.unwrap();
    let hints = async {
        assert!(asked_within(50 * SECOND, &peer, ApiKey::Fetch).await < 70);
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(tasks > 40, "each dialled: {tasks}");
        // The next metadata names one broker.
        peer.answer::<FetchRequest>(|request, _| each(&request, |_| refused(ErrorCode::NotLeaderOrFollower)));
        asked_within(5 * SECOND, &peer, ApiKey::Metadata).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(tasks < 30, "{tasks} tasks are left");
    };
    tokio::select! {
        record = consumer.recv() => panic!("{record:?}"),
        () = hints => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_is_answered_wrongly_is_asked_again_and_reading_begins_at_the_right_place() {
    type Odd = fn() -> ListOffsetsResponse;
    let odd: [(&str, Odd); 7] = [
        ("nothing", ListOffsetsResponse::default),
        ("no row", || lookup_of("t", vec![])),
        ("another partition", || {
            lookup_of("t", vec![place(1, 9, 0), place(-1, 9, 0), place(i32::MAX, 9, 0)])
        }),
        ("another topic", || lookup_of("u", vec![place(0, 9, 0)])),
        ("no offset", || lookup_of("t", vec![place(0, -1, 0)])),
        ("an offset far below", || lookup_of("t", vec![place(0, i64::MIN, 0)])),
        ("an unknown code", || lookup_of("t", vec![place(0, 9, 31_000)])),
    ];
    for (what, odd) in odd {
        for start in [StartOffset::Earliest, StartOffset::Latest] {
            let peer = peer("odd-lookups");
            oddly(&peer, |_, _| None);
            looks_up_oddly(&peer, move |n| (n < 3).then(odd));
            let consumer = reads(&peer, start).build().await.unwrap();
            assert_eq!(offsets(&consumer, 6).await, (4..10).collect::<Vec<_>>(), "{what}");
            assert_eq!(peer.count(ApiKey::ListOffsets), 4, "{what}");
        }
    }
    let peer = peer("odd-lookups");
    oddly(&peer, |_, _| None);
    looks_up_oddly(&peer, |_| Some(lookup_of("t", vec![place(0, 5, 0), place(0, 9, 0), place(0, 0, 1)])));
    let consumer = reads(&peer, StartOffset::Earliest).build().await.unwrap();
    assert_eq!(offsets(&consumer, 1).await, [5], "of two rows the first counts");
}

#[tokio::test(start_paused = true)]
async fn ends_are_told_of_what_was_asked_about_and_of_nothing_else() {
    let peer = peer("odd-ends");
    oddly(&peer, |_, _| None);
    looks_up_oddly(&peer, |n| {
        let rows = match n {
            0 => vec![],
            1 => vec![place(1, 9, 0), place(2, 3, 29)],
            2 => vec![place(0, -1, 0)],
            _ => vec![place(7, 9, 0), place(0, 4, 0), place(0, 5, 29)],
        };
        Some(lookup_of("t", rows))
    });
    let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
    let ends = consumer.end_offsets(&[tp()]).await.unwrap();
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [(tp(), 4)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_epochs_that_says_nothing_is_asked_for_again_before_reading_goes_on() {
    type Odd = fn(EpochEndOffset) -> Vec<EpochEndOffset>;
    let odd: [(&str, Odd); 5] = [
        ("nothing", |_| vec![]),
        ("another partition", |row| vec![EpochEndOffset { partition: 3, end_offset: 0, ..row }]),
        ("an unknown code", |row| vec![EpochEndOffset { error_code: 31_000, ..row }]),
        ("fenced for a while", |row| vec![EpochEndOffset { error_code: 74, ..row }]),
        ("twice", |row| vec![row.clone(), EpochEndOffset { end_offset: 0, ..row }]),
    ];
    for (what, odd) in odd {
        let peer = peer("odd-epochs");
        let count = Count::default();
        peer.answer::<FetchRequest>(|request, _| {
            each(&request, |asked| match asked.current_leader_epoch {
                0 if asked.fetch_offset >= 5 => refused(ErrorCode::FencedLeaderEpoch),
                0 => log(asked, 5),
                _ => log(asked, 10),
            })
        });
        peer.answer::<OffsetForLeaderEpochRequest>(move |_, _| {
            let row = EpochEndOffset { partition: 0, leader_epoch: 0, end_offset: 5, error_code: 0 };
            let partitions = if next(&count) < 3 { odd(row) } else { vec![row] };
            let topics = vec![OffsetForLeaderTopicResult { topic: "t".into(), partitions }];
            OffsetForLeaderEpochResponse { throttle_time_ms: i32::MAX, topics }
        });
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        assert_eq!(offsets(&consumer, 5).await, [0, 1, 2, 3, 4]);
        peer.leader_epoch("t", 0, 1);
        assert_eq!(offsets(&consumer, 5).await, [5, 6, 7, 8, 9], "{what}");
        let asked = peer.count(ApiKey::OffsetForLeaderEpoch);
        assert_eq!(asked, if what == "twice" { 1 } else { 4 }, "{what}");
    }
}

/// What the peer says of topic `t` when it is well: it leads, under epoch 5.
fn honest_metadata(peer: &Peer) -> impl Fn() -> MetadataResponse + Send + 'static {
    let address = peer.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let (host, port) = (host.to_owned(), port.parse().unwrap());
    move || {
        let host = host.as_str().into();
        let broker = MetadataResponseBroker { node_id: 1, host, port, ..Default::default() };
        let row = MetadataResponsePartition { leader_id: 1, leader_epoch: 5, ..Default::default() };
        let topic = MetadataResponseTopic {
            name: Some("t".into()),
            topic_id: topic_id("t"),
            partitions: vec![row],
            ..Default::default()
        };
        MetadataResponse { brokers: vec![broker], topics: vec![topic], ..Default::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_that_leaves_out_or_makes_up_is_asked_for_again_while_records_are_read() {
    type Odd = fn(MetadataResponse) -> MetadataResponse;
    fn edited(mut of: MetadataResponse, edit: fn(&mut MetadataResponsePartition)) -> MetadataResponse {
        edit(&mut of.topics[0].partitions[0]);
        of
    }
    let odd: [(&str, Odd); 9] = [
        ("nothing at all", |_| MetadataResponse::default()),
        ("no topic", |of| MetadataResponse { topics: vec![], ..of }),
        ("no partition", |mut of| {
            of.topics[0].partitions.clear();
            of
        }),
        ("no leader", |of| edited(of, |row| row.leader_id = -1)),
        ("a leader that is nobody", |of| edited(of, |row| row.leader_id = 77)),
        ("an unknown code", |of| edited(of, |row| row.error_code = 31_000)),
        ("an older epoch", |of| edited(of, |row| row.leader_epoch = 0)),
        ("another topic", |mut of| {
            of.topics[0] = MetadataResponseTopic { name: Some("u".into()), ..of.topics[0].clone() };
            of
        }),
        ("a broker at no port", |mut of| {
            of.brokers = vec![MetadataResponseBroker { node_id: 1, port: -1, ..Default::default() }];
            of
        }),
    ];
    for (what, odd) in odd {
        let peer = peer("odd-metadata");
        let honest = honest_metadata(&peer);
        // The broker steps down in the middle, and until it is in office again three answers are odd.
        let away = Arc::new(Mutex::new(None));
        let (asked, stepped_down) = (away.clone(), away.clone());
        peer.answer::<MetadataRequest>(move |request, _| {
            let mut away = asked.lock().unwrap();
            match &mut *away {
                Some(left)
                    if *left > 0 && request.topics.as_ref().is_none_or(|topics| !topics.is_empty()) =>
                {
                    *left -= 1;
                    odd(honest())
                }
                _ => honest(),
            }
        });
        peer.answer::<FetchRequest>(move |request, _| {
            let mut away = stepped_down.lock().unwrap();
            each(&request, |row| match &mut *away {
                None if row.fetch_offset == 5 => {
                    *away = Some(3);
                    refused(ErrorCode::NotLeaderOrFollower)
                }
                Some(1..) => refused(ErrorCode::NotLeaderOrFollower),
                None => log(row, 5),
                _ => log(row, 10),
            })
        });
        let consumer = reads(&peer, StartOffset::At(0)).build().await.unwrap();
        assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{what}");
        assert_eq!(*away.lock().unwrap(), Some(0), "{what}");
        assert!(peer.count(ApiKey::Metadata) < 20, "{what}: {}", peer.count(ApiKey::Metadata));
    }
}
