//! Records in and records out, over sockets: acks, limits, waiting, order.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{
    Client, FETCH, PRODUCE, Stage, batch, fetch, only_partition, only_row, produce, sequenced, values,
};
use tokio::time::timeout;
use tramline_broker::BrokerConfig;
use tramline_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use tramline_wire::messages::{DeleteTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest};
use tramline_wire::{Compression, ErrorCode};

/// Generous, and only there so that a hang is a failure instead of a stuck test run.
const HANG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn s01_a_batch_gets_one_ack_and_consecutive_offsets() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for (acks, base) in [(-1, 0), (1, 3), (-1, 6)] {
        let row = client.produce("t", 0, acks, batch(&["a", "b", "c"])).await;
        assert_eq!((row.error_code, row.base_offset, row.log_start_offset), (0, base, 0));
        assert_eq!(row.log_append_time_ms, -1);
    }
    let read = client.values("t", 0, 0).await;
    let expected: Vec<(i64, String)> =
        (0..9).zip(["a", "b", "c"].into_iter().cycle()).map(|(o, v)| (o, v.into())).collect();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn s03_acks_0_is_answered_by_silence_and_written_all_the_same() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.send(PRODUCE, &produce("t", 0, 0, batch(&["silent"]))).await;
    let row = client.produce("t", 0, 1, batch(&["loud"])).await;
    assert_eq!(row.base_offset, 1);
    assert_eq!(client.values("t", 0, 0).await, [(0, "silent".into()), (1, "loud".into())]);
}

#[tokio::test]
async fn n03_a_refused_acks_0_closes_the_connection_and_no_other() {
    let stage = Stage::new().await;
    let (mut one, mut other) = (stage.client().await, stage.client().await);
    other.create_topic("t", 1).await;
    one.send(PRODUCE, &produce("t", 7, 0, batch(&["nowhere"]))).await;
    assert_eq!(timeout(HANG, one.frame()).await.unwrap(), None);
    assert_eq!(other.produce("t", 0, 1, batch(&["x"])).await.error_code, 0);
}

#[tokio::test]
async fn s04_acks_all_asks_for_a_barrier_and_acks_1_for_none() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, 1, batch(&["a"])).await;
    assert_eq!(stage.broker.metrics().barriers, 0);
    client.produce("t", 0, -1, batch(&["b"])).await;
    assert_eq!(stage.broker.metrics().barriers, 1);
    client.produce("t", 0, 1, batch(&["c"])).await;
    assert_eq!(stage.broker.metrics().barriers, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_64_producers_get_distinct_gap_free_offsets() {
    let stage = Stage::new().await;
    stage.client().await.create_topic("t", 1).await;
    let mut tasks = Vec::new();
    for _ in 0..64 {
        let mut client = stage.client().await;
        tasks.push(tokio::spawn(async move {
            let mut bases = Vec::new();
            for _ in 0..25 {
                let row = client.produce("t", 0, -1, batch(&["1", "2", "3", "4"])).await;
                assert_eq!(row.error_code, 0);
                bases.push(row.base_offset);
            }
            assert!(bases.is_sorted());
            bases
        }));
    }
    let mut bases = Vec::new();
    for task in tasks {
        bases.extend(task.await.unwrap());
    }
    bases.sort_unstable();
    assert_eq!(bases, (0..64 * 25).map(|n| n * 4).collect::<Vec<i64>>());
    let metrics = stage.broker.metrics();
    assert_eq!((metrics.batches_in, metrics.batches_waiting), (1600, 0));
    assert!(metrics.barriers < 1600, "producers share barriers, there were {}", metrics.barriers);
}

#[tokio::test]
async fn s28_pipelined_requests_are_answered_in_order() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let mut sent = Vec::new();
    for number in 0..20 {
        if number % 5 == 4 {
            sent.push(client.send(FETCH, &fetch("t", 0, 0, 0, 0)).await);
        } else {
            let acks = if number % 2 == 0 { -1 } else { 1 };
            sent.push(client.send(PRODUCE, &produce("t", 0, acks, batch(&["x"]))).await);
        }
    }
    let mut base = 0;
    for (number, id) in sent.into_iter().enumerate() {
        if number % 5 == 4 {
            let (received, response) = client.receive::<FetchRequest>(FETCH).await;
            assert_eq!(received, id);
            assert_eq!(
                only_partition(&response).high_watermark,
                base,
                "a fetch sees what was answered before it"
            );
        } else {
            let (received, response) = client.receive::<ProduceRequest>(PRODUCE).await;
            assert_eq!((received, only_row(&response).base_offset), (id, base));
            base += 1;
        }
    }
}

