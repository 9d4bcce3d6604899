//! The task queue: what a claim costs and where that goes, how often workers collide, what following costs.
//!
//! All in one run, so that the figures of a table can be compared with each other. The broker runs in a process of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tramline_bench::{Place, Served, print_table, serve_if_asked, stand};
use tramline_client::{
    Acks, Admin, ClientConfig, Consumer, NewTopic, Producer, ProducerConfig, ProducerRecord, StartOffset,
    TopicPartition,
};
use tramline_queue::{Counts, Monitor, NewTask, Outcome, Pick, Queue, Task};

fn main() -> Result<()> {
    serve_if_asked()?;
    let place = Place::new()?;
    println!("{}\n{}", stand(), place.file_system());
    println!("{}", place.probe()?);
    let served = Served::start(&place.path().join("log"), Duration::ZERO)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(served.address()))?;
    println!("{}", place.probe()?);
    Ok(())
}

async fn run(address: &str) -> Result<()> {
    let client = ClientConfig::new(address);
    println!("\nThe round trip of a claim (300 in a row)\n");
    round_trip(&client).await?;
    println!("\nAttempts per task, all workers on one shard\n");
    let mut rows = Vec::new();
    for full in [true, false] {
        for pick in [Pick::First, Pick::Random] {
            for workers in [1, 3, 30] {
                rows.push(attempts(&client, full, pick, workers).await?);
            }
        }
    }
    print_table(&["queue", "pick", "workers", "tasks", "claims", "attempts per task"], 2, &rows);
    println!(
        "\nTasks a second against the ceiling (tasks in hand / time of a task), one worker, one shard\n"
    );
    let mut rows = Vec::new();
    for millis in [1, 20] {
        for concurrency in [1, 8, 64] {
            rows.push(rate(&client, concurrency, Duration::from_millis(millis)).await?);
        }
    }
    print_table(&["task ms", "in hand", "tasks/s", "ceiling", "of it"], 0, &rows);
    println!("\nBytes of records read per task\n");
    let mut rows = Vec::new();
    for workers in [1, 4, 16, 32] {
        let own = bytes_per_task(&client, workers, workers).await?;
        let same = bytes_per_task(&client, workers, 1).await?;
        rows.push(vec![workers.to_string(), format!("{own:.0}"), format!("{same:.0}")]);
    }
    print_table(&["workers", "a shard each", "all on one shard"], 0, &rows);
    Ok(())
}

