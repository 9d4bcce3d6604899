//! Both ends together.

use core::time::Duration;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use tramline_wire::TopicPartition;

use super::{CommitOutcome, Durability, Faults, Net, Request, Revoking};
use crate::group::assignor::Assignor;
use crate::group::coordinator::Config;
use crate::group::member::{CommitVerdict, Event, Member, MemberConfig, MemberState};
use crate::group::protocol;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

fn config(assignors: &[Assignor]) -> MemberConfig {
    let mut config = MemberConfig::new("g");
    config.session_timeout = 6 * SECOND;
    config.rebalance_timeout = 10 * SECOND;
    config.heartbeat_interval = SECOND;
    config.request_timeout = 3 * SECOND;
    config.assignors = assignors.to_vec();
    config
}

fn cooperative() -> MemberConfig {
    config(&[Assignor::CooperativeSticky])
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn quiet() -> Net {
    Net::new(Config::default(), Faults::NONE, 1)
}

fn settle(net: &mut Net) {
    assert!(net.run_until_true(60 * SECOND, Net::everything_is_owned), "not everything is owned");
    net.run_for(3 * SECOND);
    assert!(net.everything_is_owned());
}

#[test]
fn one_member_gets_everything() {
    let mut net = quiet();
    let member = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    assert_eq!(net.member(member).state(), MemberState::Stable);
    assert_eq!(net.member(member).assignment().len(), 8);
}

#[test]
fn a_second_member_gets_half_after_the_first_gave_it_up() {
    for assignor in [Assignor::CooperativeSticky, Assignor::Range, Assignor::RoundRobin] {
        let mut net = quiet();
        let one = net.add(config(&[assignor]), Revoking::After(2 * SECOND), &["t"]);
        settle(&mut net);
        let two = net.add(config(&[assignor]), Revoking::AtOnce, &["t"]);
        net.run_for(SECOND * 10);
        settle(&mut net);
        assert_eq!(net.member(one).assignment().len(), 4, "{assignor:?}");
        assert_eq!(net.member(two).assignment().len(), 4, "{assignor:?}");
    }
}

#[test]
fn a_cooperative_member_keeps_what_it_keeps_through_a_rebalance() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    net.take_events(one);
    net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(SECOND * 10);
    let events = net.take_events(one);
    let revoked: usize = events
        .iter()
        .map(|event| match event {
            Event::Revoked { partitions, .. } => partitions.len(),
            Event::Lost { partitions } => panic!("{partitions:?} were lost"),
            _ => 0,
        })
        .sum();
    assert_eq!(revoked, 4, "{events:?}");
}

#[test]
fn t174_a_revocation_held_open_is_acknowledged_at_the_deadline_and_heartbeats_go_on_until_then() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::Never, &["t"]);
    settle(&mut net);
    let two = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(4 * SECOND);
    assert_eq!(net.member(one).state(), MemberState::Revoking);
    assert_eq!(net.member(one).revoking().len(), 4);
    assert!(net.member(two).assignment().is_empty());
    assert!(net.member(one).commit_context().is_some(), "what is being revoked can be committed");
    net.take_events(one);
    net.run_for(4 * SECOND);
    let events = net.take_events(one);
    assert!(events.is_empty(), "a session has passed, and its heartbeats kept it a member: {events:?}");
    assert!(net.member(two).assignment().is_empty(), "and nothing was given away");
    net.run_for(8 * SECOND);
    assert_eq!(net.member(two).assignment().len(), 4);
}

#[test]
fn a_commit_is_accepted_while_a_revocation_is_held_open() {
    for assignor in [Assignor::CooperativeSticky, Assignor::Range] {
        let mut net = quiet();
        let one = net.add(config(&[assignor]), Revoking::ByHand, &["t"]);
        settle(&mut net);
        net.add(config(&[assignor]), Revoking::AtOnce, &["t"]);
        net.run_for(3 * SECOND);
        let events = net.take_events(one);
        let held = events.iter().find_map(|event| match event {
            Event::Revoked { id, partitions, .. } => Some((*id, partitions.clone())),
            _ => None,
        });
        let (id, partitions) = held.expect("a revocation is held open");
        let context = net.member(one).commit_context().unwrap();
        let offsets: Vec<_> = partitions.iter().map(|of| (of.clone(), 41)).collect();
        let number = net.commit(one, context, &offsets);
        net.run_for(SECOND / 10);
        let answered = CommitOutcome::Answered { code: 0, verdict: None };
        assert_eq!(net.take_commits(one), [(number, answered)], "{assignor:?}");
        net.revocation_done(one, id);
        net.run_for(5 * SECOND);
        assert!(net.everything_is_owned());
        assert_eq!(net.node.committed("g", &partitions[0]), 41);
    }
}

