//! The fold: tasks and claims records in, who holds what out.
//!
//! The verdict on a claims record depends on the records before it in its partition and on the tasks up to the one it
//! names, on nothing else. So every reader gives the same one, and a record already folded changes nothing when it comes
//! again. The caller must have added the tasks up to the one a record names ([`Ledger::needs`] tells).
//!
//! Invariants, kept by the tests of this module:
//! 1. at most one live lease per task;
//! 2. a task that is done or dead never comes back;
//! 3. every task added is open, done, dead, revived or passed over as a duplicate: none is lost;
//! 4. only the newest token of a task settles it;
//! 5. per key, the task with the lowest offset is the only one that can be taken.

mod index;
mod uniques;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::Str;

use super::record::{ClaimRecord, Kind};
use super::task::TaskMeta;
use crate::time::Timestamp;
use index::Index;
pub(super) use uniques::{Taken, Uniques};

/// How many causes of a task are kept, the newest.
const KEPT_CAUSES: usize = 5;

/// The right to work on a task for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The offset of the claim: identity and fencing token.
    pub token: i64,
    /// Who holds it.
    pub worker: Str,
    /// Log time of the claim.
    pub since: Timestamp,
    /// Log time from which on others may take the task.
    pub expires: Timestamp,
}

/// A task that is neither done nor dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// What its record says.
    pub meta: TaskMeta,
    /// How often it was begun.
    pub attempts: u32,
    /// Log time before which nobody gets it.
    pub ready_at: Timestamp,
    /// Who holds it, until another claim wins: it may have run out.
    pub lease: Option<Lease>,
    /// Why earlier attempts ended, the newest last.
    pub causes: Vec<String>,
}

impl Open {
    /// Whether all attempts are used up, so that the task can only be buried.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.attempts >= self.meta.max_attempts
    }

    fn note(&mut self, cause: String) {
        if self.causes.len() == KEPT_CAUSES {
            self.causes.remove(0);
        }
        self.causes.push(cause);
    }

    /// Log time from which on somebody may take it.
    fn due(&self) -> Timestamp {
        self.lease.as_ref().map_or(self.ready_at, |lease| lease.expires)
    }
}

/// Why a claim got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The task is done or dead, or never was.
    Settled,
    /// Somebody holds it.
    Held,
    /// Its time has not come.
    NotDue,
    /// An earlier task of its key is neither done nor dead.
    KeyOrder,
}

/// What a claims record came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The claim won: its offset is the token.
    Granted {
        /// The attempt this is, from 1; of a task that is only to be buried, the last one.
        attempt: u32,
        /// All attempts are used up: the task is given out to be buried.
        burial: bool,
        /// The lease that had run out, if one had.
        lapsed: Option<Lease>,
    },
    /// The claim got nothing.
    Refused(Refusal),
    /// The lease goes on.
    Renewed,
    /// The task is free again.
    Released,
    /// The task is done.
    Done,
    /// The attempt failed.
    Failed {
        /// Log time from which on the task can be taken again.
        due: Timestamp,
        /// It was the last attempt.
        exhausted: bool,
    },
    /// The task is dead.
    Buried,
    /// A dead task was published again.
    Revived,
    /// The token is not the task's newest, or the task is settled: without effect.
    Late,
    /// It says nothing that can be used: without effect.
    Inert,
    /// It was folded before: without effect.
    Replayed,
}

/// A record names a task that was not added yet: read on in the tasks partition first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the claims name task {task}, which is not known yet")]
pub struct Behind {
    /// The task.
    pub task: i64,
}

/// What happened so far, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Claims that won.
    pub granted: u64,
    /// Claims that got nothing.
    pub refused: u64,
    /// Claims that won over a lease that had run out.
    pub lapsed: u64,
    /// Leases that were renewed.
    pub renewed: u64,
    /// Tasks given back.
    pub released: u64,
    /// Tasks done.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Tasks that died, revived ones included.
    pub buried: u64,
    /// Dead tasks published again.
    pub revived: u64,
    /// Records whose token was not the newest.
    pub late: u64,
    /// Records that say nothing that can be used.
    pub inert: u64,
}

