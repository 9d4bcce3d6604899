//! The settings of a run, and the three lines that start one.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tramline_core::lanes::{CommitPolicy, DispatcherConfig, LaneConfig, StopPolicy};
use tramline_wire::Record;

use crate::batch::BatchHandler;
use crate::decode::{Decode, Decoded, Raw, Values};
use crate::dispatch::Plan;
use crate::driver::{self, ForEach, ForEachBatch, Lanes};
use crate::error::{BoxError, ConfigError, ConfigErrorKind, RunError, RunReport};
use crate::handler::{Handler, Processor};
use crate::monitor::{Monitor, Registry};
use crate::ordering::{KeyBy, LaneKey, Ordering};
use crate::parked::ParkedKeys;
use crate::policy::{ErrorPolicy, Policy};
use crate::source::Source;

/// Begins the description of a run over a source.
pub trait PartitionedExt: Source + Sized {
    /// Processes this source in ordered lanes, one per assigned partition. Takes the source, so that nothing
    /// else polls, pauses or assigns it meanwhile; the run gives it back. A second run beside the first cannot
    /// be written:
    ///
    /// ```compile_fail,E0382
    /// # use tramline_processor::PartitionedExt;
    /// # use tramline_processor::testing::{MemoryLog, MemorySource};
    /// let (source, _control) = MemorySource::new(&MemoryLog::new());
    /// let first = source.partitioned();
    /// let second = source.partitioned();
    /// ```
    fn partitioned(self) -> PartitionedBuilder<Self> {
        let (settings, on_error) = (Settings::default(), ErrorPolicy::default());
        PartitionedBuilder { source: self, settings, on_error, values: Raw }
    }
}

impl<S: Source> PartitionedExt for S {}

/// What happens when a lane is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backpressure {
    /// Its partition is paused, and everything else goes on.
    PauseResume {
        /// It is resumed when no more records than this wait in its queue; none stands for half of
        /// [`max_buffered_records`](PartitionedBuilder::max_buffered_records). Lower means fewer pauses, and a
        /// greater risk that the lane runs dry before the source has more.
        resume_at: Option<usize>,
    },
    /// The source is asked for nothing until the lane has room: a slow lane slows all others. Events, commits
    /// and stops go on. For sources that pause badly, and for those who want partitions to advance together. A
    /// consumer that is not asked for longer than its poll interval loses its partitions.
    AwaitCapacity,
}

impl Default for Backpressure {
    fn default() -> Self {
        Self::PauseResume { resume_at: None }
    }
}

/// Memory that a single record may keep in use for others: this part of the run's bytes.
const COPY_ABOVE_PART: usize = 256;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub max_buffered_records: usize,
    pub max_buffered_bytes: usize,
    pub backpressure: Backpressure,
    pub max_ahead: Option<u64>,
    pub commit: CommitPolicy,
    pub commit_metadata: bool,
    pub max_commit_metadata_bytes: usize,
    pub stop: StopPolicy,
    pub stop_timeout: Duration,
    pub ordering: Ordering,
    pub key_by: Option<KeyBy>,
    pub max_concurrent_handlers: usize,
    pub max_handler_batch_size: usize,
    pub policy: Policy,
    /// Secret, and another one in each run.
    pub seed: (u64, u64),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_buffered_records: 256,
            max_buffered_bytes: 64 << 20,
            backpressure: Backpressure::default(),
            max_ahead: None,
            commit: CommitPolicy::OnRevoke,
            commit_metadata: true,
            max_commit_metadata_bytes: 4096,
            stop: StopPolicy::Drain,
            stop_timeout: Duration::from_secs(30),
            ordering: Ordering::Partition,
            key_by: None,
            max_concurrent_handlers: 1,
            max_handler_batch_size: 1,
            policy: Policy::default(),
            seed: (random(), random()),
        }
    }
}

