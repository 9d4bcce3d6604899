//! Group commit: 1, 8 and 64 producers that each wait for the acknowledgement of one 100-byte record.
//!
//! `wire`: our producers, a connection each, against the broker in another process. `log`: the log alone, threads that
//! hand their batch to one writer. `acks written` shows the same path without the barrier, and `barrier + 4 ms` the
//! disk that hides everything but the grouping.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use tramline_bench::{
    Client, Place, Sample, Series, Served, awaited, cpu_seconds, print_table, serve_if_asked, stand,
};
use tramline_client::{Acks, Producer, ProducerConfig, Str};
use tramline_log::storage::{DelayedStorage, DiskStorage};
use tramline_log::{Append, AppendOutcome, Log, LogConfig, Storage};
use tramline_wire::{BatchBuilder, Compression};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_secs(1);
const WAITERS: [usize; 3] = [1, 8, 64];
const SLOW: Duration = Duration::from_millis(4);
const RECORD: [u8; 100] = [b'x'; 100];

fn main() -> Result<()> {
    serve_if_asked()?;
    let place = Place::new()?;
    println!("{}\n{}", stand(), place.file_system());
    println!("{}", place.probe()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let cases = runtime.block_on(run(&place))?;
    println!("{}", place.probe()?);
    report(&cases);
    Ok(())
}

/// One line of the table, and how its figures are taken.
struct Case {
    path: &'static str,
    acks: &'static str,
    barrier: &'static str,
    waiters: usize,
    series: Series,
    subject: Subject,
}

enum Subject {
    Wire { slow: bool, producers: Vec<Arc<Producer>>, topic: Str },
    Log(Box<Log>),
}

async fn run(place: &Place) -> Result<Vec<Case>> {
    let mut disk = Client::new(Served::start(&place.path().join("disk"), Duration::ZERO)?);
    let mut slow = Client::new(Served::start(&place.path().join("slow"), SLOW)?);
    let mut cases = Vec::new();
    for (client, is_slow, acks) in
        [(&disk, false, Acks::Forced), (&disk, false, Acks::Written), (&slow, true, Acks::Forced)]
    {
        for waiters in WAITERS {
            cases.push(wire(client, is_slow, acks, waiters).await?);
        }
    }
    for is_slow in [false, true] {
        for waiters in WAITERS {
            cases.push(log(place, is_slow, waiters)?);
        }
    }
    // The first round warms up.
    for round in 0..=ROUNDS {
        for case in &mut cases {
            let sample = match &mut case.subject {
                Subject::Wire { slow: is_slow, producers, topic } => {
                    let client = if *is_slow { &mut slow } else { &mut disk };
                    let value = Bytes::from_static(&RECORD);
                    client.measure(awaited(producers, case.waiters, topic, &value, TIME)).await?
                }
                Subject::Log(log) => tokio::task::block_in_place(|| gather(log, case.waiters))?,
            };
            if round > 0 {
                case.series.push(sample);
            }
        }
    }
    Ok(cases)
}

async fn wire(client: &Client, slow: bool, acks: Acks, waiters: usize) -> Result<Case> {
    let topic = Str::from(format!("{acks:?}-{waiters}"));
    client.create(&topic, 1).await?;
    let mut producers = Vec::new();
    for _ in 0..waiters {
        producers.push(client.producer(&ProducerConfig::new().acks(acks)).await?);
    }
    Ok(Case {
        path: "wire",
        acks: if acks == Acks::Forced { "forced" } else { "written" },
        barrier: if slow { "+ 4 ms" } else { "disk" },
        waiters,
        series: Series::default(),
        subject: Subject::Wire { slow, producers, topic },
    })
}

fn log(place: &Place, slow: bool, waiters: usize) -> Result<Case> {
    let disk = DiskStorage::shared();
    let storage: Arc<dyn Storage> = if slow { Arc::new(DelayedStorage::new(disk, SLOW)) } else { disk };
    let dir = place.path().join(format!("log-{slow}-{waiters}"));
    let (log, _) = Log::open(storage, dir, LogConfig::default(), 0)?;
    Ok(Case {
        path: "log",
        acks: "forced",
        barrier: if slow { "+ 4 ms" } else { "disk" },
        waiters,
        series: Series::default(),
        subject: Subject::Log(Box::new(log)),
    })
}

type Handed = (Append, mpsc::SyncSender<()>);

/// Threads hand their batch to this one, which writes what is there as one group, forces it and answers.
fn gather(log: &mut Log, waiters: usize) -> Result<Sample> {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(0, None, Some(&RECORD), &[]).map_err(|error| anyhow!("{error:?}"))?;
    let batch = Append::check(builder.build())?;
    let (hand, handed) = mpsc::channel::<Handed>();
    let cpu = cpu_seconds(std::process::id());
    let start = Instant::now();
    let mut sample = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..waiters)
            .map(|_| {
                let (hand, batch) = (hand.clone(), batch.clone());
                scope.spawn(move || wait_each(&hand, &batch, start + TIME))
            })
            .collect();
        drop(hand);
        let mut sample = write(log, &handed)?;
        for thread in threads {
            sample.latencies.extend(thread.join().map_err(|_| anyhow!("a producer panicked"))?);
        }
        anyhow::Ok(sample)
    })?;
    sample.wall = start.elapsed();
    sample.client_cpu = cpu_seconds(std::process::id()) - cpu;
    Ok(sample)
}

