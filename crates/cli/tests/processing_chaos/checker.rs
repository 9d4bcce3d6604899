//! What must hold of everything that happened: no loss, order of keys, commits below what is unfinished, bounded redelivery.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::deliveries::{Delivery, Entry, Numbered};

/// Every record that was written, by partition and offset.
pub type Written = Vec<Vec<Numbered>>;

/// One lane of one member: (member, partition, generation).
type Id = (u32, i32, i32);

/// One delivery history: what one lane of one member was given.
#[derive(Default)]
struct History {
    /// The newest record of each key, and how its handler stands.
    keys: HashMap<u32, (u32, Stand)>,
    running: u64,
    /// Records that were completed and, as far as was seen, not committed when it began.
    exposed: u64,
    again: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    Runs,
    Failed,
    Completed,
}

#[derive(Default)]
struct Partition {
    /// How often each record was completed, and by whom last.
    completed: Vec<(u32, u32)>,
    /// Everything below is completed.
    frontier: usize,
    /// Behind the highest completed record.
    end: usize,
    committed: usize,
    /// The history with the newest generation, the last of those.
    owner: Option<Id>,
}

/// The numbers of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub completions: u64,
    pub failures: u64,
    pub histories: u64,
    pub kills: u64,
    /// Handlers that a kill cut off.
    pub interrupted: u64,
    /// Completions of what a killed member had completed.
    pub again_after_kill: u64,
    /// Completions of what a member had completed that lives: its lane was revoked while a failed record, not to be drained,
    /// waited for its next attempt, or was lost.
    pub again_after_handover: u64,
    pub most_again_in_a_history: u64,
    /// Upper bound of the completions again: what was completed and not committed when a lane began.
    pub exposed: u64,
    pub commits_seen: u64,
    /// Completions in a lane whose partition had begun elsewhere: the member had been thrown out of the group.
    pub late: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kills={} histories={} completions={} failures={} interrupted={} again_after_kill={} \
             again_after_handover={} most_again_in_a_history={} exposed={} late={} commits_seen={}",
            self.kills,
            self.histories,
            self.completions,
            self.failures,
            self.interrupted,
            self.again_after_kill,
            self.again_after_handover,
            self.most_again_in_a_history,
            self.exposed,
            self.late,
            self.commits_seen
        )
    }
}

/// Goes through all entries.
///
/// # Errors
/// What is wrong, the first twenty.
pub fn check(written: &Written, entries: &[Entry]) -> Result<Summary, String> {
    let mut checker = Checker::new(written);
    for entry in entries {
        match *entry {
            Entry::Started(at) => checker.started(&at),
            Entry::Failed(at) => checker.left(&at, Stand::Failed),
            Entry::Completed(at) => checker.left(&at, Stand::Completed),
            Entry::Committed { partition, offset } => checker.committed(partition, offset),
            Entry::Ended { member, killed } => checker.ended(member, killed),
        }
    }
    checker.finish()
}

struct Checker<'a> {
    written: &'a Written,
    partitions: Vec<Partition>,
    histories: BTreeMap<Id, History>,
    /// How many records of each key are completed, from the first on.
    keys: HashMap<u32, u32>,
    gone: HashMap<u32, bool>,
    summary: Summary,
    wrong: Vec<String>,
}

impl<'a> Checker<'a> {
    fn new(written: &'a Written) -> Self {
        let partition = |records: &Vec<Numbered>| Partition {
            completed: vec![(0, 0); records.len()],
            ..Partition::default()
        };
        Self {
            written,
            partitions: written.iter().map(partition).collect(),
            histories: BTreeMap::new(),
            keys: HashMap::new(),
            gone: HashMap::new(),
            summary: Summary::default(),
            wrong: Vec::new(),
        }
    }

