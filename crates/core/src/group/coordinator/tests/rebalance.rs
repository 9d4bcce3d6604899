//! How rebalances begin and end; static members; leaving; restarts and failed appends.

use super::*;

#[test]
fn the_first_joins_of_an_empty_group_wait_for_the_initial_delay_and_for_late_comers() {
    let mut desk = Desk::with(Config { initial_rebalance_delay: 3 * SECOND, ..Config::default() });
    let (_, one) = desk.new_member();
    desk.pass(2 * SECOND);
    let (_, two) = desk.new_member();
    desk.pass(2 * SECOND);
    desk.waits(one);
    desk.pass(3 * SECOND);
    assert_eq!((desk.joined(one).generation_id, desk.joined(two).generation_id), (1, 1));
}

/// A member that warms up and leaves must not take the delay along: two that follow share one generation.
#[test]
fn b202_a_group_that_became_empty_again_waits_for_the_initial_delay_again() {
    let mut desk = Desk::with(Config { initial_rebalance_delay: 3 * SECOND, ..Config::default() });
    let (warm, token) = desk.new_member();
    desk.pass(3 * SECOND);
    assert_eq!(desk.joined(token).generation_id, 1);
    assert_eq!(desk.leave(&[(&warm, None)]), [0]);
    assert_eq!(desk.state(), "Empty");
    let (first, one) = desk.new_member();
    desk.pass(Duration::from_millis(5));
    let (second, two) = desk.new_member();
    desk.waits(one);
    desk.waits(two);
    desk.pass(6 * SECOND);
    let (one, two) = (desk.joined(one), desk.joined(two));
    assert_eq!((one.generation_id, two.generation_id), (3, 3), "emptying counted as the second");
    assert_eq!(one.leader, two.leader);
    assert_eq!((desk.beat(&first, 3), desk.beat(&second, 3)), (0, 0), "nobody has to join again");
}

/// Three members come and go at different times: the generation counts completed join phases and nothing else, and
/// who is in a group stays in it until it leaves.
#[test]
fn b148_the_generation_counts_completed_rebalances_and_no_member_is_forgotten() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let (third, waiting) = desk.new_member();
    desk.pass(SECOND);
    let rejoining = desk.send(join(&leader), 9);
    let (fourth, also_waiting) = desk.new_member();
    desk.waits(waiting);
    desk.waits(rejoining);
    assert_eq!(desk.leave(&[(&fourth, None)]), [0]);
    assert_eq!(desk.joined(also_waiting).error_code, 25);
    assert_eq!(desk.beat(&follower, 2), 27, "still in it, whatever was joined and left meanwhile");
    let last = desk.send(join(&follower), 9);
    let joined = [rejoining, last, waiting].map(|token| desk.joined(token));
    assert!(joined.iter().all(|answer| (answer.error_code, answer.generation_id) == (0, 3)), "{joined:?}");
    let members = &joined.iter().find(|answer| answer.member_id == answer.leader).unwrap().members;
    let mut known: Vec<&str> = members.iter().map(|member| &*member.member_id).collect();
    let mut expected = [&*leader, &*follower, &*third];
    known.sort_unstable();
    expected.sort_unstable();
    assert_eq!(known, expected);
}

#[test]
fn a_rebalance_waits_for_ids_given_out_until_they_expire() {
    let mut desk = Desk::new();
    let one = desk.stable();
    desk.id();
    let token = desk.send(join(&one), 9);
    desk.waits(token);
    desk.pass(10 * SECOND);
    assert_eq!(desk.joined(token).generation_id, 2);
}

#[test]
fn who_does_not_rejoin_within_the_rebalance_timeout_is_dropped() {
    let mut desk = Desk::new();
    let one = desk.stable();
    let (two, token) = desk.new_member();
    for _ in 0..3 {
        desk.pass(9 * SECOND);
        assert_eq!(desk.beat(&one, 1), 27);
    }
    desk.waits(token);
    desk.pass(3 * SECOND);
    let response = desk.joined(token);
    assert_eq!((response.generation_id, response.leader), (2, two));
    assert_eq!(desk.beat(&one, 1), 25);
}

#[test]
fn the_protocol_is_what_all_know_and_most_prefer() {
    let mut desk = Desk::new();
    let ids = [desk.id(), desk.id(), desk.id()];
    let first = desk.send(join_with(&ids[0], &[("c", "-"), ("a", "1"), ("b", "1")]), 9);
    assert_eq!(desk.joined(first).protocol_name, Some("c".into()));
    let second = desk.send(join_with(&ids[1], &[("b", "2"), ("a", "2")]), 9);
    let third = desk.send(join_with(&ids[2], &[("b", "3"), ("a", "3")]), 9);
    let again = desk.send(join_with(&ids[0], &[("c", "-"), ("a", "1"), ("b", "1")]), 9);
    let responses = [again, second, third].map(|token| desk.joined(token));
    assert!(responses.iter().all(|response| response.protocol_name == Some("b".into())));
    let leader = responses.iter().find(|response| !response.members.is_empty()).unwrap();
    let metadata: Vec<_> = leader.members.iter().map(|member| member.metadata.clone()).collect();
    assert_eq!(metadata.len(), 3);
    assert!(metadata.iter().all(|metadata| [&b"1"[..], b"2", b"3"].contains(&&metadata[..])));
}

