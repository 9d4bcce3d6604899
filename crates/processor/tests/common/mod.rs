//! What the tests of runs share.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline_processor::testing::{MemoryControl, MemoryLog, MemorySource};
use tramline_processor::{
    BatchHandler, Handler, Lane, Monitor, Partitioned, PartitionedBuilder, PartitionedExt, PartitionedLanes,
    Processor, RunError, RunReport, Source, Values,
};
use tramline_wire::{Record, TopicPartition};

pub type Ended<S = MemorySource> = (Result<RunReport, RunError>, S);

pub fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

/// Lets everything that can go on without time passing go on. Under the paused clock a short sleep ends only
/// when nothing else can run.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// A run on its own task, and everything to command and watch it. Ends through the leak gate only.
pub struct Running<S = MemorySource, C = MemoryControl> {
    pub control: C,
    pub monitor: Monitor,
    stop: CancellationToken,
    task: Option<JoinHandle<Ended<S>>>,
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Starts a run of `handler` over the given partitions.
pub fn for_each<H: Handler>(
    log: &MemoryLog,
    partitions: &[i32],
    with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
    handler: H,
) -> Running {
    let (source, control) = MemorySource::new(log);
    let partitions: Vec<_> = partitions.iter().copied().map(tp).collect();
    if !partitions.is_empty() {
        control.assign(&partitions);
    }
    run_on(source, control, with, handler)
}

pub fn run_on<H: Handler>(
    source: MemorySource,
    control: MemoryControl,
    with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
    handler: H,
) -> Running {
    Running::of(with(source.partitioned()).build().unwrap(), control, handler)
}

/// As [`for_each`], with a handler of batches.
pub fn for_each_batch<H: BatchHandler>(
    log: &MemoryLog,
    partitions: &[i32],
    with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
    handler: H,
) -> Running {
    let (source, control) = MemorySource::new(log);
    control.assign(&partitions.iter().copied().map(tp).collect::<Vec<_>>());
    Running::of_batches(with(source.partitioned()).build().unwrap(), control, handler)
}

pub fn lanes<P: Processor>(
    log: &MemoryLog,
    partitions: &[i32],
    with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
    processor: P,
) -> Running {
    let (source, control) = MemorySource::new(log);
    let partitions: Vec<_> = partitions.iter().copied().map(tp).collect();
    if !partitions.is_empty() {
        control.assign(&partitions);
    }
    Running::of_lanes(with(source.partitioned()).build_lanes().unwrap(), control, processor)
}

impl<S: Source, C> Running<S, C> {
    /// Starts a checked run of `handler`.
    pub fn of<V: Values, H: Handler<V::Given>>(run: Partitioned<S, V>, control: C, handler: H) -> Self {
        let (monitor, stop) = (run.monitor(), CancellationToken::new());
        let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
        Self { control, monitor, stop, task: Some(task) }
    }

    /// As [`of`](Self::of), with a handler of batches.
    pub fn of_batches<V: Values, H: BatchHandler<V::Given>>(
        run: Partitioned<S, V>,
        control: C,
        handler: H,
    ) -> Self {
        let (monitor, stop) = (run.monitor(), CancellationToken::new());
        let task = tokio::spawn(run.for_each_batch(stop.clone().cancelled_owned(), handler));
        Self { control, monitor, stop, task: Some(task) }
    }

