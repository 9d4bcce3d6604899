//! Coordinators: who is one, joining, assignments, heartbeats, leaving.

use tramline_core::group::protocol::encode_assignment;
use tramline_wire::Str;
use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::join_group_response::JoinGroupResponseMember;
use tramline_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use tramline_wire::messages::*;

use super::*;
use crate::common::fetch::{each, log};
use crate::common::group::{coordinate, one_member};
use crate::{ConsumeError, Event, OffsetReset};

/// A peer that runs a group whose one member gets `t-0`, with ten records in it.
fn group(name: &str) -> Peer {
    let peer = peer(name);
    coordinate(&peer);
    one_member(&peer, "t");
    peer.answer::<FetchRequest>(|request, _| each(&request, |asked| log(asked, 10)));
    peer.answer::<ListOffsetsRequest>(|_, _| ListOffsetsResponse {
        topics: vec![ListOffsetsTopicResponse {
            name: "t".into(),
            partitions: vec![ListOffsetsPartitionResponse { offset: 0, ..Default::default() }],
        }],
        ..Default::default()
    });
    peer
}

fn member(peer: &Peer) -> ConsumerBuilder {
    let client = ClientConfig::new(peer.address());
    Consumer::builder(client).group("g").subscribe(["t"]).offset_reset(OffsetReset::Earliest)
}

fn joined(generation_id: i32, request: &JoinGroupRequest) -> JoinGroupResponse {
    JoinGroupResponse {
        throttle_time_ms: i32::MAX,
        generation_id,
        protocol_name: Some(request.protocols[0].name.clone()),
        leader: "another".into(),
        member_id: "m".into(),
        ..Default::default()
    }
}

fn assigned(partitions: &[(&str, i32)]) -> SyncGroupResponse {
    let partitions: Vec<_> = partitions.iter().map(|(topic, of)| TopicPartition::new(*topic, *of)).collect();
    SyncGroupResponse { assignment: encode_assignment(&partitions).unwrap(), ..Default::default() }
}

