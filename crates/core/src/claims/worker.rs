//! A worker of a queue: whom to try, when to renew, what to give up.
//!
//! An event machine. What was read, what became of appends and what handlers answered goes in through `handle_*` methods;
//! after each of them call [`Worker::poll`] until it answers `None` and carry out what it says, and come back with
//! [`Worker::handle_timeout`] when [`Worker::next_timeout`] is due.
//!
//! Every own claim ends in one of four ways: it is read back as won (the handler starts), read back as lost, its append
//! failed, or it was not read back in time. A claim of the last kind that wins later all the same is released at once, so
//! that the task is not blocked for a lease. Nothing is believed but what was read back; acknowledgements only tell failures.

mod shard;
mod work;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::Str;

use super::ledger::Ledger;
use super::record::{ClaimRecord, Kind};
use super::snapshot::Snapshot;
use super::task::TaskMeta;
use crate::group::Seeded;
use crate::lanes::Backoff;
use crate::time::{Instant, Timestamp};
use shard::Shard;
use work::{Phase, Work};

/// Which of the tasks that can be taken a worker tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// Any of the most urgent class, so that workers rarely want the same.
    #[default]
    Random,
    /// The oldest of the most urgent class: in order, and all workers want the same.
    First,
}

/// How a worker works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Its name, unique per run: two workers of one name would take each other's claims for their own.
    pub name: Str,
    /// Tasks in hand at once.
    pub concurrency: usize,
    /// How long a task is taken for without renewing.
    pub lease: Duration,
    /// How long after a claim or renewal the next renewal is sent.
    pub renew_after: Duration,
    /// How long a claim may take until it is read back.
    pub settle_timeout: Duration,
    /// How long a failed task waits, unless the handler says so.
    pub backoff: Backoff,
    /// Which task is tried.
    pub pick: Pick,
    /// A snapshot is due at each multiple of this many claims records, or of as many times more as there are open tasks
    /// for each of them; 0 for never.
    pub snapshot_every: u32,
}

impl WorkerConfig {
    /// A worker with one task in hand, a lease of 30 s renewed every 10 s, and a snapshot every 10,000 claims records.
    #[must_use]
    pub fn new(name: impl Into<Str>) -> Self {
        Self {
            name: name.into(),
            concurrency: 1,
            lease: Duration::from_secs(30),
            renew_after: Duration::from_secs(10),
            settle_timeout: Duration::from_secs(10),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
            pick: Pick::Random,
            snapshot_every: 10_000,
        }
    }
}

/// A task this worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which of this worker's claims it is.
    pub id: u64,
    /// The shard.
    pub shard: i32,
    /// The task's offset in its tasks partition.
    pub task: i64,
    /// The fencing token: the claim's offset in the shard's claims partition.
    pub token: i64,
    /// The attempt this is, from 1.
    pub attempt: u32,
    /// How often the task is begun before it is dead.
    pub max_attempts: u32,
    /// Why earlier attempts ended, the newest last.
    pub causes: Vec<String>,
}

/// Why a handler is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// The lease could not be renewed in time.
    Expired,
    /// Somebody else's claim won.
    Taken,
    /// The worker stops.
    GivenUp,
}

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The task is done.
    Done,
    /// It is to be tried again.
    Retry {
        /// How long to wait; the worker's backoff when it is not said.
        after: Option<Duration>,
        /// Why, in words.
        cause: String,
    },
    /// Trying again is of no use.
    Failed {
        /// Why, in words.
        cause: String,
    },
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Append this to the shard's claims, in the order of these actions; report only failures, with
    /// [`Worker::handle_append_failed`].
    Append {
        /// The shard.
        shard: i32,
        /// What to write.
        record: ClaimRecord,
    },
    /// Start the handler; answer with [`Worker::handle_outcome`].
    Start(Held),
    /// Write the task's dead letter; answer with [`Worker::handle_letter`].
    Bury {
        /// The task.
        held: Held,
        /// Why it is dead.
        cause: String,
    },
    /// Stop the handler (or the writing of the letter) of this id. An answer that comes all the same is passed over.
    Stop {
        /// The id of the [`Held`].
        id: u64,
        /// Why.
        why: Lost,
    },
    /// Write this snapshot; when it is safe, claims and tasks before it may be deleted.
    Snapshot {
        /// The shard.
        shard: i32,
        /// The state.
        snapshot: Snapshot,
    },
}

