//! Our client against our broker, in two processes over loopback: produce, awaited sends, consume, lanes.
//!
//! Names of sections as arguments (`produce`, `awaited`, `consume`); all without.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tramline_bench::{Client, Place, Series, Served, awaited, print_table, serve_if_asked, stand};
use tramline_client::{Acks, Consumer, Producer, ProducerConfig, ProducerRecord, Record, StartOffset, Str};
use tramline_processor::{Lane, LaneStream, PartitionedExt};

const ROUNDS: usize = 5;
const PARTITIONS: i32 = 8;
/// Bytes of one run, key and value.
const VOLUME: usize = 100 << 20;
const SIZES: [usize; 2] = [100, 1000];
const TASKS: [usize; 3] = [1, 64, 1024];
const AWAITED: Duration = Duration::from_secs(1);
/// Deliveries that are looked at this many records later.
const WINDOW: usize = 10_000;
const PREFETCH: usize = 16 << 20;
/// What a channel that was made by hand holds, in records: as much as a lane does unless told otherwise.
const BUFFERED: usize = 256;

fn main() -> Result<()> {
    serve_if_asked()?;
    let sections: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |section: &str| sections.is_empty() || sections.iter().any(|name| name == section);
    let place = Place::new()?;
    println!("{}\n{}", stand(), place.file_system());
    println!("{}", place.probe()?);
    println!(
        "client and broker in two processes; {PARTITIONS} partitions; {} MiB a run, awaited sends {} s; \
         median of {ROUNDS} rounds, the lines of a table taking turns; cpu in seconds per million records",
        VOLUME >> 20,
        AWAITED.as_secs()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = Client::new(Served::start(&place.path().join("data"), Duration::ZERO)?);
        if chosen("produce") {
            produce(&mut client).await?;
        }
        if chosen("awaited") {
            wait_for_each(&mut client).await?;
        }
        if chosen("consume") {
            consume(&mut client).await?;
        }
        anyhow::Ok(())
    })?;
    println!("\n{}", place.probe()?);
    Ok(())
}

/// The keys and the value that make records of `size` bytes.
#[derive(Clone)]
struct Load {
    size: usize,
    count: usize,
    keys: Arc<[Bytes]>,
    value: Bytes,
}

impl Load {
    fn new(size: usize) -> Self {
        let keys = (0..1000).map(|n| Bytes::from(format!("key-{n:04}"))).collect();
        Self { size, count: VOLUME / size, keys, value: Bytes::from(vec![b'x'; size - 8]) }
    }

    fn record(&self, topic: &Str, n: usize, keyed: bool) -> ProducerRecord {
        let record = ProducerRecord::to(topic.clone()).value(self.value.clone());
        if keyed { record.key(self.keys[n * 7 % self.keys.len()].clone()) } else { record }
    }
}

async fn produce(client: &mut Client) -> Result<()> {
    let cases = [
        ("flush at the end", Acks::Forced, true, false),
        ("flush at the end", Acks::Forced, false, false),
        ("each awaited, 10,000 later", Acks::Forced, true, true),
        ("flush at the end", Acks::Written, true, false),
    ];
    let mut rows = Vec::new();
    for size in SIZES {
        let load = Load::new(size);
        let mut series = vec![Series::default(); cases.len()];
        for round in 0..=ROUNDS {
            for ((_, acks, keyed, awaits), series) in cases.iter().zip(&mut series) {
                let topic = Str::from("produce");
                client.create(&topic, PARTITIONS).await?;
                let producer = client.producer(&ProducerConfig::new().acks(*acks)).await?;
                // Metadata and the producer's id are there before the clock runs.
                producer.send(load.record(&topic, 0, false)).await?.await?;
                let sample = client.measure(send_all(&producer, &load, &topic, *keyed, *awaits)).await?;
                client.delete(&topic).await?;
                if round > 0 {
                    series.push(sample);
                }
            }
        }
        for ((how, acks, keyed, _), series) in cases.iter().zip(&series) {
            let run = series.median();
            let ([rate, range], [mine, broker]) = (series.rates(), series.cpu());
            rows.push(vec![
                (*how).to_owned(),
                format!("{size} B"),
                format!("{acks:?}").to_lowercase(),
                if *keyed { "yes" } else { "no" }.to_owned(),
                rate,
                range,
                format!("{:.0}", run.rate() * load.size as f64 / 1e6),
                mine,
                broker,
                format!("{:.0}", run.records as f64 / run.counted.batches as f64),
                match run.counted.barriers {
                    0 => "-".to_owned(),
                    barriers => format!("{:.1}", run.counted.batches as f64 / barriers as f64),
                },
            ]);
        }
    }
    println!("\nproduce, many in flight");
    let head = [
        "how",
        "record",
        "acks",
        "keys",
        "records/s",
        "range",
        "MB/s",
        "client cpu",
        "broker cpu",
        "rec/batch",
        "batches/barrier",
    ];
    print_table(&head, 4, &rows);
    Ok(())
}

