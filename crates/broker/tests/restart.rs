//! What survives: records, sequences, topics, ids, epochs, offsets, members.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{PRODUCE, Stage, batch, produce, sequenced};
use tramline_broker::{Broker, BrokerConfig, StartError};
use tramline_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use tramline_wire::messages::{
    InitProducerIdRequest, MetadataRequest, MetadataResponse, OffsetForLeaderEpochRequest,
};

async fn metadata(stage: &Stage) -> MetadataResponse {
    stage.client().await.call(12, &MetadataRequest { topics: None, ..MetadataRequest::default() }).await
}

async fn restarted(stage: Stage, clean: bool) -> Stage {
    if clean {
        stage.restart(BrokerConfig::default()).await
    } else {
        stage.kill_and_restart(BrokerConfig::default()).await
    }
}

#[tokio::test]
async fn a_retry_of_each_of_the_last_five_batches_returns_its_old_offset_after_a_restart() {
    for clean in [true, false] {
        let stage = Stage::new().await;
        let mut client = stage.client().await;
        client.create_topic("t", 1).await;
        for round in 0..8 {
            client.produce("t", 0, -1, sequenced(&["a", "b", "c"], 4, 2, round * 3)).await;
        }
        let stage = restarted(stage, clean).await;
        let mut client = stage.client().await;
        for round in 3..8 {
            let row = client.produce("t", 0, -1, sequenced(&["a", "b", "c"], 4, 2, round * 3)).await;
            assert_eq!((row.error_code, row.base_offset), (0, i64::from(round) * 3), "clean stop: {clean}");
        }
        let next = client.produce("t", 0, -1, sequenced(&["d"], 4, 2, 24)).await;
        assert_eq!((next.error_code, next.base_offset), (0, 24));
        assert_eq!(client.values("t", 0, 0).await.len(), 25);
        stage.broker.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn s41_records_topics_and_ids_survive_and_the_epoch_grows() {
    for clean in [true, false] {
        let stage = Stage::new().await;
        let mut client = stage.client().await;
        client.create_topic("t", 3).await;
        client.create_topic_with("small", 1, &[("max.message.bytes", "1234")]).await;
        for round in 0..64 {
            client.produce("t", round % 3, -1, batch(&["x"])).await;
        }
        let before = metadata(&stage).await;
        let stage = restarted(stage, clean).await;
        let after = metadata(&stage).await;
        assert_eq!(before.cluster_id, after.cluster_id);
        let ours = before.topics.iter().filter(|topic| !topic.is_internal);
        assert_eq!(ours.count(), 2);
        for (old, new) in before.topics.iter().zip(&after.topics) {
            assert_eq!(
                (&old.name, old.topic_id, old.partitions.len()),
                (&new.name, new.topic_id, new.partitions.len())
            );
            assert_eq!((old.partitions[0].leader_epoch, new.partitions[0].leader_epoch), (0, 1));
        }
        let mut client = stage.client().await;
        let mut count = 0;
        for partition in 0..3 {
            count += client.values("t", partition, 0).await.len();
        }
        assert_eq!(count, 64);
        stage.broker.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn producer_ids_are_never_given_out_twice() {
    let mut stage = Stage::new().await;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..4 {
        let mut client = stage.client().await;
        for _ in 0..if round == 0 { 1001 } else { 3 } {
            let response =
                client.call(4, &InitProducerIdRequest { transactional_id: None, ..Default::default() }).await;
            assert_eq!((response.error_code, response.producer_epoch), (0, 0));
            assert!(seen.insert(response.producer_id), "{} was given out twice", response.producer_id);
        }
        stage = restarted(stage, round % 2 == 0).await;
    }
}

#[tokio::test]
async fn b163_epochs_end_where_the_next_one_began() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    client.produce("t", 0, -1, batch(&["a", "b"])).await;
    let stage = stage.restart(BrokerConfig::default()).await;
    stage.client().await.produce("t", 0, -1, batch(&["c"])).await;
    let stage = stage.restart(BrokerConfig::default()).await;
    let mut client = stage.client().await;
    client.produce("t", 0, -1, batch(&["d"])).await;
    let mut ends = Vec::new();
    for leader_epoch in [0, 1, 2, 3, -1] {
        let partition = OffsetForLeaderPartition { partition: 0, current_leader_epoch: -1, leader_epoch };
        let request = OffsetForLeaderEpochRequest {
            replica_id: -1,
            topics: vec![OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] }],
        };
        let response = client.call(4, &request).await;
        let row = &response.topics[0].partitions[0];
        ends.push((row.error_code, row.leader_epoch, row.end_offset));
    }
    assert_eq!(ends, [(0, 0, 2), (0, 1, 3), (0, 2, 4), (0, -1, -1), (0, -1, -1)]);
}

#[tokio::test]
async fn n12_a_shutdown_answers_what_is_in_flight_and_forces_the_rest() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    let mut parked = stage.client().await;
    parked.send(common::FETCH, &common::fetch("t", 0, 0, 60_000, 1000)).await;
    for _ in 0..30 {
        client.send(PRODUCE, &produce("t", 0, 1, batch(&["x"]))).await;
    }
    // The last one proves that the broker has taken all of them in.
    client.send(PRODUCE, &produce("t", 0, -1, batch(&["x"]))).await;
    for _ in 0..31 {
        client.frame().await.unwrap();
    }
    let stage = stage.restart(BrokerConfig::default()).await;
    let frame = parked.frame().await.expect("a waiting fetch is answered before its connection closes");
    let (_, response) =
        tramline_wire::decode_response::<tramline_wire::messages::FetchRequest>(frame, 12).unwrap();
    assert_eq!(common::only_partition(&response).error_code, 0);
    assert_eq!(parked.frame().await, None);
    assert_eq!(stage.client().await.values("t", 0, 0).await.len(), 31);
}

