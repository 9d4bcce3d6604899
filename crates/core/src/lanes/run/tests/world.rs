//! A source, its group and the processors of lanes as a run meets them, and what must hold of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use super::super::*;
use crate::lanes::{
    Budget, Chunk, CommitFailureKind, HasOffset, Lane, LaneState, Offer, Pinned, Ticket, Work,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(pub i64);

impl HasOffset for At {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        None
    }
}

pub struct LiveLane {
    pub id: LaneId,
    pub lane: Lane<At>,
    pub out: Vec<(i64, Ticket)>,
    /// Those that failed and wait for somebody to decide.
    pub parked: Vec<(i64, Ticket)>,
    pub ended: bool,
    pub aborted: bool,
    pub committed: i64,
    pub done: Vec<std::ops::Range<i64>>,
    /// Where its predecessor under the same assignment left off, until the first batch.
    pub resumes_at: Option<i64>,
}

/// Partitions with their generations, and when they go in any case.
type Held = (Vec<(TopicPartition, i32)>, Option<Instant>);

/// What a source, its group and the lanes' processors do, and what must hold of it.
pub struct World {
    pub run: Run<Chunk<At>>,
    pub now: Instant,
    pub generation: i32,
    /// Generation, position and whether paused.
    pub owned: BTreeMap<TopicPartition, (i32, i64, bool)>,
    /// Held revocations: their partitions with generations, and the deadline.
    pub held: BTreeMap<RevocationId, Held>,
    pub lanes: BTreeMap<LaneNumber, LiveLane>,
    pub in_flight: Option<CommitRequest>,
    pub committed: BTreeMap<TopicPartition, i64>,
    pub revocations: u64,
    pub calls: u64,
    pub waiting: BTreeSet<CommitToken>,
    pub answers: Vec<Result<(), CommitRefusal>>,
    pub requests: usize,
    pub seeks: Vec<(TopicPartition, i64)>,
    pub end: Option<RunEnd>,
    /// Whether time is being moved, when deadlines may break off what otherwise must finish first.
    pub past_deadline: bool,
    /// Where lanes that failed left off.
    pub left_off: BTreeMap<LaneId, i64>,
    /// The offsets that are records, and those among them that some processor completed.
    pub records: BTreeMap<TopicPartition, BTreeSet<i64>>,
    pub done: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// How far each partition was ever read.
    pub ends: BTreeMap<TopicPartition, i64>,
    pub bytes: Budget,
    /// Those that could not be read on at some time under this assignment.
    pub blocked: BTreeSet<TopicPartition>,
}

/// The bytes of a record, of a copy of it, and of all lanes together.
const RECORD: usize = 100;
const COPY: usize = 10;
const BYTES: usize = 900;

pub fn partition(number: usize) -> TopicPartition {
    TopicPartition::new("t", i32::try_from(number).unwrap())
}

impl World {
    pub fn new(config: RunConfig) -> Self {
        Self {
            run: Run::new(config, Instant::ZERO),
            now: Instant::ZERO,
            generation: 0,
            owned: BTreeMap::new(),
            held: BTreeMap::new(),
            lanes: BTreeMap::new(),
            in_flight: None,
            committed: BTreeMap::new(),
            revocations: 0,
            calls: 0,
            waiting: BTreeSet::new(),
            answers: Vec::new(),
            requests: 0,
            seeks: Vec::new(),
            end: None,
            past_deadline: false,
            left_off: BTreeMap::new(),
            records: BTreeMap::new(),
            done: BTreeMap::new(),
            ends: BTreeMap::new(),
            bytes: Budget::new(BYTES),
            blocked: BTreeSet::new(),
        }
    }

    /// What a lane gave back.
    fn give_back(&mut self, number: LaneNumber, freed: usize) {
        if self.bytes.give_back(freed) {
            self.run.handle_bytes_room();
        } else if freed > 0 && self.bytes.is_over() && self.lanes[&number].lane.held_bytes() == 0 {
            self.run.handle_lane_holds_nothing(number);
        }
    }

    /// The bytes are those of the lanes, and no partition is paused without a reason.
    pub fn judge_pauses(&self) {
        let held: usize = self.lanes.values().map(|lane| lane.lane.held_bytes()).sum();
        assert_eq!(self.bytes.used(), held);
        if self.run.is_stopping() {
            return;
        }
        for (tp, &(generation, _, paused)) in &self.owned {
            let mut live = self.lanes.values().filter(|lane| !lane.ended && lane.id.topic_partition == *tp);
            let (Some(lane), None) = (live.next(), live.next()) else { continue };
            let full = lane.lane.state() == LaneState::Paused
                || (self.bytes.is_over() && lane.lane.held_bytes() > 0);
            let waits = full || lane.id.generation != generation || self.blocked.contains(tp);
            assert!(!paused || waits, "{tp} is paused for no reason");
        }
    }