#[test]
fn a_restarted_coordinator_loses_no_offset_and_causes_no_rebalance() {
    let mut net = quiet();
    let members = [(); 2].map(|()| net.add(cooperative(), Revoking::AtOnce, &["t"]));
    net.run_for(5 * SECOND);
    settle(&mut net);
    let mut numbers = vec![];
    for member in members {
        let context = net.member(member).commit_context().unwrap();
        let offsets: Vec<_> = net.member(member).assignment().iter().map(|of| (of.clone(), 7)).collect();
        numbers.push(net.commit(member, context, &offsets));
        net.take_events(member);
    }
    net.run_for(SECOND);
    let generations = members.map(|member| net.member(member).generation());
    net.restart_node(2 * SECOND);
    net.run_for(60 * SECOND);
    for member in members {
        assert_eq!(net.take_events(member), [], "nothing happened");
    }
    assert_eq!(generations, members.map(|member| net.member(member).generation()));
    for partition in 0..8 {
        assert_eq!(net.node.committed("g", &tp(partition)), 7);
    }
    for member in members {
        let context = net.member(member).commit_context().unwrap();
        let of = net.member(member).assignment().first().unwrap().clone();
        net.take_commits(member);
        net.commit(member, context, &[(of, 8)]);
        net.run_for(SECOND);
        let outcome = net.take_commits(member).pop().unwrap().1;
        assert_eq!(outcome, CommitOutcome::Answered { code: 0, verdict: None });
    }
}

/// B010: the old owner, slow, commits 50 after the new owner has committed 80.
#[test]
fn t173_b010_a_late_commit_of_the_old_owner_is_refused_the_offset_stays_and_it_hears_of_the_loss() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    let old = net.member(one).commit_context().unwrap();
    net.pause(one, 30 * SECOND);
    let two = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(20 * SECOND);
    assert_eq!(net.member(two).assignment().len(), 8);
    let context = net.member(two).commit_context().unwrap();
    net.commit(two, context, &[(tp(0), 80)]);
    net.run_for(SECOND);
    net.commit(one, old.clone(), &[(tp(0), 50)]);
    let mut simple = old;
    simple.generation = -1;
    simple.member_id = tramline_wire::Str::new();
    net.commit(two, simple, &[(tp(0), 50)]);
    net.run_for(60 * SECOND);
    assert_eq!(net.node.committed("g", &tp(0)), 80);
    let outcomes = net.take_commits(one);
    let fenced = CommitOutcome::Answered { code: 25, verdict: Some(CommitVerdict::Fenced) };
    assert_eq!(outcomes[0].1, fenced);
    assert!(net.take_events(one).iter().any(|event| matches!(event, Event::Lost { .. })));
    let refused = net.take_commits(two).pop().unwrap().1;
    assert!(matches!(refused, CommitOutcome::Answered { code: 25, .. }), "{refused:?}");
    assert!(net.everything_is_owned(), "the slow one is back");
}

#[test]
fn a_member_that_was_silent_for_a_session_loses_everything_and_comes_back() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    net.take_events(one);
    net.restart_node(20 * SECOND);
    net.run_for(40 * SECOND);
    let events = net.take_events(one);
    assert!(matches!(&events[0], Event::Lost { partitions } if partitions.len() == 8), "{events:?}");
    assert!(net.everything_is_owned());
}

#[test]
fn b067_a_poll_that_expired_leaves_loses_and_joins_again_when_polls_go_on() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    let two = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(5 * SECOND);
    settle(&mut net);
    net.with_member(one, Member::handle_poll_expired);
    assert!(net.take_events(one).iter().any(|event| matches!(event, Event::Lost { .. })));
    assert_eq!(net.member(one).commit_context(), None);
    net.run_for(3 * SECOND);
    assert_eq!(net.member(two).assignment().len(), 8, "it left, so nobody waits for its session");
    net.with_member(one, Member::poll_resumed);
    net.run_for(5 * SECOND);
    assert_eq!(net.member(one).assignment().len(), 4);
}

#[test]
fn a_member_that_leaves_gives_up_first_and_the_others_take_over_at_once() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::After(SECOND), &["t"]);
    let two = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(8 * SECOND);
    settle(&mut net);
    net.take_events(one);
    net.with_member(one, Member::leave);
    net.run_for(4 * SECOND);
    let events = net.take_events(one);
    assert!(matches!(events[..], [Event::Revoked { .. }, Event::Left]), "{events:?}");
    assert_eq!(net.member(two).assignment().len(), 8);
}