impl Settings {
    pub(crate) fn lane(&self, at_once: usize) -> LaneConfig {
        let mut lane = LaneConfig::new(self.max_buffered_records, at_once);
        if let Backpressure::PauseResume { resume_at: Some(resume_at) } = self.backpressure {
            lane.resume_at = resume_at;
        }
        lane.max_ahead = self.max_ahead.unwrap_or(u64::MAX);
        lane.copy_above = self.max_buffered_bytes / COPY_ABOVE_PART;
        lane
    }
}

/// The standard library seeds its hash maps from the operating system; a hasher that has hashed nothing is a
/// function of that seed alone.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Collects the settings of a run. Nothing is checked before [`build`](Self::build).
#[derive(Debug)]
pub struct PartitionedBuilder<S, V = Raw> {
    source: S,
    settings: Settings,
    on_error: ErrorPolicy,
    values: V,
}

impl<S: Source> PartitionedBuilder<S> {
    /// What the key of a record is in key order. Default: its key on the wire. Must give equal keys for equal
    /// records; is called once per record, in the lane's task.
    #[must_use]
    pub fn key_by(mut self, key: impl Fn(&Record) -> LaneKey + Send + Sync + 'static) -> Self {
        self.settings.key_by = Some(KeyBy(Arc::new(key)));
        self
    }

    /// Decodes every record, and gives handlers a [`Decoded`]: the record and its value.
    ///
    /// `decode` runs in the lane's task, once when the record leaves the queue; what is handled again is
    /// decoded again. An error, or a panic, is a failure of that record like one of its handler, with one
    /// difference: no retry is tried, since the bytes will be the same. A batch handler never sees such a
    /// record, and those before and after it do not fail with it. A dead letter carries the bytes as they were
    /// read. In [`lanes`](PartitionedLanes::lanes) it fails the lane.
    ///
    /// What a decoder does not understand but the handler can live without should be a value, not an error.
    #[must_use]
    pub fn decode<T, E>(
        self,
        decode: impl Fn(&Record) -> Result<T, E> + Send + Sync + 'static,
    ) -> PartitionedBuilder<S, Decode<T>>
    where
        T: Send + Sync + 'static,
        E: Into<BoxError>,
    {
        let Self { source, settings, on_error, values: Raw } = self;
        PartitionedBuilder { source, settings, on_error, values: Decode::new(decode) }
    }
}

impl<S: Source, T: Send + Sync + 'static> PartitionedBuilder<S, Decode<T>> {
    /// What the key of a record is in key order, by its value; a record that cannot be decoded has its key on
    /// the wire. Default: what was set before [`decode`](PartitionedBuilder::decode), else the key on the wire.
    /// Is called once per record, in the lane's task.
    #[must_use]
    pub fn key_by(mut self, key: impl Fn(&Decoded<T>) -> LaneKey + Send + Sync + 'static) -> Self {
        self.values.key_by = Some(Arc::new(key));
        self
    }
}

