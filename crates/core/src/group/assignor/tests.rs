//! Properties of the assignors.

use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use tramline_wire::{Str, TopicPartition};

use super::*;
use crate::group::Seeded;

fn member(id: &str, topics: &[&str]) -> MemberSubscription {
    MemberSubscription {
        member_id: id.into(),
        topics: topics.iter().map(|topic| Str::from(*topic)).collect(),
        generation: -1,
        ..Default::default()
    }
}

fn counts(topics: &[(&str, i32)]) -> BTreeMap<Str, i32> {
    topics.iter().map(|(topic, count)| (Str::from(*topic), *count)).collect()
}

fn shown(assignment: &GroupAssignment) -> Vec<Vec<std::string::String>> {
    let show = |list: &Vec<TopicPartition>| list.iter().map(std::string::ToString::to_string).collect();
    assignment.values().map(show).collect()
}

#[test]
fn range_gives_neighbours_per_topic_and_more_to_the_first() {
    let members = [member("b", &["t", "u"]), member("a", &["t", "u"])];
    let assignment = range(&members, &counts(&[("t", 3), ("u", 3)]));
    assert_eq!(shown(&assignment), [vec!["t-0", "t-1", "u-0", "u-1"], vec!["t-2", "u-2"]]);
}

#[test]
fn range_orders_static_members_by_instance_id_and_first() {
    let mut one = member("z", &["t"]);
    one.instance_id = Some("1".into());
    let assignment = range(&[member("a", &["t"]), one], &counts(&[("t", 3)]));
    assert_eq!(shown(&assignment), [vec!["t-2"], vec!["t-0", "t-1"]]);
}

#[test]
fn round_robin_deals_in_turn_and_passes_over_who_does_not_want() {
    let members = [member("a", &["t"]), member("b", &["t", "u"]), member("c", &["u"])];
    let assignment = round_robin(&members, &counts(&[("t", 3), ("u", 2)]));
    assert_eq!(shown(&assignment), [vec!["t-0", "t-2"], vec!["t-1", "u-0"], vec!["u-1"]]);
}

/// B070: of two claims the higher generation is believed.
#[test]
fn b070_the_claim_of_the_higher_generation_wins() {
    let (mut old, mut new) = (member("a", &["t"]), member("b", &["t"]));
    (old.owned, old.generation) = (vec![TopicPartition::new("t", 0)], 4);
    (new.owned, new.generation) = (vec![TopicPartition::new("t", 0)], 5);
    let assignment = cooperative_sticky(&[old, new], &counts(&[("t", 1)]));
    assert_eq!(shown(&assignment), [vec![], vec!["t-0"]]);
}

/// B070: equal claims invalidate each other, and nobody gets the partition before both have given it up.
#[test]
fn b070_equal_claims_are_both_given_up_first() {
    let (mut one, mut two) = (member("a", &["t"]), member("b", &["t"]));
    (one.owned, one.generation) = (vec![TopicPartition::new("t", 0)], 5);
    (two.owned, two.generation) = (vec![TopicPartition::new("t", 0)], 5);
    let assignment = cooperative_sticky(&[one, two, member("c", &["t"])], &counts(&[("t", 1)]));
    assert_eq!(shown(&assignment), [Vec::<&str>::new(), vec![], vec![]]);
}

#[test]
fn b070_claims_of_topics_that_are_gone_and_doubled_ids_do_not_stop_the_leader() {
    let mut one = member("a", &["t", "gone", "t"]);
    one.owned =
        vec![TopicPartition::new("gone", 3), TopicPartition::new("t", -1), TopicPartition::new("t", 9)];
    let assignment = cooperative_sticky(&[one.clone(), one], &counts(&[("t", 2)]));
    assert_eq!(shown(&assignment), [vec!["t-0", "t-1"]]);
}

/// Random groups: members with random topics.
fn random_group(seeded: &mut Seeded) -> (Vec<MemberSubscription>, BTreeMap<Str, i32>) {
    let names = ["t", "u", "v", "w"];
    let topics = counts(&names.map(|name| (name, seeded.below(9) as i32)));
    let size = 1 + seeded.below(6);
    let all = seeded.percent(50);
    let members = (0..size).map(|number| {
        let wanted: Vec<&str> = names.into_iter().filter(|_| all || seeded.percent(50)).collect();
        member(&std::format!("m{number}"), &wanted)
    });
    let members = members.collect();
    (members, topics)
}