async fn send_all(
    producer: &Producer,
    load: &Load,
    topic: &Str,
    keyed: bool,
    awaits: bool,
) -> Result<(u64, Vec<Duration>)> {
    let mut waiting = VecDeque::new();
    for n in 0..load.count {
        let delivery = producer.send(load.record(topic, n, keyed)).await?;
        if awaits {
            waiting.push_back(delivery);
            if waiting.len() > WINDOW
                && let Some(oldest) = waiting.pop_front()
            {
                oldest.await?;
            }
        }
    }
    producer.flush().await?;
    for delivery in waiting {
        delivery.await?;
    }
    Ok((load.count as u64, Vec::new()))
}

async fn wait_for_each(client: &mut Client) -> Result<()> {
    let topic = Str::from("awaited");
    client.create(&topic, PARTITIONS).await?;
    let mut cases = Vec::new();
    for acks in [Acks::Forced, Acks::Written] {
        let producer = [client.producer(&ProducerConfig::new().acks(acks)).await?];
        for tasks in TASKS {
            cases.push((acks, tasks, producer.clone(), Series::default()));
        }
    }
    let value = Bytes::from(vec![b'x'; 100]);
    for round in 0..=ROUNDS {
        for (_, tasks, producer, series) in &mut cases {
            let sample = client.measure(awaited(producer, *tasks, &topic, &value, AWAITED)).await?;
            if round > 0 {
                series.push(sample);
            }
        }
    }
    let rows: Vec<_> = cases
        .iter()
        .map(|(acks, tasks, _, series)| {
            let run = series.median();
            let ([rate, range], [mine, broker]) = (series.rates(), series.cpu());
            let [p50, p99] = series.percentiles();
            let per_batch = format!("{:.1}", run.records as f64 / run.counted.batches as f64);
            let acks = format!("{acks:?}").to_lowercase();
            vec![acks, tasks.to_string(), rate, range, p50, p99, mine, broker, per_batch]
        })
        .collect();
    println!("\nawaited sends of 100 B, one producer shared by all tasks");
    let head =
        ["acks", "tasks", "records/s", "range", "p50 ms", "p99 ms", "client cpu", "broker cpu", "rec/batch"];
    print_table(&head, 1, &rows);
    Ok(())
}

/// The ways of reading a topic.
#[derive(Clone, Copy)]
enum Way {
    Batches,
    Records,
    ForEach,
    Lanes,
    /// What one would write by hand over the consumer: a bounded channel and a task for each partition, record by
    /// record, and the offset to commit in a variable. It neither drains nor commits.
    Channels,
}

async fn consume(client: &mut Client) -> Result<()> {
    let ways = [
        ("next_batch", 0, Way::Batches),
        ("next_batch", PREFETCH, Way::Batches),
        ("recv", PREFETCH, Way::Records),
        ("lanes (for_each)", PREFETCH, Way::ForEach),
        ("lanes (lanes)", PREFETCH, Way::Lanes),
        ("channel per partition", PREFETCH, Way::Channels),
    ];
    let mut rows = Vec::new();
    for size in SIZES {
        let load = Load::new(size);
        let topic = Str::from("consume");
        client.create(&topic, PARTITIONS).await?;
        let producer = client.producer(&ProducerConfig::new()).await?;
        send_all(&producer, &load, &topic, true, false).await?;
        let mut series = vec![Series::default(); ways.len()];
        for round in 0..=ROUNDS {
            for ((_, prefetch, way), series) in ways.iter().zip(&mut series) {
                let config = client.config();
                let build = Consumer::builder(config).prefetch(*prefetch);
                let build = build.assign_topic(topic.clone(), StartOffset::Earliest);
                let sample = client
                    .measure(async {
                        let consumer = build.build().await?;
                        let bytes = read_all(consumer, *way, load.count as u64).await?;
                        anyhow::ensure!(bytes == (load.count * (size - 8)) as u64, "{bytes} bytes");
                        Ok((load.count as u64, Vec::new()))
                    })
                    .await?;
                if round > 0 {
                    series.push(sample);
                }
            }
        }
        client.delete(&topic).await?;
        for ((name, prefetch, _), series) in ways.iter().zip(&series) {
            let ([rate, range], [mine, broker]) = (series.rates(), series.cpu());
            let megabytes = format!("{:.0}", series.median().rate() * size as f64 / 1e6);
            let prefetch = format!("{} MiB", prefetch >> 20);
            rows.push(vec![
                (*name).to_owned(),
                format!("{size} B"),
                prefetch,
                rate,
                range,
                megabytes,
                mine,
                broker,
            ]);
        }
    }
    println!("\nconsume, log in the page cache");
    let head = ["how", "record", "prefetch", "records/s", "range", "MB/s", "client cpu", "broker cpu"];
    print_table(&head, 2, &rows);
    Ok(())
}

