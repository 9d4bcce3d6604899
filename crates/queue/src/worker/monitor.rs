//! How a worker is: what it has done, how far its replay is, and whether that moves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tramline_core::claims::worker::WorkerStats;
use tramline_wire::Str;

use crate::error::{HealthError, ReadError};
use crate::shared::Shared;

/// What a worker tells about itself.
#[derive(Clone, Debug, Default)]
struct State {
    running: bool,
    stats: WorkerStats,
    /// The next claims offset to fold, by shard.
    positions: BTreeMap<i32, i64>,
    bytes_read: u64,
}

pub(super) struct Progress {
    name: Str,
    state: watch::Sender<State>,
}

impl Progress {
    pub fn new(name: Str) -> Self {
        Self { name, state: watch::Sender::new(State::default()) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn name_str(&self) -> Str {
        self.name.clone()
    }

    pub fn tell(&self, stats: WorkerStats, positions: impl Iterator<Item = (i32, i64)>) {
        self.state.send_modify(|state| {
            state.running = true;
            state.stats = stats;
            state.positions.clear();
            state.positions.extend(positions);
        });
    }

    pub fn read(&self, bytes: u64) {
        self.state.send_modify(|state| state.bytes_read += bytes);
    }

    pub fn ended(&self) {
        self.state.send_modify(|state| state.running = false);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Watches a worker from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    progress: Arc<Progress>,
}

impl Monitor {
    pub(super) const fn new(shared: Arc<Shared>, progress: Arc<Progress>) -> Self {
        Self { shared, progress }
    }

    /// What the worker has done so far in this run.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        self.progress.state.borrow().stats
    }

    /// The shards it follows, with the next claims offset it will fold in each.
    #[must_use]
    pub fn positions(&self) -> BTreeMap<i32, i64> {
        self.progress.state.borrow().positions.clone()
    }

    /// Bytes of the records of tasks and claims it has read: what following its shards costs, payloads included.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.progress.state.borrow().bytes_read
    }

    /// Asks the brokers where the claims end, and waits until the worker's replay has come that far: a worker whose replay
    /// does not advance is not healthy, whatever its process looks like.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`HealthError`], at the latest after `patience`.
    pub async fn health(&self, patience: Duration) -> Result<(), HealthError> {
        let mut state = self.progress.state.subscribe();
        if !state.borrow().running {
            return Err(HealthError::NotRunning);
        }
        let begun = tokio::time::Instant::now();
        let ends = match timeout(patience, self.shared.ends(&self.shared.topics.claims)).await {
            Err(_) => return Err(HealthError::NoAnswer),
            Ok(Err(ReadError::Admin(error))) => return Err(HealthError::Unreachable(error)),
            Ok(Err(_)) => return Err(HealthError::NoAnswer),
            Ok(Ok(ends)) => ends,
        };
        let behind = |state: &State| {
            let mut followed =
                state.positions.iter().filter_map(|(&shard, &at)| Some((shard, at, *ends.get(&shard)?)));
            followed.find(|(_, position, end)| position < end)
        };
        let left = patience.saturating_sub(begun.elapsed());
        let reached = timeout(left, state.wait_for(|state| !state.running || behind(state).is_none())).await;
        match reached {
            Ok(Ok(state)) if !state.running => return Err(HealthError::NotRunning),
            Ok(Ok(_)) => return Ok(()),
            // The sender lives in what we hold.
            Ok(Err(_)) => return Err(HealthError::NotRunning),
            Err(_) => {}
        }
        let found = behind(&self.progress.state.borrow());
        found.map_or(Ok(()), |(shard, position, end)| Err(HealthError::Stalled { shard, position, end }))
    }
}