#[tokio::test]
async fn s29_unknown_topics_and_partitions_leave_their_neighbours_alone() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 2).await;
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(client.produce("nope", 0, -1, batch(&["x"])).await.error_code, unknown);
    let mut request = produce("t", 1, -1, batch(&["x"]));
    request.topic_data.extend(produce("t", 2, -1, batch(&["y"])).topic_data);
    let response = client.call(PRODUCE, &request).await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    let refused = &response.responses[1].partition_responses[0];
    assert_eq!((refused.error_code, refused.base_offset, refused.log_start_offset), (unknown, -1, -1));
    assert!(client.values("t", 0, 0).await.is_empty());
    assert_eq!(client.values("t", 1, 0).await.len(), 1);
}

#[tokio::test]
async fn a_batch_that_breaks_a_rule_is_refused_with_its_code() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic_with("t", 1, &[("max.message.bytes", "1000")]).await;
    client.create_topic_with("compact", 1, &[("cleanup.policy", "compact")]).await;
    let mut broken = batch(&["x"]).to_vec();
    *broken.last_mut().unwrap() ^= 1;
    let two = [batch(&["x"]), batch(&["y"])].concat();
    let large = "x".repeat(1000);
    let future = common::batch_at(&["x"], common::now() + 7_200_000, Compression::None);
    let cases = [
        ("t", Bytes::new(), ErrorCode::InvalidRecord),
        ("t", broken.into(), ErrorCode::CorruptMessage),
        ("t", two.into(), ErrorCode::InvalidRecord),
        ("t", batch(&[&large]), ErrorCode::MessageTooLarge),
        ("t", future, ErrorCode::InvalidTimestamp),
        ("t", sequenced(&["x"], 5, 0, -1), ErrorCode::InvalidRecord),
        ("compact", batch(&["no key"]), ErrorCode::InvalidRecord),
        ("__consumer_offsets", batch(&["x"]), ErrorCode::InvalidTopicException),
    ];
    for (topic, bytes, code) in cases {
        let row = client.produce(topic, 0, -1, bytes).await;
        assert_eq!(ErrorCode::from(row.error_code), code, "{topic}: {:?}", row.error_message);
    }
    let keyless = client.produce("compact", 0, -1, batch(&["no key"])).await;
    assert_eq!(keyless.record_errors[0].batch_index, 0);
    assert_eq!(
        client.produce("t", 0, 2, batch(&["x"])).await.error_code,
        ErrorCode::InvalidRequiredAcks.code()
    );
    assert!(client.values("t", 0, 0).await.is_empty());
}

#[tokio::test]
async fn an_idempotent_producer_is_held_to_its_sequence() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for round in 0..7 {
        let row = client.produce("t", 0, -1, sequenced(&["a", "b"], 9, 0, round * 2)).await;
        assert_eq!((row.error_code, row.base_offset), (0, i64::from(round) * 2));
    }
    for round in 2..7 {
        let again = client.produce("t", 0, -1, sequenced(&["a", "b"], 9, 0, round * 2)).await;
        assert_eq!((again.error_code, again.base_offset), (0, i64::from(round) * 2), "one of the last five");
    }
    let gap = client.produce("t", 0, -1, sequenced(&["z"], 9, 0, 99)).await;
    assert_eq!(gap.error_code, ErrorCode::OutOfOrderSequenceNumber.code());
    let next = client.produce("t", 0, -1, sequenced(&["c"], 9, 1, 0)).await;
    assert_eq!((next.error_code, next.base_offset), (0, 14));
    let old = client.produce("t", 0, -1, sequenced(&["c"], 9, 0, 14)).await;
    assert_eq!(old.error_code, ErrorCode::InvalidProducerEpoch.code());
}

#[tokio::test]
async fn b145_a_fetch_inside_a_batch_returns_the_whole_batch() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, -1, batch(&["0", "1"])).await;
    client.produce("t", 0, -1, batch(&["2", "3"])).await;
    for (offset, first) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
        let row = client.fetch("t", 0, offset).await;
        assert_eq!(values(row.records.unwrap())[0].0, first);
    }
    let end = client.fetch("t", 0, 4).await;
    assert_eq!(
        (end.error_code, end.high_watermark, end.last_stable_offset, end.log_start_offset),
        (0, 4, 4, 0)
    );
    assert_eq!(end.records, Some(Bytes::new()), "empty and never null");
}

#[tokio::test]
async fn n11_out_of_range_is_answered_at_once_whatever_the_wait() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for offset in [-1, 1, 1000] {
        let response = timeout(HANG, client.call(FETCH, &fetch("t", 0, offset, 60_000, 1))).await.unwrap();
        let row = only_partition(&response);
        assert_eq!(row.error_code, ErrorCode::OffsetOutOfRange.code());
        assert_eq!((row.high_watermark, row.last_stable_offset, row.log_start_offset), (-1, -1, -1));
        assert_eq!(row.records, Some(Bytes::new()));
    }
}

