//! The state of a ledger at a claims offset as bytes, the same from every reader that has folded as much.
//!
//! A snapshot covers the claims below its offset and the tasks below the highest one they name; tasks that a reader knows
//! beyond that are read again after it is restored. Claims below the offset may then be deleted: every live lease, the log
//! time it is judged by, and every open task are in it. Layout: docs/task-queue.md.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::Str;

use super::codec::{In, Out};
use super::ledger::{Counts, Lease, Ledger, Open, Taken, Uniques};
use super::task::{TaskMeta, Unique};

/// The version of the encoding, its first byte.
pub const VERSION: u8 = 1;

/// A ledger as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The claims from here on are not in it.
    pub claims: i64,
    /// The tasks below it are not needed any more by whoever restores it.
    pub first_needed: i64,
    /// The encoded state.
    pub bytes: Bytes,
}

/// A snapshot cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It was written by a version that this one does not know.
    #[error("the snapshot has version {0}, this program reads version {VERSION}")]
    Version(u8),
    /// Its bytes are not what a snapshot has.
    #[error("the snapshot is damaged")]
    Damaged,
}

impl Ledger {
    /// The state as bytes.
    #[must_use]
    pub fn snapshot(&mut self) -> Snapshot {
        self.uniques.forget();
        let mut out = Out::default();
        out.u8(VERSION);
        out.i64(self.claims_end);
        out.i64(self.named);
        out.i64(self.log_time);
        for count in self.counts.all() {
            out.u64(count);
        }
        let covered: Vec<_> = self.open.range(..self.named).collect();
        out.count(covered.len());
        for (&task, open) in covered {
            out.i64(task);
            put_open(&mut out, open);
        }
        out.count(self.dead.len());
        for &task in &self.dead {
            out.i64(task);
        }
        let (time, passed_over, names) = self.uniques.canonical(self.named);
        out.i64(time);
        out.u64(passed_over);
        out.count(names.len());
        for (id, taken) in names {
            out.bytes(id);
            out.i64(taken.task);
            out.i64(taken.until);
        }
        Snapshot { claims: self.claims_end, first_needed: self.first_needed(), bytes: Bytes::from(out.0) }
    }

    /// The ledger that was written.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        match bytes.first() {
            Some(&VERSION) => read(&bytes[1..]).ok_or(SnapshotError::Damaged),
            Some(&version) => Err(SnapshotError::Version(version)),
            None => Err(SnapshotError::Damaged),
        }
    }
}

fn read(bytes: &[u8]) -> Option<Ledger> {
    let mut input = In(bytes);
    let (claims_end, named, log_time) = (input.i64()?, input.i64()?, input.i64()?);
    // No record counts twice in the same place.
    let records = u64::try_from(claims_end).ok()?;
    let tasks = u64::try_from(named).ok()?;
    let mut ledger = Ledger::new(named, claims_end);
    ledger.log_time = log_time;
    let mut counts = [0; Counts::FIELDS];
    for count in &mut counts {
        *count = input.u64().filter(|&count| count <= records)?;
    }
    ledger.counts = Counts::of(counts);
    for _ in 0..input.u32()? {
        let task = input.i64().filter(|&task| (0..named).contains(&task))?;
        let open = read_open(&mut input)?;
        ledger.insert(task, open);
    }
    let mut dead = BTreeSet::new();
    for _ in 0..input.u32()? {
        dead.insert(input.i64()?);
    }
    ledger.dead = dead;
    let (time, passed_over) = (input.i64()?, input.u64().filter(|&passed_over| passed_over <= tasks)?);
    let mut names = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.bytes()?;
        names.push((id, Taken { task: input.i64()?, until: input.i64()? }));
    }
    ledger.uniques = Uniques::restored(time, passed_over, names.into_iter());
    input.0.is_empty().then_some(ledger)
}

fn put_open(out: &mut Out, open: &Open) {
    let meta = &open.meta;
    let flags = u8::from(meta.key.is_some())
        | u8::from(meta.unique.is_some()) << 1
        | u8::from(open.lease.is_some()) << 2;
    out.u8(flags);
    out.u8(meta.class);
    out.i64(meta.not_before);
    out.u32(meta.max_attempts);
    out.i64(meta.published);
    if let Some(key) = &meta.key {
        out.bytes(key);
    }
    if let Some(unique) = &meta.unique {
        out.bytes(&unique.id);
        out.i64(unique.window);
    }
    out.u32(open.attempts);
    out.i64(open.ready_at);
    if let Some(lease) = &open.lease {
        out.i64(lease.token);
        out.bytes(lease.worker.as_bytes());
        out.i64(lease.since);
        out.i64(lease.expires);
    }
    out.count(open.causes.len());
    for cause in &open.causes {
        out.bytes(cause.as_bytes());
    }
}

fn read_open(input: &mut In<'_>) -> Option<Open> {
    let flags = input.u8()?;
    let class = input.u8().filter(|&class| class <= super::task::LAST_CLASS)?;
    let (not_before, max_attempts, published) = (input.i64()?, input.u32()?, input.i64()?);
    let key = if flags & 1 != 0 { Some(input.bytes()?) } else { None };
    let unique =
        if flags & 2 != 0 { Some(Unique { id: input.bytes()?, window: input.i64()? }) } else { None };
    let meta = TaskMeta { key, class, not_before, max_attempts, unique, published };
    let (attempts, ready_at) = (input.u32()?, input.i64()?);
    let lease = if flags & 4 != 0 {
        let token = input.i64()?;
        let worker = Str::from_utf8(input.bytes()?).ok()?;
        Some(Lease { token, worker, since: input.i64()?, expires: input.i64()? })
    } else {
        None
    };
    let mut causes = Vec::new();
    for _ in 0..input.u32()? {
        causes.push(String::from_utf8(input.bytes()?.to_vec()).ok()?);
    }
    Some(Open { meta, attempts, ready_at, lease, causes })
}

impl Counts {
    const FIELDS: usize = 11;

    const fn all(&self) -> [u64; Self::FIELDS] {
        [
            self.granted,
            self.refused,
            self.lapsed,
            self.renewed,
            self.released,
            self.done,
            self.failed,
            self.buried,
            self.revived,
            self.late,
            self.inert,
        ]
    }

    const fn of(all: [u64; Self::FIELDS]) -> Self {
        let [granted, refused, lapsed, renewed, released, done, failed, buried, revived, late, inert] = all;
        Self { granted, refused, lapsed, renewed, released, done, failed, buried, revived, late, inert }
    }
}
