//! What each request is answered in each state: the rows of the table, and the order of the checks.

use super::*;

#[test]
fn a_join_without_an_id_gets_one_in_every_state() {
    let mut desk = Desk::new();
    desk.id();
    let one = desk.stable_in_a_new_group();
    desk.id();
    assert_eq!(desk.beat(&one, 1), 0, "an id given out does not begin a rebalance");
    let (_, waiting) = desk.new_member();
    desk.id();
    desk.waits(waiting);
}

impl Desk {
    /// As `stable`, when ids given out before do not matter any more.
    fn stable_in_a_new_group(&mut self) -> Str {
        self.pass(11 * SECOND);
        self.stable()
    }
}

#[test]
fn a_join_without_an_id_before_version_4_joins_at_once() {
    let mut desk = Desk::new();
    let token = desk.send(join(""), 3);
    let response = desk.joined(token);
    assert_eq!((response.error_code, response.generation_id, response.members.len()), (0, 1, 1));
    assert_eq!(response.leader, response.member_id);
    assert_eq!((response.protocol_type, response.protocol_name), (None, Some("range".into())));
}

#[test]
fn checks_of_a_join_come_in_kafkas_order() {
    let mut desk = Desk::with(Config { max_group_size: 1, ..Config::default() });
    let code = |desk: &mut Desk, request: JoinGroupRequest| {
        let token = desk.send(request, 9);
        desk.joined(token).error_code
    };
    let nameless = JoinGroupRequest { group_id: Str::new(), session_timeout_ms: 1, ..join("x") };
    assert_eq!(code(&mut desk, nameless), 24);
    let short = JoinGroupRequest { session_timeout_ms: 5_999, ..join("x") };
    assert_eq!(code(&mut desk, short), 26);
    assert_eq!(code(&mut desk, join("x")), 25);
    assert_eq!(code(&mut desk, join_with("", &[])), 23);
    let one = desk.stable();
    let token = desk.send(join("not mine"), 9);
    let full = desk.joined(token);
    assert_eq!((full.error_code, full.member_id), (81, Str::new()));
    assert_eq!(code(&mut desk, join_with(&one, &[("other", "m")])), 23);
    let other_type = JoinGroupRequest { protocol_type: "connect".into(), ..join(&one) };
    assert_eq!(code(&mut desk, other_type), 23);
}

#[test]
fn a_pending_id_with_an_instance_id_is_refused() {
    let mut desk = Desk::new();
    let id = desk.id();
    let token = desk.send(join_static(&id, "A"), 9);
    assert_eq!(desk.joined(token).error_code, 42);
}

#[test]
fn an_unknown_id_is_refused_in_every_state() {
    let mut desk = Desk::new();
    let refused = |desk: &mut Desk| {
        let token = desk.send(join("nobody"), 9);
        assert_eq!(desk.joined(token).error_code, 25);
        assert_eq!(desk.beat("nobody", 1), 25);
        assert_eq!(desk.sync("nobody", 1), 25);
        assert_eq!(desk.leave(&[("nobody", None)]), [25]);
        assert_eq!(desk.commit("nobody", 1), if desk.state() == "Dead" { 22 } else { 25 });
    };
    refused(&mut desk);
    let (one, token) = desk.new_member();
    desk.joined(token);
    refused(&mut desk);
    desk.send_sync(&one, 1, &[]);
    refused(&mut desk);
    let (_, waiting) = desk.new_member();
    refused(&mut desk);
    desk.waits(waiting);
    desk.leave(&[(&one, None)]);
}

#[test]
fn a_known_id_that_joins_again_in_completing_gets_the_same_generation() {
    let mut desk = Desk::new();
    let (one, token) = desk.new_member();
    desk.joined(token);
    let token = desk.send(join(&one), 9);
    let again = desk.joined(token);
    assert_eq!((again.generation_id, again.members.len()), (1, 1));
    let token = desk.send(join_with(&one, &[("range", "changed")]), 9);
    assert_eq!(desk.joined(token).generation_id, 2);
}

