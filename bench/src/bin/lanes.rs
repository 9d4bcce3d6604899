//! What a lane costs per record: time and allocations, with a source and handlers that cost nothing.
//!
//! Batches of 500 records are made before the clock starts and handed out as they are; the source closes at their end,
//! and the run drains. What is measured is routing, queueing, handing out, completing and the frontier.
#![allow(unsafe_code, reason = "a counting allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::{Future, pending};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use tokio::sync::mpsc;
use tramline_bench::{print_table, stand};
use tramline_processor::{
    CommitConfiguration, CommitError, CommitOffset, GroupMetadata, Lane, LaneStream, PartitionedExt, RunError,
    RunReport, Source, SourceBatch, SourceEvent, SourceEvents,
};
use tramline_wire::{BatchBuilder, Compression, Record, RecordBatch, TopicPartition, set_base_offset_and_epoch};

const RECORDS: usize = 1_000_000;
const PER_BATCH: usize = 500;
const ROUNDS: usize = 7;

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

/// Batches in turn over the partitions, as one record batch each, decoded.
fn ready(partitions: i32) -> Result<Ready> {
    let mut builder = BatchBuilder::new(Compression::None);
    for n in 0..PER_BATCH {
        let key = format!("key-{n}");
        builder.append(1_700_000_000_000, Some(key.as_bytes()), Some(&[b'x'; 100]), &[])?;
    }
    let template = builder.build();
    let names: Vec<_> = (0..partitions).map(|partition| TopicPartition::new("t", partition)).collect();
    let mut batches = Vec::new();
    let mut next = vec![0; names.len()];
    for number in 0..RECORDS / PER_BATCH {
        let place = number % names.len();
        let mut bytes = template.to_vec();
        set_base_offset_and_epoch(&mut bytes, next[place], 0);
        let records: Vec<Record> = RecordBatch::decode(names[place].clone(), Bytes::from(bytes))?.iter().collect();
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

#[derive(Clone, Copy)]
enum Form {
    ForEach,
    Lanes,
    /// The same records through a bounded channel of tokio's, record by record, to compare with.
    Channel,
}

async fn once(form: Form, source: Ready) -> Result<()> {
    let builder = || |source: Ready| source.partitioned().max_buffered_records(PER_BATCH * 4).build();
    let run = match form {
        Form::Channel => return channel(source).await,
        Form::ForEach | Form::Lanes => builder()(source).map_err(|error| error.kind)?,
    };
    let stop = pending::<()>();
    let (result, _): (Result<RunReport, RunError>, _) = match form {
        Form::ForEach => run.for_each(stop, |record: Record, _: Lane| handle(record)).await,
        _ => {
            let processor = |mut lane: LaneStream| async move {
                while let Some(record) = lane.next().await {
                    std::hint::black_box(record.offset());
                    record.done();
                }
                Ok::<_, CommitError>(())
            };
            run.lanes(stop, processor).await
        }
    };
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
        tasks.push(tokio::spawn(async move {
            while let Some(record) = receive.recv().await {
                std::hint::black_box(record.offset());
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

fn main() -> Result<()> {
    println!("{}", stand());
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let forms = [("for_each", Form::ForEach), ("lanes", Form::Lanes), ("channel per record", Form::Channel)];
    let mut rows: Vec<(Vec<String>, Vec<Figures>)> = Vec::new();
    for round in 0..=ROUNDS {
        let mut row = 0;
        for (name, form) in forms {
            for partitions in [1, 8] {
                for (threads, runtime) in [("1", &one), ("2", &two)] {
                    let figures = measure(runtime, form, ready(partitions)?)?;
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
    print_table(&["form", "partitions", "threads", "ns/record", "cpu ns/record", "allocations/record"], 1, &lines);
    Ok(())
}