/// Each connection has just been answered, or is about to be, when the stop comes, and then only listens: whichever
/// step of its turn the stop falls into, it is closed, and nobody is waited for until the time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_wakes_every_connection_whatever_it_is_about_to_do() {
    let rounds = std::env::var("TRAMLINE_STOPS").map_or(50, |rounds| rounds.parse().unwrap());
    for _ in 0..rounds {
        let stage = Stage::new().await;
        let mut connections = Vec::new();
        for _ in 0..32 {
            connections.push(stage.client().await);
        }
        let listening: Vec<_> = connections
            .into_iter()
            .map(|mut client| {
                tokio::spawn(async move {
                    let _ = client.try_send(1, &MetadataRequest::default()).await;
                    while client.frame().await.is_some() {}
                })
            })
            .collect();
        stage.broker.shutdown().await.unwrap();
        for connection in listening {
            connection.await.unwrap();
        }
    }
}

#[tokio::test]
async fn b131_a_damaged_topic_list_stops_the_start_and_nothing_is_removed() {
    for (file, change) in [("topics", Some(4)), ("broker", Some(30)), ("topics", None), ("broker", None)] {
        let stage = Stage::new().await;
        let mut client = stage.client().await;
        client.create_topic("t", 1).await;
        client.produce("t", 0, -1, batch(&["x"])).await;
        let dir = stage.dir;
        stage.broker.shutdown().await.unwrap();
        let path = dir.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        match change {
            Some(at) => {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                std::fs::write(&path, damaged).unwrap();
            }
            None => std::fs::remove_file(&path).unwrap(),
        }
        let refused = Broker::builder(dir.path()).listen("127.0.0.1:0").start().await;
        assert!(matches!(refused, Err(StartError::Catalogue { .. })), "{file} {change:?}: {refused:?}");
        std::fs::write(&path, bytes).unwrap();
        let broker = Broker::builder(dir.path()).listen("127.0.0.1:0").start().await.unwrap();
        let stage = Stage { dir, broker };
        assert_eq!(stage.client().await.values("t", 0, 0).await.len(), 1);
    }
}