/// The generation grows once for each completed join phase, and a follower's assignments are ignored.
#[test]
fn b148_only_the_leaders_assignments_count_and_who_is_left_out_gets_nothing() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let waiting = desk.send(join(&leader), 9);
    let token = desk.send(join(&follower), 9);
    assert_eq!(desk.joined(token).leader, leader);
    assert_eq!(desk.joined(waiting).generation_id, 3);
    let parked = desk.send_sync(&follower, 3, &[(&follower, "mine")]);
    desk.waits(parked);
    let token = desk.send_sync(&leader, 3, &[(&leader, "z")]);
    assert_eq!(desk.synced(token), (0, b"z".to_vec()));
    assert_eq!(desk.synced(parked), (0, b"".to_vec()));
}

#[test]
fn a_rebalance_in_completing_answers_parked_syncs_with_27() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let waiting = desk.send(join(&leader), 9);
    desk.send(join(&follower), 9);
    desk.joined(waiting);
    let parked = desk.send_sync(&follower, 3, &[]);
    let (_, waiting) = desk.new_member();
    assert_eq!(desk.synced(parked).0, 27);
    desk.waits(waiting);
}

#[test]
fn who_never_syncs_is_removed_and_the_others_rebalance() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let waiting = desk.send(join(&leader), 9);
    desk.send(join(&follower), 9);
    desk.joined(waiting);
    for _ in 0..4 {
        desk.pass(9 * SECOND);
        desk.beat(&leader, 3);
        desk.beat(&follower, 3);
    }
    assert_eq!(desk.beat(&follower, 3), 25, "removed by the sync timer in spite of its heartbeats");
}

#[test]
fn a_member_that_waits_is_alive_but_a_new_one_only_for_five_minutes() {
    let mut desk = Desk::new();
    let static_one = desk.send(
        JoinGroupRequest {
            rebalance_timeout_ms: 900_000,
            session_timeout_ms: 900_000,
            ..join_static("", "A")
        },
        9,
    );
    assert_eq!(desk.joined(static_one).generation_id, 1);
    let (_, waiting) = desk.new_member();
    desk.pass(299 * SECOND);
    desk.waits(waiting);
    desk.pass(SECOND);
    assert_eq!(desk.joined(waiting).error_code, 25);
}

#[test]
fn a_silent_member_is_removed_after_its_session_and_the_last_one_empties_the_group() {
    let mut desk = Desk::new();
    let one = desk.stable();
    desk.pass(10 * SECOND);
    assert_eq!((desk.state(), desk.beat(&one, 1)), ("Empty".into(), 25));
    let (_, token) = desk.new_member();
    assert_eq!(desk.joined(token).generation_id, 3, "emptying counted as a generation");
}

/// Leaving twice, as one of several, as a pending id, and of a group that does not exist.
#[test]
fn b164_leaving_is_answered_for_each_also_twice_and_rebalances_once() {
    let mut desk = Desk::new();
    assert_eq!(desk.leave(&[("a", None), ("b", None)]), [25, 25]);
    let (leader, follower) = desk.stable_two();
    let pending = desk.id();
    assert_eq!(desk.leave(&[(&follower, None), (&follower, None), (&pending, None)]), [0, 25, 0]);
    assert_eq!(desk.state(), "PreparingRebalance");
    let token = desk.send(join(&leader), 9);
    assert_eq!(desk.joined(token).generation_id, 3);
    let request = LeaveGroupRequest { group_id: "g".into(), member_id: leader, ..Default::default() };
    let token = desk.node.handle(2, "c", Request::Leave(request));
    assert!(
        matches!(desk.node.take_reply_to(token), Some(Response::Leave(response)) if response.error_code == 0)
    );
    assert_eq!(desk.state(), "Empty");
}

#[test]
fn a_member_that_leaves_while_others_wait_completes_the_rebalance() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let waiting = desk.send(join(&leader), 9);
    desk.waits(waiting);
    desk.leave(&[(&follower, None)]);
    assert_eq!(desk.joined(waiting).generation_id, 3);
}

/// A Stable group of one static member "A"; its id.
fn stable_static(desk: &mut Desk) -> Str {
    let token = desk.send(join_static("", "A"), 9);
    let id = desk.joined(token).member_id;
    let token = desk.send_sync(&id, 1, &[(&id, "x")]);
    assert_eq!(desk.synced(token).0, 0);
    id
}

