//! Committed offsets that are deleted, and those that are kept too long.

use tramline_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};

use super::*;
use crate::group::protocol::{Subscription, encode_subscription};

const WEEK: i64 = 7 * 24 * 3_600_000;

/// A desk whose node has the topics `t` and `u`.
fn desk() -> Desk {
    let mut desk = Desk::new();
    desk.node.partition_counts.insert("u".into(), 8);
    desk
}

/// A member of the group `g`, in its first generation, that reads `topic`.
fn reader_of(desk: &mut Desk, topic: &str) -> Str {
    let id = desk.id();
    let mut request = join(&id);
    let topics = [topic.into()].into();
    let subscription =
        Subscription { topics, user_data: None, owned: Vec::new(), generation: -1, rack: None };
    request.protocols[0].metadata = encode_subscription(&subscription).unwrap();
    let token = desk.send(request, 9);
    assert_eq!(desk.joined(token).generation_id, 1);
    let token = desk.send_sync(&id, 1, &[(&id, "x")]);
    assert_eq!(desk.synced(token).0, 0);
    id
}

/// Commits as a member of generation 1, or, without a name, as nobody's member.
fn commit(desk: &mut Desk, member: &str, topic: &str, offset: i64) {
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: if member.is_empty() { -1 } else { 1 },
        member_id: member.into(),
        topics: [commit_row(topic, 0, offset, None)].into(),
        ..Default::default()
    };
    let token = desk.node.handle(8, "c", Request::OffsetCommit(request));
    assert_eq!(desk.committed(token), [0]);
}

/// What is committed of the topics `t` and `u`.
fn offsets(desk: &mut Desk) -> [i64; 2] {
    ["t", "u"].map(|topic| desk.node.committed("g", &TopicPartition::new(topic, 0)))
}

/// Deletes the offsets of partition 0 of each topic: the code of all, and of each.
fn delete(desk: &mut Desk, topics: &[&str]) -> (i16, Vec<i16>) {
    let topic = |name: &&str| OffsetDeleteRequestTopic {
        name: (*name).into(),
        partitions: [OffsetDeleteRequestPartition { partition_index: 0 }].into(),
    };
    let request = OffsetDeleteRequest { group_id: "g".into(), topics: topics.iter().map(topic).collect() };
    let token = desk.node.handle(0, "c", Request::OffsetDelete(request));
    match desk.node.take_reply_to(token) {
        Some(Response::OffsetDelete(response)) => {
            let rows = response.topics.iter().flat_map(|topic| &topic.partitions);
            (response.error_code, rows.map(|row| row.error_code).collect())
        }
        other => panic!("expected a deletion's answer, not {other:?}"),
    }
}

/// What is left of the topics `t` and `u` when expiry is due at `wall`.
fn expire(desk: &mut Desk, wall: i64) -> [i64; 2] {
    desk.node.coordinator.expire_offsets(wall);
    desk.node.collect();
    offsets(desk)
}

#[test]
fn offsets_of_a_topic_that_a_member_reads_are_not_deleted_and_the_others_are() {
    let mut desk = desk();
    let one = reader_of(&mut desk, "t");
    commit(&mut desk, &one, "t", 5);
    commit(&mut desk, &one, "u", 6);
    assert_eq!(delete(&mut desk, &["t", "u", "none"]), (0, Vec::from([86, 0, 3])));
    assert_eq!(offsets(&mut desk), [5, -1]);
    desk.leave(&[(&one, None)]);
    assert_eq!(delete(&mut desk, &["t", "u"]), (0, Vec::from([0, 0])), "one that is not there too");
    assert_eq!(offsets(&mut desk), [-1, -1]);
}

#[test]
fn offsets_of_a_group_that_nobody_knows_are_not_deleted_and_those_of_one_without_members_are() {
    let mut desk = desk();
    assert_eq!(delete(&mut desk, &["t"]), (69, Vec::new()));
    commit(&mut desk, "", "t", 5);
    assert_eq!(delete(&mut desk, &["t"]), (0, Vec::from([0])));
    assert_eq!(offsets(&mut desk), [-1, -1]);
}

#[test]
fn offsets_of_a_group_whose_subscriptions_cannot_be_told_are_kept_while_it_has_members() {
    let mut desk = desk();
    let one = desk.stable();
    desk.commit(&one, 1);
    assert_eq!(delete(&mut desk, &["t"]), (68, Vec::new()));
    desk.leave(&[(&one, None)]);
    assert_eq!(delete(&mut desk, &["t"]), (0, Vec::from([0])));
}

#[test]
fn b082_an_offset_that_a_member_reads_from_never_expires_and_one_that_none_reads_from_does() {
    let mut desk = desk();
    let one = reader_of(&mut desk, "t");
    commit(&mut desk, &one, "t", 5);
    commit(&mut desk, &one, "u", 6);
    assert_eq!(expire(&mut desk, WEEK - 1), [5, 6]);
    assert_eq!(expire(&mut desk, 100 * WEEK), [5, -1]);
}

#[test]
fn nothing_expires_while_a_group_rebalances() {
    let mut desk = desk();
    let one = reader_of(&mut desk, "t");
    commit(&mut desk, &one, "u", 6);
    let (_, waiting) = desk.new_member();
    desk.waits(waiting);
    assert_eq!(expire(&mut desk, 100 * WEEK), [-1, 6]);
}

#[test]
fn offsets_of_a_group_without_members_are_kept_from_the_moment_it_became_empty() {
    let mut desk = desk();
    commit(&mut desk, "", "t", 5);
    desk.pass(3 * 7 * 24 * 3_600 * SECOND);
    let one = reader_of(&mut desk, "u");
    desk.leave(&[(&one, None)]);
    assert_eq!(expire(&mut desk, 4 * WEEK - 1), [5, -1]);
    assert_eq!(expire(&mut desk, 4 * WEEK), [-1, -1]);
    assert_eq!(desk.state(), "Dead");
}

#[test]
fn offsets_of_a_simple_consumer_are_kept_from_their_own_commit() {
    let mut desk = desk();
    commit(&mut desk, "", "t", 5);
    desk.pass(SECOND);
    commit(&mut desk, "", "u", 6);
    assert_eq!(expire(&mut desk, WEEK), [-1, 6]);
    assert_eq!(expire(&mut desk, WEEK + 1_000), [-1, -1]);
}

#[test]
fn an_offset_whose_new_commit_is_on_its_way_does_not_expire() {
    let mut desk = desk();
    commit(&mut desk, "", "t", 5);
    desk.node.durability = Durability::ByHand;
    let token = desk.send_commit("", -1, 7, 8);
    desk.node.coordinator.expire_offsets(100 * WEEK);
    desk.node.collect();
    while desk.node.make_durable() {}
    assert_eq!((desk.committed(token), offsets(&mut desk)), (Vec::from([0]), [7, -1]));
}
