//! Brokers that break the protocol towards consumers: whatever they say, nothing is skipped in silence, nothing grows, and
//! nobody asks without end.

mod membership;
mod offsets;
mod producing;
mod reading;

use std::sync::{Arc, Mutex};

use tramline_wire::{ApiKey, TopicPartition};

use super::*;
use crate::common::Reply;
use crate::{Consumer, ConsumerBuilder, StartOffset};

const SECOND: Duration = Duration::from_secs(1);

fn tp() -> TopicPartition {
    TopicPartition::new("t", 0)
}

/// Reads `t-0` from this place on.
fn reads(peer: &Peer, start: StartOffset) -> ConsumerBuilder {
    Consumer::builder(ClientConfig::new(peer.address())).assign([(tp(), start)])
}

/// Every way in which a connection may fail instead of an answer, or an answer may be wrapped.
fn broken_connections() -> [Reply; 12] {
    [
        Reply::Close,
        Reply::DoAndClose,
        Reply::WrongId,
        Reply::HalfFrame,
        Reply::Stall,
        Reply::Trickle,
        Reply::Truncated,
        Reply::Bytes(b"HTTP/1.1 408 Timeout\r\n\r\n"),
        Reply::Twice,
        Reply::HalfClose,
        // Longer than any request waits: an answer to nobody.
        Reply::Hold(Arc::default()),
        Reply::Silence,
    ]
}

/// Lets time pass in small steps, whether or not anybody is idle; how many requests of this API came meanwhile.
async fn asked_within(time: Duration, peer: &Peer, key: ApiKey) -> usize {
    const STEP: Duration = Duration::from_millis(100);
    let (before, until) = (peer.count(key), Instant::now() + time);
    while Instant::now() < until {
        tokio::time::advance(STEP).await;
        for _ in 0..24 {
            tokio::task::yield_now().await;
        }
    }
    peer.count(key) - before
}

/// The offsets of the next records.
async fn offsets(consumer: &Consumer, count: usize) -> Vec<i64> {
    let mut offsets = Vec::new();
    for _ in 0..count {
        offsets.push(consumer.recv().await.unwrap().offset());
    }
    offsets
}

/// A counter that a peer's script and its test share.
type Count = Arc<Mutex<usize>>;

/// How often this was called before.
fn next(count: &Count) -> usize {
    let mut count = count.lock().unwrap();
    *count += 1;
    *count - 1
}
