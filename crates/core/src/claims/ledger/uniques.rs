//! Tasks that exist once within a window: which names are taken, in the order of the tasks partition alone.
//!
//! A reader may be ahead in the tasks. What a snapshot says must not depend on how far, so what the tasks beyond the last
//! named one did is kept apart until they are named.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;

use crate::claims::task::TaskMeta;
use crate::time::Timestamp;

/// A task that took a name, and until when in the time of the tasks partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::claims) struct Taken {
    pub task: i64,
    pub until: Timestamp,
}

/// The state after a task that is not named yet.
#[derive(Clone, Copy, Debug)]
struct After {
    task: i64,
    time: Timestamp,
    passed_over: u64,
}

/// The names that are taken.
#[derive(Clone, Debug, Default)]
pub(in crate::claims) struct Uniques {
    /// The largest append time of the tasks.
    time: Timestamp,
    passed_over: u64,
    /// Who took each name, the newest last; more than one only where the newer ones are not named yet.
    taken: BTreeMap<Bytes, Vec<Taken>>,
    ahead: VecDeque<After>,
    /// As of the last named task.
    named_time: Timestamp,
    named_passed_over: u64,
}

impl Uniques {
    pub const fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Whether the task exists, rather than being the second of its name.
    pub fn admit(&mut self, task: i64, meta: &TaskMeta) -> bool {
        self.time = self.time.max(meta.published);
        let mut admitted = true;
        if let Some(unique) = &meta.unique {
            let taken = self.taken.entry(unique.id.clone()).or_default();
            admitted = taken.last().is_none_or(|last| last.until <= self.time);
            if admitted {
                taken.push(Taken { task, until: self.time.saturating_add(unique.window) });
            }
        }
        self.passed_over += u64::from(!admitted);
        self.ahead.push_back(After { task, time: self.time, passed_over: self.passed_over });
        admitted
    }

    /// The tasks below `end` are named.
    pub fn named(&mut self, end: i64) {
        while let Some(after) = self.ahead.pop_front_if(|after| after.task < end) {
            self.named_time = after.time;
            self.named_passed_over = after.passed_over;
        }
    }

    /// Forgets names that are free again, as far as the named tasks tell. Call it at fixed offsets only: what is
    /// forgotten changes no verdict, but memory.
    pub fn forget(&mut self) {
        let now = self.named_time;
        self.taken.retain(|_, taken| {
            taken.retain(|taken| taken.until > now);
            !taken.is_empty()
        });
    }

    /// What the named tasks, those below `named`, say: time, tasks passed over, and the names that are taken.
    pub fn canonical(&self, named: i64) -> (Timestamp, u64, Vec<(&Bytes, Taken)>) {
        let now = self.named_time;
        let newest = |taken: &Vec<Taken>| taken.iter().rev().find(|taken| taken.task < named).copied();
        let names = self.taken.iter().filter_map(|(id, taken)| Some((id, newest(taken)?)));
        (now, self.named_passed_over, names.filter(|(_, taken)| taken.until > now).collect())
    }

    /// The state that [`canonical`](Self::canonical) told.
    pub fn restored(time: Timestamp, passed_over: u64, names: impl Iterator<Item = (Bytes, Taken)>) -> Self {
        Self {
            time,
            passed_over,
            taken: names.map(|(id, taken)| (id, Vec::from([taken]))).collect(),
            ahead: VecDeque::new(),
            named_time: time,
            named_passed_over: passed_over,
        }
    }
}
