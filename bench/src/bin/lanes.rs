//! What a lane costs per record: time and allocations, with a source and handlers that cost nothing; and how busy it
//! keeps handlers that take a millisecond.
//!
//! Batches of 500 records are made before the clock starts and handed out as they are; the source closes at their end,
//! and the run drains. What is measured is routing, queueing, handing out, completing and the frontier.
#![allow(unsafe_code, reason = "a counting allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::{Future, pending};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tramline_bench::{print_table, stand};
use tramline_processor::{
    Batch, CommitConfiguration, CommitError, CommitOffset, Decoded, GroupMetadata, Lane, LaneStream,
    Ordering as Order, PartitionedExt, RunError, RunReport, Source, SourceBatch, SourceEvent, SourceEvents,
};
use tramline_wire::{
    BatchBuilder, Compression, Record, RecordBatch, TopicPartition, set_base_offset_and_epoch,
};

const RECORDS: usize = 1_000_000;
const PER_BATCH: usize = 500;
const KEYS: usize = 10_000;
/// Handlers at once, in key order and without an order.
const HANDLERS: usize = 8;
const ROUNDS: usize = 5;
/// Records for the handlers that take a millisecond.
const SLOW_RECORDS: usize = 24_000;

/// Counts calls that allocate or grow.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counter beside it touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout, through the methods here.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `dealloc`, and the caller keeps the contract for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Batches made before; closed at their end.
struct Ready {
    batches: Mutex<std::vec::IntoIter<SourceBatch>>,
    partitions: Vec<TopicPartition>,
}

/// The one assignment.
struct Assigned(Option<SourceEvent>);

impl SourceEvents for Assigned {
    async fn next(&mut self) -> Option<SourceEvent> {
        match self.0.take() {
            Some(event) => Some(event),
            None => pending().await,
        }
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        self.0.take()
    }
}

impl Source for Ready {
    type Error = CommitError;
    type Events = Assigned;

    async fn poll(&self) -> Result<Option<SourceBatch>, CommitError> {
        Ok(self.batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next())
    }

    fn pause(&self, _: &TopicPartition) {}

    fn resume(&self, _: &TopicPartition) {}

    fn seek(&self, _: &TopicPartition, _: i64) {}

    async fn commit(&self, _: Vec<CommitOffset>) -> Result<(), CommitError> {
        Ok(())
    }

    fn events(&self) -> Assigned {
        Assigned(Some(SourceEvent::Assigned { generation: 1, partitions: self.partitions.clone() }))
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        Some(CommitConfiguration { group: Some("g".into()), ..CommitConfiguration::default() })
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        None
    }
}

/// Batches in turn over the partitions, as one record batch each, decoded. The keys of a partition come round after
/// ten thousand records.
fn ready(records: usize, partitions: i32) -> Result<Ready> {
    let mut templates = Vec::new();
    for first in (0..KEYS).step_by(PER_BATCH) {
        let mut builder = BatchBuilder::new(Compression::None);
        for n in first..first + PER_BATCH {
            let key = format!("key-{n}");
            builder.append(1_700_000_000_000, Some(key.as_bytes()), Some(&[b'x'; 100]), &[])?;
        }
        templates.push(builder.build());
    }
    let names: Vec<_> = (0..partitions).map(|partition| TopicPartition::new("t", partition)).collect();
    let mut batches = Vec::new();
    let mut next = vec![0; names.len()];
    for number in 0..records / PER_BATCH {
        let place = number % names.len();
        let mut bytes = templates[number / names.len() % templates.len()].to_vec();
        set_base_offset_and_epoch(&mut bytes, next[place], 0);
        let records: Vec<Record> =
            RecordBatch::decode(names[place].clone(), Bytes::from(bytes))?.iter().collect();
        let first_offset = next[place];
        next[place] += i64::try_from(PER_BATCH)?;
        batches.push(SourceBatch {
            topic_partition: names[place].clone(),
            generation: 1,
            records,
            first_offset,
            next_offset: next[place],
            leader_epoch: Some(0),
        });
    }
    Ok(Ready { batches: Mutex::new(batches.into_iter()), partitions: names })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    ForEach,
    /// With the number of a value's bytes for a value.
    Decoded,
    /// In key order, eight handlers at once, 10,000 keys.
    ByKey,
    /// The same, each handler giving way once.
    ByKeyYielding,
    /// Without an order, eight handlers at once.
    Unordered,
    /// Batches of up to 100, in partition order.
    Batches,
    Lanes,
    /// What one would write by hand: a bounded channel and a task for each partition, record by record, and the offset to
    /// commit in a variable. It neither drains nor commits.
    Channel,
}