/// How many tasks are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Waiting to be taken, those behind an earlier task of their key included.
    pub ready: u64,
    /// Of those, waiting for an earlier task of their key.
    pub behind_key: u64,
    /// Held by somebody.
    pub claimed: u64,
    /// Waiting for their time.
    pub delayed: u64,
    /// Done.
    pub done: u64,
    /// Dead and not published again.
    pub dead: u64,
    /// When the oldest task that waits or is held was published.
    pub oldest: Option<Timestamp>,
}

/// The state of one shard after a prefix of its tasks and claims.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The next offset of the tasks partition.
    pub(super) tasks_end: i64,
    /// One past the highest task that a claims record named: what a snapshot covers.
    pub(super) named: i64,
    /// The next offset of the claims partition.
    pub(super) claims_end: i64,
    pub(super) log_time: Timestamp,
    pub(super) open: BTreeMap<i64, Open>,
    pub(super) dead: BTreeSet<i64>,
    pub(super) counts: Counts,
    pub(super) uniques: Uniques,
    /// The open tasks of each key. Derived.
    keys: BTreeMap<Bytes, BTreeSet<i64>>,
    /// Who can be taken when, by what is known now. Derived.
    index: Index,
}

impl Ledger {
    /// A shard without history: tasks are read from `tasks_start`, claims from `claims_start`, which are the first
    /// offsets of both partitions.
    #[must_use]
    pub fn new(tasks_start: i64, claims_start: i64) -> Self {
        Self {
            tasks_end: tasks_start,
            named: tasks_start,
            claims_end: claims_start,
            log_time: 0,
            open: BTreeMap::new(),
            dead: BTreeSet::new(),
            counts: Counts::default(),
            uniques: Uniques::default(),
            keys: BTreeMap::new(),
            index: Index::default(),
        }
    }

    /// The offset of the next task to add.
    #[must_use]
    pub const fn tasks_end(&self) -> i64 {
        self.tasks_end
    }

    /// The offset of the next claims record to apply.
    #[must_use]
    pub const fn claims_end(&self) -> i64 {
        self.claims_end
    }

    /// The largest append time so far in the claims partition; 0 before the first record.
    #[must_use]
    pub const fn log_time(&self) -> Timestamp {
        self.log_time
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Tasks passed over because one of their unique name came before.
    #[must_use]
    pub const fn duplicates(&self) -> u64 {
        self.uniques.passed_over()
    }

    /// A task that is neither done nor dead.
    #[must_use]
    pub fn open(&self, task: i64) -> Option<&Open> {
        self.open.get(&task)
    }

    /// All tasks that are neither done nor dead, oldest first.
    pub fn all_open(&self) -> impl ExactSizeIterator<Item = (i64, &Open)> {
        self.open.iter().map(|(&task, open)| (task, open))
    }

    /// The dead tasks that were not published again.
    pub fn dead(&self) -> impl Iterator<Item = i64> + '_ {
        self.dead.iter().copied()
    }

    /// Whether the task is known, and done, dead or passed over.
    #[must_use]
    pub fn is_settled(&self, task: i64) -> bool {
        task < self.tasks_end && !self.open.contains_key(&task)
    }

    /// Adds the task at `offset`. One that was added before changes nothing.
    pub fn add_task(&mut self, offset: i64, meta: TaskMeta) {
        if offset < self.tasks_end {
            return;
        }
        self.tasks_end = offset.saturating_add(1);
        if !self.uniques.admit(offset, &meta) {
            return;
        }
        let ready_at = meta.not_before;
        self.insert(offset, Open { meta, attempts: 0, ready_at, lease: None, causes: Vec::new() });
    }

    /// Also for a snapshot.
    pub(super) fn insert(&mut self, task: i64, open: Open) {
        if let Some(key) = &open.meta.key {
            self.keys.entry(key.clone()).or_default().insert(task);
        }
        self.open.insert(task, open);
        self.place(task);
    }

    /// The tasks partition was read up to `end`, also where its last offsets hold no task.
    pub fn tasks_read(&mut self, end: i64) {
        self.tasks_end = self.tasks_end.max(end);
    }

