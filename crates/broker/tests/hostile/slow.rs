//! Peers that send slowly, take no answers, wait in large numbers, or go away in the middle.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tramline_broker::BrokerConfig;
use tramline_wire::messages::{FetchRequest, ProduceRequest};
use tramline_wire::{Compression, encode_request};

use crate::HANG;
use crate::common::{
    Client, FETCH, PRODUCE, Stage, batch, batch_at, fetch, now, only_partition, only_row, produce,
};

/// Text that no codec makes smaller is not needed: batches here are not compressed.
fn large(bytes: usize) -> bytes::Bytes {
    batch_at(&[&"x".repeat(bytes)], now(), Compression::None)
}

async fn works(client: &mut Client) {
    assert_eq!(timeout(HANG, client.produce("t", 0, -1, batch(&["x"]))).await.unwrap().error_code, 0);
}

/// Waits, with a client that goes on meanwhile, until only so many connections are left.
async fn until_open(stage: &Stage, client: &mut Client, connections: i64) {
    let closed = async {
        while stage.broker.metrics().connections_open > connections {
            works(client).await;
        }
    };
    timeout(HANG, closed).await.expect("a connection that should be closed");
}

/// Waits until so many fetches wait.
async fn parked(stage: &Stage, fetches: i64) {
    let parked = async {
        while stage.broker.metrics().fetches_parked < fetches {
            tokio::task::yield_now().await;
        }
    };
    timeout(HANG, parked).await.expect("fetches that wait");
}

#[tokio::test]
async fn a_request_that_trickles_in_holds_nobody_up_and_has_as_long_as_an_idle_one() {
    let stage = Stage::with(BrokerConfig::new().idle_timeout(Duration::from_millis(300))).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut slow = stage.client().await;
    let frame = encode_request(1, None, PRODUCE, &produce("t", 0, 1, large(100_000))).unwrap().to_bytes();
    for byte in frame.chunks(1) {
        works(&mut good).await;
        if slow.stream.write_all(byte).await.is_err() {
            break;
        }
    }
    assert_eq!(timeout(HANG, slow.frame()).await.unwrap(), None);
    works(&mut good).await;
}

#[tokio::test]
async fn who_vanishes_while_its_fetch_waits_is_closed_when_it_was_silent_for_too_long() {
    let config = BrokerConfig::new()
        .idle_timeout(Duration::from_millis(300))
        .max_fetch_wait(Duration::from_millis(100));
    let stage = Stage::with(config).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut gone = stage.client().await;
    gone.send(FETCH, &fetch("t", 0, 0, i32::MAX, i32::MAX)).await;
    parked(&stage, 1).await;
    until_open(&stage, &mut good, 1).await;
    assert_eq!(stage.broker.metrics().fetches_parked, 0);
}

#[tokio::test]
async fn who_takes_no_answers_gets_no_more_made_for_it_and_is_closed() {
    const ANSWERS: usize = 200;
    let config = BrokerConfig::new().idle_timeout(Duration::from_secs(1)).max_message_bytes(9 << 20);
    let stage = Stage::with(config).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    assert_eq!(good.produce("t", 0, 1, large(8 << 20)).await.error_code, 0);
    let mut stuck = stage.client().await;
    stuck.produce("t", 0, 1, batch(&["x"])).await;
    let mut asked = fetch("t", 0, 0, 0, 1);
    asked.topics[0].partitions[0].partition_max_bytes = i32::MAX;
    for _ in 0..ANSWERS {
        stuck.send(FETCH, &asked).await;
    }
    until_open(&stage, &mut good, 1).await;
    let made = stage.broker.metrics().record_bytes_out;
    assert!(made < 20 * (8 << 20), "{made} bytes were made for a peer that takes none");
}

#[tokio::test]
async fn requests_that_do_not_arrive_share_a_bound_and_the_oldest_go() {
    const HOSTILE: usize = 20;
    let config = BrokerConfig::new().max_request_bytes(1 << 20).max_connection_memory(2 << 20);
    let stage = Stage::with(config).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut hostile = Vec::new();
    for _ in 0..HOSTILE {
        let mut client = stage.client().await;
        client.stream.write_all(&(1_i32 << 20).to_be_bytes()).await.unwrap();
        client.stream.write_all(&vec![0; 900_000]).await.unwrap();
        hostile.push(client);
        assert_eq!(timeout(HANG, good.produce("t", 0, -1, large(700_000))).await.unwrap().error_code, 0);
    }
    until_open(&stage, &mut good, 4).await;
    let metrics = stage.broker.metrics();
    assert!(metrics.connections_failed as usize >= HOSTILE - 3, "{metrics:?}");
    works(&mut good).await;
}

#[tokio::test]
async fn more_waiting_fetches_than_allowed_are_answered_at_once_and_the_others_go_on() {
    let stage = Stage::with(BrokerConfig::new().max_parked_fetches(2)).await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut client = stage.client().await;
        client.send(FETCH, &fetch("t", 0, 0, 60_000, 1)).await;
        waiting.push(client);
    }
    parked(&stage, 2).await;
    let row = only_partition(&timeout(HANG, good.call(FETCH, &fetch("t", 0, 0, 60_000, 1))).await.unwrap());
    assert_eq!((row.error_code, row.records.unwrap().len()), (0, 0));
    works(&mut good).await;
    for client in &mut waiting {
        let (_, response) = timeout(HANG, client.receive::<FetchRequest>(FETCH)).await.unwrap();
        assert!(!only_partition(&response).records.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_close_while_their_records_wait_for_a_barrier_disturb_nothing() {
    let stage = Stage::new().await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut last = -1;
    for _ in 0..50 {
        let mut client = stage.client().await;
        for _ in 0..3 {
            client.send(PRODUCE, &produce("t", 0, -1, batch(&["theirs"]))).await;
        }
        drop(client);
        let row = good.produce("t", 0, -1, batch(&["ours"])).await;
        assert!(row.error_code == 0 && row.base_offset > last);
        last = row.base_offset;
    }
    until_open(&stage, &mut good, 1).await;
    let seen = good.values("t", 0, 0).await;
    assert!(seen.iter().map(|(offset, _)| *offset).eq(0..seen.len() as i64));
    assert!(seen.iter().filter(|(_, text)| text == "ours").count() == 50);
    assert_eq!(stage.broker.metrics().batches_waiting, 0);
}

/// What is pipelined behind a produce that waits is not answered before it, whatever it is.
#[tokio::test]
async fn a_flood_of_pipelined_requests_is_worked_off_in_order_while_others_go_on() {
    let stage = Stage::new().await;
    let mut good = stage.client().await;
    good.create_topic("t", 1).await;
    let mut flood = stage.client().await;
    let mut sent = Vec::new();
    for _ in 0..500 {
        sent.push(flood.send(PRODUCE, &produce("t", 0, -1, batch(&["flood"]))).await);
        works(&mut good).await;
    }
    let mut last = -1;
    for id in sent {
        let (answered, response) = timeout(HANG, flood.receive::<ProduceRequest>(PRODUCE)).await.unwrap();
        let row = only_row(&response);
        assert!(answered == id && row.error_code == 0 && row.base_offset > last);
        last = row.base_offset;
    }
}
