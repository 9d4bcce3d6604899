//! Listing, describing and deleting groups; expiry; topics that go.

use super::*;

fn list(desk: &mut Desk, states: &[&str], types: &[&str]) -> Vec<(Str, Str, Str)> {
    let request = ListGroupsRequest {
        states_filter: states.iter().map(|name| Str::from(*name)).collect(),
        types_filter: types.iter().map(|name| Str::from(*name)).collect(),
    };
    let token = desk.node.handle(5, "c", Request::List(request));
    match desk.node.take_reply_to(token) {
        Some(Response::ListGroups(response)) => response
            .groups
            .into_iter()
            .map(|group| (group.group_id, group.protocol_type, group.group_state))
            .collect(),
        other => panic!("expected a list, not {other:?}"),
    }
}

#[test]
fn groups_are_listed_by_state_and_type_without_regard_to_case() {
    let mut desk = Desk::new();
    let request = OffsetCommitRequest {
        group_id: "simple".into(),
        topics: [commit_row("t", 0, 1, None)].into(),
        ..Default::default()
    };
    desk.node.handle(8, "c", Request::OffsetCommit(request));
    desk.stable();
    let simple = ("simple".into(), "".into(), "Empty".into());
    let group = ("g".into(), "consumer".into(), "Stable".into());
    assert_eq!(list(&mut desk, &[], &[]), [group.clone(), simple.clone()]);
    assert_eq!(list(&mut desk, &["stable"], &["Classic"]), [group]);
    assert_eq!(list(&mut desk, &["Empty"], &[]), [simple]);
    assert_eq!(list(&mut desk, &[], &["consumer"]), []);
}

#[test]
fn an_unknown_group_is_dead_and_from_version_6_on_not_found() {
    let mut desk = Desk::new();
    let (old, new) = (desk.describe("none", 5), desk.describe("none", 6));
    assert_eq!((old.error_code, &*old.group_state), (0, "Dead"));
    assert_eq!((new.error_code, &*new.group_state, new.error_message.is_some()), (69, "Dead", true));
}

#[test]
fn members_are_described_with_metadata_only_when_stable() {
    let mut desk = Desk::new();
    desk.stable();
    let stable = desk.describe("g", 5);
    assert_eq!((&*stable.protocol_data, &stable.members[0].member_metadata[..]), ("range", &b"m"[..]));
    assert_eq!(&stable.members[0].member_assignment[..], b"x");
    desk.new_member();
    let preparing = desk.describe("g", 5);
    assert_eq!((&*preparing.protocol_data, preparing.members[0].member_metadata.len()), ("", 0));
}

/// A deleted group leaves no offsets, also none whose commit was on its way.
#[test]
fn b164_a_deleted_group_is_gone_with_its_offsets_and_can_begin_again() {
    let mut desk = Desk::new();
    let token = desk.delete("g");
    assert_eq!(desk.deleted(token), 69);
    let one = desk.stable();
    desk.commit(&one, 1);
    let token = desk.delete("g");
    assert_eq!(desk.deleted(token), 68);
    desk.leave(&[(&one, None)]);
    desk.node.durability = Durability::ByHand;
    let late = desk.send_commit("", -1, 77, 8);
    let token = desk.delete("g");
    desk.waits(token);
    let joining = desk.send(join(""), 9);
    assert_eq!(desk.joined(joining).error_code, 15, "Dead until the deletion is durable");
    assert!(desk.node.make_durable() && desk.node.make_durable());
    assert_eq!((desk.committed(late), desk.deleted(token)), (Vec::from([0]), 0));
    assert_eq!((desk.offset(), desk.state()), (-1, "Dead".into()));
    assert_eq!(desk.node.coordinator.durable_records(), []);
    desk.node.durability = Durability::AtOnce;
    let (_, token) = desk.new_member();
    assert_eq!(desk.joined(token).generation_id, 1);
}

#[test]
fn a_deletion_that_fails_leaves_the_group_as_it_was() {
    let mut desk = Desk::new();
    desk.commit("", -1);
    desk.node.durability = Durability::ByHand;
    let token = desk.delete("g");
    desk.node.fail_append(56);
    assert_eq!((desk.deleted(token), desk.offset(), desk.state()), (15, 5, "Empty".into()));
}

#[test]
fn a_deleted_topic_takes_its_offsets_along() {
    let mut desk = Desk::new();
    let one = desk.stable();
    desk.commit(&one, 1);
    desk.node.durability = Durability::ByHand;
    let token = desk.send_commit(&one, 1, 6, 8);
    desk.node.coordinator.topic_deleted("t");
    desk.node.collect();
    while desk.node.make_durable() {}
    assert_eq!((desk.committed(token), desk.offset()), (Vec::from([0]), -1));
}

#[test]
fn offsets_expire_by_commit_time_or_when_the_group_is_empty_long_enough() {
    let week = 7 * 24 * 3_600_000;
    let mut desk = Desk::new();
    let one = desk.stable();
    desk.commit(&one, 1);
    let expire = |desk: &mut Desk, wall: i64| {
        desk.node.coordinator.expire_offsets(wall);
        desk.node.collect();
        desk.offset()
    };
    assert_eq!(expire(&mut desk, 2 * week), 5, "its topics can not be told, and it is Stable");
    desk.leave(&[(&one, None)]);
    assert_eq!(expire(&mut desk, week - 1), 5);
    assert_eq!(expire(&mut desk, week), -1);
    assert_eq!(desk.state(), "Dead");
    desk.commit("", -1);
    assert_eq!((expire(&mut desk, week - 1), expire(&mut desk, week)), (5, -1));
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        retention_time_ms: 1_000,
        topics: [commit_row("t", 0, 1, None)].into(),
        ..Default::default()
    };
    desk.node.handle(4, "c", Request::OffsetCommit(request));
    assert_eq!((expire(&mut desk, 999), expire(&mut desk, 1_000)), (1, -1));
}
