//! Random histories of a run over real lanes and a modelled source, judged after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::lanes::{Backoff, Chunk, CommitFailureKind, HasOffset, Lane, Offer, Ticket, Work};

mod commits;
mod examples;
mod standing;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(i64);

impl HasOffset for At {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        None
    }
}

pub(super) struct LiveLane {
    pub id: LaneId,
    lane: Lane<At>,
    out: Vec<(i64, Ticket)>,
    ended: bool,
    aborted: bool,
    committed: i64,
    done: Vec<std::ops::Range<i64>>,
    /// Where its predecessor under the same assignment left off, until the first batch.
    resumes_at: Option<i64>,
}

/// Partitions with their generations, and when they go in any case.
type Held = (Vec<(TopicPartition, i32)>, Option<Instant>);

/// What a source, its group and the lanes' processors do, and what must hold of it.
pub(super) struct World {
    pub run: Run<Chunk<At>>,
    pub now: Instant,
    generation: i32,
    /// Generation, position and whether paused.
    pub owned: BTreeMap<TopicPartition, (i32, i64, bool)>,
    /// Held revocations: their partitions with generations, and the deadline.
    pub held: BTreeMap<RevocationId, Held>,
    pub lanes: BTreeMap<LaneNumber, LiveLane>,
    pub in_flight: Option<CommitRequest>,
    pub committed: BTreeMap<TopicPartition, i64>,
    revocations: u64,
    calls: u64,
    waiting: BTreeSet<CommitToken>,
    pub answers: Vec<Result<(), CommitRefusal>>,
    pub requests: usize,
    pub seeks: Vec<(TopicPartition, i64)>,
    pub end: Option<RunEnd>,
    /// Whether time is being moved, when deadlines may break off what otherwise must finish first.
    past_deadline: bool,
    /// Where lanes that failed left off.
    left_off: BTreeMap<LaneId, i64>,
    /// The offsets that are records, and those among them that some processor completed.
    records: BTreeMap<TopicPartition, BTreeSet<i64>>,
    done: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// How far each partition was ever read.
    ends: BTreeMap<TopicPartition, i64>,
}

pub(super) fn partition(number: usize) -> TopicPartition {
    TopicPartition::new("t", i32::try_from(number).unwrap())
}

