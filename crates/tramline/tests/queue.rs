//! The task queue on a real broker: published, claimed, read back, worked on, done.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Stand, soon, unique};
use tokio::sync::watch;
use tramline::queue::{NewTask, Outcome, Queue, Task, Verdict, Worker};

/// What handlers saw, and a way to wait for it.
#[derive(Clone)]
struct Seen {
    payloads: watch::Sender<Vec<String>>,
}

impl Seen {
    fn new() -> Self {
        Self { payloads: watch::Sender::new(Vec::new()) }
    }

    fn add(&self, task: &Task) {
        let text = String::from_utf8_lossy(task.payload()).into_owned();
        self.payloads.send_modify(|payloads| payloads.push(text));
    }

    async fn wait_for(&self, count: usize) -> Vec<String> {
        let mut payloads = self.payloads.subscribe();
        soon(payloads.wait_for(|payloads| payloads.len() >= count)).await.unwrap().clone()
    }
}

/// Runs a worker until `count` tasks are settled by it.
async fn work_until(
    worker: &Worker,
    settled: u64,
    handler: impl Fn(Task) -> Outcome + Send + Sync + 'static,
) {
    let monitor = worker.monitor();
    let enough = async move {
        loop {
            let stats = monitor.stats();
            if stats.done + stats.buried + stats.failed >= settled {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(worker.run(enough, move |task| std::future::ready(handler(task)))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_published_claimed_worked_on_and_done() {
    let stand = Stand::start().await;
    let queue = soon(Queue::open(stand.client(), unique("queue"))).await.unwrap();
    let receipt = soon(queue.publish(NewTask::new("hello").header("from", "ann"))).await.unwrap();
    assert_eq!(soon(queue.status()).await.unwrap().total().ready, 1);

    let seen = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&seen);
    let worker = queue.worker().shards(0..4).build().unwrap();
    work_until(&worker, 1, move |task| {
        let from = task.header("from").map(<[u8]>::to_vec);
        book.lock().unwrap().push((task.shard(), task.id(), task.attempt(), task.payload().to_vec(), from));
        Outcome::Done
    })
    .await;
    let expected = (receipt.shard, receipt.task, 1, b"hello".to_vec(), Some(b"ann".to_vec()));
    assert_eq!(*seen.lock().unwrap(), [expected]);
    let total = soon(queue.status()).await.unwrap().total();
    assert_eq!((total.ready, total.claimed, total.done), (0, 0, 1));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workers_of_a_group_share_the_shards_and_do_each_task_once() {
    let stand = Stand::start().await;
    let queue = soon(Queue::open(stand.client(), unique("queue"))).await.unwrap();
    for n in 0..200 {
        drop(soon(queue.enqueue(NewTask::new(n.to_string()))).await.unwrap());
    }
    soon(queue.flush()).await.unwrap();
    let seen = Seen::new();
    let stop = tokio_util::sync::CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let worker = queue.worker().concurrency(8).build().unwrap();
        let (seen, stop) = (seen.clone(), stop.clone());
        running.spawn(async move {
            let handler = move |task: Task| {
                seen.add(&task);
                std::future::ready(Outcome::Done)
            };
            worker.run(stop.cancelled_owned(), handler).await.unwrap()
        });
    }
    let mut payloads = seen.wait_for(200).await;
    stop.cancel();
    let mut done = 0;
    while let Some(stats) = soon(running.join_next()).await {
        done += stats.unwrap().done;
    }
    payloads.sort_by_key(|text| text.parse::<i32>().unwrap());
    assert_eq!(payloads, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(done, 200);
    let mut settled: BTreeMap<(i32, i64), u32> = BTreeMap::new();
    let status = queue.replay(|row| {
        if *row.verdict == Verdict::Done {
            *settled.entry((row.shard, row.record.unwrap().task)).or_default() += 1;
        }
    });
    assert_eq!(soon(status).await.unwrap().total().done, 200);
    assert!(settled.len() == 200 && settled.values().all(|times| *times == 1));
    stand.close().await;
}
