//! Which tasks can be taken now, by class, and when the others can.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::claims::task::LAST_CLASS;
use crate::time::Timestamp;

/// Derived from the open tasks; holds only those that nothing but time keeps from being taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    ready: [BTreeSet<i64>; LAST_CLASS as usize + 1],
    timed: BTreeSet<(Timestamp, i64)>,
    /// Class and due time of each task here.
    places: BTreeMap<i64, (u8, Timestamp)>,
}

impl Index {
    /// The task can be taken from log time `due` on.
    pub fn put(&mut self, task: i64, class: u8, due: Timestamp) {
        self.remove(task);
        self.places.insert(task, (class, due));
        if due > 0 {
            self.timed.insert((due, task));
        } else {
            self.ready[usize::from(class)].insert(task);
        }
    }

    pub fn remove(&mut self, task: i64) {
        if let Some((class, due)) = self.places.remove(&task) {
            self.timed.remove(&(due, task));
            self.ready[usize::from(class)].remove(&task);
        }
    }

    pub fn next_due(&self) -> Option<Timestamp> {
        self.timed.first().map(|&(due, _)| due)
    }

    pub fn pick(&mut self, now: Timestamp, random: Option<u64>, except: &BTreeSet<i64>) -> Option<i64> {
        while let Some(&(due, task)) = self.timed.first().filter(|(due, _)| *due <= now) {
            self.timed.remove(&(due, task));
            if let Some((class, _)) = self.places.get(&task) {
                self.ready[usize::from(*class)].insert(task);
            }
        }
        self.ready.iter().find_map(|tasks| {
            let (first, last) = (*tasks.first()?, *tasks.last()?);
            let from = match random {
                // Even enough: offsets are dense. A gap makes the task after it a little more likely.
                Some(random) => first + (random % (last - first + 1).cast_unsigned()).cast_signed(),
                None => first,
            };
            tasks.range(from..).chain(tasks.range(..from)).find(|task| !except.contains(task)).copied()
        })
    }
}