/// Nothing twice, nothing unwanted; and everything that somebody wants, when `complete`.
fn check(
    members: &[MemberSubscription],
    topics: &BTreeMap<Str, i32>,
    assignment: &GroupAssignment,
    complete: bool,
    seed: u64,
) {
    let mut seen = BTreeSet::new();
    for member in members {
        for of in &assignment[&member.member_id] {
            assert!(member.topics.contains(&of.topic), "seed {seed}: {of} is not wanted");
            assert!(seen.insert(of.clone()), "seed {seed}: {of} was given twice");
        }
    }
    let wanted = |topic: &Str| members.iter().any(|member| member.topics.contains(topic));
    let expected: i32 = topics.iter().filter(|(topic, _)| wanted(topic)).map(|(_, count)| *count).sum();
    assert!(!complete || seen.len() == expected as usize, "seed {seed}: not everything was given");
}

/// No partition could be handed directly to a member that has at least two fewer.
fn check_balance(members: &[MemberSubscription], assignment: &GroupAssignment, seed: u64) {
    for from in members {
        for of in &assignment[&from.member_id] {
            for to in members.iter().filter(|to| to.topics.contains(&of.topic)) {
                let (had, has) = (assignment[&from.member_id].len(), assignment[&to.member_id].len());
                assert!(
                    had < has + 2,
                    "seed {seed}: {} has {had}, {} has {has}",
                    from.member_id,
                    to.member_id
                );
            }
        }
    }
}

#[test]
fn every_assignor_gives_everything_once() {
    for seed in 0..500 {
        let (members, topics) = random_group(&mut Seeded::from_number(seed));
        for assignor in [Assignor::Range, Assignor::RoundRobin, Assignor::CooperativeSticky] {
            check(&members, &topics, &assignor.assign(&members, &topics), true, seed);
        }
        check_balance(&members, &cooperative_sticky(&members, &topics), seed);
    }
}

/// Members come, go and change their minds; after the rounds that giving up takes, the result is complete and even,
/// on the way nothing moves from a member that still holds it, and what can stay stays.
#[test]
fn cooperative_sticky_converges_without_ever_giving_away_what_is_held() {
    for seed in 0..500 {
        let seeded = &mut Seeded::from_number(seed);
        let (mut members, topics) = random_group(seeded);
        for change in 0..6 {
            if members.len() > 1 && seeded.percent(40) {
                let place = seeded.below(members.len() as u64) as usize;
                members.remove(place);
            } else if seeded.percent(60) {
                members.push(member(&std::format!("n{change}"), &["t", "u", "v", "w"]));
            }
            let before: BTreeMap<_, _> =
                members.iter().map(|member| (member.member_id.clone(), member.owned.clone())).collect();
            let mut rounds = 0;
            loop {
                let assignment = cooperative_sticky(&members, &topics);
                check(&members, &topics, &assignment, false, seed);
                let mut gives_up = false;
                for member in &members {
                    for of in &assignment[&member.member_id] {
                        let holds = |other: &MemberSubscription| other.owned.contains(of);
                        let other =
                            members.iter().find(|other| other.member_id != member.member_id && holds(other));
                        assert!(other.is_none(), "seed {seed}: {of} is held by {other:?}");
                    }
                    gives_up |= member.owned.iter().any(|of| !assignment[&member.member_id].contains(of));
                }
                for member in &mut members {
                    member.owned = assignment[&member.member_id].clone();
                    member.generation = change * 10 + rounds;
                }
                rounds += 1;
                if !gives_up {
                    check(&members, &topics, &assignment, true, seed);
                    check_balance(&members, &assignment, seed);
                    break;
                }
                assert!(rounds <= 3, "seed {seed}: still giving up after {rounds} rounds");
            }
            let uniform = members.iter().all(|member| member.topics.len() == 4);
            if uniform {
                let total: usize = members.iter().map(|member| member.owned.len()).sum();
                let least = total / members.len();
                for member in &members {
                    let old = &before[&member.member_id];
                    let kept = old.iter().filter(|of| member.owned.contains(of)).count();
                    assert!(kept >= old.len().min(least), "seed {seed}: {} kept {kept}", member.member_id);
                }
            }
        }
    }
}