impl<S: Source, V: Values> PartitionedBuilder<S, V> {
    /// How far records of one partition may run side by side. Default: not at all. What is more than one after
    /// the other is for [`for_each`](Partitioned::for_each) and [`for_each_batch`](Partitioned::for_each_batch).
    #[must_use]
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.settings.ordering = ordering;
        self
    }

    /// How many handlers of one partition run at once, in key order and without an order; not more than
    /// [`max_buffered_records`](Self::max_buffered_records). Default 1.
    ///
    /// Handlers of one partition share a task: they overlap wherever they await. Long computations and
    /// blocking calls belong on `spawn_blocking`, or each keeps the others of its partition from running.
    #[must_use]
    pub fn max_concurrent_handlers(mut self, handlers: usize) -> Self {
        self.settings.max_concurrent_handlers = handlers;
        self
    }

    /// How many records one call of a batch handler is given at most. Default 1. With several handlers at
    /// once, no more than [`max_buffered_records`](Self::max_buffered_records) divided by their number.
    #[must_use]
    pub fn max_handler_batch_size(mut self, records: usize) -> Self {
        self.settings.max_handler_batch_size = records;
        self
    }

    /// How many records may wait in the queue of one partition before it is paused; it is resumed at half of
    /// that. Default 256. When handlers run side by side, or in batches, as many again may have left the queue
    /// and not be finished. The batch that crosses the mark is still taken. More smooths uneven handlers over;
    /// fewer means fewer records again after a crash.
    #[must_use]
    pub fn max_buffered_records(mut self, records: usize) -> Self {
        self.settings.max_buffered_records = records;
        self
    }

    /// How many bytes all records that are queued, with handlers or parked may keep in memory, before partitions
    /// that are given more are paused; they are resumed at half of that. Default 64 MiB. A partition whose own
    /// records hold nothing is given another batch all the same, so that one that is stuck starves no other.
    ///
    /// Counted is what is really kept: a record batch as a whole, until the last of its records is completed
    /// or dropped. So that one slow record does not keep a large batch, a record is copied out when it is
    /// handed over, if its batch has more than a 256th of these bytes and sixteen times its own. (In partition
    /// order only the last record of a batch, since the queue keeps the rest of the batch anyway.) A record that
    /// is parked is copied unless it is most of its batch. What handlers keep beyond their end is not seen.
    #[must_use]
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_buffered_bytes = bytes;
        self
    }

    /// What happens when a lane is full. Default: its partition is paused until half of its queue is free.
    #[must_use]
    pub fn backpressure(mut self, backpressure: Backpressure) -> Self {
        self.settings.backpressure = backpressure;
        self
    }

    /// How many records of a partition may be handed to handlers after one that is not completed, in key order,
    /// without an order and to long-lived processors; then the lane waits, and its partition is paused when the
    /// queue is full. Default: no limit, since what is completed out of order takes no memory and survives a
    /// restart (see [`commit_metadata`](Self::commit_metadata)). A limit bounds how far the committed offset
    /// lags, and what is processed again where that text is lost.
    #[must_use]
    pub fn max_ahead(mut self, records: u64) -> Self {
        self.settings.max_ahead = Some(records);
        self
    }

    /// Whether commits carry what is completed above the committed offset, in the text that the group keeps
    /// beside each offset, so that a restart does not run those records again. Default: yes.
    ///
    /// A lane that starts at an offset with such a text passes over what it names; the report counts it as
    /// [`records_already_done`](RunReport::records_already_done). The text is believed only beside the offset
    /// it was written for, and not after the topic was created anew, the log was cut, or the text was damaged;
    /// then the records run again. It begins with `tl1:`, and means nothing to other clients, which may read
    /// and commit these offsets as always.
    ///
    /// A text of somebody else beside the offset is not kept: it belongs to that offset, and may be wrong
    /// beside a later one. It is replaced by the first commit, after a warning that shows it. Turn this off to
    /// have nothing but empty texts written, as other consumers do. With nothing completed above the offset
    /// the text is empty in any case.
    ///
    /// When only records above the position where a lane began are completed, that position is committed with
    /// the text, though the lane has not advanced.
    #[must_use]
    pub fn commit_metadata(mut self, on: bool) -> Self {
        self.settings.commit_metadata = on;
        self
    }

    /// How long the text of [`commit_metadata`](Self::commit_metadata) may be. Default 4096 bytes, the default
    /// of the brokers' `offset.metadata.max.bytes`. What does not fit is left out from the top, and runs again
    /// after a restart. A broker that takes less is sent no text after its first refusal.
    #[must_use]
    pub fn max_commit_metadata_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_commit_metadata_bytes = bytes;
        self
    }

    /// When completed progress is committed. Default: on revocation and at the end.
    #[must_use]
    pub fn commit(mut self, policy: CommitPolicy) -> Self {
        self.settings.commit = policy;
        self
    }

    /// What a revocation and the end do with queued records, and how long they may take before handlers are
    /// dropped at their next await and the run fails. Default: drain, 30 s; `Duration::MAX` waits for ever.
    /// A revocation never waits longer than the group allows.
    #[must_use]
    pub fn stop(mut self, policy: StopPolicy, timeout: Duration) -> Self {
        self.settings.stop = policy;
        self.settings.stop_timeout = timeout;
        self
    }

    /// What the failure of a handler means. Default: the run stops.
    #[must_use]
    pub fn on_error(mut self, policy: impl Into<ErrorPolicy>) -> Self {
        self.on_error = policy.into();
        self
    }

    /// Checks the settings of a run with a handler of records or batches.
    ///
    /// # Errors
    /// [`ConfigError`], which holds the source.
    pub fn build(mut self) -> Result<Partitioned<S, V>, ConfigError<S>> {
        match self.check() {
            Ok(()) => Ok(Partitioned {
                source: self.source,
                settings: self.settings,
                values: self.values,
                registry: Arc::new(Registry::default()),
            }),
            Err(kind) => Err(ConfigError { kind, source: self.source }),
        }
    }

    /// Checks the settings of a run with a long-lived processor per partition.
    ///
    /// # Errors
    /// [`ConfigError`], which holds the source; also when the ordering is not [`Ordering::Partition`], or the
    /// error policy is one for single records, since such a processor takes its records itself and fails as a
    /// whole.
    pub fn build_lanes(mut self) -> Result<PartitionedLanes<S, V>, ConfigError<S>> {
        let checked = self.check().and_then(|()| {
            if self.settings.ordering != Ordering::Partition {
                Err(ConfigErrorKind::OrderingNeedsHandlers)
            } else if !self.settings.policy.always_fails() {
                Err(ConfigErrorKind::PolicyNeedsHandlers)
            } else {
                Ok(())
            }
        });
        match checked {
            Ok(()) => Ok(PartitionedLanes {
                source: self.source,
                settings: self.settings,
                values: self.values,
                registry: Arc::new(Registry::default()),
            }),
            Err(kind) => Err(ConfigError { kind, source: self.source }),
        }
    }

    fn check(&mut self) -> Result<(), ConfigErrorKind> {
        self.settings.policy = Policy::new(std::mem::take(&mut self.on_error))?;
        let out_of_range = |setting, why| Err(ConfigErrorKind::OutOfRange { setting, why });
        if self.settings.max_buffered_records == 0 {
            return out_of_range("max_buffered_records", "must be at least 1");
        }
        if self.settings.max_buffered_bytes == 0 {
            return out_of_range("max_buffered_bytes", "must be at least 1");
        }
        if let Backpressure::PauseResume { resume_at: Some(resume_at) } = self.settings.backpressure
            && resume_at >= self.settings.max_buffered_records
        {
            return out_of_range("backpressure", "must resume below max_buffered_records");
        }
        if self.settings.max_ahead == Some(0) {
            return out_of_range("max_ahead", "must be at least 1");
        }
        if self.settings.max_concurrent_handlers == 0 {
            return out_of_range("max_concurrent_handlers", "must be at least 1");
        }
        if self.settings.max_handler_batch_size == 0 {
            return out_of_range("max_handler_batch_size", "must be at least 1");
        }
        if let CommitPolicy::Periodic(interval) = self.settings.commit
            && interval.is_zero()
        {
            return out_of_range("commit", "the interval must be longer than zero");
        }
        let configuration = self.source.commit_configuration();
        if self.settings.commit.is_managed() && configuration.is_some_and(|known| known.commits_unprocessed())
        {
            return Err(ConfigErrorKind::AutoCommit);
        }
        Ok(())
    }
}