impl World {
    pub(super) fn new(config: RunConfig) -> Self {
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
        }
    }

    /// The lowest record that nobody completed, as far as the source has got.
    pub(super) fn first_undone(&self, tp: &TopicPartition) -> Option<i64> {
        let done = self.done.get(tp);
        let records = self.records.get(tp)?;
        records.iter().copied().find(|offset| done.is_none_or(|done| !done.contains(offset)))
    }

    /// May a commit for this assignment still be sent?
    fn is_ours(&self, tp: &TopicPartition, generation: i32) -> bool {
        self.owned.get(tp).is_some_and(|owned| owned.0 == generation)
            || self.held.values().any(|(held, _)| held.contains(&(tp.clone(), generation)))
    }

    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.run.poll_effect() {
            assert!(self.end.is_none(), "nothing follows the end: {effect:?}");
            self.carry_out(effect);
        }
    }

    fn start_lane(&mut self, lane: LaneNumber, id: LaneId) {
        let live = |other: &LiveLane| !other.ended && other.id.topic_partition == id.topic_partition;
        assert!(!self.lanes.values().any(live), "a second live lane for {id}");
        assert!(self.is_ours(&id.topic_partition, id.generation));
        let lane_ = Lane::new(4, 2);
        let before = self.lanes.values().filter(|lane| lane.id == id).max_by_key(|lane| lane.committed);
        let live = LiveLane {
            lane: lane_,
            out: vec![],
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
                let offer = live.lane.offer(batch);
                if offer == Offer::Full {
                    self.run.handle_lane_full(lane);
                }
            }
            Effect::StopLane { lane, reason, hurry } => {
                let live = self.lanes.get_mut(&lane).unwrap();
                live.lane.stop(reason, hurry);
            }
            Effect::AbortLane { lane } => self.lanes.get_mut(&lane).unwrap().aborted = true,
            Effect::AbandonLane { lane } => self.end_lane(lane, LaneOutcome::Abandoned),
            Effect::Pause(tp) => self.set_paused(&tp, true),
            Effect::Resume(tp) => self.set_paused(&tp, false),
            Effect::Commit(request) => {
                assert!(self.in_flight.is_none(), "one request at a time");
                assert!(!request.offsets.is_empty());
                for (id, progress) in &request.offsets {
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
    fn set_paused(&mut self, tp: &TopicPartition, paused: bool) {
        if let Some(owned) = self.owned.get_mut(tp) {
            assert_ne!(owned.2, paused, "{tp} toggled without a change");
            owned.2 = paused;
        }
    }

    pub(super) fn assign(&mut self, partitions: &[TopicPartition]) {
        let held =
            |tp: &TopicPartition| self.held.values().any(|(held, _)| held.iter().any(|(held, _)| held == tp));
        let fresh: Vec<_> =
            partitions.iter().filter(|tp| !self.owned.contains_key(*tp) && !held(tp)).cloned().collect();
        self.generation += 1;
        for tp in &fresh {
            let position = self.committed.get(tp).copied().unwrap_or(0);
            self.owned.insert(tp.clone(), (self.generation, position, false));
        }
        self.run.handle_assigned(self.now, self.generation, fresh);
        self.settle();
    }

    pub(super) fn revoke(&mut self, partitions: &[TopicPartition], within: Option<Duration>) {
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
    pub(super) fn lose(&mut self, tp: &TopicPartition) {
        self.owned.remove(tp);
        for (held, _) in self.held.values_mut() {
            held.retain(|(held, _)| held != tp);
        }
        self.run.handle_lost(self.now, std::slice::from_ref(tp));
        self.settle();
    }

    pub(super) fn batch(&mut self, tp: &TopicPartition, records: i64, hidden: i64) {
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
        let chunk = Chunk {
            records: there.into_iter().map(At).collect(),
            first_offset: first,
            next_offset: owned.1,
            leader_epoch: None,
            pinned: vec![],
        };
        let info = BatchInfo { topic_partition: tp.clone(), generation: owned.0, first_offset: first };
        self.run.handle_batch(self.now, &info, chunk);
        self.settle();
    }

    pub(super) fn live(&self) -> Vec<LaneNumber> {
        self.lanes.iter().filter(|(_, lane)| !lane.ended).map(|(&number, _)| number).collect()
    }

    /// Lets the lane's processor take a record. True when the lane has no more.
    pub(super) fn pull(&mut self, number: LaneNumber) -> bool {
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
        self.settle();
        ended
    }

    pub(super) fn complete(&mut self, number: LaneNumber, which: usize) {
        let live = self.lanes.get_mut(&number).unwrap();
        if !live.out.is_empty() {
            let (offset, ticket) = live.out.swap_remove(which % live.out.len());
            assert!(live.lane.complete(ticket));
            self.done.entry(live.id.topic_partition.clone()).or_default().insert(offset);
        }
    }

    pub(super) fn end_lane(&mut self, number: LaneNumber, outcome: LaneOutcome) {
        let live = self.lanes.get_mut(&number).unwrap();
        if live.ended {
            return;
        }
        live.ended = true;
        let stopped = live.lane.finish();
        let position = self.owned.get(&live.id.topic_partition).map(|owned| owned.1);
        if let Some(at) = stopped.rewind_to.or(position).filter(|_| outcome == LaneOutcome::Failed) {
            self.left_off.insert(live.id.clone(), at);
        }
        let end =
            LaneEnd { outcome, progress: stopped.final_commit().cloned(), rewind_to: stopped.rewind_to };
        self.run.handle_lane_ended(self.now, number, end);
        self.settle();
    }

    pub(super) fn ask_commit(&mut self, number: LaneNumber) {
        self.calls += 1;
        let token = CommitToken(self.calls);
        self.waiting.insert(token);
        let progress = self.lanes[&number].lane.progress();
        self.run.handle_commit_requested(self.now, number, token, progress);
        self.settle();
    }

    pub(super) fn answer_commit(&mut self, failure: Option<CommitFailureKind>) {
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

    pub(super) fn advance(&mut self, by: Duration) {
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
    pub(super) fn finish(&mut self) -> RunEnd {
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

#[derive(Clone, Debug)]
enum Step {
    Assign(Vec<usize>),
    Revoke(Vec<usize>, Option<u64>),
    Lose(usize),
    Batch(usize, i64, i64),
    Pull(usize),
    Complete(usize, usize),
    End(usize, bool),
    Commit(usize),
    Answer(Option<CommitFailureKind>),
    Blocked(usize),
    Advance(u64),
    Shutdown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = || proptest::collection::vec(0..4usize, 1..4);
    let kind = prop_oneof![
        6 => Just(None),
        3 => Just(Some(CommitFailureKind::Retriable)),
        2 => Just(Some(CommitFailureKind::Fenced)),
        1 => Just(Some(CommitFailureKind::MetadataTooLarge)),
    ];
    proptest::collection::vec(
        prop_oneof![
            8 => some().prop_map(Step::Assign),
            3 => (some(), proptest::option::of(500..20_000u64)).prop_map(|(which, by)| Step::Revoke(which, by)),
            2 => (0..4usize).prop_map(Step::Lose),
            20 => (0..4usize, 0..5i64, 1..3i64).prop_map(|(tp, n, hidden)| Step::Batch(tp, n, hidden - 1)),
            30 => (0..4usize).prop_map(Step::Pull),
            30 => (0..4usize, any::<usize>()).prop_map(|(lane, which)| Step::Complete(lane, which)),
            8 => (0..4usize, prop::bool::weighted(0.1)).prop_map(|(lane, fail)| Step::End(lane, fail)),
            5 => (0..4usize).prop_map(Step::Commit),
            10 => kind.prop_map(Step::Answer),
            2 => (0..4usize).prop_map(Step::Blocked),
            6 => (1..3000u64).prop_map(Step::Advance),
            1 => prop::bool::weighted(0.1).prop_map(|yes| if yes { Step::Shutdown } else { Step::Advance(1) }),
        ],
        0..250,
    )
}

fn apply(world: &mut World, step: &Step) {
    let live = world.live();
    let lane = |which: usize| live.get(which % live.len().max(1)).copied();
    let names = |which: &[usize]| {
        which.iter().copied().collect::<BTreeSet<_>>().into_iter().map(partition).collect::<Vec<_>>()
    };
    match step {
        Step::Assign(which) => world.assign(&names(which)),
        Step::Revoke(which, within) => world.revoke(&names(which), within.map(Duration::from_millis)),
        Step::Lose(which) => world.lose(&partition(*which)),
        Step::Batch(which, records, hidden) => world.batch(&partition(*which), *records, *hidden),
        Step::Answer(failure) => world.answer_commit(*failure),
        Step::Blocked(which) => {
            world.run.handle_fetch_blocked(world.now, &partition(*which));
            world.settle();
        }
        Step::Advance(by) => world.advance(Duration::from_millis(*by)),
        Step::Shutdown => {
            world.run.handle_shutdown(world.now);
            world.settle();
        }
        Step::Pull(which) => {
            if let Some(number) = lane(*which) {
                world.pull(number);
            }
        }
        Step::Complete(which, record) => {
            if let Some(number) = lane(*which) {
                world.complete(number, *record);
            }
        }
        Step::Commit(which) => {
            if let Some(number) = lane(*which) {
                world.ask_commit(number);
            }
        }
        Step::End(which, fail) => {
            if let Some(number) = lane(*which) {
                if world.lanes[&number].aborted {
                    world.end_lane(number, LaneOutcome::Aborted);
                } else if *fail {
                    world.end_lane(number, LaneOutcome::Failed);
                } else if world.pull(number) && world.lanes[&number].out.is_empty() {
                    world.end_lane(number, LaneOutcome::Finished);
                }
            }
        }
    }
}

fn configs() -> impl Strategy<Value = RunConfig> {
    let commit = prop_oneof![
        Just(CommitPolicy::UserManaged),
        Just(CommitPolicy::OnRevoke),
        Just(CommitPolicy::Periodic(Duration::from_secs(1))),
    ];
    let stop = prop_oneof![Just(StopPolicy::Drain), Just(StopPolicy::Cancel)];
    let timeout = prop_oneof![Just(0u64), Just(2_000), Just(30_000)].prop_map(Duration::from_millis);
    let has_group = prop::bool::weighted(0.9);
    (commit, stop, timeout, has_group, any::<bool>()).prop_map(
        |(commit, stop, stop_timeout, has_group, await_capacity)| RunConfig {
            commit,
            stop,
            stop_timeout,
            has_group,
            on_failure: OnFailure::StopRun,
            await_capacity,
            jitter: 1,
        },
    )
}

fn on_failures() -> impl Strategy<Value = OnFailure> {
    prop_oneof![
        Just(OnFailure::StopRun),
        Just(OnFailure::StopPartition),
        Just(OnFailure::RestartLane(Backoff::default())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_the_invariants_hold_and_the_run_ends(
        config in configs(),
        on_failure in on_failures(),
        steps in steps(),
    ) {
        let config = RunConfig { on_failure, ..config };
        let mut world = World::new(config);
        for step in &steps {
            if world.end.is_some() {
                break;
            }
            apply(&mut world, step);
        }
        let end = match world.end.clone() {
            Some(end) => end,
            None => world.finish(),
        };
        if !config.has_group {
            prop_assert_eq!(world.requests, 0);
        }
        // That every record below a committed offset was completed, and that every seek goes back, was judged
        // with each request. What is left: every record that was taken is completed, or comes again, here or
        // with the next owner, who begins at the committed offset.
        for (tp, &end) in &world.ends {
            let next = match world.owned.get(tp) {
                Some(&(_, position, _)) => position,
                None => world.committed.get(tp).copied().unwrap_or(0),
            };
            let lost = world.first_undone(tp).filter(|&undone| undone < next);
            prop_assert!(next <= end && lost.is_none(), "{} goes on at {}, over {:?}", tp, next, lost);
        }
        prop_assert!(config.on_failure == OnFailure::StopRun || !matches!(end.cause, EndCause::LaneFailed(_)));
    }
}