    fn is_wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.len() < 20 {
            self.wrong.push(what());
        }
    }

    fn started(&mut self, at: &Delivery) {
        let id = (at.member, at.partition, at.generation);
        if self.written[at.partition as usize].get(at.offset as usize) != Some(&at.record) {
            self.is_wrong(|| format!("{at:?} was never written there"));
            return;
        }
        if self.gone.contains_key(&at.member) {
            self.is_wrong(|| format!("{at:?} after the end of its member"));
        }
        if !self.histories.contains_key(&id) {
            self.begin(id);
        }
        let partition = &self.partitions[at.partition as usize];
        let (committed, owned) = (partition.committed, partition.owner == Some(id));
        if owned && (at.offset as usize) < committed {
            self.is_wrong(|| format!("{at:?} again, although {committed} is committed"));
        }
        let Numbered { key, of_key } = at.record;
        let before = self.keys.get(&key).copied().unwrap_or(0);
        if of_key > before {
            self.is_wrong(|| format!("{at:?} although record {before} of its key was never completed"));
        }
        let history = self.histories.entry(id).or_default();
        history.running += 1;
        let wrong = match history.keys.insert(key, (of_key, Stand::Runs)) {
            Some((_, Stand::Runs)) => Some("while another of its key runs"),
            Some((newest, Stand::Failed)) if newest != of_key => Some("after another of its key has failed"),
            Some((newest, Stand::Completed)) if newest >= of_key => {
                Some("again, or after a later one of its key")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.is_wrong(|| format!("{at:?} in one history {wrong}"));
        }
    }

    /// A lane of a partition begins.
    fn begin(&mut self, id: Id) {
        let (member, number, generation) = id;
        if self.histories.range((member, number, generation)..=(member, number, i32::MAX)).next().is_some() {
            self.is_wrong(|| format!("{id:?} began after a newer lane of that member and partition"));
        }
        self.summary.histories += 1;
        let partition = &mut self.partitions[number as usize];
        let open = &partition.completed[..partition.end];
        let exposed = open.iter().skip(partition.committed).filter(|(times, _)| *times > 0).count() as u64;
        if partition.owner.is_none_or(|(_, _, newest)| newest <= generation) {
            partition.owner = Some(id);
        }
        self.summary.exposed += exposed;
        self.histories.insert(id, History { exposed, ..History::default() });
    }

    /// A handler is about to end.
    fn left(&mut self, at: &Delivery, stand: Stand) {
        let id = (at.member, at.partition, at.generation);
        let Numbered { key, of_key } = at.record;
        let newer = (at.generation.saturating_add(1), i32::MAX);
        if self.histories.range((id.0, id.1, newer.0)..=(id.0, id.1, newer.1)).next().is_some() {
            self.is_wrong(|| format!("{at:?} ended in a lane whose successor had begun in the same member"));
        }
        let history = self.histories.entry(id).or_default();
        if history.keys.insert(key, (of_key, stand)) != Some((of_key, Stand::Runs)) {
            self.is_wrong(|| format!("{at:?} ended and had not begun"));
            return;
        }
        history.running -= 1;
        if stand == Stand::Failed {
            self.summary.failures += 1;
        } else {
            self.completed(id, at);
        }
    }

    fn completed(&mut self, id: Id, at: &Delivery) {
        self.summary.completions += 1;
        let partition = &mut self.partitions[at.partition as usize];
        let offset = at.offset as usize;
        let (times, by) = partition.completed[offset];
        partition.completed[offset] = (times + 1, at.member);
        partition.end = partition.end.max(offset + 1);
        let of_key = self.keys.entry(at.record.key).or_default();
        *of_key = (*of_key).max(at.record.of_key + 1);
        let owner = partition.owner;
        if let Some(owner) = owner.filter(|owner| *owner != id) {
            // What a member completes that was thrown out is news to the one that has the partition now.
            self.summary.late += 1;
            self.summary.exposed += 1;
            self.histories.entry(owner).or_default().exposed += 1;
        } else if times > 0 {
            let history = self.histories.entry(id).or_default();
            history.again += 1;
            self.summary.most_again_in_a_history = self.summary.most_again_in_a_history.max(history.again);
            let killed = self.gone.get(&by) == Some(&true);
            *(if killed {
                &mut self.summary.again_after_kill
            } else {
                &mut self.summary.again_after_handover
            }) += 1;
        }
    }

    fn committed(&mut self, number: i32, offset: i64) {
        self.summary.commits_seen += 1;
        let partition = &mut self.partitions[number as usize];
        let done =
            partition.completed[partition.frontier..].iter().take_while(|(times, _)| *times > 0).count();
        partition.frontier += done;
        let (frontier, before) = (partition.frontier, partition.committed);
        partition.committed = offset as usize;
        if offset as usize > frontier {
            self.is_wrong(|| format!("{offset} of {number} is committed, and {frontier} is not completed"));
        }
        if (offset as usize) < before {
            self.is_wrong(|| format!("the commit of {number} went back from {before} to {offset}"));
        }
    }

    fn ended(&mut self, member: u32, killed: bool) {
        self.gone.insert(member, killed);
        let its = (member, i32::MIN, i32::MIN)..=(member, i32::MAX, i32::MAX);
        let running: u64 = self.histories.range(its).map(|(_, history)| history.running).sum();
        if killed {
            self.summary.kills += 1;
            self.summary.interrupted += running;
        }
    }

    fn finish(mut self) -> Result<Summary, String> {
        for number in 0..self.partitions.len() {
            let partition = &self.partitions[number];
            let lost = partition.completed.iter().filter(|(times, _)| *times == 0).count();
            let (committed, end) = (partition.committed, partition.completed.len());
            if lost > 0 {
                self.is_wrong(|| format!("{lost} records of partition {number} were never completed"));
            }
            if committed != end {
                self.is_wrong(|| format!("partition {number} ends at {end}, and {committed} is committed"));
            }
        }
        let histories = std::mem::take(&mut self.histories);
        for (id, History { again, exposed, .. }) in histories {
            if again > exposed {
                self.is_wrong(|| {
                    format!("{id:?} completed {again} records again, where {exposed} were open")
                });
            }
        }
        if self.wrong.is_empty() { Ok(self.summary) } else { Err(self.wrong.join("\n")) }
    }
}