/// A checked run of a handler that has not started.
pub struct Partitioned<S, V = Raw> {
    source: S,
    settings: Settings,
    values: V,
    registry: Arc<Registry>,
}

impl<S, V> std::fmt::Debug for Partitioned<S, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partitioned").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: Source, V: Values> Partitioned<S, V> {
    /// A handle that shows every lane while the run goes on.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.registry))
    }

    /// A handle that lists the keys which are parked while the run goes on, and says what becomes of each.
    #[must_use]
    pub fn parked(&self) -> ParkedKeys {
        ParkedKeys::new(Arc::clone(&self.registry))
    }

    /// Runs until `shutdown` is over (whatever it returns), the source is closed or something fails: for each
    /// assigned partition one record after the other (or side by side, see
    /// [`ordering`](PartitionedBuilder::ordering)) is given to `handler` and completed when that returns
    /// `Ok`. Partitions run side by side, each on its own task.
    ///
    /// `shutdown` is any future: `tokio::signal::ctrl_c()`, a token's `cancelled_owned()`, `pending()`.
    ///
    /// Dropping the future aborts all lanes at their next await and commits nothing more; the source goes
    /// with it.
    ///
    /// # Errors
    /// The first failure, as [`RunError`]; a clean stop is `Ok`. The source comes back in any case, with its
    /// positions set back to what was not completed.
    pub async fn for_each<H: Handler<V::Given>>(
        self,
        shutdown: impl Future + Send,
        handler: H,
    ) -> (Result<RunReport, RunError>, S) {
        let (handler, plan) = (Arc::new(handler), self.plan(1));
        let start = ForEach { handler, values: self.values, plan };
        let result = driver::run(&self.source, &self.settings, self.registry, shutdown, start).await;
        (result, self.source)
    }

    /// As [`for_each`](Self::for_each), with several records of one partition (in key order, of one key) for
    /// each call of `handler`: what is queued, up to
    /// [`max_handler_batch_size`](PartitionedBuilder::max_handler_batch_size).
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub async fn for_each_batch<H: BatchHandler<V::Given>>(
        self,
        shutdown: impl Future + Send,
        handler: H,
    ) -> (Result<RunReport, RunError>, S) {
        let (handler, plan) = (Arc::new(handler), self.plan(self.settings.max_handler_batch_size));
        let start = ForEachBatch { handler, values: self.values, plan };
        let result = driver::run(&self.source, &self.settings, self.registry, shutdown, start).await;
        (result, self.source)
    }

    fn plan(&self, max_batch: usize) -> Arc<Plan> {
        let settings = &self.settings;
        let (buffered, handlers) = (settings.max_buffered_records, settings.max_concurrent_handlers);
        let dispatcher = match settings.ordering {
            Ordering::Partition => DispatcherConfig::one_by_one(max_batch),
            Ordering::Key | Ordering::Unordered => {
                DispatcherConfig::side_by_side(buffered, handlers, max_batch, settings.seed)
            }
        };
        let (key_by, policy) = (settings.key_by.clone(), settings.policy.clone());
        let dispatcher = dispatcher.with_parking(settings.policy.parking);
        Arc::new(Plan { ordering: settings.ordering, key_by, dispatcher, policy })
    }
}