/// B073: instance id A restarts within the session timeout, and once with two processes using A.
#[test]
fn t173_b073_a_static_member_restarts_without_a_rebalance_and_fences_its_double() {
    let mut net = quiet();
    let mut named = cooperative();
    named.instance_id = Some("A".into());
    let one = net.add(named.clone(), Revoking::AtOnce, &["t"]);
    let other = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(5 * SECOND);
    settle(&mut net);
    let before = net.member(one).assignment().clone();
    net.take_events(other);
    net.kill(one);
    net.run_for(SECOND);
    let again = net.add(named.clone(), Revoking::AtOnce, &["t"]);
    net.run_for(4 * SECOND);
    assert_eq!(net.member(again).assignment(), &before);
    let events = net.take_events(other);
    assert!(events.is_empty(), "no rebalance: {events:?}");
    net.allows_two_owners = true;
    let double = net.add(named, Revoking::AtOnce, &["t"]);
    net.run_for(10 * SECOND);
    let events = net.take_events(again);
    assert!(matches!(events[events.len() - 2..], [Event::Lost { .. }, Event::Failed(_)]), "{events:?}");
    assert_eq!(net.member(double).assignment(), &before);
}

/// B077: four members become one.
#[test]
fn b077_the_last_member_owns_everything_within_session_and_rebalance_time() {
    let mut net = quiet();
    let members = [(); 4].map(|()| net.add(cooperative(), Revoking::AtOnce, &["t"]));
    net.run_for(10 * SECOND);
    settle(&mut net);
    for member in &members[1..] {
        net.kill(*member);
    }
    net.run_for(17 * SECOND);
    assert_eq!(net.member(members[0]).assignment().len(), 8);
}

#[test]
fn a_topic_that_grows_is_assigned_anew() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    net.partition_counts.insert("t".into(), 10);
    net.tell_metadata(one);
    net.run_for(SECOND);
    assert_eq!(net.member(one).assignment().len(), 10);
}

#[test]
fn a_changed_subscription_revokes_what_is_not_wanted_and_adds_what_is() {
    let mut net = quiet();
    net.partition_counts.insert("u".into(), 2);
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(2 * SECOND);
    net.take_events(one);
    net.with_member(one, |member, now| member.subscribe(now, ["u".into()]));
    net.run_for(2 * SECOND);
    let topics: Vec<_> = net.member(one).assignment().iter().map(ToString::to_string).collect();
    assert_eq!(topics, ["u-0", "u-1"]);
    let events = net.take_events(one);
    assert!(matches!(&events[0], Event::Revoked { partitions, .. } if partitions.len() == 8), "{events:?}");
}

#[test]
fn a_failed_record_of_assignments_makes_the_group_rebalance_and_recover() {
    let mut net = quiet();
    net.node.durability = Durability::ByHand;
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(SECOND);
    assert_eq!(net.member(one).state(), MemberState::Syncing, "nothing is assigned before it is durable");
    assert!(net.node.fail_append(56));
    net.node.durability = Durability::AtOnce;
    net.run_for(3 * SECOND);
    assert_eq!(net.member(one).assignment().len(), 8);
}

use std::string::ToString;

/// What the churn test knows of commits: what was acknowledged must be there, whatever crashes.
#[derive(Default)]
struct Commits {
    next: i64,
    sent: BTreeMap<u64, (TopicPartition, i64)>,
    acked: BTreeMap<TopicPartition, i64>,
}

impl Commits {
    /// Each running member commits for one partition it owns; offsets rise over all commits.
    fn send(&mut self, net: &mut Net, members: &[usize]) {
        for &member in members {
            let owned: Vec<_> = net.owned_by(member).into_iter().collect();
            let Some(context) = net.member(member).commit_context() else { continue };
            if owned.is_empty() || net.member(member).state() == MemberState::Closed {
                continue;
            }
            let of = owned[net.seeded().below(owned.len() as u64) as usize].clone();
            self.next += 1;
            let number = net.commit(member, context, &[(of.clone(), self.next)]);
            self.sent.insert(number, (of, self.next));
        }
    }

    fn take(&mut self, net: &mut Net, members: &[usize]) {
        for &member in members {
            for (number, outcome) in net.take_commits(member) {
                let Some((of, offset)) = self.sent.remove(&number) else { continue };
                if outcome == (CommitOutcome::Answered { code: 0, verdict: None }) {
                    let acked = self.acked.entry(of).or_default();
                    *acked = offset.max(*acked);
                }
            }
        }
    }
}