#[test]
fn in_stable_a_follower_gets_the_same_generation_and_the_leader_a_new_one() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let token = desk.send(join(&follower), 9);
    let again = desk.joined(token);
    assert_eq!((again.generation_id, again.members.len(), again.leader), (2, 0, leader.clone()));
    assert_eq!(desk.state(), "Stable");
    let waiting = desk.send(join(&leader), 9);
    desk.waits(waiting);
    assert_eq!(desk.state(), "PreparingRebalance");
    let token = desk.send(join(&follower), 9);
    assert_eq!(desk.joined(token).members.len(), 0);
    assert_eq!(desk.joined(waiting).members.len(), 2, "the members go to the leader alone");
}

#[test]
fn in_stable_a_follower_with_changed_metadata_begins_a_rebalance() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    let waiting = desk.send(join_with(&follower, &[("range", "owns less")]), 9);
    desk.waits(waiting);
    assert_eq!(desk.beat(&leader, 2), 27);
}

#[test]
fn a_sync_waits_in_completing_and_is_refused_in_preparing() {
    let mut desk = Desk::new();
    let (leader, follower) = desk.stable_two();
    assert_eq!(desk.sync(&follower, 2), 0, "Stable: its own assignment");
    assert_eq!(desk.sync(&follower, 1), 22);
    desk.send(join(&leader), 9);
    assert_eq!(desk.sync(&follower, 2), 27);
    let request = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: 2,
        member_id: follower.clone(),
        protocol_name: Some("other".into()),
        ..Default::default()
    };
    desk.send(join(&follower), 9);
    let token = desk.node.handle(5, "c", Request::Sync(SyncGroupRequest { generation_id: 3, ..request }));
    assert_eq!(desk.synced(token).0, 23);
}

#[test]
fn a_heartbeat_says_27_in_preparing_and_refreshes_in_every_state() {
    let mut desk = Desk::new();
    let (one, token) = desk.new_member();
    desk.joined(token);
    assert_eq!(desk.beat(&one, 1), 0, "Completing");
    let token = desk.send_sync(&one, 1, &[]);
    assert_eq!(desk.synced(token).0, 0);
    assert_eq!(desk.beat(&one, 0), 22);
    let (_, waiting) = desk.new_member();
    for _ in 0..2 {
        desk.pass(9 * SECOND);
        assert_eq!(desk.beat(&one, 1), 27);
    }
    desk.waits(waiting);
    desk.pass(10 * SECOND);
    assert_eq!(desk.joined(waiting).generation_id, 2, "a silent member is not waited for");
    assert_eq!(desk.beat(&one, 1), 25);
}

#[test]
fn a_commit_of_a_member_is_accepted_except_between_join_and_sync() {
    let mut desk = Desk::new();
    assert_eq!(desk.commit("m", 1), 22, "no group");
    let token = desk.send_commit("m", 1, 5, 9);
    assert_eq!(desk.committed(token), [69], "no group, version 9");
    let (one, token) = desk.new_member();
    desk.joined(token);
    assert_eq!(desk.commit(&one, 1), 27, "Completing");
    let token = desk.send_sync(&one, 1, &[]);
    desk.synced(token);
    assert_eq!(desk.commit(&one, 1), 0, "Stable");
    let (_, waiting) = desk.new_member();
    assert_eq!(desk.commit(&one, 1), 0, "Preparing, with the old generation");
    let token = desk.send(join(&one), 9);
    desk.joined(token);
    desk.joined(waiting);
    assert_eq!(desk.commit(&one, 1), 22, "the old generation is over");
}

#[test]
fn a_commit_refreshes_the_session() {
    let mut desk = Desk::new();
    let one = desk.stable();
    for _ in 0..3 {
        desk.pass(9 * SECOND);
        assert_eq!(desk.commit(&one, 1), 0);
    }
    assert_eq!(desk.state(), "Stable");
}