/// What this worker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Claims it made.
    pub claims: u64,
    /// Claims that won.
    pub won: u64,
    /// Claims that got nothing.
    pub refused: u64,
    /// Handlers started.
    pub started: u64,
    /// Tasks it has settled as done.
    pub done: u64,
    /// Attempts it has settled as failed.
    pub failed: u64,
    /// Tasks it has settled as dead.
    pub buried: u64,
    /// Settles that came too late.
    pub late: u64,
    /// Leases lost while in hand.
    pub lost: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Claims that were not read back in time.
    pub settle_timeouts: u64,
    /// Such claims that won later, and were released.
    pub released: u64,
    /// Appends that failed.
    pub append_failures: u64,
}

/// Where a shard's replay must have come before tasks are taken there: the ends of both partitions when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The end of the tasks partition.
    pub tasks: i64,
    /// The end of the claims partition.
    pub claims: i64,
}

/// The machine.
#[derive(Debug)]
pub struct Worker {
    config: WorkerConfig,
    random: Seeded,
    shards: BTreeMap<i32, Shard>,
    work: BTreeMap<u64, Work>,
    next_id: u64,
    stopping: bool,
    actions: VecDeque<Action>,
    stats: WorkerStats,
}

impl Worker {
    /// A worker without shards. `seed` decides its picks and jitter.
    #[must_use]
    pub fn new(config: WorkerConfig, seed: [u8; 16]) -> Self {
        Self {
            config,
            random: Seeded::new(seed),
            shards: BTreeMap::new(),
            work: BTreeMap::new(),
            next_id: 1,
            stopping: false,
            actions: VecDeque::new(),
            stats: WorkerStats::default(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub const fn stats(&self) -> WorkerStats {
        self.stats
    }

    /// Follows a shard from `ledger` on. Tasks are taken there once its replay has reached `ends`. `wall` is the local
    /// wall clock, the first guess at log time; what is read corrects it.
    pub fn add_shard(&mut self, shard: i32, ledger: Ledger, ends: Ends, wall: Timestamp, now: Instant) {
        self.shards.insert(shard, Shard::new(ledger, ends, wall, now));
    }

    /// Takes no further task of the shard, or does again.
    pub fn set_taking(&mut self, shard: i32, taking: bool) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.taking = taking;
        }
    }

    /// Forgets a shard, unless something of it is in hand; its replay may stop then.
    pub fn remove_shard(&mut self, shard: i32) -> bool {
        let idle = self.work.values().all(|work| work.shard != shard);
        if idle {
            self.shards.remove(&shard);
        }
        idle
    }

    /// The state of a shard that is followed.
    #[must_use]
    pub fn ledger(&self, shard: i32) -> Option<&Ledger> {
        self.shards.get(&shard).map(|shard| &shard.ledger)
    }

    /// The shards that are followed.
    pub fn shards(&self) -> impl Iterator<Item = i32> + '_ {
        self.shards.keys().copied()
    }

    /// Whether the shard's replay has come as far as its partitions reached when it began.
    #[must_use]
    pub fn is_caught_up(&self, shard: i32) -> bool {
        self.shards.get(&shard).is_some_and(Shard::is_caught_up)
    }

    /// Claims records of a shard that were read and wait for the tasks they name: when they grow many, read tasks first.
    #[must_use]
    pub fn waiting_for_tasks(&self, shard: i32) -> usize {
        self.shards.get(&shard).map_or(0, |shard| shard.waiting.len())
    }

