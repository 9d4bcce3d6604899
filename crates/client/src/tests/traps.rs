//! Faults that others reported of clients, where minutes pass or connections end.

use tokio::runtime::Handle;
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::{ListOffsetsRequest, ListOffsetsResponse};
use tramline_wire::{ApiKey, TopicPartition};

use super::*;
use crate::common::Reply;
use crate::common::group::{coordinate, one_member};
use crate::{Acks, Consumer, Event, OffsetAndMetadata, OffsetReset};

const SECOND: Duration = Duration::from_secs(1);

/// Polls a future so many times at most, letting others run in between, and drops it.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = std::pin::pin!(future);
    for _ in 0..times {
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await;
        if let std::task::Poll::Ready(done) = once {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn b098_sequences_go_on_when_a_topic_is_missing_from_metadata_for_a_moment() {
    let peer = peer("b098");
    let producer = producer(&peer, ProducerConfig::new()).await;
    assert_eq!(offset(producer.send(to("0")).await.unwrap()).await, Some(0));
    for (n, code) in [(1, 3), (2, 5), (3, 3)] {
        // A leader that just started: it refuses, and knows no topics when it is asked.
        peer.script(ApiKey::Produce, [Reply::Error(6)]);
        peer.script(ApiKey::Metadata, [Reply::Error(code)]);
        assert_eq!(offset(producer.send(to("again")).await.unwrap()).await, Some(n));
        assert_eq!(peer.script_left(ApiKey::Metadata), 0);
    }
    let stamps = |header: &tramline_wire::BatchHeader| (header.producer_epoch, header.base_sequence);
    let stamps: Vec<_> = peer.stored("t", 0, |stored| stored.batches.iter().map(stamps).collect());
    assert_eq!(stamps, [(0, 0), (0, 1), (0, 2), (0, 3)]);
}

#[tokio::test(start_paused = true)]
async fn b107_records_without_acks_keep_their_order_over_one_connection_whatever_else_is_asked() {
    let peer = peer("b107");
    let config = ClientConfig::new(peer.address()).metadata_max_age(Duration::from_millis(1));
    let producer = Producer::new(config, ProducerConfig::new().acks(Acks::None)).await.unwrap();
    for n in 0..500 {
        let sent = producer.send(to(&n.to_string())).await.unwrap();
        assert_eq!(offset(sent).await, None);
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    producer.close().await.unwrap();
    assert_eq!(peer.values("t", 0), (0..500).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(peer.count(ApiKey::Metadata) > 10);
    // Bootstrap, the node for records, the node for questions.
    assert!(peer.connections() <= 3, "{}", peer.connections());
}

#[tokio::test(start_paused = true)]
async fn b116_an_address_that_takes_connections_and_says_nothing_costs_one_connect_timeout() {
    let peer = peer("b116");
    let hole = memory::listen("b116-hole");
    let addresses = format!("b116-hole.memory:1, {}, b116-nobody.memory:1", peer.address());
    let config = ClientConfig::new(addresses).connect_timeout(10 * SECOND);
    let (producer, took) = timed(Producer::new(config, ProducerConfig::new())).await;
    let producer = producer.unwrap();
    assert!(took <= 11 * SECOND, "{took:?}");
    let (sent, took) = timed(async { offset(producer.send(to("x")).await.unwrap()).await }).await;
    assert!(sent == Some(0) && took < SECOND, "{took:?}");
    drop(hole);
}

#[tokio::test(start_paused = true)]
async fn b185_producers_and_consumers_that_ended_leave_nothing_running() {
    let peer = peer("b185");
    let offsets = coordinate(&peer);
    one_member(&peer, "t");
    empty(&peer);
    let mut alive = Vec::new();
    for round in 0..50 {
        let producer = producer(&peer, ProducerConfig::new()).await;
        for n in 0..20 {
            // Half of the deliveries are never looked at.
            let delivery = producer.send(to(&n.to_string())).await.unwrap();
            if n % 2 == 0 {
                offset(delivery).await;
            }
        }
        if round % 2 == 0 {
            producer.close().await.unwrap();
        }
        let consumer = Consumer::builder(ClientConfig::new(peer.address())).group("g").subscribe(["t"]);
        let consumer = consumer.build().await.unwrap();
        tokio::time::timeout(SECOND, consumer.recv()).await.ok();
        if round % 2 == 0 {
            consumer.close().await;
        }
        tokio::time::sleep(SECOND).await;
        alive.push(Handle::current().metrics().num_alive_tasks());
    }
    assert!(offsets.lock().unwrap().committed.is_empty());
    // Unanswered fetches keep their connections for a request timeout, 30 rounds.
    let before = alive[30..40].iter().max();
    assert!(alive[40..].iter().max() <= before, "{alive:?}");
}

#[tokio::test(start_paused = true)]
async fn b190_connections_closed_for_being_idle_are_opened_again_when_needed_and_nobody_hears_of_it() {
    let peer = peer("b190");
    let offsets = coordinate(&peer);
    let config = ClientConfig::new(peer.address());
    let producer = Producer::new(config.clone(), ProducerConfig::new()).await.unwrap();
    let position = [(TopicPartition::new("t", 0), crate::StartOffset::At(0))];
    let consumer = Consumer::builder(config).group("g").assign(position).build().await.unwrap();
    for n in 0..5 {
        let (sent, took) = timed(async { producer.send(to("x")).await.unwrap().await }).await;
        assert_eq!(sent.unwrap().offset, Some(n));
        assert!(took < SECOND, "{took:?}");
        let at = OffsetAndMetadata::new(n);
        let (committed, took) = timed(consumer.commit([(TopicPartition::new("t", 0), at)])).await;
        committed.unwrap();
        assert!(took < SECOND, "{took:?}");
        peer.hang_up();
        tokio::time::sleep(600 * SECOND).await;
    }
    assert_eq!(peer.count(ApiKey::Produce), 5, "each record was sent once");
    assert_eq!(offsets.lock().unwrap().history, [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn b193_a_send_that_is_dropped_at_any_await_is_sent_or_not_and_gives_its_memory_back() {
    let peer = Peer::in_memory("b193.memory", 1, memory::listen("b193"));
    let config = ProducerConfig::new().buffer_records(4).batch_records(1);
    let producer = producer(&peer, config).await;
    let (mut accepted, mut dropped) = (Vec::new(), Vec::new());
    for n in 0..200 {
        if n == 20 {
            peer.topic("t", 1);
        }
        if n % 7 == 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        if n % 10 == 0 && n > 20 {
            peer.script(ApiKey::Produce, [Reply::Error(7)]);
        }
        match polled(producer.send(to(&n.to_string())), n % 7).await {
            Some(sent) => accepted.push((n.to_string(), sent.unwrap())),
            None => dropped.push(n.to_string()),
        }
    }
    producer.flush().await.unwrap();
    assert_eq!(producer.in_flight(), 0);
    let stored = peer.values("t", 0);
    let expected: Vec<String> = accepted.iter().map(|(value, _)| value.clone()).collect();
    assert_eq!(stored, expected, "what was accepted, and nothing of what was not");
    for (at, (_, delivery)) in accepted.into_iter().enumerate() {
        assert_eq!(offset(delivery).await, Some(at as i64));
    }
    assert!(dropped.len() > 20 && stored.len() > 100, "{} dropped", dropped.len());
    for n in 0..4 {
        drop(producer.try_send(to(&n.to_string())).expect("all memory came back"));
    }
}

/// Every log is empty, and a fetch waits for longer than anybody does.
fn empty(peer: &Peer) {
    peer.script(ApiKey::Fetch, vec![Reply::Silence; 1000]);
    peer.answer::<ListOffsetsRequest>(|request, _| {
        let row = |partition_index| ListOffsetsPartitionResponse {
            partition_index,
            offset: 0,
            ..Default::default()
        };
        let topics = request.topics.iter().map(|topic| ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions: topic.partitions.iter().map(|asked| row(asked.partition_index)).collect(),
        });
        ListOffsetsResponse { topics: topics.collect(), ..Default::default() }
    });
}

#[tokio::test(start_paused = true)]
async fn b200_heartbeats_do_not_wait_behind_a_fetch_that_takes_longer_than_the_session() {
    let peer = peer("b200");
    coordinate(&peer);
    one_member(&peer, "t");
    empty(&peer);
    let consumer = Consumer::builder(ClientConfig::new(peer.address()).request_timeout(60 * SECOND))
        .group("g")
        .subscribe(["t"])
        .offset_reset(OffsetReset::Earliest)
        .session_timeout(10 * SECOND)
        .build()
        .await
        .unwrap();
    let mut events = consumer.events();
    let quiet = tokio::time::timeout(30 * SECOND, consumer.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!(peer.count(ApiKey::Fetch), 1, "it still waits");
    assert!(matches!(events.try_next(), Some(Event::Assigned { .. })));
    assert!(events.try_next().is_none(), "three sessions have passed, and nothing was lost");
    assert!(peer.count(ApiKey::Heartbeat) >= 9, "{}", peer.count(ApiKey::Heartbeat));
    assert_eq!(peer.count(ApiKey::JoinGroup), 1);
}

#[tokio::test(start_paused = true)]
async fn b071_an_assigned_topic_that_metadata_does_not_have_yet_is_kept_and_read_when_it_appears() {
    let peer = peer("b071");
    coordinate(&peer);
    one_member(&peer, "late");
    empty(&peer);
    let builder = Consumer::builder(ClientConfig::new(peer.address())).group("g").subscribe(["late"]);
    let consumer = builder.offset_reset(OffsetReset::Earliest).build().await.unwrap();
    tokio::time::timeout(5 * SECOND, consumer.recv()).await.unwrap_err();
    assert_eq!(peer.count(ApiKey::Fetch), 0);
    assert!(consumer.assignment().contains(&TopicPartition::new("late", 0)));
    peer.topic("late", 1);
    let reads = async {
        while peer.count(ApiKey::Fetch) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = reads => {}
        got = tokio::time::timeout(30 * SECOND, consumer.recv()) => panic!("{got:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn b187_ten_thousand_idle_partitions_cost_no_request_but_the_one_that_waits() {
    let peer = peer("b187");
    peer.topic("wide", 10_000);
    empty(&peer);
    let config = ClientConfig::new(peer.address()).request_timeout(7200 * SECOND);
    let wide = Consumer::builder(config).assign_topic("wide", crate::StartOffset::Earliest).prefetch(1 << 20);
    let consumer = wide.build().await.unwrap();
    tokio::time::timeout(10 * SECOND, consumer.recv()).await.unwrap_err();
    let asked = peer.seen().len();
    tokio::time::timeout(3600 * SECOND, consumer.recv()).await.unwrap_err();
    assert_eq!(peer.count(ApiKey::Fetch), 1);
    // The cluster is looked at every five minutes.
    assert!(peer.seen().len() - asked <= 12, "{} requests", peer.seen().len() - asked);
}