    /// # Errors
    /// The record cannot be judged before the tasks up to the one it names were added.
    pub fn needs(&self, record: &ClaimRecord) -> Result<(), Behind> {
        if record.task < self.tasks_end { Ok(()) } else { Err(Behind { task: record.task }) }
    }

    /// Folds the claims record at `offset`, appended at `appended` by the broker's clock; `None` stands for one that
    /// could not be read. Offsets may have gaps.
    ///
    /// # Errors
    /// [`Ledger::needs`]. Nothing has changed then.
    pub fn apply(
        &mut self,
        offset: i64,
        appended: Timestamp,
        record: Option<&ClaimRecord>,
    ) -> Result<Verdict, Behind> {
        if offset < self.claims_end {
            return Ok(Verdict::Replayed);
        }
        if let Some(record) = record {
            self.needs(record)?;
            if record.task >= self.named {
                self.named = record.task + 1;
                self.uniques.named(self.named);
            }
        }
        self.claims_end = offset.saturating_add(1);
        self.log_time = self.log_time.max(appended);
        let verdict = record.map_or(Verdict::Inert, |record| self.judge(offset, record));
        self.count(&verdict);
        if let Some(record) = record {
            self.place(record.task);
        }
        Ok(verdict)
    }

    fn judge(&mut self, offset: i64, record: &ClaimRecord) -> Verdict {
        let task = record.task;
        match &record.kind {
            Kind::Claim { lease, .. } => self.claim(offset, task, &record.worker, *lease),
            Kind::Renew { token, lease } => self.renew(task, *token, *lease),
            Kind::Release { token, started } => self.release(task, *token, *started),
            Kind::Done { token } => match self.held(task, *token) {
                Some(_) => self.settle(task, Verdict::Done),
                None => Verdict::Late,
            },
            Kind::Failed { token, after, cause } => self.fail(task, *token, *after, cause),
            Kind::Buried { token, .. } => match self.held(task, *token) {
                Some(_) => {
                    self.dead.insert(task);
                    self.settle(task, Verdict::Buried)
                }
                None => Verdict::Late,
            },
            Kind::Revived => {
                if self.dead.remove(&task) {
                    Verdict::Revived
                } else {
                    Verdict::Late
                }
            }
        }
    }

    fn claim(&mut self, offset: i64, task: i64, worker: &Str, lease: i64) -> Verdict {
        if self.is_behind_key(task) {
            return Verdict::Refused(Refusal::KeyOrder);
        }
        let now = self.log_time;
        let Some(open) = self.open.get_mut(&task) else { return Verdict::Refused(Refusal::Settled) };
        if now < open.ready_at {
            return Verdict::Refused(Refusal::NotDue);
        }
        if open.lease.as_ref().is_some_and(|lease| now < lease.expires) {
            return Verdict::Refused(Refusal::Held);
        }
        let expires = now.saturating_add(lease);
        let lapsed =
            open.lease.replace(Lease { token: offset, worker: worker.detached(), since: now, expires });
        if let Some(lease) = &lapsed {
            open.note(format!("the lease of {} (token {}) ran out", lease.worker, lease.token));
        }
        let burial = open.is_exhausted();
        if !burial {
            open.attempts += 1;
        }
        Verdict::Granted { attempt: open.attempts, burial, lapsed }
    }

    fn renew(&mut self, task: i64, token: i64, lease: i64) -> Verdict {
        let expires = self.log_time.saturating_add(lease);
        let Some(held) = self.held(task, token).and_then(|open| open.lease.as_mut()) else {
            return Verdict::Late;
        };
        // Never earlier: a shorter lease in a renewal does not hand the task over while somebody works on it.
        held.expires = held.expires.max(expires);
        Verdict::Renewed
    }

    fn release(&mut self, task: i64, token: i64, started: bool) -> Verdict {
        let now = self.log_time;
        let Some(open) = self.held(task, token) else { return Verdict::Late };
        open.lease = None;
        open.ready_at = now;
        if !started && !open.is_exhausted() {
            open.attempts = open.attempts.saturating_sub(1);
        }
        Verdict::Released
    }