fn fetch_both(limits: (i32, i32), order: [i32; 2]) -> FetchRequest {
    let partition = |partition| FetchPartition {
        partition,
        fetch_offset: 0,
        partition_max_bytes: limits.1,
        ..FetchPartition::default()
    };
    FetchRequest {
        replica_id: -1,
        max_bytes: limits.0,
        min_bytes: 1,
        session_epoch: -1,
        topics: vec![FetchTopic {
            topic: "t".into(),
            partitions: order.into_iter().map(partition).collect(),
            ..FetchTopic::default()
        }],
        ..FetchRequest::default()
    }
}

#[tokio::test]
async fn the_first_batch_comes_whole_and_the_others_only_when_they_fit() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 3).await;
    let text = "x".repeat(500);
    for partition in 0..2 {
        for _ in 0..3 {
            client.produce("t", partition, 1, batch(&[&text])).await;
        }
    }
    let one = batch(&[&text]).len() as i32;
    // (response limit, partition limit) and how many batches each partition in the request's order gives.
    let cases =
        [((1, 1), [1, 0]), ((one, one), [1, 0]), ((2 * one, one), [1, 1]), ((10 * one, 2 * one), [2, 2])];
    for (limits, expected) in cases {
        for order in [[0, 1], [1, 0]] {
            let response = client.call(FETCH, &fetch_both(limits, order)).await;
            let rows = &response.responses[0].partitions;
            let counts: Vec<usize> =
                rows.iter().map(|row| values(row.records.clone().unwrap()).len()).collect();
            assert_eq!(counts, expected, "limits {limits:?}");
            assert_eq!(rows[0].partition_index, order[0]);
        }
    }
    // An empty partition in front does not use up the promise.
    let response = client.call(FETCH, &fetch_both((1, 1), [2, 0])).await;
    let counts: Vec<usize> = response.responses[0]
        .partitions
        .iter()
        .map(|row| values(row.records.clone().unwrap()).len())
        .collect();
    assert_eq!(counts, [0, 1]);
}

async fn parked(stage: &Stage, count: i64) {
    let settled = async {
        while stage.broker.metrics().fetches_parked != count {
            tokio::task::yield_now().await;
        }
    };
    timeout(HANG, settled).await.expect("the number of waiting fetches does not settle");
}

#[tokio::test]
async fn s32_b149_a_waiting_fetch_is_answered_empty_when_its_time_is_over() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let before = std::time::Instant::now();
    let response = timeout(HANG, client.call(FETCH, &fetch("t", 0, 0, 300, 1))).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
    let row = only_partition(&response);
    assert_eq!((row.error_code, row.records), (0, Some(Bytes::new())));
    assert_eq!(stage.broker.metrics().fetches_parked, 0);
}

#[tokio::test]
async fn s33_s35_b149_a_write_wakes_a_waiting_fetch_which_delays_nobody() {
    let stage = Stage::new().await;
    let (mut reader, mut writer) = (stage.client().await, stage.client().await);
    writer.create_topic("t", 1).await;
    reader.send(FETCH, &fetch("t", 0, 0, 60_000, 1)).await;
    parked(&stage, 1).await;
    assert_eq!(writer.produce("t", 0, -1, batch(&["news"])).await.error_code, 0);
    let (_, response) = timeout(HANG, reader.receive::<FetchRequest>(FETCH)).await.unwrap();
    assert_eq!(values(only_partition(&response).records.unwrap()), [(0, "news".into())]);
    parked(&stage, 0).await;
}

#[tokio::test]
async fn min_bytes_counts_over_the_whole_request() {
    let stage = Stage::new().await;
    let (mut reader, mut writer) = (stage.client().await, stage.client().await);
    writer.create_topic("t", 2).await;
    let one = batch(&["x"]).len() as i32;
    let mut request = fetch_both((1 << 20, 1 << 20), [0, 1]);
    (request.max_wait_ms, request.min_bytes) = (60_000, 2 * one);
    reader.send(FETCH, &request).await;
    parked(&stage, 1).await;
    writer.produce("t", 0, 1, batch(&["x"])).await;
    writer.produce("t", 1, 1, batch(&["y"])).await;
    let (_, response) = timeout(HANG, reader.receive::<FetchRequest>(FETCH)).await.unwrap();
    let counts: Vec<usize> = response.responses[0]
        .partitions
        .iter()
        .map(|row| values(row.records.clone().unwrap()).len())
        .collect();
    assert_eq!(counts, [1, 1]);
}

