//! Random histories of a run over real lanes and a modelled source, judged after every step.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::lanes::{Backoff, Chunk, CommitFailureKind};

mod commits;
mod examples;
mod standing;
mod world;

pub(super) use world::*;

#[derive(Clone, Debug)]
enum Step {
    Assign(Vec<usize>),
    Revoke(Vec<usize>, Option<u64>),
    Lose(usize),
    Batch(usize, i64, i64),
    Pull(usize),
    Complete(usize, usize),
    Park(usize, usize),
    Unpark(usize, usize),
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
            5 => (0..4usize, any::<usize>()).prop_map(|(lane, which)| Step::Park(lane, which)),
            3 => (0..4usize, any::<usize>()).prop_map(|(lane, which)| Step::Unpark(lane, which)),
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
            world.blocked.insert(partition(*which));
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
        Step::Park(which, record) => {
            if let Some(number) = lane(*which) {
                world.park(number, *record);
            }
        }
        Step::Unpark(which, record) => {
            if let Some(number) = lane(*which) {
                world.unpark(number, *record);
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
            world.judge_pauses();
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
