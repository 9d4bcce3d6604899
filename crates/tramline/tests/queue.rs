//! The task queue on a real broker: published, claimed, read back, worked on, done.

#![allow(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, Stand, soon, tp, unique};
use tokio::sync::watch;
use tramline::broker::{Broker, BrokerConfig};
use tramline::client::{
    Admin, ClientConfig, Consumer, NewTopic, ProducerConfig, ProducerRecord, StartOffset,
};
use tramline::queue::{Backoff, HealthError, NewTask, OpenError, Outcome, Queue, Task, Verdict, Worker};

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

/// A queue of one shard under a name nobody used before.
async fn one_shard(stand: &Stand) -> Queue {
    soon(Queue::builder(stand.client(), unique("queue")).shards(1).open()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_comes_again_dies_with_its_causes_and_is_published_again() {
    let stand = Stand::start().await;
    let queue = one_shard(&stand).await;
    let task = NewTask::new("x").key("k").class(2).max_attempts(2).header("h", "v");
    soon(queue.publish(task)).await.unwrap();
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(20));
    let worker = queue.worker().shards([0]).backoff(backoff).build().unwrap();
    work_until(&worker, 2, |task| Outcome::retry(format_args!("attempt {} of it", task.attempt()))).await;
    let dead = soon(queue.dead()).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (&dead[0].payload[..], dead[0].key.as_deref(), dead[0].attempts),
        (&b"x"[..], Some(&b"k"[..]), 2)
    );
    assert_eq!(dead[0].cause, "attempt 2 of it");
    assert_eq!(dead[0].earlier_causes, ["attempt 1 of it"]);
    let total = soon(queue.status()).await.unwrap().total();
    assert_eq!((total.dead, total.ready), (1, 0));

    let retried = soon(queue.retry_dead()).await.unwrap();
    assert_eq!(retried.len(), 1);
    assert!(soon(queue.retry_dead()).await.unwrap().is_empty(), "once is enough");
    let total = soon(queue.status()).await.unwrap().total();
    assert_eq!((total.dead, total.ready), (0, 1));
    let seen = Arc::new(Mutex::new(None));
    let book = Arc::clone(&seen);
    let worker = queue.worker().shards([0]).build().unwrap();
    work_until(&worker, 1, move |task| {
        let header = task.header("h").map(<[u8]>::to_vec);
        *book.lock().unwrap() =
            Some((task.key().map(<[u8]>::to_vec), task.max_attempts(), task.attempt(), header));
        Outcome::Done
    })
    .await;
    assert_eq!(*seen.lock().unwrap(), Some((Some(b"k".to_vec()), 2, 1, Some(b"v".to_vec()))));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_is_an_attempt_and_a_result_goes_to_its_topic() {
    let stand = Stand::start().await;
    let name = unique("queue");
    let queue = soon(Queue::builder(stand.client(), &name).shards(1).results(true).open()).await.unwrap();
    let receipt = soon(queue.publish(NewTask::new("x"))).await.unwrap();
    let backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(5));
    let worker = queue.worker().shards([0]).backoff(backoff).build().unwrap();
    let causes = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&causes);
    let monitor = worker.monitor();
    let ended = async {
        while monitor.stats().done == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let handler = move |task: Task| {
        let book = Arc::clone(&book);
        async move {
            assert!(task.attempt() == 2, "the first attempt does not go well");
            book.lock().unwrap().extend(task.causes().iter().cloned());
            Outcome::DoneWith("42".into())
        }
    };
    soon(worker.run(ended, handler)).await.unwrap();
    assert!(causes.lock().unwrap()[0].contains("panicked"), "{causes:?}");
    let results = tp(&format!("{name}.results"), 0);
    let reader =
        Consumer::builder(stand.client()).assign([(results, StartOffset::Earliest)]).build().await.unwrap();
    let result = soon(reader.recv()).await.unwrap();
    let task = receipt.task.to_string();
    assert_eq!((result.key(), result.value()), (Some(task.as_bytes()), Some(&b"42"[..])));
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_tasks_behind_two_snapshots_are_deleted_and_nothing_is_done_again() {
    let stand = Stand::start().await;
    let queue = one_shard(&stand).await;
    for n in 0..120 {
        drop(queue.enqueue(NewTask::new(n.to_string())).await.unwrap());
    }
    // One that stays open, so that the snapshots have something to say.
    let later = NewTask::new("later").delay(Duration::from_secs(3600));
    drop(queue.enqueue(later).await.unwrap());
    soon(queue.flush()).await.unwrap();
    let worker = queue.worker().shards([0]).concurrency(4).snapshot_every(40).build().unwrap();
    work_until(&worker, 120, |_| Outcome::Done).await;
    let start = async |part: &str| {
        let topic = format!("{}.{part}", queue.name());
        soon(stand.admin().list_offsets(topic, StartOffset::Earliest)).await.unwrap()[&0]
    };
    assert!(start("claims").await >= 40, "old claims are deleted");
    assert!(start("tasks").await <= 120, "what is open is kept");
    let total = soon(queue.status()).await.unwrap().total();
    assert_eq!((total.ready, total.delayed, total.done), (0, 1, 120));

    soon(queue.publish(NewTask::new("new"))).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&seen);
    let worker = queue.worker().shards([0]).build().unwrap();
    work_until(&worker, 1, move |task| {
        book.lock().unwrap().push(task.payload().to_vec());
        Outcome::Done
    })
    .await;
    assert_eq!(*seen.lock().unwrap(), [b"new".to_vec()], "only what is new");
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_work_helps_out_in_another_shard() {
    let stand = Stand::start().await;
    let queue = soon(Queue::builder(stand.client(), unique("queue")).shards(2).open()).await.unwrap();
    for n in 0..20 {
        drop(queue.enqueue(NewTask::new(n.to_string())).await.unwrap());
    }
    soon(queue.flush()).await.unwrap();
    let steal_after = Some(Duration::from_millis(20));
    let worker = queue.worker().shards([0]).steal_after(steal_after).build().unwrap();
    work_until(&worker, 20, |_| Outcome::Done).await;
    let status = soon(queue.status()).await.unwrap();
    assert!(status.shards.iter().all(|shard| shard.state.done > 0 && shard.state.ready == 0), "{status:?}");
    stand.close().await;
}

/// B179: what the log does not have any more is named, not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn b179_a_task_whose_record_is_gone_is_dead_and_named() {
    let stand = Stand::start().await;
    let queue = one_shard(&stand).await;
    soon(queue.publish(NewTask::new("one"))).await.unwrap();
    // No payload is kept, and the record goes before the second attempt; a snapshot remembers that there was a task.
    let topic = format!("{}.tasks", queue.name());
    let worker = queue.worker().shards([0]).payload_bytes(0).snapshot_every(1).trim(false).build().unwrap();
    let client = stand.client();
    let handler = move |_: Task| {
        let (admin, topic) = (Admin::new(client.clone()), topic.clone());
        async move {
            admin.delete_records(topic, BTreeMap::from([(0, 1)])).await.unwrap()[&0].as_ref().unwrap();
            Outcome::Retry { after: Some(Duration::ZERO), cause: "again".into() }
        }
    };
    let monitor = worker.monitor();
    let ended = async {
        while monitor.stats().buried == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(worker.run(ended, handler)).await.unwrap();
    let dead = soon(queue.dead()).await.unwrap();
    assert!(dead.len() == 1 && dead[0].cause.contains("gone"), "{dead:?}");
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_under_which_leases_would_not_hold_are_refused() {
    let stand = Stand::start().await;
    let name = unique("queue");
    let topics = ["tasks", "claims"].map(|part| NewTopic::new(format!("{name}.{part}"), 2));
    stand.admin().create_topics(topics).await.unwrap();
    let refused = soon(Queue::open(stand.client(), &name)).await.unwrap_err();
    assert!(matches!(refused, OpenError::Setting { setting: "message.timestamp.type", .. }), "{refused}");

    let name = unique("queue");
    let topics = [(2, "tasks"), (3, "claims")].map(|(count, part)| {
        NewTopic::new(format!("{name}.{part}"), count).config("message.timestamp.type", "LogAppendTime")
    });
    stand.admin().create_topics(topics).await.unwrap();
    let refused = soon(Queue::open(stand.client(), &name)).await.unwrap_err();
    assert!(matches!(refused, OpenError::Partitions { partitions: 3, shards: 2, .. }), "{refused}");
    stand.close().await;
}

/// Whoever makes the topic of the tasks says how many shards there are, also when that is not known everywhere yet, or
/// comes between a look and the making of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_tasks_topic_that_comes_up_meanwhile_decides_how_many_shards_there_are() {
    let stand = Stand::start().await;
    for _ in 0..20 {
        let name = unique("queue");
        let tasks =
            NewTopic::new(format!("{name}.tasks"), 2).config("message.timestamp.type", "LogAppendTime");
        let admin = stand.admin();
        let opening = Queue::builder(stand.client(), &name).shards(3).open();
        let (created, opened) = tokio::join!(admin.create_topics([tasks]), soon(opening));
        let made = created.unwrap().into_values().all(|outcome| outcome.is_ok());
        assert_eq!(opened.unwrap().shards(), if made { 2 } else { 3 });
    }
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_names_the_shard_whose_replay_stands_still() {
    let stand = Stand::start().await;
    let queue = one_shard(&stand).await;
    let worker = queue.worker().shards([0]).build().unwrap();
    let monitor = worker.monitor();
    assert!(matches!(monitor.health(PATIENCE).await, Err(HealthError::NotRunning)));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running =
        tokio::spawn(async move { worker.run(stopped, |_| std::future::ready(Outcome::Done)).await });
    while matches!(monitor.health(PATIENCE).await, Err(HealthError::NotRunning)) {
        tokio::task::yield_now().await;
    }
    monitor.health(PATIENCE).await.unwrap();
    // Somebody else writes to the claims, about a task that is not there.
    let claims = format!("{}.claims", queue.name());
    let producer = stand.producer(ProducerConfig::new()).await;
    let stray = ProducerRecord::to(claims.as_str()).value("claim task=999 lease=1000 n=1 w=stray");
    producer.send_batch(claims.as_str(), 0, vec![stray]).await.unwrap();
    producer.close().await.unwrap();
    let sick = monitor.health(Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(sick, HealthError::Stalled { shard: 0, position: 0, end: 1 }), "{sick}");
    stop.send(()).unwrap();
    soon(running).await.unwrap().unwrap();
    stand.close().await;
}

/// N18.
#[tokio::test(flavor = "multi_thread")]
async fn n18_a_worker_survives_a_restart_of_the_broker_and_is_not_healthy_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let start = async |port: u16| {
        let broker = Broker::builder(directory.path()).listen(format!("127.0.0.1:{port}"));
        broker
            .config(BrokerConfig::new().group_initial_rebalance_delay(Duration::ZERO))
            .start()
            .await
            .unwrap()
    };
    let broker = start(0).await;
    let port = broker.local_addr().port();
    let client = ClientConfig::new(broker.local_addr().to_string());
    let queue = soon(Queue::open(client, "q")).await.unwrap();
    let seen = Seen::new();
    let book = seen.clone();
    let worker = queue.worker().concurrency(2).build().unwrap();
    let monitor = worker.monitor();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let handler = move |task: Task| {
            book.add(&task);
            std::future::ready(Outcome::Done)
        };
        worker.run(stopped, handler).await
    });
    soon(queue.publish(NewTask::new("before"))).await.unwrap();
    seen.wait_for(1).await;
    broker.abort().await;
    assert!(monitor.health(Duration::from_millis(300)).await.is_err(), "nobody answers");
    let _broker = start(port).await;
    soon(queue.publish(NewTask::new("after"))).await.unwrap();
    let mut payloads = seen.wait_for(2).await;
    payloads.dedup();
    assert_eq!(payloads, ["before", "after"]);
    soon(monitor.health(PATIENCE)).await.unwrap();
    stop.send(()).unwrap();
    assert_eq!(soon(running).await.unwrap().unwrap().done, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_unique_name_one_task_is_worked_on_and_a_stop_gives_back_what_is_unfinished() {
    let stand = Stand::start().await;
    let queue = one_shard(&stand).await;
    for _ in 0..3 {
        let task = NewTask::new("once").unique("u", Duration::from_secs(3600));
        soon(queue.publish(task)).await.unwrap();
    }
    let seen = Seen::new();
    let book = seen.clone();
    let drain = Duration::from_millis(50);
    let worker = queue.worker().shards([0]).concurrency(4).drain_timeout(drain).build().unwrap();
    let handler = move |task: Task| {
        book.add(&task);
        std::future::pending::<Outcome>()
    };
    let stats = soon(worker.run(async move { seen.wait_for(1).await }, handler)).await.unwrap();
    assert_eq!((stats.started, stats.done), (1, 0));
    let status = soon(queue.status()).await.unwrap();
    assert_eq!((status.total().ready, status.total().claimed, status.shards[0].duplicates), (1, 0, 2));
    stand.close().await;
}