/// A checked run of long-lived processors that has not started.
///
/// A processor takes the records of its partition itself, so that it has no use for what is about single
/// records: those settings are refused by [`build_lanes`](PartitionedBuilder::build_lanes), and a run that was
/// built for handlers has no lanes to give away:
///
/// ```compile_fail,E0599
/// # use tramline_processor::{LaneStream, PartitionedExt};
/// # use tramline_processor::testing::{MemoryLog, MemorySource};
/// # let (source, _control) = MemorySource::new(&MemoryLog::new());
/// let run = source.partitioned().build().unwrap();
/// let processor = |_: LaneStream| async { Ok::<_, String>(()) };
/// let result = run.lanes(std::future::pending::<()>(), processor);
/// ```
pub struct PartitionedLanes<S, V = Raw> {
    source: S,
    settings: Settings,
    values: V,
    registry: Arc<Registry>,
}

impl<S, V> std::fmt::Debug for PartitionedLanes<S, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionedLanes").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: Source, V: Values> PartitionedLanes<S, V> {
    /// A handle that shows every lane while the run goes on.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.registry))
    }

    /// As [`Partitioned::for_each`], with one long-lived `processor` per assigned partition, which takes the
    /// records itself and says when each is done.
    ///
    /// # Errors
    /// As [`Partitioned::for_each`].
    pub async fn lanes<P: Processor<V::Stream>>(
        self,
        shutdown: impl Future + Send,
        processor: P,
    ) -> (Result<RunReport, RunError>, S) {
        let start = Lanes { processor: Arc::new(processor), values: self.values };
        let result = driver::run(&self.source, &self.settings, self.registry, shutdown, start).await;
        (result, self.source)
    }
}