/// The group's refusal of the member that reads.
async fn refusal(consumer: &Consumer) -> String {
    match consumer.recv().await {
        Err(ConsumeError::Group { group, reason }) if &*group == "g" => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_under_any_question_of_a_member_costs_a_retry_and_no_record() {
    let keys = [
        ApiKey::FindCoordinator,
        ApiKey::JoinGroup,
        ApiKey::SyncGroup,
        ApiKey::Heartbeat,
        ApiKey::OffsetFetch,
        ApiKey::LeaveGroup,
    ];
    for key in keys {
        for reply in broken_connections() {
            let peer = group("broken-coordination");
            peer.script(key, [reply.clone()]);
            let consumer = member(&peer).build().await.unwrap();
            assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{key} {reply:?}");
            let silence = tokio::time::timeout(20 * SECOND, consumer.recv()).await;
            assert!(silence.is_err(), "{key} {reply:?}: {silence:?}");
            let beats = peer.count(ApiKey::Heartbeat);
            assert!((1..40).contains(&beats), "{key} {reply:?}: {beats}");
            consumer.close().await;
            assert_eq!(peer.script_left(key), 0, "{key} {reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_sends_a_member_round_in_circles_is_asked_with_growing_pauses() {
    type Join = fn(usize, &JoinGroupRequest) -> JoinGroupResponse;
    type Sync = fn(usize) -> SyncGroupResponse;
    let circles: [(&str, Join, Sync); 7] = [
        (
            "another member id each time",
            |n, request| JoinGroupResponse {
                error_code: 79,
                member_id: Str::from(format!("m{n}")),
                ..joined(1, request)
            },
            |_| assigned(&[]),
        ),
        (
            "a rebalance at each Sync",
            |_, request| joined(1, request),
            |_| SyncGroupResponse { error_code: 27, ..Default::default() },
        ),
        (
            "unknown at each Sync",
            |_, request| joined(1, request),
            |_| SyncGroupResponse { error_code: 25, ..Default::default() },
        ),
        (
            "another generation at each Sync",
            |_, request| joined(1, request),
            |_| SyncGroupResponse { error_code: 22, ..Default::default() },
        ),
        (
            "elsewhere at each Sync",
            |_, request| joined(1, request),
            |_| SyncGroupResponse { error_code: 16, ..Default::default() },
        ),
        ("topics that are not subscribed to", |_, request| joined(1, request), |_| assigned(&[("u", 0)])),
        (
            "one partition after the other",
            |n, request| joined(i32::try_from(n).unwrap(), request),
            |n| assigned(&[("t", i32::try_from(n % 2).unwrap())]),
        ),
    ];
    for (what, join, sync) in circles {
        let peer = group("circles");
        peer.topic("t", 2);
        let (joins, syncs) = (Count::default(), Count::default());
        peer.answer::<JoinGroupRequest>(move |request, _| join(next(&joins), &request));
        peer.answer::<SyncGroupRequest>(move |_, _| sync(next(&syncs)));
        // Where it comes to heartbeats, each begins the next rebalance.
        peer.answer::<HeartbeatRequest>(|_, _| HeartbeatResponse { error_code: 27, ..Default::default() });
        let consumer = member(&peer).build().await.unwrap();
        let asked = asked_within(20 * SECOND, &peer, ApiKey::JoinGroup).await;
        // Each accepted heartbeat, every three seconds, lets a handful go out at once.
        assert!((10..90).contains(&asked), "{what}: {asked} Joins in 20 seconds");
        drop(consumer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_membership_that_is_none_ends_in_an_error_that_says_so() {
    type Join = fn(&JoinGroupRequest) -> JoinGroupResponse;
    let none: [(&str, Join); 3] = [
        ("a membership that is none", |request| joined(-1, request)),
        ("a membership that is none", |request| joined(i32::MIN, request)),
        ("a membership that is none", |request| JoinGroupResponse {
            member_id: Str::new(),
            leader: Str::new(),
            ..joined(1, request)
        }),
    ];
    for (said, join) in none {
        let peer = group("no-membership");
        peer.answer::<JoinGroupRequest>(move |request, _| join(&request));
        let consumer = member(&peer).build().await.unwrap();
        let reason = refusal(&consumer).await;
        assert!(reason.contains(said), "{reason}");
        assert_eq!(peer.count(ApiKey::JoinGroup), 1);
        consumer.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_code_ends_the_member_with_that_code() {
    for key in [ApiKey::JoinGroup, ApiKey::SyncGroup, ApiKey::Heartbeat] {
        let peer = group("unknown-code");
        match key {
            ApiKey::JoinGroup => peer.answer::<JoinGroupRequest>(|_, _| JoinGroupResponse {
                error_code: 31_000,
                ..Default::default()
            }),
            ApiKey::SyncGroup => peer.answer::<SyncGroupRequest>(|_, _| SyncGroupResponse {
                error_code: 31_000,
                ..Default::default()
            }),
            _ => peer.answer::<HeartbeatRequest>(|_, _| HeartbeatResponse {
                error_code: 31_000,
                throttle_time_ms: i32::MAX,
            }),
        }
        let consumer = member(&peer).build().await.unwrap();
        let reason = loop {
            match consumer.recv().await {
                Ok(_) => {}
                Err(ConsumeError::Group { reason, .. }) => break reason,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(reason.contains("31000"), "{reason}");
        assert_eq!(peer.count(key), 1);
        consumer.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_generation_or_a_name_that_goes_back_loses_what_was_held_before_it_is_given_again() {
    type Second = fn(&JoinGroupRequest) -> JoinGroupResponse;
    let second: [Second; 2] = [
        |request| joined(3, request),
        |request| JoinGroupResponse { member_id: "somebody".into(), ..joined(8, request) },
    ];
    for second in second {
        let peer = group("going-back");
        let count = Count::default();
        peer.answer::<JoinGroupRequest>(move |request, _| match next(&count) {
            0 => joined(7, &request),
            _ => second(&request),
        });
        let beats = Count::default();
        peer.answer::<HeartbeatRequest>(move |_, _| {
            let error_code = if next(&beats) == 0 { 27 } else { 0 };
            HeartbeatResponse { error_code, ..Default::default() }
        });
        let consumer = member(&peer).build().await.unwrap();
        let mut events = consumer.events();
        let mut told = Vec::new();
        let telling = async {
            while told.len() < 3 {
                told.push(match events.next().await.unwrap() {
                    Event::Assigned { partitions, .. } => ("assigned", partitions),
                    Event::Lost { partitions, .. } => ("lost", partitions),
                    other => panic!("{other:?}"),
                });
            }
        };
        let reading = async {
            loop {
                consumer.recv().await.unwrap();
            }
        };
        tokio::select! {
            () = telling => {}
            () = reading => {}
        }
        assert_eq!(told, ["assigned", "lost", "assigned"].map(|what| (what, vec![tp()])));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_nobody_or_of_members_without_sense_goes_on() {
    type Join = fn(&JoinGroupRequest) -> JoinGroupResponse;
    fn leads(request: &JoinGroupRequest, members: Vec<JoinGroupResponseMember>) -> JoinGroupResponse {
        JoinGroupResponse { leader: "m".into(), members, ..joined(1, request) }
    }
    fn named(member_id: &str, metadata: &'static [u8]) -> JoinGroupResponseMember {
        JoinGroupResponseMember {
            member_id: member_id.into(),
            metadata: bytes::Bytes::from_static(metadata),
            ..Default::default()
        }
    }
    let cases: [(&str, Join); 6] = [
        ("nobody", |request| leads(request, vec![])),
        ("garbage", |request| leads(request, vec![named("m", b"\xff\xff\xff\xff"), named("", b"")])),
        ("twice", |request| {
            let metadata = request.protocols[0].metadata.clone();
            let me = JoinGroupResponseMember { metadata, ..named("m", b"") };
            leads(request, vec![me.clone(), me])
        }),
        ("topics that do not exist", |request| {
            leads(request, vec![named("m", b"\0\x01\0\0\0\x02\0\x01u\0\0\xff\xff\xff\xff\0\0\0\0")])
        }),
        ("a leader that is nobody", |request| JoinGroupResponse { leader: Str::new(), ..joined(1, request) }),
        ("told to assign nothing", |request| JoinGroupResponse {
            skip_assignment: true,
            ..leads(request, vec![])
        }),
    ];
    for (what, join) in cases {
        let peer = group("odd-leaders");
        peer.answer::<JoinGroupRequest>(move |request, _| join(&request));
        let consumer = member(&peer).build().await.unwrap();
        assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{what}");
        tokio::select! {
            record = consumer.recv() => panic!("{what}: {record:?}"),
            asked = asked_within(20 * SECOND, &peer, ApiKey::Metadata) => {
                assert!(asked < 40, "{what}: metadata {asked} times");
            }
        }
        assert!(peer.count(ApiKey::JoinGroup) < 20, "{what}: {}", peer.count(ApiKey::JoinGroup));
        consumer.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_assignment_of_a_partition_that_is_none_is_an_error_and_one_named_twice_is_one() {
    let peer = group("odd-assignment");
    peer.answer::<SyncGroupRequest>(|_, _| assigned(&[("t", 0), ("t", -1)]));
    let consumer = member(&peer).build().await.unwrap();
    let reason = refusal(&consumer).await;
    assert!(reason.contains("a partition that is none"), "{reason}");
    let peer = group("odd-assignment");
    peer.answer::<SyncGroupRequest>(|_, _| assigned(&[("t", 0), ("t", 0), ("t", i32::MAX)]));
    let consumer = member(&peer).build().await.unwrap();
    assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>());
    // One that metadata does not know is looked for, and keeps nobody from reading the others.
    assert_eq!(consumer.assignment(), [tp(), TopicPartition::new("t", i32::MAX)]);
    tokio::select! {
        record = consumer.recv() => panic!("{record:?}"),
        asked = asked_within(20 * SECOND, &peer, ApiKey::Metadata) => assert!(asked < 40, "{asked} times"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_always_elsewhere_is_looked_for_with_growing_pauses() {
    type Found = fn(usize, Coordinator) -> Vec<Coordinator>;
    let found: [(&str, Found); 8] = [
        ("nobody", |_, _| vec![]),
        ("of another group", |_, row| vec![Coordinator { key: "h".into(), ..row }]),
        ("a node that is none", |_, row| vec![Coordinator { node_id: -1, ..row }]),
        ("a port that is none", |_, row| vec![Coordinator { port: 70_000, ..row }]),
        ("a node that nobody knows", |_, row| vec![Coordinator { node_id: 77, ..row }]),
        ("another node each time", |n, row| {
            vec![Coordinator { node_id: 100 + i32::try_from(n).unwrap(), ..row }]
        }),
        ("an unknown code", |_, row| vec![Coordinator { error_code: 31_000, ..row }]),
        ("always the one that is not", |_, row| vec![row]),
    ];
    for (what, found) in found {
        let peer = group("elsewhere");
        let (count, address) = (Count::default(), peer.address());
        let (host, port) = address.rsplit_once(':').unwrap();
        let (host, port) = (host.to_owned(), port.parse::<i32>().unwrap());
        peer.answer::<FindCoordinatorRequest>(move |request, _| {
            let key = request.coordinator_keys[0].clone();
            let row = Coordinator { key, node_id: 1, host: host.as_str().into(), port, ..Default::default() };
            FindCoordinatorResponse {
                throttle_time_ms: i32::MAX,
                coordinators: found(next(&count), row),
                ..Default::default()
            }
        });
        peer.answer::<JoinGroupRequest>(|_, _| JoinGroupResponse { error_code: 16, ..Default::default() });
        let consumer = member(&peer).build().await.unwrap();
        tokio::select! {
            record = consumer.recv() => panic!("{what}: {record:?}"),
            asked = asked_within(20 * SECOND, &peer, ApiKey::FindCoordinator) => {
                assert!((8..80).contains(&asked), "{what}: {asked} times");
            }
        }
        // It is well again: the member joins.
        coordinate(&peer);
        one_member(&peer, "t");
        assert_eq!(offsets(&consumer, 10).await, (0..10).collect::<Vec<_>>(), "{what}");
        consumer.close().await;
    }
}