const FORMS: [(&str, Form); 8] = [
    ("for_each", Form::ForEach),
    ("for_each, decode", Form::Decoded),
    ("for_each, key order", Form::ByKey),
    ("the same, handlers yield", Form::ByKeyYielding),
    ("for_each, unordered", Form::Unordered),
    ("for_each_batch", Form::Batches),
    ("lanes", Form::Lanes),
    ("channel per partition", Form::Channel),
];

async fn once(form: Form, source: Ready) -> Result<()> {
    if form == Form::Channel {
        return channel(source).await;
    }
    let builder = source.partitioned().max_buffered_records(PER_BATCH * 4).max_handler_batch_size(100);
    let builder = match form {
        Form::ByKey | Form::ByKeyYielding => builder.ordering(Order::Key).max_concurrent_handlers(HANDLERS),
        Form::Unordered => builder.ordering(Order::Unordered).max_concurrent_handlers(HANDLERS),
        _ => builder,
    };
    let stop = pending::<()>();
    if form == Form::Decoded {
        let decode = |record: &Record| Ok::<_, CommitError>(record.value().map_or(0, <[u8]>::len));
        let run = builder.decode(decode).build().map_err(|error| error.kind)?;
        return all_of_it(
            run.for_each(stop, |decoded: Decoded<usize>, _: Lane| handle(decoded.record)).await.0,
        );
    }
    if form == Form::Lanes {
        let processor = |mut lane: LaneStream| async move {
            while let Some(record) = lane.next().await {
                std::hint::black_box(record.offset());
                record.done();
            }
            Ok::<_, CommitError>(())
        };
        return all_of_it(builder.build_lanes().map_err(|error| error.kind)?.lanes(stop, processor).await.0);
    }
    let run = builder.build().map_err(|error| error.kind)?;
    all_of_it(match form {
        Form::ByKeyYielding => {
            let handler = |record: Record, _: Lane| async move {
                tokio::task::yield_now().await;
                handle(record).await
            };
            run.for_each(stop, handler).await.0
        }
        Form::Batches => {
            let handler = |batch: Batch, _: Lane| {
                batch.iter().for_each(|record| {
                    std::hint::black_box(record.offset());
                });
                std::future::ready(Ok::<_, CommitError>(()))
            };
            run.for_each_batch(stop, handler).await.0
        }
        _ => run.for_each(stop, |record: Record, _: Lane| handle(record)).await.0,
    })
}

fn all_of_it(result: Result<RunReport, RunError>) -> Result<()> {
    let report = result?;
    anyhow::ensure!(report.records_completed == RECORDS as u64, "{report:?}");
    Ok(())
}

fn handle(record: Record) -> impl Future<Output = Result<(), CommitError>> + Send {
    std::hint::black_box(record.offset());
    std::future::ready(Ok(()))
}

async fn channel(source: Ready) -> Result<()> {
    let mut senders = Vec::new();
    let mut tasks = Vec::new();
    for _ in &source.partitions {
        let (send, mut receive) = mpsc::channel::<Record>(PER_BATCH * 4);
        senders.push(send);
        let to_commit = Arc::new(AtomicI64::new(0));
        tasks.push(tokio::spawn(async move {
            while let Some(record) = receive.recv().await {
                let offset = record.offset();
                if handle(record).await.is_ok() {
                    to_commit.store(offset + 1, Ordering::Release);
                }
            }
        }));
    }
    while let Some(batch) = source.poll().await? {
        let place = usize::try_from(batch.topic_partition.partition)?;
        for record in batch.records {
            senders[place].send(record).await?;
        }
    }
    drop(senders);
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// The time all threads of this process have spent on a processor, in nanoseconds; a busy machine shows less in it.
fn cpu_nanoseconds() -> Result<u64> {
    let mut spent = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let line = std::fs::read_to_string(task?.path().join("schedstat"))?;
        spent += line.split(' ').next().unwrap_or("0").parse::<u64>()?;
    }
    Ok(spent)
}

/// What one run cost per record: wall nanoseconds, processor nanoseconds, allocations.
type Figures = [f64; 3];

fn measure(runtime: &tokio::runtime::Runtime, form: Form, source: Ready) -> Result<Figures> {
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let (cpu, start) = (cpu_nanoseconds()?, Instant::now());
    runtime.block_on(async { tokio::spawn(once(form, source)).await? })?;
    let per_record = |amount: u64| amount as f64 / RECORDS as f64;
    let wall = start.elapsed().as_nanos() as f64 / RECORDS as f64;
    let cpu = cpu_nanoseconds()? - cpu;
    Ok([wall, per_record(cpu), per_record(ALLOCATIONS.load(Ordering::Relaxed) - allocations)])
}