    fn fail(&mut self, task: i64, token: i64, after: i64, cause: &str) -> Verdict {
        let now = self.log_time;
        let Some(open) = self.held(task, token) else { return Verdict::Late };
        open.lease = None;
        open.note(cause.into());
        let exhausted = open.is_exhausted();
        open.ready_at = if exhausted { now } else { now.saturating_add(after) };
        Verdict::Failed { due: open.ready_at, exhausted }
    }

    /// The task, when `token` is its newest: whoever holds that may settle it, also after the lease has run out, as long
    /// as nobody else has taken the task.
    fn held(&mut self, task: i64, token: i64) -> Option<&mut Open> {
        let open = self.open.get_mut(&task)?;
        open.lease.as_ref().is_some_and(|lease| lease.token == token).then_some(open)
    }

    fn settle(&mut self, task: i64, verdict: Verdict) -> Verdict {
        let Some(open) = self.open.remove(&task) else { return Verdict::Late };
        if let Some(key) = open.meta.key
            && let Some(chain) = self.keys.get_mut(&key)
        {
            chain.remove(&task);
            match chain.first().copied() {
                Some(next) => self.place(next),
                None => {
                    self.keys.remove(&key);
                }
            }
        }
        verdict
    }

    /// Whether an earlier task of its key is open.
    fn is_behind_key(&self, task: i64) -> bool {
        let key = self.open.get(&task).and_then(|open| open.meta.key.as_ref());
        let first = key.and_then(|key| self.keys.get(key)).and_then(BTreeSet::first);
        first.is_some_and(|&first| first < task)
    }

    fn count(&mut self, verdict: &Verdict) {
        let counts = &mut self.counts;
        match verdict {
            Verdict::Granted { lapsed, .. } => {
                counts.granted += 1;
                counts.lapsed += u64::from(lapsed.is_some());
            }
            Verdict::Refused(_) => counts.refused += 1,
            Verdict::Renewed => counts.renewed += 1,
            Verdict::Released => counts.released += 1,
            Verdict::Done => counts.done += 1,
            Verdict::Failed { .. } => counts.failed += 1,
            Verdict::Buried => counts.buried += 1,
            Verdict::Revived => counts.revived += 1,
            Verdict::Late => counts.late += 1,
            Verdict::Inert => counts.inert += 1,
            Verdict::Replayed => {}
        }
    }

    /// Puts the task where it belongs in the index.
    fn place(&mut self, task: i64) {
        let behind = self.is_behind_key(task);
        match self.open.get(&task) {
            Some(open) if !behind => self.index.put(task, open.meta.class, open.due()),
            _ => self.index.remove(task),
        }
    }

    /// A task that can be taken at log time `now`, as far as is known: of the most urgent class that has one, the first
    /// when `random` is `None`, else one that `random` decides. Says whom to try, never who won.
    pub fn pick(&mut self, now: Timestamp, random: Option<u64>, except: &BTreeSet<i64>) -> Option<i64> {
        self.index.pick(now, random, except)
    }

    /// The log time at which a task can be taken that cannot be now.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.index.next_due()
    }

    /// How many tasks are where, at log time `now`.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> State {
        let now = now.max(self.log_time);
        let counts = &self.counts;
        let mut state = State { done: counts.done, dead: self.dead.len() as u64, ..State::default() };
        for (&task, open) in &self.open {
            if open.lease.as_ref().is_some_and(|lease| now < lease.expires) {
                state.claimed += 1;
            } else if now < open.ready_at {
                state.delayed += 1;
                continue;
            } else {
                state.ready += 1;
                state.behind_key += u64::from(self.is_behind_key(task));
            }
            let published = open.meta.published;
            state.oldest = Some(state.oldest.map_or(published, |oldest| oldest.min(published)));
        }
        state
    }

    /// The first task that is still needed: everything before it is done, dead or passed over, in every reader that has
    /// folded as much.
    #[must_use]
    pub fn first_needed(&self) -> i64 {
        self.open.first_key_value().map_or(self.named, |(&task, _)| task.min(self.named))
    }
}

#[cfg(test)]
mod tests;
