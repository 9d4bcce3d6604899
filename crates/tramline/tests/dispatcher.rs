//! The dispatcher of the examples keeps what it shows: a revocation is held until its records are done and committed, the
//! other partitions go on, and what is lost is cancelled.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;
#[path = "../../../examples/dispatcher.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod dispatcher;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Stand, soon, tp, unique};
use dispatcher::dispatch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline::broker::BrokerConfig;
use tramline::client::{ConsumeError, Consumer};
use tramline::wire::Record;

/// A member with a dispatcher, and what its handlers did.
struct Member {
    consumer: Arc<Consumer>,
    seen: Arc<Mutex<Seen>>,
    gate: CancellationToken,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumeError>>,
}

#[derive(Default)]
struct Seen {
    done: Vec<(i32, i64)>,
    waiting: Vec<i32>,
    dropped: Vec<i32>,
}

struct Waiting(Arc<Mutex<Seen>>, i32, bool);

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.2 {
            self.0.lock().unwrap().dropped.push(self.1);
        }
    }
}

impl Member {
    /// Every handler of the record at offset 9 waits for the gate.
    fn start(consumer: Consumer) -> Self {
        let (consumer, seen) = (Arc::new(consumer), Arc::new(Mutex::new(Seen::default())));
        let (gate, stop) = (CancellationToken::new(), CancellationToken::new());
        let (probe, waits) = (Arc::clone(&seen), gate.clone());
        let handle = move |record: Record| {
            let (probe, waits) = (Arc::clone(&probe), waits.clone());
            async move {
                if record.offset() == 9 {
                    probe.lock().unwrap().waiting.push(record.partition());
                    let mut waiting = Waiting(Arc::clone(&probe), record.partition(), false);
                    waits.cancelled().await;
                    waiting.2 = true;
                }
                probe.lock().unwrap().done.push((record.partition(), record.offset()));
            }
        };
        let task = tokio::spawn(dispatch(Arc::clone(&consumer), handle, stop.clone()));
        Self { consumer, seen, gate, stop, task }
    }

    async fn until(&self, what: impl Fn(&Seen) -> bool) {
        soon(async {
            while !what(&self.seen.lock().unwrap()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn stop(self) -> Vec<(i32, i64)> {
        self.stop.cancel();
        soon(self.task).await.unwrap().unwrap();
        soon(self.consumer.close()).await;
        std::mem::take(&mut self.seen.lock().unwrap().done)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_held_until_the_records_are_done_and_the_other_partition_goes_on() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(2).await, unique("group"));
    for partition in 0..2 {
        stand.produce(&topic, partition, 0..20).await;
    }
    let first = Member::start(stand.member(&topic, &group).build().await.unwrap());
    first.until(|seen| seen.waiting.len() == 2).await;
    let second = Member::start(stand.member(&topic, &group).build().await.unwrap());
    // The partition that moves is withheld at once; its records are not done.
    soon(async {
        while first.consumer.assignment().len() == 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let stays = first.consumer.assignment().remove(0).partition;
    assert!(second.consumer.assignment().is_empty(), "it is held");
    first.gate.cancel();
    second.gate.cancel();
    first.until(|seen| seen.done.iter().filter(|(partition, _)| *partition == stays).count() == 20).await;
    stand.produce(&topic, 1 - stays, 20..21).await;
    second.until(|seen| seen.done.contains(&(1 - stays, 20))).await;
    assert_eq!(second.stop().await, [(1 - stays, 20)], "everything before was done and committed");
    let done = first.stop().await;
    for partition in 0..2 {
        let of: Vec<i64> =
            done.iter().filter(|(at, _)| *at == partition).map(|(_, offset)| *offset).collect();
        assert_eq!(of, (0..20).collect::<Vec<_>>(), "in order, each once");
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_partition_is_cancelled_and_its_records_come_again() {
    let timeouts =
        BrokerConfig::new().group_session_timeouts(Duration::from_millis(100), Duration::from_secs(60));
    let mut stand = Stand::embedded(timeouts.group_initial_rebalance_delay(Duration::from_millis(20))).await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    stand.produce(&topic, 0, 0..20).await;
    let builder = stand.member(&topic, &group).session_timeout(Duration::from_millis(500));
    let member = Member::start(builder.build().await.unwrap());
    member.until(|seen| seen.waiting.len() == 1).await;
    stand.stop().await;
    member.until(|seen| seen.dropped == [0]).await;
    member.gate.cancel();
    stand.start_again().await;
    member.until(|seen| seen.done.contains(&(0, 19))).await;
    let committed = soon(member.consumer.committed(&[tp(&topic, 0)])).await.unwrap();
    assert!(committed[&tp(&topic, 0)].as_ref().is_none_or(|at| at.offset == 20));
    let done: Vec<i64> = member.stop().await.into_iter().map(|(_, offset)| offset).collect();
    assert_eq!(done, (0..9).chain(0..20).collect::<Vec<_>>(), "nothing of the lost batch was committed");
    stand.close().await;
}