/// Wakes whoever asked when its time has come, more exactly than a runtime's timers, which count milliseconds.
fn exact_timer() -> blocking::Sender<(Instant, oneshot::Sender<()>)> {
    let (sender, asked) = blocking::channel::<(Instant, oneshot::Sender<()>)>();
    std::thread::spawn(move || {
        // All wait for the same time, so that they are due in the order in which they came.
        while let Ok((due, waiter)) = asked.recv() {
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                match left.checked_sub(Duration::from_micros(100)) {
                    Some(long) => std::thread::sleep(long),
                    None => std::hint::spin_loop(),
                }
            }
            // Nobody may be left to wake.
            let _ = waiter.send(());
        }
    });
    sender
}

/// Handlers of a millisecond: records per second, and how long a handler really took, in milliseconds.
async fn slow(order: Order, source: Ready) -> Result<(f64, f64)> {
    let timer = exact_timer();
    let taken = Arc::new(AtomicU64::new(0));
    let handler = {
        let taken = Arc::clone(&taken);
        move |_: Record, _: Lane| {
            let (timer, taken) = (timer.clone(), Arc::clone(&taken));
            async move {
                let begun = Instant::now();
                let (wake, woken) = oneshot::channel();
                timer.send((begun + Duration::from_millis(1), wake))?;
                woken.await?;
                taken.fetch_add(u64::try_from(begun.elapsed().as_nanos())?, Ordering::Relaxed);
                Ok::<_, anyhow::Error>(())
            }
        }
    };
    let builder = source.partitioned().max_buffered_records(PER_BATCH * 4);
    let builder = builder.ordering(order).max_concurrent_handlers(HANDLERS);
    let run = builder.build().map_err(|error| error.kind)?;
    let start = Instant::now();
    run.for_each(pending::<()>(), handler).await.0?;
    let rate = SLOW_RECORDS as f64 / start.elapsed().as_secs_f64();
    Ok((rate, taken.load(Ordering::Relaxed) as f64 / SLOW_RECORDS as f64 / 1e6))
}

fn slow_handlers(runtime: &tokio::runtime::Runtime) -> Result<()> {
    let mut lines = Vec::new();
    for (name, order) in [("key order, 10,000 keys", Order::Key), ("unordered", Order::Unordered)] {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let source = ready(SLOW_RECORDS, 1)?;
            rounds.push(runtime.block_on(async { tokio::spawn(slow(order, source)).await? })?);
        }
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, took) = rounds[ROUNDS / 2];
        let of_all = rate / (HANDLERS as f64 * 1e3);
        let busy = rate * took / (HANDLERS as f64 * 1e3);
        lines.push(vec![
            name.to_owned(),
            format!("{rate:.0}"),
            format!("{:.0}-{:.0}", rounds[0].0, rounds[ROUNDS - 1].0),
            format!("{:.1} %", of_all * 1e2),
            format!("{took:.3}"),
            format!("{:.1} %", busy * 1e2),
        ]);
    }
    let head = ["8 handlers of 1 ms", "records/s", "range", "of 8,000", "a handler took ms", "handlers busy"];
    print_table(&head, 1, &lines);
    Ok(())
}

/// Only the forms with the argument in their name, if there is one.
fn main() -> Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!("{}", stand());
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows: Vec<(Vec<String>, Vec<Figures>)> = Vec::new();
    for round in 0..=ROUNDS {
        let mut row = 0;
        for (name, form) in FORMS.into_iter().filter(|(name, _)| name.contains(&wanted)) {
            for partitions in [1, 8] {
                for (threads, runtime) in [("1", &one), ("2", &two)] {
                    let figures = measure(runtime, form, ready(RECORDS, partitions)?)?;
                    if round == 0 {
                        let head = [name.to_owned(), partitions.to_string(), threads.to_owned()];
                        rows.push((head.into(), Vec::new()));
                    } else if let Some((_, rounds)) = rows.get_mut(row) {
                        rounds.push(figures);
                    }
                    row += 1;
                }
            }
        }
    }
    let median = |rounds: &[Figures], which: usize| {
        let mut figures: Vec<f64> = rounds.iter().map(|figures| figures[which]).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let lines: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(mut line, rounds)| {
            line.extend([0, 1].map(|which| format!("{:.0}", median(&rounds, which))));
            line.push(format!("{:.4}", median(&rounds, 2)));
            line
        })
        .collect();
    print_table(
        &["form", "partitions", "threads", "ns/record", "cpu ns/record", "allocations/record"],
        1,
        &lines,
    );
    println!("{}", stand());
    if wanted.is_empty() || "handlers of 1 ms".contains(&wanted) { slow_handlers(&two) } else { Ok(()) }
}