#[tokio::test]
async fn a_waiting_fetch_is_dropped_when_its_peer_closes() {
    let stage = Stage::new().await;
    let (mut reader, mut writer) = (stage.client().await, stage.client().await);
    writer.create_topic("t", 1).await;
    reader.send(FETCH, &fetch("t", 0, 0, 60_000, 1)).await;
    parked(&stage, 1).await;
    drop(reader);
    parked(&stage, 0).await;
}

#[tokio::test]
async fn deleting_a_topic_wakes_the_fetches_that_wait_for_it() {
    let stage = Stage::new().await;
    let (mut reader, mut writer) = (stage.client().await, stage.client().await);
    writer.create_topic("t", 1).await;
    reader.send(FETCH, &fetch("t", 0, 0, 60_000, 1)).await;
    parked(&stage, 1).await;
    let request = DeleteTopicsRequest { topic_names: vec!["t".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(writer.call(5, &request).await.responses[0].error_code, 0);
    let (_, response) = timeout(HANG, reader.receive::<FetchRequest>(FETCH)).await.unwrap();
    assert_eq!(only_partition(&response).error_code, ErrorCode::UnknownTopicOrPartition.code());
}

#[tokio::test]
async fn topics_are_fetched_by_id_from_version_13_on() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, 1, batch(&["x"])).await;
    let metadata = client.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).await;
    let id = metadata.topics.iter().find(|topic| topic.name.as_deref() == Some("t")).unwrap().topic_id;
    let mut request = fetch("t", 0, 0, 60_000, 1);
    request.topics[0].topic_id = id;
    let response = client.call(16, &request).await;
    assert_eq!(response.responses[0].topic_id, id);
    assert_eq!(values(only_partition(&response).records.unwrap()).len(), 1);
    request.topics[0].topic_id = tramline_wire::Uuid::from_bytes([7; 16]);
    let response = timeout(HANG, client.call(16, &request)).await.unwrap();
    assert_eq!(only_partition(&response).error_code, ErrorCode::UnknownTopicId.code());
}

#[tokio::test]
async fn an_epoch_that_is_not_ours_is_refused_at_once() {
    let stage = Stage::new().await.restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for (epoch, code) in
        [(0, ErrorCode::FencedLeaderEpoch), (1, ErrorCode::None), (2, ErrorCode::UnknownLeaderEpoch)]
    {
        let mut request = fetch("t", 0, 0, 0, 1);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        let response = client.call(FETCH, &request).await;
        assert_eq!(ErrorCode::from(only_partition(&response).error_code), code);
    }
}

#[tokio::test]
async fn offsets_are_found_by_time() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let empty = client.offset_at("t", 0, -3).await;
    assert_eq!((empty.error_code, empty.offset, empty.timestamp), (0, -1, -1));
    for (timestamp, codec) in [(1000, Compression::None), (3000, Compression::Gzip), (2000, Compression::Lz4)]
    {
        client.produce("t", 0, -1, common::batch_at(&["a", "b"], timestamp, codec)).await;
    }
    let cases = [
        (-2, 0, -1),
        (-1, 6, -1),
        (-3, 2, 3000),
        (0, 0, 1000),
        (1001, 2, 3000),
        (3000, 2, 3000),
        (3001, -1, -1),
    ];
    for (asked, offset, timestamp) in cases {
        let row = client.offset_at("t", 0, asked).await;
        assert_eq!((row.error_code, row.offset, row.timestamp), (0, offset, timestamp), "asked for {asked}");
    }
    assert_eq!(client.offset_at("t", 0, -9).await.error_code, ErrorCode::UnsupportedVersion.code());
    assert_eq!(client.offset_at("t", 5, -1).await.error_code, ErrorCode::UnknownTopicOrPartition.code());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s25_three_pipelined_produces_on_fresh_connections_300_times() {
    let stage = Stage::new().await;
    stage.client().await.create_topic("t", 1).await;
    for round in 0..300 {
        let mut client = Client::connect(stage.broker.local_addr()).await;
        for _ in 0..3 {
            client.send(PRODUCE, &produce("t", 0, 1, batch(&["x"]))).await;
        }
        for place in 0..3 {
            let (_, response) = timeout(HANG, client.receive::<ProduceRequest>(PRODUCE)).await.unwrap();
            assert_eq!(only_row(&response).base_offset, round * 3 + place, "{:?}", stage.broker.metrics());
        }
    }
}

#[tokio::test]
async fn a_full_mailbox_stops_reading_and_loses_nothing() {
    let stage = Stage::with(BrokerConfig::new().mailbox_bytes(100)).await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    for _ in 0..200 {
        client.send(PRODUCE, &produce("t", 0, -1, batch(&["more than the mailbox takes at once"]))).await;
    }
    for offset in 0..200 {
        let (_, response) = timeout(HANG, client.receive::<ProduceRequest>(PRODUCE)).await.unwrap();
        assert_eq!(only_row(&response).base_offset, offset);
    }
}