    /// The lowest record that nobody completed, as far as the source has got.
    pub fn first_undone(&self, tp: &TopicPartition) -> Option<i64> {
        let done = self.done.get(tp);
        let records = self.records.get(tp)?;
        records.iter().copied().find(|offset| done.is_none_or(|done| !done.contains(offset)))
    }

    /// May a commit for this assignment still be sent?
    fn is_ours(&self, tp: &TopicPartition, generation: i32) -> bool {
        self.owned.get(tp).is_some_and(|owned| owned.0 == generation)
            || self.held.values().any(|(held, _)| held.contains(&(tp.clone(), generation)))
    }

    pub fn settle(&mut self) {
        while let Some(effect) = self.run.poll_effect() {
            assert!(self.end.is_none(), "nothing follows the end: {effect:?}");
            self.carry_out(effect);
        }
    }

    fn start_lane(&mut self, lane: LaneNumber, id: LaneId) {
        let live = |other: &LiveLane| !other.ended && other.id.topic_partition == id.topic_partition;
        assert!(!self.lanes.values().any(live), "a second live lane for {id}");
        assert!(self.is_ours(&id.topic_partition, id.generation));
        let lane_ = Lane::new(4, 5);
        let before = self.lanes.values().filter(|lane| lane.id == id).max_by_key(|lane| lane.committed);
        let live = LiveLane {
            lane: lane_,
            out: vec![],
            parked: vec![],
            ended: false,
            aborted: false,
            committed: before.map_or(-1, |lane| lane.committed),
            done: before.map(|lane| lane.done.clone()).unwrap_or_default(),
            resumes_at: self.left_off.get(&id).copied(),
            id,
        };
        self.lanes.insert(lane, live);
    }

    fn carry_out(&mut self, effect: Effect<Chunk<At>>) {
        match effect {
            Effect::StartLane { lane, id } => self.start_lane(lane, id),
            Effect::Deliver { lane, batch } => {
                let live = self.lanes.get_mut(&lane).unwrap();
                if let Some(at) = live.resumes_at.take() {
                    assert!(batch.first_offset <= at, "{} went on behind what was not completed", live.id);
                }
                self.bytes.take(batch.pinned.iter().map(|pinned| pinned.bytes).sum());
                let offer = live.lane.offer(batch);
                let holds = live.lane.held_bytes() > 0;
                if offer == Offer::Full {
                    self.run.handle_lane_full(lane);
                }
                if holds && self.bytes.is_over() {
                    self.run.handle_bytes_over(lane);
                }
            }
            Effect::StopLane { lane, reason, hurry } => {
                let live = self.lanes.get_mut(&lane).unwrap();
                let freed = live.lane.stop(reason, hurry);
                self.give_back(lane, freed);
            }
            Effect::AbortLane { lane } => self.lanes.get_mut(&lane).unwrap().aborted = true,
            Effect::AbandonLane { lane } => self.end_lane(lane, LaneOutcome::Abandoned),
            Effect::Pause(tp) => self.set_paused(&tp, true),
            Effect::Resume(tp) => self.set_paused(&tp, false),
            Effect::Commit(request) => {
                assert!(self.in_flight.is_none(), "one request at a time");
                assert!(!request.offsets.is_empty());
                for (id, progress) in &request.offsets {
                    self.check_commit(id, progress);
                }
                self.requests += 1;
                self.in_flight = Some(request);
            }
            Effect::CommitDone { token, answer } => {
                assert!(self.waiting.remove(&token), "answered twice");
                self.answers.push(answer);
            }
            Effect::ReleaseRevocation(id) => {
                let (partitions, _) = self.held.remove(&id).expect("released exactly once");
                for (tp, generation) in partitions {
                    let live = |lane: &LiveLane| {
                        !lane.ended && lane.id.topic_partition == tp && lane.id.generation == generation
                    };
                    let overdue = self.lanes.values().any(live);
                    assert!(!overdue || self.past_deadline, "released with a live lane");
                }
            }
            Effect::Seek { topic_partition, offset } => {
                let owned = self.owned.get_mut(&topic_partition).expect("a seek of what is ours");
                assert!(offset <= owned.1, "a seek forward loses records");
                owned.1 = offset;
                self.seeks.push((topic_partition, offset));
            }
            Effect::End(end) => {
                assert!(self.waiting.is_empty() && self.held.is_empty());
                assert!(self.lanes.values().all(|lane| lane.ended));
                assert!(self.owned.values().all(|owned| !owned.2), "left paused");
                self.end = Some(end);
            }
        }
    }
}