/// A name for one measurement.
fn name(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn median(mut figures: Vec<Duration>) -> f64 {
    figures.sort_unstable();
    figures.get(figures.len() / 2).map_or(f64::NAN, |figure| figure.as_secs_f64() * 1e6)
}

async fn round_trip(client: &ClientConfig) -> Result<()> {
    const CLAIMS: usize = 300;
    let admin = Admin::new(client.clone());
    let topic = name("round-trip");
    let new = NewTopic::new(topic.as_str(), 2).config("message.timestamp.type", "LogAppendTime");
    for (_, made) in admin.create_topics([new]).await? {
        made?;
    }
    let mut times: [Vec<Duration>; 3] = Default::default();
    let written = Producer::new(client.clone(), ProducerConfig::new().acks(Acks::Written)).await?;
    let forced = Producer::new(client.clone(), ProducerConfig::new()).await?;
    let place = TopicPartition::new(topic.as_str(), 0);
    let reader = Consumer::builder(client.clone()).assign([(place, StartOffset::Earliest)]).build().await?;
    let claim = "claim task=123456 lease=30000 n=42 w=host-0123456789abcdef";
    let record = |partition| ProducerRecord::to(topic.as_str()).partition(partition).value(claim);
    for round in 0..CLAIMS + 20 {
        let begun = Instant::now();
        written.send(record(1)).await?.await?;
        let appended = begun.elapsed();
        let begun = Instant::now();
        let (acknowledged, seen) = tokio::join!(
            async {
                forced.send(record(0)).await?.await?;
                anyhow::Ok(begun.elapsed())
            },
            async {
                reader.recv().await?;
                anyhow::Ok(begun.elapsed())
            }
        );
        let (acknowledged, seen) = (acknowledged?, seen?);
        // The first ones make connections.
        if round >= 20 {
            for (times, time) in times.iter_mut().zip([appended, acknowledged, seen]) {
                times.push(time);
            }
        }
    }
    let [appended, acknowledged, seen] = times.map(median);
    let share = |part: f64| format!("{:.2}", part / seen);
    let row = |what: &str, micros: f64| vec![what.to_owned(), format!("{micros:.0}"), share(micros)];
    print_table(
        &["part", "us (median)", "of the whole"],
        1,
        &[
            row("append (acks written)", appended),
            row("barrier (forced beyond written)", acknowledged - appended),
            row("read back (beyond the acknowledgement)", seen - acknowledged),
            row("whole", seen),
        ],
    );
    reader.close().await;
    written.close().await?;
    forced.close().await?;
    Ok(())
}

/// Workers at work in this process, each with connections of its own.
struct Crew {
    stop: CancellationToken,
    running: JoinSet<Result<()>>,
    monitors: Vec<Monitor>,
}

impl Crew {
    async fn start(
        client: &ClientConfig,
        queue: &str,
        workers: i32,
        shards: i32,
        pick: Pick,
        work: Duration,
    ) -> Result<Self> {
        let mut crew = Self { stop: CancellationToken::new(), running: JoinSet::new(), monitors: Vec::new() };
        for number in 0..workers {
            let own = Queue::open(client.clone(), queue).await?;
            let worker = own.worker().shards([number % shards]).pick(pick).steal_after(None).build()?;
            crew.monitors.push(worker.monitor());
            let stop = crew.stop.clone();
            let handler = move |_: Task| async move {
                tokio::time::sleep(work).await;
                Outcome::Done
            };
            crew.running.spawn(async move {
                worker.run(stop.cancelled_owned(), handler).await?;
                Ok(())
            });
        }
        for monitor in &crew.monitors {
            while monitor.health(Duration::from_secs(10)).await.is_err() {}
        }
        Ok(crew)
    }

    fn done(&self) -> u64 {
        self.monitors.iter().map(|monitor| monitor.stats().done).sum()
    }

    async fn wait_for(&self, done: u64) -> Result<()> {
        let begun = Instant::now();
        while self.done() < done {
            ensure!(
                begun.elapsed() < Duration::from_secs(120),
                "{} of {done} tasks, and no end",
                self.done()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn fill(queue: &Queue, tasks: u64) -> Result<()> {
    for _ in 0..tasks {
        drop(queue.enqueue(NewTask::new(vec![b'x'; 100])).await?);
    }
    queue.flush().await?;
    Ok(())
}

async fn counts(queue: &Queue) -> Result<Counts> {
    let status = queue.status().await?;
    Ok(status.shards.first().context("no shard")?.counts)
}

async fn attempts(client: &ClientConfig, full: bool, pick: Pick, workers: i32) -> Result<Vec<String>> {
    let queue_name = name("attempts");
    let queue = Queue::builder(client.clone(), queue_name.as_str()).shards(1).open().await?;
    let tasks = if full { 100 * workers.unsigned_abs().min(6) } else { 60 };
    if full {
        fill(&queue, tasks.into()).await?;
    }
    let crew = Crew::start(client, &queue_name, workers, 1, pick, Duration::from_millis(10)).await?;
    if !full {
        // One at a time: whoever is idle wakes at once.
        for number in 0..tasks {
            queue.publish(NewTask::new("x")).await?;
            crew.wait_for(u64::from(number) + 1).await?;
        }
    }
    crew.wait_for(tasks.into()).await?;
    crew.end().await?;
    let counts = counts(&queue).await?;
    let claims = counts.granted + counts.refused;
    Ok(vec![
        (if full { "full" } else { "empty" }).to_owned(),
        format!("{pick:?}").to_lowercase(),
        workers.to_string(),
        tasks.to_string(),
        claims.to_string(),
        format!("{:.3}", claims as f64 / f64::from(tasks)),
    ])
}

async fn rate(client: &ClientConfig, concurrency: usize, work: Duration) -> Result<Vec<String>> {
    let queue = Queue::builder(client.clone(), name("rate")).shards(1).open().await?;
    let tasks = 100 * concurrency as u64 + 200;
    fill(&queue, tasks).await?;
    let worker = queue.worker().shards([0]).concurrency(concurrency).steal_after(None).build()?;
    let monitor = worker.monitor();
    let begun = Instant::now();
    let enough = async {
        while monitor.stats().done < tasks {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let handler = move |_: Task| async move {
        tokio::time::sleep(work).await;
        Outcome::Done
    };
    worker.run(enough, handler).await?;
    let rate = tasks as f64 / begun.elapsed().as_secs_f64();
    let ceiling = concurrency as f64 / work.as_secs_f64();
    Ok(vec![
        work.as_millis().to_string(),
        concurrency.to_string(),
        format!("{rate:.0}"),
        format!("{ceiling:.0}"),
        format!("{:.2}", rate / ceiling),
    ])
}

/// Workers spread over shards, each following one.
async fn bytes_per_task(client: &ClientConfig, workers: i32, shards: i32) -> Result<f64> {
    let queue_name = name("bytes");
    let queue = Queue::builder(client.clone(), queue_name.as_str()).shards(shards).open().await?;
    let tasks = 20 * workers.unsigned_abs();
    let crew =
        Crew::start(client, &queue_name, workers, shards, Pick::Random, Duration::from_millis(1)).await?;
    fill(&queue, tasks.into()).await?;
    crew.wait_for(tasks.into()).await?;
    let read: u64 = crew.monitors.iter().map(Monitor::bytes_read).sum();
    crew.end().await?;
    Ok(read as f64 / f64::from(tasks))
}