/// B073
#[test]
fn a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance() {
    let mut desk = Desk::new();
    let old = stable_static(&mut desk);
    let token = desk.send(join_static("", "A"), 9);
    let response = desk.joined(token);
    assert_eq!((response.error_code, response.generation_id, response.skip_assignment), (0, 1, true));
    assert_eq!((response.members.len(), desk.state()), (1, "Stable".into()));
    let token = desk.send_sync(&response.member_id, 1, &[]);
    assert_eq!(desk.synced(token), (0, b"x".to_vec()));
    let token = desk.send(join_static("", "A"), 8);
    let older = desk.joined(token);
    assert_eq!((older.leader, older.members.len()), (response.member_id.clone(), 0));
    let token = desk.send(join_static(&old, "A"), 9);
    assert_eq!(desk.joined(token).error_code, 82);
    assert_eq!(desk.leave(&[(&old, Some("A")), ("", Some("nobody")), ("", Some("A"))]), [82, 25, 0]);
    assert_eq!(desk.state(), "Empty");
}

#[test]
fn a_static_member_that_comes_back_fences_who_waits_under_its_name() {
    let mut desk = Desk::new();
    stable_static(&mut desk);
    desk.new_member();
    let first = desk.send(join_static("", "A"), 9);
    desk.joined(first);
    let parked = desk.send(join_static("", "B"), 9);
    desk.waits(parked);
    let again = desk.send(join_static("", "B"), 9);
    assert_eq!(desk.joined(parked).error_code, 82);
    desk.waits(again);
}

#[test]
fn offsets_are_seen_only_when_durable_and_a_failed_append_changes_nothing() {
    let mut desk = Desk::new();
    let one = desk.stable();
    desk.node.durability = Durability::ByHand;
    let failing = desk.send_commit(&one, 1, 10, 8);
    desk.waits(failing);
    assert_eq!(desk.offset(), -1, "not durable, not seen");
    desk.node.fail_append(56);
    assert_eq!((desk.committed(failing), desk.offset()), (Vec::from([15]), -1));
    let token = desk.send_commit(&one, 1, 11, 8);
    desk.node.make_durable();
    assert_eq!((desk.committed(token), desk.offset()), (Vec::from([0]), 11));
}

#[test]
fn a_failed_record_of_assignments_is_told_to_everybody_and_rebalances() {
    let mut desk = Desk::new();
    desk.node.durability = Durability::ByHand;
    let (one, token) = desk.new_member();
    desk.joined(token);
    let parked = desk.send_sync(&one, 1, &[(&one, "x")]);
    desk.waits(parked);
    assert_eq!(desk.state(), "CompletingRebalance");
    desk.node.fail_append(56);
    assert_eq!((desk.synced(parked).0, desk.state()), (15, "PreparingRebalance".into()));
    let token = desk.send(join(&one), 9);
    assert_eq!(desk.joined(token).generation_id, 2);
}

#[test]
fn assignments_that_become_durable_after_a_new_rebalance_began_mean_nothing() {
    let mut desk = Desk::new();
    desk.node.durability = Durability::ByHand;
    let (one, token) = desk.new_member();
    desk.joined(token);
    let parked = desk.send_sync(&one, 1, &[(&one, "x")]);
    let (_, waiting) = desk.new_member();
    assert_eq!(desk.synced(parked).0, 27);
    desk.node.make_durable();
    desk.waits(waiting);
    assert_eq!(desk.state(), "PreparingRebalance");
}

#[test]
fn after_a_restart_members_go_on_in_their_generation_and_have_a_full_session() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    assert_eq!(desk.commit(&leader, 2), 0);
    desk.pass(9 * SECOND);
    let now = desk.node.now();
    desk.node.restart(now);
    desk.pass(9 * SECOND);
    assert_eq!((desk.beat(&leader, 2), desk.commit(&follower, 2), desk.state()), (0, 0, "Stable".into()));
    assert_eq!(desk.offset(), 5);
    let token = desk.send_sync(&follower, 2, &[]);
    assert_eq!(desk.synced(token), (0, b"y".to_vec()));
    desk.pass(10 * SECOND);
    assert_eq!(desk.state(), "Empty");
}

#[test]
fn what_is_durable_replays_to_the_same() {
    let mut desk = Desk::new();
    let (leader, _) = desk.stable_two();
    desk.commit(&leader, 2);
    let before = desk.node.coordinator.durable_records();
    let now = desk.node.now();
    desk.node.restart(now);
    assert_eq!(desk.node.coordinator.durable_records(), before);
    assert_eq!(before.len(), 2);
}

#[test]
fn a_closed_connection_drops_the_reply_and_a_member_nobody_can_name() {
    let mut desk = Desk::new();
    let one = desk.stable();
    let nameless = desk.send(join(""), 3);
    desk.waits(nameless);
    let now = desk.node.now();
    desk.node.coordinator.connection_closed(now, nameless);
    let token = desk.send(join(&one), 9);
    let response = desk.joined(token);
    assert_eq!((response.generation_id, response.members.len()), (2, 1));
    desk.waits(nameless);
}

#[test]
fn a_shutdown_answers_everybody_who_waits() {
    let mut desk = Desk::new();
    desk.stable();
    let (_, waiting) = desk.new_member();
    let now = desk.node.now();
    desk.node.coordinator.shutdown(now);
    desk.node.collect();
    assert_eq!(desk.joined(waiting).error_code, 15);
}