    /// As [`of`](Self::of), with a processor of whole lanes.
    pub fn of_lanes<V: Values, P: Processor<V::Stream>>(
        run: PartitionedLanes<S, V>,
        control: C,
        processor: P,
    ) -> Self {
        let (monitor, stop) = (run.monitor(), CancellationToken::new());
        let task = tokio::spawn(run.lanes(stop.clone().cancelled_owned(), processor));
        Self { control, monitor, stop, task: Some(task) }
    }

    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    pub fn is_over(&self) -> bool {
        self.task.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The end of the run, after which nothing of it may be left.
    pub async fn ended(mut self) -> Ended<S> {
        let ended = self.task.take().unwrap().await.unwrap();
        let undroppable = match &ended.0 {
            Err(RunError::StopTimeout { still_running, .. }) => still_running.len(),
            _ => 0,
        };
        nothing_is_left(&self.monitor, undroppable).await;
        ended
    }

    pub async fn stop(self) -> Ended<S> {
        self.stop.cancel();
        self.ended().await
    }

    /// Drops the run, after which nothing of it may be left.
    pub async fn drop_it(mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        // It may be over already.
        let _ = task.await;
        nothing_is_left(&self.monitor, 0).await;
    }
}

impl<S, C> Drop for Running<S, C> {
    fn drop(&mut self) {
        assert!(
            self.task.is_none() || std::thread::panicking(),
            "a test must end its run, to see what it leaves"
        );
    }
}

/// The leak gate: no lane, no bytes, and no task but those that cannot be dropped.
pub async fn nothing_is_left(monitor: &Monitor, undroppable: usize) {
    // The runtime drops an aborted task when it gets to it.
    for _ in 0..1000 {
        if monitor.stats().processors <= undroppable {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (lanes, stats) = (monitor.snapshot(), monitor.stats());
    assert!(lanes.is_empty() && stats.lanes == Default::default(), "lanes are left: {lanes:?}");
    assert_eq!(stats.buffered_bytes, 0, "bytes are left");
    assert_eq!(stats.processors, undroppable, "tasks are left");
}

/// Notes what handlers saw, and lets a test hold them at chosen records.
#[derive(Clone, Default)]
pub struct Probe(Arc<ProbeState>);

#[derive(Default)]
struct ProbeState {
    seen: Mutex<BTreeMap<i32, Vec<i64>>>,
    done: Mutex<BTreeMap<i32, Vec<i64>>>,
    gates: Mutex<BTreeMap<(i32, i64), CancellationToken>>,
    live: Mutex<BTreeMap<i32, usize>>,
    overlaps: AtomicUsize,
}

impl Probe {
    /// Holds the handler of this record until the gate is opened.
    pub fn hold(&self, partition: i32, offset: i64) -> CancellationToken {
        self.0.gates.lock().unwrap().entry((partition, offset)).or_default().clone()
    }

    pub fn seen(&self, partition: i32) -> Vec<i64> {
        self.0.seen.lock().unwrap().get(&partition).cloned().unwrap_or_default()
    }

    pub fn done(&self, partition: i32) -> Vec<i64> {
        self.0.done.lock().unwrap().get(&partition).cloned().unwrap_or_default()
    }

    pub fn overlaps(&self) -> usize {
        self.0.overlaps.load(Ordering::SeqCst)
    }

    pub fn enter(&self, partition: i32) -> Inside {
        let mut live = self.0.live.lock().unwrap();
        let count = live.entry(partition).or_default();
        *count += 1;
        if *count > 1 {
            self.0.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        Inside { probe: self.clone(), partition }
    }

    pub async fn work(&self, record: &Record) {
        let (partition, offset) = (record.partition(), record.offset());
        let _inside = self.enter(partition);
        self.0.seen.lock().unwrap().entry(partition).or_default().push(offset);
        let gate = self.0.gates.lock().unwrap().get(&(partition, offset)).cloned();
        if let Some(gate) = gate {
            gate.cancelled().await;
        }
        self.0.done.lock().unwrap().entry(partition).or_default().push(offset);
    }

    /// A handler that works through this probe and never fails.
    pub fn handler(&self) -> impl Handler + use<> {
        let probe = self.clone();
        move |record: Record, _: Lane| {
            let probe = probe.clone();
            async move {
                probe.work(&record).await;
                Ok::<_, String>(())
            }
        }
    }
}

/// A live processor or handler of a partition, until it is dropped.
pub struct Inside {
    probe: Probe,
    partition: i32,
}

impl Drop for Inside {
    fn drop(&mut self) {
        *self.probe.0.live.lock().unwrap().get_mut(&self.partition).unwrap() -= 1;
    }
}