fn wait_each(hand: &mpsc::Sender<Handed>, batch: &Append, until: Instant) -> Vec<Duration> {
    let (answer, answered) = mpsc::sync_channel(1);
    let mut latencies = Vec::new();
    let mut start = Instant::now();
    while start < until && hand.send((batch.clone(), answer.clone())).is_ok() && answered.recv().is_ok() {
        let end = Instant::now();
        latencies.push(end - start);
        start = end;
    }
    latencies
}

fn write(log: &mut Log, handed: &mpsc::Receiver<Handed>) -> Result<Sample> {
    let mut sample = Sample::default();
    while let Ok(first) = handed.recv() {
        let (group, answers): (Vec<_>, Vec<_>) = std::iter::once(first).chain(handed.try_iter()).unzip();
        sample.records += group.len() as u64;
        for outcome in log.append_group(group, 0, 0)? {
            anyhow::ensure!(matches!(outcome, AppendOutcome::Appended { .. }), "not appended: {outcome:?}");
        }
        let ticket = log.take_sync().context("nothing to force after an append")?;
        log.synced(ticket.force()?)?;
        sample.counted.barriers += 1;
        sample.counted.groups += 1;
        for answer in answers {
            // Its thread may have ended with the time.
            let _ = answer.send(());
        }
    }
    Ok(sample)
}

fn report(cases: &[Case]) {
    println!("median of {ROUNDS} rounds of {} s, the lines taking turns\n", TIME.as_secs());
    let head = [
        "path",
        "acks",
        "barrier",
        "producers",
        "records/s",
        "range",
        "times one",
        "rec/barrier",
        "rec/group",
        "p50 ms",
        "p99 ms",
        "client cpu s/M",
        "broker cpu s/M",
    ];
    let mut one = f64::NAN;
    let rows: Vec<_> = cases
        .iter()
        .map(|case| {
            let run = case.series.median();
            if case.waiters == 1 {
                one = run.rate();
            }
            let per = |count: u64| match count {
                0 => "-".to_owned(),
                count => format!("{:.1}", run.records as f64 / count as f64),
            };
            let ([rate, range], [p50, p99]) = (case.series.rates(), case.series.percentiles());
            let [client, broker] = case.series.cpu();
            let barriers = if case.acks == "forced" { run.counted.barriers } else { 0 };
            vec![
                case.path.to_owned(),
                case.acks.to_owned(),
                case.barrier.to_owned(),
                case.waiters.to_string(),
                rate,
                range,
                format!("{:.1}", run.rate() / one),
                per(barriers),
                per(run.counted.groups),
                p50,
                p99,
                client,
                if case.path == "log" { "-".to_owned() } else { broker },
            ]
        })
        .collect();
    print_table(&head, 3, &rows);
}
