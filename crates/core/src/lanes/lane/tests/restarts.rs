//! Lanes that crash and start again at what was committed, judged against what was completed.

use std::collections::BTreeSet;
use std::string::String;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::*;
use super::At;
use crate::lanes::progress::{FoundAt, decode, encode};

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Pull,
    Complete(usize),
    Commit {
        limit: usize,
    },
    Crash,
    /// The group's offset is set to a fraction of the log, beside whatever text there is.
    Reset(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limit = prop_oneof![4 => Just(4096usize), 1 => 0..60usize];
    proptest::collection::vec(
        prop_oneof![
            10 => (1..8usize).prop_map(Step::Read),
            20 => Just(Step::Pull),
            20 => any::<usize>().prop_map(Step::Complete),
            6 => limit.prop_map(|limit| Step::Commit { limit }),
            3 => Just(Step::Crash),
            1 => any::<u8>().prop_map(Step::Reset),
        ],
        0..300,
    )
}

/// A partition with holes, a group's offset, and one lane at a time.
struct World {
    log: Vec<i64>,
    committed: Option<(i64, String)>,
    /// Completed at least once.
    ever: BTreeSet<i64>,
    /// Of those, what need not run again.
    completed: BTreeSet<i64>,
    /// Named in the text that is committed.
    saved: BTreeSet<i64>,
    lane: Lane<At>,
    position: i64,
    out: Vec<(i64, Ticket)>,
}

impl World {
    fn new(gaps: &[i64]) -> Self {
        let mut at = 0;
        let log = gaps.iter().map(|gap| {
            at += gap + 1;
            at
        });
        let log = log.collect();
        Self {
            log,
            committed: None,
            ever: BTreeSet::new(),
            completed: BTreeSet::new(),
            saved: BTreeSet::new(),
            lane: Lane::new(1000, usize::MAX),
            position: 0,
            out: vec![],
        }
    }

    fn read(&mut self, most: usize) {
        let from = self.log.partition_point(|&offset| offset < self.position);
        let records: Vec<_> = self.log[from..].iter().take(most).map(|&offset| At(offset)).collect();
        if let Some(last) = records.last() {
            let (first_offset, next_offset) = (self.position, last.0 + 1);
            self.position = next_offset;
            self.lane.offer(Chunk { records, first_offset, next_offset, leader_epoch: None, pinned: vec![] });
        }
    }

    fn pull(&mut self) -> bool {
        let Work::Record(At(offset), ticket) = self.lane.pull().work else { return false };
        assert!(!self.saved.contains(&offset), "{offset} was committed as completed and runs again");
        self.out.push((offset, ticket));
        true
    }

    fn complete(&mut self, which: usize) {
        if !self.out.is_empty() {
            let (offset, ticket) = self.out.swap_remove(which % self.out.len());
            self.lane.complete(ticket);
            self.ever.insert(offset);
            self.completed.insert(offset);
        }
    }

    fn commit(&mut self, limit: usize) {
        let Some(progress) = self.lane.progress() else { return };
        let text = encode(&progress, None, limit);
        let named = |offset: &i64| progress.done.iter().any(|range| range.contains(offset));
        let done: BTreeSet<i64> = self.log.iter().copied().filter(named).collect();
        assert!(done.is_subset(&self.completed), "named without being completed");
        let below = |offset: &&i64| **offset < progress.frontier.offset;
        assert!(
            self.log.iter().filter(below).all(|offset| self.completed.contains(offset)),
            "a record is lost"
        );
        if limit == 4096 {
            // Everything that is completed is told: nothing of it runs again.
            let above = self.completed.iter().filter(|&&offset| offset >= progress.frontier.offset);
            assert_eq!(above.copied().collect::<BTreeSet<_>>(), done);
        }
        self.committed = Some((progress.frontier.offset, text));
    }

    fn crash(&mut self) {
        self.out.clear();
        self.lane = Lane::new(1000, usize::MAX);
        self.saved.clear();
        self.position = 0;
        let Some((offset, text)) = &self.committed else {
            self.completed.clear();
            return;
        };
        self.position = *offset;
        let found = FoundAt { offset: *offset, incarnation: None, log_end: None };
        if let Ok(saved) = decode(text).and_then(|saved| saved.checked(found)) {
            self.saved = saved.done.iter().cloned().flatten().collect();
            assert!(self.lane.resume(saved, *offset));
        }
        // What was completed and not committed may run again.
        self.completed.retain(|seen| seen < offset);
        let saved: Vec<_> = self.log.iter().copied().filter(|seen| self.saved.contains(seen)).collect();
        assert!(saved.iter().all(|seen| self.ever.contains(seen)), "saved without being completed");
        self.completed.extend(saved);
    }

    fn reset(&mut self, to: i64) {
        let text = self.committed.take().map(|(_, text)| text).unwrap_or_default();
        self.committed = Some((to, text));
        // Whoever sets an offset answers for what lies below.
        self.completed.extend(self.log.iter().copied().filter(|&offset| offset < to));
        self.out.clear();
        self.crash();
    }

    fn finish(&mut self) {
        loop {
            self.read(usize::MAX);
            let pulled = self.pull();
            self.complete(0);
            if !pulled && self.out.is_empty() {
                break;
            }
        }
        self.commit(4096);
        let missed: Vec<_> = self.log.iter().filter(|offset| !self.completed.contains(offset)).collect();
        assert!(missed.is_empty(), "never completed: {missed:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_any_crash_nothing_is_lost_and_nothing_that_was_committed_as_done_runs_again(
        gaps in proptest::collection::vec(prop_oneof![3 => Just(0i64), 1 => 0..4i64], 1..120),
        steps in steps(),
    ) {
        let mut world = World::new(&gaps);
        for step in steps {
            match step {
                Step::Read(most) => world.read(most),
                Step::Pull => {
                    world.pull();
                }
                Step::Complete(which) => world.complete(which),
                Step::Commit { limit } => world.commit(limit),
                Step::Crash => world.crash(),
                Step::Reset(part) => {
                    let end = world.log.last().map_or(0, |last| last + 1);
                    world.reset(end * i64::from(part) / 256);
                }
            }
        }
        world.finish();
    }
}
