//! The settings of a run, and the three lines that start one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tramline_core::lanes::{CommitPolicy, StopPolicy};

use crate::driver::{self, ForEach, Lanes};
use crate::error::{ConfigError, ConfigErrorKind, RunError, RunReport};
use crate::handler::{Handler, Processor};
use crate::lane::Registry;
use crate::monitor::Monitor;
use crate::source::Source;

/// How far records of one partition may run side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// One after the other, in offset order.
    #[default]
    Partition,
}

/// What the failure of a handler means for the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorPolicy {
    /// All lanes stop by the stop policy, what is completed is committed, and the run ends with the failure.
    #[default]
    StopRun,
}

/// Begins the description of a run over a source.
pub trait PartitionedExt: Source + Sized {
    /// Processes this source in ordered lanes, one per assigned partition. Takes the source, so that nothing
    /// else polls, pauses or assigns it meanwhile; the run gives it back.
    fn partitioned(self) -> PartitionedBuilder<Self> {
        PartitionedBuilder { source: self, settings: Settings::default() }
    }
}

impl<S: Source> PartitionedExt for S {}

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub max_buffered_records: usize,
    pub max_buffered_bytes: usize,
    pub commit: CommitPolicy,
    pub stop: StopPolicy,
    pub stop_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_buffered_records: 256,
            max_buffered_bytes: 64 << 20,
            commit: CommitPolicy::OnRevoke,
            stop: StopPolicy::Drain,
            stop_timeout: Duration::from_secs(30),
        }
    }
}

/// Collects the settings of a run. Nothing is checked before [`build`](Self::build).
#[derive(Debug)]
pub struct PartitionedBuilder<S> {
    source: S,
    settings: Settings,
}

impl<S: Source> PartitionedBuilder<S> {
    /// How far records of one partition may run side by side. Default: not at all.
    #[must_use]
    pub fn ordering(self, ordering: Ordering) -> Self {
        match ordering {
            Ordering::Partition => self,
        }
    }

    /// How many records may wait in the queue of one partition before it is paused; it is resumed at half of
    /// that. Default 256. The batch that crosses the mark is still taken. More smooths uneven handlers over;
    /// fewer means fewer records again after a crash.
    #[must_use]
    pub fn max_buffered_records(mut self, records: usize) -> Self {
        self.settings.max_buffered_records = records;
        self
    }

    /// How many bytes the queued records of all partitions together may keep in memory, whole record batches
    /// counted, before partitions that are given more are paused; they are resumed at half of that. Default
    /// 64 MiB. Every partition may still be given one batch.
    #[must_use]
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_buffered_bytes = bytes;
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
    pub fn on_error(self, policy: ErrorPolicy) -> Self {
        match policy {
            ErrorPolicy::StopRun => self,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ConfigError`], which holds the source.
    pub fn build(self) -> Result<Partitioned<S>, ConfigError<S>> {
        match self.check() {
            Ok(()) => Ok(Partitioned {
                source: self.source,
                settings: self.settings,
                registry: Arc::new(Registry::default()),
            }),
            Err(kind) => Err(ConfigError { kind, source: self.source }),
        }
    }

    fn check(&self) -> Result<(), ConfigErrorKind> {
        let out_of_range = |setting, why| Err(ConfigErrorKind::OutOfRange { setting, why });
        if self.settings.max_buffered_records == 0 {
            return out_of_range("max_buffered_records", "must be at least 1");
        }
        if self.settings.max_buffered_bytes == 0 {
            return out_of_range("max_buffered_bytes", "must be at least 1");
        }
        if let CommitPolicy::Periodic(interval) = self.settings.commit
            && interval.is_zero()
        {
            return out_of_range("commit", "the interval must be longer than zero");
        }
        let source = self.source.commit_configuration();
        if self.settings.commit.is_managed()
            && source.auto_commit
            && source.auto_store
            && source.group.is_some()
        {
            return Err(ConfigErrorKind::AutoCommit);
        }
        Ok(())
    }
}

/// A checked run that has not started.
pub struct Partitioned<S> {
    source: S,
    settings: Settings,
    registry: Arc<Registry>,
}

impl<S> std::fmt::Debug for Partitioned<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partitioned").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: Source> Partitioned<S> {
    /// A handle that shows every lane while the run goes on.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(Arc::clone(&self.registry))
    }

    /// Runs until `shutdown` is over (whatever it returns), the source is closed or something fails: for each
    /// assigned partition one record after the other is given to `handler` and completed when that returns
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
    pub async fn for_each<H: Handler>(
        self,
        shutdown: impl Future + Send,
        handler: H,
    ) -> (Result<RunReport, RunError>, S) {
        let start = ForEach(Arc::new(handler));
        let result = driver::run(&self.source, &self.settings, self.registry, shutdown, start).await;
        (result, self.source)
    }

    /// As [`for_each`](Self::for_each), with one long-lived `processor` per assigned partition, which takes
    /// the records itself and says when each is done.
    ///
    /// # Errors
    /// As [`for_each`](Self::for_each).
    pub async fn lanes<P: Processor>(
        self,
        shutdown: impl Future + Send,
        processor: P,
    ) -> (Result<RunReport, RunError>, S) {
        let start = Lanes(Arc::new(processor));
        let result = driver::run(&self.source, &self.settings, self.registry, shutdown, start).await;
        (result, self.source)
    }
}