/// B010, B011: what is not a member may commit only while nobody is.
#[test]
fn a_simple_commit_is_accepted_only_by_a_group_without_members() {
    let mut desk = Desk::new();
    assert_eq!(desk.commit("", -1), 0);
    assert_eq!((desk.offset(), desk.state()), (5, "Empty".into()));
    let one = desk.stable();
    assert_eq!(desk.commit("", -1), 25);
    desk.send(join(&one), 9);
    assert_eq!(desk.commit("", -1), 25);
    desk.leave(&[(&one, None)]);
    assert_eq!(desk.commit("", -1), 0);
}

#[test]
fn each_partition_of_a_commit_is_judged_alone() {
    let mut desk = Desk::new();
    let long: std::string::String = core::iter::repeat_n('m', 4_097).collect();
    let request = OffsetCommitRequest {
        group_id: "g".into(),
        topics: [
            commit_row("t", 0, 1, Some("abc")),
            commit_row("t", 8, 1, None),
            commit_row("nowhere", 0, 1, None),
            commit_row("t", 1, 1, Some(&long)),
            commit_row("t", 2, 1, Some(&long[1..])),
        ]
        .into(),
        ..Default::default()
    };
    desk.node.durability = Durability::ByHand;
    let token = desk.node.handle(8, "c", Request::OffsetCommit(request));
    let named: Vec<_> =
        desk.node.next_commits().iter().map(|commit| commit.topic_partition.partition).collect();
    assert_eq!(named, [0, 2], "the driver learns what has to be durable first");
    desk.node.make_durable();
    assert_eq!(desk.committed(token), [0, 3, 3, 12, 0]);
}

/// Metadata comes back as it went, absent as empty; what was never committed is -1 and no error.
#[test]
fn b152_offsets_are_fetched_by_topic_or_all_in_old_and_new_versions() {
    let mut desk = Desk::new();
    let mut row = commit_row("t", 3, 9, Some("abc"));
    row.partitions[0].committed_leader_epoch = 4;
    let request = OffsetCommitRequest { group_id: "g".into(), topics: [row].into(), ..Default::default() };
    desk.node.handle(8, "c", Request::OffsetCommit(request));
    let topic = offset_fetch_request::OffsetFetchRequestTopics {
        name: "t".into(),
        partition_indexes: [3, 4].into(),
        ..Default::default()
    };
    let asked = |id: &str, topics| offset_fetch_request::OffsetFetchRequestGroup {
        group_id: id.into(),
        topics,
        ..Default::default()
    };
    let groups = [asked("g", Some([topic].into())), asked("g", None), asked("none", None)];
    let request = OffsetFetchRequest { groups: groups.into(), require_stable: true, ..Default::default() };
    let token = desk.node.handle(8, "c", Request::OffsetFetch(request));
    let Some(Response::OffsetFetch(response)) = desk.node.take_reply_to(token) else { panic!("no answer") };
    let rows = &response.groups[0].topics[0].partitions;
    let shown = |row: &offset_fetch_response::OffsetFetchResponsePartitions| {
        (row.committed_offset, row.committed_leader_epoch, row.metadata.clone().unwrap(), row.error_code)
    };
    assert_eq!(shown(&rows[0]), (9, 4, "abc".into(), 0));
    assert_eq!(shown(&rows[1]), (-1, -1, "".into(), 0));
    assert_eq!(response.groups[1].topics[0].partitions.len(), 1);
    assert_eq!((response.groups[2].error_code, response.groups[2].topics.len()), (0, 0));
    assert_eq!(desk.offset(), -1, "in an old version");
}

#[test]
fn while_loading_everything_is_14_and_heartbeats_are_fine() {
    let mut desk = Desk::new();
    desk.node.coordinator = super::super::Coordinator::new(Config::default(), [1; 16]);
    let token = desk.send(join(""), 9);
    assert_eq!(desk.joined(token).error_code, 14);
    assert_eq!(desk.sync("m", 1), 14);
    assert_eq!(desk.commit("m", 1), 14);
    assert_eq!(desk.beat("m", 1), 0);
    assert_eq!(desk.describe("g", 5).error_code, 14);
}