/// Two members (a third and fourth come and go), eight partitions, 200 rebalances. The net checks at every step
/// that no partition has two owners and that events and machine agree.
fn churn(seed: u64, assignors: &[Assignor]) {
    let faults =
        Faults { min_delay: MILLI, max_delay: 200 * MILLI, breaks: 3, repeats: 3, notice: 500 * MILLI };
    let mut net = Net::new(Config::default(), faults, seed);
    let mut members: Vec<usize> = vec![];
    let mut commits = Commits::default();
    let (mut rebalances, mut last, mut rounds) = (0, 0, 0);
    while rebalances < 200 {
        rounds += 1;
        assert!(rounds < 5_000, "seed {seed}: {rebalances} rebalances after {rounds} rounds");
        while members.len() < 2 {
            let wait = MILLI * (net.seeded().below(9_000) as u32);
            let revoking =
                [Revoking::AtOnce, Revoking::After(wait), Revoking::Never][net.seeded().below(3) as usize];
            members.push(net.add(config(assignors), revoking, &["t"]));
        }
        let place = net.seeded().below(members.len() as u64) as usize;
        match net.seeded().below(100) {
            0..10 => net.kill(members.remove(place)),
            10..25 => {
                let member = members.remove(place);
                net.with_member(member, Member::leave);
            }
            25..40 if members.len() < 4 => {
                members.push(net.add(config(assignors), Revoking::AtOnce, &["t"]));
            }
            40..50 => {
                let length = MILLI * (net.seeded().below(12_000) as u32);
                net.pause(members[place], length);
            }
            50..58 => {
                let length = MILLI * (net.seeded().below(2_500) as u32);
                net.restart_node(length);
            }
            _ => {}
        }
        let length = MILLI * (net.seeded().below(4_000) as u32);
        net.run_for(length);
        commits.take(&mut net, &members);
        commits.send(&mut net, &members);
        let generation = members.iter().map(|member| net.member(*member).generation()).max().unwrap();
        if generation != last {
            rebalances += 1;
            last = generation;
        }
        if rounds % 40 == 0 {
            let faults = core::mem::replace(&mut net.faults, Faults::NONE);
            assert!(
                net.run_until_true(60 * SECOND, Net::everything_is_owned),
                "seed {seed}: not everything is owned a minute after the last fault"
            );
            net.faults = faults;
        }
    }
    net.faults = Faults::NONE;
    net.run_for(60 * SECOND);
    commits.take(&mut net, &members);
    assert!(net.everything_is_owned(), "seed {seed}");
    net.restart_node(SECOND);
    net.run_for(5 * SECOND);
    for (of, offset) in &commits.acked {
        assert!(net.node.committed("g", of) >= *offset, "seed {seed}: {of} went back below {offset}");
    }
    assert!(!commits.acked.is_empty());
}

#[test]
fn two_hundred_cooperative_rebalances_keep_one_owner_for_each_partition() {
    for seed in 1..=4 {
        churn(seed, &[Assignor::CooperativeSticky]);
    }
}

#[test]
fn two_hundred_eager_rebalances_keep_one_owner_for_each_partition() {
    for seed in 101..=102 {
        churn(seed, &[Assignor::Range]);
        churn(seed, &[Assignor::Range, Assignor::CooperativeSticky]);
    }
}

/// B064: the generation moves on while a commit is on its way.
#[test]
fn t131_b064_a_commit_overtaken_by_a_rebalance_is_retried_and_keeps_the_assignment() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    let old = net.member(one).commit_context().unwrap();
    net.add(cooperative(), Revoking::AtOnce, &["t"]);
    net.run_for(5 * SECOND);
    settle(&mut net);
    net.take_events(one);
    let generation = net.member(one).generation();
    let of = net.member(one).assignment().first().unwrap().clone();
    net.commit(one, old, &[(of, 5)]);
    net.run_for(5 * SECOND);
    let outcome = net.take_commits(one).pop().unwrap().1;
    let verdict = Some(CommitVerdict::RetryAfterRebalance);
    assert_eq!(outcome, CommitOutcome::Answered { code: 22, verdict });
    assert_eq!(net.take_events(one), []);
    assert_eq!(net.member(one).generation(), generation, "no extra rejoin");
}

#[test]
fn the_assignment_the_coordinator_stores_is_the_leaders_byte_for_byte() {
    let mut net = quiet();
    let one = net.add(cooperative(), Revoking::AtOnce, &["t"]);
    settle(&mut net);
    let request =
        tramline_wire::messages::DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
    let token = net.node.handle(5, "admin", Request::Describe(request));
    let Some(crate::group::coordinator::Response::DescribeGroups(response)) = net.node.take_reply_to(token)
    else {
        panic!("no answer")
    };
    let group = &response.groups[0];
    assert_eq!((&*group.group_state, &*group.protocol_data), ("Stable", "cooperative-sticky"));
    assert_eq!(&*group.members[0].client_host, "/127.0.0.1");
    let assigned = protocol::decode_assignment(&group.members[0].member_assignment).unwrap();
    assert_eq!(assigned, net.member(one).assignment().iter().cloned().collect::<Vec<_>>());
}