    /// Takes no further task. What is claimed and not begun is given back.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Claims, handlers and settles that are not over.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.work.len()
    }

    /// Whether it could take more and there is nothing to take in the shards it takes from.
    #[must_use]
    pub fn is_dry(&mut self, now: Instant) -> bool {
        !self.stopping && self.free() > 0 && self.shards.values_mut().all(|shard| shard.is_dry(now))
    }

    /// A task was read.
    pub fn handle_task(&mut self, shard: i32, offset: i64, meta: TaskMeta, now: Instant) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.ledger.add_task(offset, meta);
            self.fold(shard, now);
        }
    }

    /// The tasks partition was read up to `end`.
    pub fn handle_tasks_read(&mut self, shard: i32, end: i64, now: Instant) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.ledger.tasks_read(end);
            self.fold(shard, now);
        }
    }

    /// A claims record was read: its offset, the broker's time, its value.
    pub fn handle_claim(&mut self, shard: i32, offset: i64, appended: Timestamp, value: &[u8], now: Instant) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.waiting.push_back((offset, appended, ClaimRecord::decode(value)));
            self.fold(shard, now);
        }
    }

    /// The claims of a shard are gone before where we stand, or the snapshot is newer: begin again from `ledger`. What is
    /// in hand is judged by what follows.
    pub fn handle_restart(&mut self, shard: i32, ledger: Ledger, ends: Ends, wall: Timestamp, now: Instant) {
        let taking = self.shards.get(&shard).is_none_or(|shard| shard.taking);
        let mut fresh = Shard::new(ledger, ends, wall, now);
        fresh.taking = taking;
        self.shards.insert(shard, fresh);
        self.recheck(shard);
    }

    /// An append did not succeed. It may be in the log all the same; what is read decides.
    pub fn handle_append_failed(&mut self, shard: i32, record: &ClaimRecord, now: Instant) {
        self.stats.append_failures += 1;
        match record.kind {
            Kind::Claim { nonce, .. } => {
                if self.work.get(&nonce).is_some_and(|work| matches!(work.phase, Phase::Claiming { .. })) {
                    self.drop_work(nonce);
                }
            }
            Kind::Renew { token, .. } => {
                if let Some(work) = self.work.values_mut().find(|work| work.is(shard, record.task, token)) {
                    work.renewal_failed(now);
                }
            }
            Kind::Done { token } | Kind::Failed { token, .. } | Kind::Buried { token, .. } => {
                let found = self.work.iter().find(|(_, work)| work.is(shard, record.task, token));
                if let Some(id) = found.map(|(&id, _)| id) {
                    // The lease runs out, and somebody does it again.
                    self.drop_work(id);
                }
            }
            Kind::Release { .. } | Kind::Revived => {}
        }
    }

    /// A handler has ended.
    pub fn handle_outcome(&mut self, id: u64, outcome: Outcome) {
        let Some(work) = self.work.get_mut(&id) else { return };
        let Phase::Holding { .. } = work.phase else { return };
        let Some(token) = work.token() else { return };
        let last = work.attempt >= work.max_attempts;
        let kind = match outcome {
            Outcome::Done => Kind::Done { token },
            Outcome::Failed { cause } => return self.bury(id, cause),
            Outcome::Retry { cause, .. } if last => return self.bury(id, cause),
            Outcome::Retry { after, cause } => {
                let backoff = self.config.backoff;
                let wait = after.unwrap_or_else(|| backoff.delay(work.attempt, self.random.next_u64()));
                Kind::Failed { token, after: millis(wait), cause }
            }
        };
        self.settle(id, kind);
    }

    /// The dead letter of a task is written.
    pub fn handle_letter(&mut self, id: u64, cause: String) {
        let Some(work) = self.work.get(&id) else { return };
        let Phase::Holding { .. } = work.phase else { return };
        let Some(token) = work.token() else { return };
        self.settle(id, Kind::Buried { token, cause });
    }

    /// Gives a task back whose handler did not end: the attempt counts.
    pub fn give_up(&mut self, id: u64) {
        if self.work.get(&id).is_some_and(|work| matches!(work.phase, Phase::Holding { .. })) {
            self.let_go(id, Lost::GivenUp);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |work: &Work| work.due().is_some_and(|due| due <= now);
        let due: Vec<u64> = self.work.iter().filter(|(_, work)| is_due(work)).map(|(&id, _)| id).collect();
        for id in due {
            let Some(work) = self.work.get_mut(&id) else { continue };
            match &work.phase {
                Phase::Claiming { .. } => {
                    self.stats.settle_timeouts += 1;
                    self.drop_work(id);
                }
                Phase::Holding { until, .. } if *until <= now => {
                    self.stats.lost += 1;
                    self.let_go(id, Lost::Expired);
                }
                Phase::Holding { .. } => {
                    let record = work.renew(&self.config, now);
                    self.actions.push_back(Action::Append { shard: work.shard, record });
                }
                Phase::Settling { .. } => {}
            }
        }
    }

    /// When to come back.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let work = self.work.values().filter_map(Work::due).min();
        let may_take = !self.stopping && self.free() > 0;
        let due = self.shards.values().filter_map(Shard::next_due).min().filter(|_| may_take);
        work.into_iter().chain(due).min()
    }

    /// What to do next: first what followed from what was handled, then claims for whatever room there is.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.actions.is_empty() {
            self.fill(now);
        }
        self.actions.pop_front()
    }
}

/// Milliseconds for a record.
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