/// Reads `count` records and returns the bytes of their values.
async fn read_all(consumer: Consumer, way: Way, count: u64) -> Result<u64> {
    let (mut seen, mut bytes) = (0, 0);
    let size = |record: &Record| record.value().map_or(0, <[u8]>::len) as u64;
    match way {
        Way::Batches => {
            while seen < count {
                let fetched = consumer.next_batch().await?;
                seen += fetched.records.len() as u64;
                bytes += fetched.records.iter().map(size).sum::<u64>();
            }
        }
        Way::Records => {
            while seen < count {
                bytes += size(&consumer.recv().await?);
                seen += 1;
            }
        }
        Way::ForEach | Way::Lanes => return process_all(consumer, way, count).await,
        Way::Channels => return dispatch_by_hand(consumer, count).await,
    }
    Ok(bytes)
}

async fn dispatch_by_hand(consumer: Consumer, count: u64) -> Result<u64> {
    let mut senders = HashMap::new();
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let record = consumer.recv().await?;
        let sender = senders.entry(record.partition()).or_insert_with(|| {
            let (sender, mut records) = mpsc::channel::<Record>(BUFFERED);
            tasks.spawn(async move {
                let (mut bytes, to_commit) = (0, AtomicI64::new(0));
                while let Some(record) = records.recv().await {
                    bytes += record.value().map_or(0, <[u8]>::len) as u64;
                    to_commit.store(record.offset() + 1, Ordering::Release);
                }
                bytes
            });
            sender
        });
        sender.send(record).await?;
    }
    drop(senders);
    Ok(tasks.join_all().await.into_iter().sum())
}

/// What the lanes have seen together.
struct Tally {
    left: AtomicU64,
    bytes: AtomicU64,
    all: CancellationToken,
}

impl Tally {
    fn count(&self, record: &Record) {
        self.bytes.fetch_add(record.value().map_or(0, <[u8]>::len) as u64, Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.all.cancel();
        }
    }
}

async fn process_all(consumer: Consumer, way: Way, count: u64) -> Result<u64> {
    let tally = Arc::new(Tally {
        left: AtomicU64::new(count),
        bytes: AtomicU64::new(0),
        all: CancellationToken::new(),
    });
    let builder = consumer.partitioned();
    let (until, counted) = (tally.all.clone().cancelled_owned(), Arc::clone(&tally));
    let (result, _consumer) = match way {
        Way::Lanes => {
            let processor = move |mut lane: LaneStream| {
                let tally = Arc::clone(&counted);
                async move {
                    while let Some(record) = lane.next().await {
                        tally.count(&record);
                        record.done();
                    }
                    Ok::<(), Infallible>(())
                }
            };
            let run = builder.build_lanes().map_err(|error| anyhow::anyhow!("{:?}", error.kind))?;
            run.lanes(until, processor).await
        }
        _ => {
            let handler = move |record: Record, _lane: Lane| {
                counted.count(&record);
                std::future::ready(Ok::<(), Infallible>(()))
            };
            let run = builder.build().map_err(|error| anyhow::anyhow!("{:?}", error.kind))?;
            run.for_each(until, handler).await
        }
    };
    result.context("the run")?;
    Ok(tally.bytes.load(Ordering::Relaxed))
}