impl World {
    fn check_commit(&self, id: &LaneId, progress: &Progress) {
        let frontier = progress.frontier;
        assert!(self.is_ours(&id.topic_partition, id.generation), "commit for {id}, not ours");
        let lanes = || self.lanes.values().filter(|lane| lane.id == *id);
        let reached = lanes().filter_map(|lane| lane.lane.progress());
        let reached = reached.map(|at| at.frontier.offset).max();
        assert!(reached >= Some(frontier.offset), "above the frontier");
        let undone = self.first_undone(&id.topic_partition);
        assert!(undone.is_none_or(|undone| frontier.offset <= undone), "over {undone:?}");
        let news = |lane: &LiveLane| {
            frontier.offset > lane.committed
                || (frontier.offset == lane.committed && progress.done != lane.done)
        };
        assert!(lanes().all(news), "twice or backwards");
    }

    fn set_paused(&mut self, tp: &TopicPartition, paused: bool) {
        if let Some(owned) = self.owned.get_mut(tp) {
            assert_ne!(owned.2, paused, "{tp} toggled without a change");
            owned.2 = paused;
        }
    }

    pub fn assign(&mut self, partitions: &[TopicPartition]) {
        let held =
            |tp: &TopicPartition| self.held.values().any(|(held, _)| held.iter().any(|(held, _)| held == tp));
        let fresh: Vec<_> =
            partitions.iter().filter(|tp| !self.owned.contains_key(*tp) && !held(tp)).cloned().collect();
        self.generation += 1;
        for tp in &fresh {
            let position = self.committed.get(tp).copied().unwrap_or(0);
            self.blocked.remove(tp);
            self.owned.insert(tp.clone(), (self.generation, position, false));
        }
        self.run.handle_assigned(self.now, self.generation, fresh);
        self.settle();
    }

    pub fn revoke(&mut self, partitions: &[TopicPartition], within: Option<Duration>) {
        self.revocations += 1;
        let id = RevocationId(self.revocations);
        let gone: Vec<_> = partitions
            .iter()
            .filter_map(|tp| self.owned.remove(tp).map(|owned| (tp.clone(), owned.0)))
            .collect();
        let deadline = within.map(|within| self.now + within);
        let names: Vec<_> = gone.iter().map(|(tp, _)| tp.clone()).collect();
        self.held.insert(id, (gone, deadline));
        self.run.handle_revoked(self.now, id, &names, deadline);
        self.settle();
    }

    /// A loss also takes what is only held.
    pub fn lose(&mut self, tp: &TopicPartition) {
        self.owned.remove(tp);
        for (held, _) in self.held.values_mut() {
            held.retain(|(held, _)| held != tp);
        }
        self.run.handle_lost(self.now, std::slice::from_ref(tp));
        self.settle();
    }

    pub fn batch(&mut self, tp: &TopicPartition, records: i64, hidden: i64) {
        let Some(owned) = self.owned.get_mut(tp).filter(|owned| !owned.2) else {
            return;
        };
        if !self.run.wants_batches() {
            return;
        }
        let first = owned.1;
        owned.1 += records + hidden;
        // What was read before is what it was: an offset never turns from a marker into a record.
        let known = self.ends.entry(tp.clone()).or_default();
        let all = self.records.entry(tp.clone()).or_default();
        all.extend((first..first + records).filter(|offset| *known <= *offset));
        let there: Vec<i64> = all.range(first..owned.1).copied().collect();
        *known = owned.1.max(*known);
        let pinned = Pinned { records: there.len(), bytes: RECORD * there.len() };
        let chunk = Chunk {
            records: there.into_iter().map(At).collect(),
            first_offset: first,
            next_offset: owned.1,
            leader_epoch: None,
            pinned: if pinned.records > 0 { vec![pinned] } else { vec![] },
        };
        let info = BatchInfo { topic_partition: tp.clone(), generation: owned.0, first_offset: first };
        self.run.handle_batch(self.now, &info, chunk);
        self.settle();
    }

    pub fn live(&self) -> Vec<LaneNumber> {
        self.lanes.iter().filter(|(_, lane)| !lane.ended).map(|(&number, _)| number).collect()
    }

    /// Lets the lane's processor take a record. True when the lane has no more.
    pub fn pull(&mut self, number: LaneNumber) -> bool {
        let live = self.lanes.get_mut(&number).unwrap();
        let pull = live.lane.pull();
        let ended = pull.work == Work::End;
        match pull.work {
            Work::Record(At(offset), ticket) => live.out.push((offset, ticket)),
            Work::OutOfOrder { .. } => panic!("a record of another assignment"),
            Work::Wait | Work::End => {}
        }
        if pull.room {
            self.run.handle_lane_room(number);
        }
        self.give_back(number, pull.freed_bytes);
        self.settle();
        ended
    }

