//! Whole conversations with scripted peers over streams in memory, on a clock that jumps.

mod errors;
mod hostile;
mod producer;
mod traps;

use std::time::Duration;

use tokio::time::Instant;

use crate::common::Peer;
use crate::transport::memory;
use crate::{ClientConfig, Delivery, Producer, ProducerConfig, ProducerRecord};

/// A peer under a name that no other test uses, with one topic `t` of one partition.
fn peer(name: &str) -> Peer {
    let peer = Peer::in_memory(&format!("{name}.memory"), 1, memory::listen(name));
    peer.topic("t", 1);
    peer
}

async fn producer(peer: &Peer, config: ProducerConfig) -> Producer {
    Producer::new(ClientConfig::new(peer.address()), config).await.unwrap()
}

fn to(value: &str) -> ProducerRecord {
    ProducerRecord::to("t").value(value.to_owned())
}

async fn offset(delivery: Delivery) -> Option<i64> {
    delivery.await.unwrap().offset
}

/// How long this takes on the clock of the test.
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let before = Instant::now();
    (future.await, before.elapsed())
}