    /// A record that is out fails and is parked, as a copy.
    pub fn park(&mut self, number: LaneNumber, which: usize) {
        let live = self.lanes.get_mut(&number).unwrap();
        if !live.out.is_empty() {
            let (offset, mut ticket) = live.out.swap_remove(which % live.out.len());
            live.lane.copied(&mut ticket, COPY);
            live.parked.push((offset, ticket));
            self.bytes.take(COPY);
            let freed = live.lane.take_freed();
            self.give_back(number, freed);
            self.settle();
        }
    }

    /// It is decided that a parked record is handled again.
    pub fn unpark(&mut self, number: LaneNumber, which: usize) {
        let live = self.lanes.get_mut(&number).unwrap();
        if !live.parked.is_empty() {
            let parked = live.parked.swap_remove(which % live.parked.len());
            live.out.push(parked);
        }
    }

    pub fn complete(&mut self, number: LaneNumber, which: usize) {
        let live = self.lanes.get_mut(&number).unwrap();
        if !live.out.is_empty() {
            let (offset, ticket) = live.out.swap_remove(which % live.out.len());
            assert!(live.lane.complete(ticket));
            let freed = live.lane.take_freed();
            self.done.entry(live.id.topic_partition.clone()).or_default().insert(offset);
            self.give_back(number, freed);
            self.settle();
        }
    }

    pub fn end_lane(&mut self, number: LaneNumber, outcome: LaneOutcome) {
        let live = self.lanes.get_mut(&number).unwrap();
        if live.ended {
            return;
        }
        live.ended = true;
        let stopped = live.lane.finish();
        self.give_back(number, stopped.freed_bytes);
        let live = &self.lanes[&number];
        let position = self.owned.get(&live.id.topic_partition).map(|owned| owned.1);
        if let Some(at) = stopped.rewind_to.or(position).filter(|_| outcome == LaneOutcome::Failed) {
            self.left_off.insert(live.id.clone(), at);
        }
        let end =
            LaneEnd { outcome, progress: stopped.final_commit().cloned(), rewind_to: stopped.rewind_to };
        self.run.handle_lane_ended(self.now, number, end);
        self.settle();
    }

    pub fn ask_commit(&mut self, number: LaneNumber) {
        self.calls += 1;
        let token = CommitToken(self.calls);
        self.waiting.insert(token);
        let progress = self.lanes[&number].lane.progress();
        self.run.handle_commit_requested(self.now, number, token, progress);
        self.settle();
    }

    pub fn answer_commit(&mut self, failure: Option<CommitFailureKind>) {
        let Some(request) = self.in_flight.take() else {
            return;
        };
        for (id, progress) in &request.offsets {
            let frontier = progress.frontier;
            let ours = self.is_ours(&id.topic_partition, id.generation);
            if failure.is_none() && ours {
                for lane in self.lanes.values_mut().filter(|lane| lane.id == *id) {
                    if lane.committed <= frontier.offset {
                        (lane.committed, lane.done) = (frontier.offset, progress.done.clone());
                    }
                }
                let committed = self.committed.entry(id.topic_partition.clone()).or_insert(0);
                assert!(*committed <= frontier.offset, "the group's offset went back");
                *committed = frontier.offset;
            }
        }
        let result = failure.map_or(Ok(()), |kind| Err(CommitFailure { kind, partitions: Vec::new() }));
        self.run.handle_commit_result(self.now, request.id, result);
        self.settle();
    }

    pub fn advance(&mut self, by: Duration) {
        let until = self.now + by;
        self.past_deadline = true;
        let mut rounds = 0;
        while let Some(due) = self.run.next_timeout().filter(|&due| due <= until) {
            self.now = self.now.max(due);
            for (&number, lane) in &self.lanes {
                if let Some(progress) = lane.lane.progress() {
                    self.run.handle_progress(number, progress);
                }
            }
            self.run.handle_timeout(self.now);
            self.settle();
            rounds += 1;
            assert!(rounds < 10_000, "a timeout that stays due");
        }
        self.past_deadline = false;
        self.now = until;
    }

    /// Lets everything come to its end: processors obey, commits work, time passes.
    pub fn finish(&mut self) -> RunEnd {
        self.run.handle_shutdown(self.now);
        self.settle();
        for _ in 0..1000 {
            for number in self.live() {
                while !self.lanes[&number].out.is_empty() {
                    self.complete(number, 0);
                }
                if self.lanes[&number].aborted {
                    self.end_lane(number, LaneOutcome::Aborted);
                } else if self.pull(number) && self.lanes[&number].out.is_empty() {
                    self.end_lane(number, LaneOutcome::Finished);
                }
            }
            self.answer_commit(None);
            if let Some(end) = self.end.clone() {
                return end;
            }
            self.advance(Duration::from_millis(100));
        }
        panic!("the run does not end: {:?}", self.run);
    }
}
