//! Changes of leaders: positions are confirmed, cuts are noticed, hints are followed.

use std::vec;
use std::vec::Vec;

use super::stand::*;
use crate::client::fetcher::*;
use crate::client::metadata::Leader;
use core::time::Duration;
use tramline_wire::ErrorCode;
use tramline_wire::messages::OffsetForLeaderEpochResponse;
use tramline_wire::messages::fetch_response::{EpochEndOffset, LeaderIdAndEpoch, NodeEndpoint};

fn policy(offset_reset: OffsetReset) -> FetcherConfig {
    FetcherConfig { offset_reset, ..Default::default() }
}

/// Ten records read; then a leader is elected whose log ends at `kept`, and which writes three records of its own.
fn cut_at(config: FetcherConfig, kept: i64) -> Stand {
    let mut stand = Stand::configured(config, vec![batch(0, 4), batch(4, 4), batch(8, 2)]);
    stand.records(10);
    stand.log(0).batches.retain(|batch| tramline_wire::BatchHeader::parse(batch).unwrap().base_offset < kept);
    stand.elect(2);
    stand.log(0).batches.push(under(&batch(kept, 8), kept, 4));
    stand
}

#[test]
fn a_new_leader_confirms_the_position_before_it_is_read_from() {
    let mut stand = Stand::with(vec![batch(0, 4)]);
    stand.records(4);
    stand.elect(2);
    stand.log(0).batches.push(under(&batch(4, 2), 4, 4));
    assert_eq!(stand.records(2), [4, 5]);
    assert_eq!(stand.epochs, 1, "asked once");
    assert_eq!(stand.fetches.last().unwrap().topics[0].partitions[0].current_leader_epoch, 4);
    stand.fetcher.take_record();
    stand.settle();
    assert_eq!(stand.epochs, 1, "and not again under the same leader");
}

#[test]
fn without_a_policy_a_cut_below_the_position_is_told_with_both_offsets() {
    let mut stand = cut_at(policy(OffsetReset::None), 8);
    let fetched = stand.fetches.len();
    let error = stand.error();
    assert!(matches!(error, FetchError::Truncated { offset: 10, diverging_offset: 8, .. }), "{error:?}");
    assert_eq!((error.offset(), error.topic_partition()), (Some(10), &tp(0)));
    assert_eq!(stand.position(0), Some(10));
    assert_eq!(stand.fetches.len(), fetched, "no record was asked for at a place that is gone");
    stand.fetcher.resume(&tp(0));
    assert!(matches!(stand.error(), FetchError::Truncated { .. }), "resuming asks again");
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(8)));
    assert_eq!(stand.records(8), (8..16).collect::<Vec<_>>());
}

#[test]
fn with_a_policy_reading_goes_on_where_the_logs_part() {
    for reset in [OffsetReset::Earliest, OffsetReset::Latest] {
        let mut stand = cut_at(policy(reset), 8);
        assert_eq!(stand.records(8), (8..16).collect::<Vec<_>>());
        let told = FetcherEvent::Reset { topic_partition: tp(0), from: Some(10), to: 8 };
        assert_eq!(stand.fetcher.poll_event(), Some(told));
        assert_eq!((stand.fetcher.poll_event(), stand.epochs), (None, 1));
    }
}

#[test]
fn what_was_read_ahead_and_is_gone_is_dropped_in_silence() {
    let config = FetcherConfig { prefetch_bytes: 1 << 20, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 4), batch(4, 4), batch(8, 2)]);
    assert_eq!(stand.records(2), [0, 1]);
    stand.log(0).batches.truncate(2);
    stand.elect(2);
    stand.log(0).batches.push(under(&batch(8, 3), 8, 4));
    stand.settle();
    let records: Vec<_> = (0..9).map(|_| stand.fetcher.take_record().unwrap().unwrap()).collect();
    assert_eq!(
        records.iter().map(tramline_wire::Record::offset).collect::<Vec<_>>(),
        (2..11).collect::<Vec<_>>()
    );
    assert_eq!(records[6].leader_epoch(), Some(4), "offset 8 is the new leader's");
    assert_eq!(stand.fetcher.poll_event(), None);
    // A cut inside of the batch that is being handed out.
    let config = FetcherConfig { prefetch_bytes: 1 << 20, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 4), batch(4, 4)]);
    assert_eq!(stand.records(2), [0, 1]);
    *stand.log(0) = Log { batches: vec![batch(0, 3)], ..Default::default() };
    stand.elect(2);
    stand.settle();
    assert_eq!(stand.records(1), [2]);
    assert_eq!((stand.position(0), stand.fetcher.buffered_bytes()), (Some(3), 0));
}

#[test]
fn a_committed_offset_that_was_cut_away_is_noticed_at_the_start() {
    let mut stand = Stand::new(policy(OffsetReset::None));
    stand.add(0, vec![batch(0, 4)]);
    stand.fetcher.assign(tp(0), 1, Start::Awaiting);
    stand.elect(2);
    stand.fetcher.position_known(&tp(0), 1, Position { offset: 9, leader_epoch: Some(3) });
    assert!(matches!(stand.error(), FetchError::Truncated { offset: 9, diverging_offset: 4, .. }));
}

#[test]
fn a_diverging_epoch_in_a_fetch_answer_is_a_cut() {
    for reset in [OffsetReset::None, OffsetReset::Earliest] {
        let mut stand = Stand::configured(policy(reset), vec![batch(0, 10)]);
        stand.records(10);
        stand.fetcher.take_record();
        let (request, ticket) = stand.next_fetch().unwrap();
        let mut answer = stand.answer(&request);
        answer.responses[0].partitions[0].diverging_epoch = EpochEndOffset { epoch: 2, end_offset: 6 };
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
        if reset == OffsetReset::None {
            let error = stand.error();
            assert!(
                matches!(error, FetchError::Truncated { offset: 10, diverging_offset: 6, .. }),
                "{error:?}"
            );
        } else {
            assert_eq!(stand.position(0), Some(6));
            assert_eq!(stand.record(), Ok(6));
        }
    }
}

#[test]
fn an_answer_about_epochs_counts_only_where_nothing_has_changed() {
    let mut stand = cut_at(policy(OffsetReset::None), 8);
    stand.fetcher.take_record();
    let Some(FetcherRequest::Epochs { node: 2, request, ticket }) = stand.fetcher.poll_request(stand.now)
    else {
        panic!("the new leader is asked first")
    };
    assert!(stand.next_fetch().is_none(), "and nothing else until it answers");
    assert_eq!(request.topics[0].partitions[0].leader_epoch, 3);
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(2)));
    let answer = OffsetForLeaderEpochResponse::default();
    stand.fetcher.handle_epochs(ticket, Some(answer), stand.now);
    assert_eq!(stand.record(), Ok(2), "a position without an epoch needs no leave");
}

#[test]
fn b079_errors_that_pass_never_move_a_position() {
    let errors = [
        ErrorCode::UnknownLeaderEpoch,
        ErrorCode::FencedLeaderEpoch,
        ErrorCode::NotLeaderOrFollower,
        ErrorCode::OffsetNotAvailable,
        ErrorCode::RequestTimedOut,
        ErrorCode::UnknownServerError,
    ];
    for code in errors.map(Some).into_iter().chain([None]) {
        let mut stand = Stand::configured(policy(OffsetReset::Earliest), vec![batch(0, 10)]);
        stand.records(10);
        stand.elect(2);
        match code {
            Some(code) => stand.log(0).error = Some(code),
            None => stand.up = false,
        }
        stand.fetcher.take_record();
        stand.settle();
        assert_eq!((stand.position(0), stand.epochs), (Some(10), 1), "{code:?}");
        assert!(stand.next_fetch().is_none(), "{code:?}: only after a pause");
        stand.up = true;
        stand.log(0).batches.push(under(&batch(10, 1), 10, 4));
        assert_eq!(stand.record(), Ok(10), "{code:?}");
        assert_eq!(stand.fetcher.poll_event(), None, "{code:?}");
    }
}

#[test]
fn a_fenced_position_is_confirmed_again_also_when_metadata_knows_nothing_new() {
    for code in [ErrorCode::FencedLeaderEpoch, ErrorCode::UnknownLeaderEpoch] {
        let mut stand = Stand::with(vec![batch(0, 4)]);
        stand.records(4);
        stand.log(0).error = Some(code);
        stand.fetcher.take_record();
        stand.settle();
        stand.log(0).batches.push(batch(4, 1));
        assert_eq!((stand.record(), stand.epochs), (Ok(4), 1), "{code}");
    }
}

#[test]
fn a_refusal_to_speak_of_epochs_reaches_the_caller() {
    let mut stand = Stand::with(vec![batch(0, 2)]);
    stand.records(2);
    stand.elect(2);
    stand.log(0).error = Some(ErrorCode::TopicAuthorizationFailed);
    assert!(matches!(stand.error(), FetchError::Refused { code: ErrorCode::TopicAuthorizationFailed, .. }));
}

#[test]
fn b091_leaders_without_epochs_are_read_from_without_asking() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.leader_epoch = -1;
    stand.add(0, vec![under(&batch(0, 3), 0, -1)]);
    stand.assign(0, 0);
    let (offsets, next) = stand.chunk().unwrap();
    assert_eq!((offsets, next), (vec![0, 1, 2], 3), "3 is there to commit");
    stand.leaders.insert(0, 2);
    stand.fetcher.metadata_changed(&stand.view());
    stand.log(0).batches.push(under(&batch(3, 1), 3, -1));
    assert_eq!((stand.chunk(), stand.epochs), (Some((vec![3], 4)), 0));
}

#[test]
fn b091_a_move_under_the_same_epoch_needs_no_leave_and_brokers_without_the_question_are_not_pressed() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.records(3);
    stand.leaders.insert(0, 2);
    stand.fetcher.metadata_changed(&stand.view());
    stand.log(0).batches.push(batch(3, 1));
    assert_eq!((stand.chunk(), stand.epochs), (Some((vec![3], 4)), 0));
    stand.knows_epochs = false;
    stand.elect(1);
    stand.log(0).batches.push(under(&batch(4, 1), 4, 4));
    assert_eq!(stand.chunk(), Some((vec![4], 5)));
}

#[test]
fn b091_epochs_that_were_set_back_stop_nothing() {
    let mut stand = Stand::new(policy(OffsetReset::Earliest));
    stand.leader_epoch = 7;
    stand.add(0, vec![under(&batch(0, 3), 0, 7)]);
    stand.assign(0, 0);
    stand.records(3);
    // The cluster came back from older metadata: same topic, same records, lower epoch.
    stand.leader_epoch = 2;
    stand.log(0).batches.push(under(&batch(3, 2), 3, 2));
    let mut view = stand.view();
    let stale = view.clone();
    view.topics.get_mut("t").unwrap().partitions[0].leader_epoch = 7;
    let mut told = 0;
    for _ in 0..10_000 {
        if stand.fetcher.take_record().is_some() {
            break;
        }
        match stand.fetcher.poll_request(stand.now) {
            Some(FetcherRequest::Fetch { request, ticket, .. }) => {
                let answer = stand.answer(&request);
                stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
            }
            Some(FetcherRequest::Metadata { .. }) => {
                told += 1;
                view.update(&answer_of(&stale), false);
                stand.fetcher.handle_metadata(Some(&view), stand.now);
            }
            Some(FetcherRequest::Epochs { request, ticket, .. }) => {
                let answer = stand.answer_epochs(&request);
                stand.fetcher.handle_epochs(ticket, Some(answer), stand.now);
            }
            Some(other) => panic!("{other:?}"),
            None => {
                stand.now = stand.fetcher.next_timeout().expect("it goes on");
                stand.fetcher.handle_timeout(stand.now);
            }
        }
    }
    assert!(told < 20, "asked {told} times");
    assert_eq!(stand.position(0), Some(4));
    assert_eq!((stand.record(), stand.position(0)), (Ok(4), Some(5)));
    assert_eq!(stand.fetcher.poll_event(), None);
}

/// The metadata answer that says what the view holds.
fn answer_of(view: &crate::client::metadata::ClusterView) -> tramline_wire::messages::MetadataResponse {
    use tramline_wire::messages::metadata_response::*;
    let topic = &view.topics["t"];
    let rows = topic.partitions.iter().map(|row| MetadataResponsePartition {
        partition_index: row.partition,
        leader_id: row.leader.unwrap_or(-1),
        leader_epoch: row.leader_epoch,
        ..Default::default()
    });
    let topic = MetadataResponseTopic {
        name: Some("t".into()),
        topic_id: topic.id,
        partitions: rows.collect(),
        ..Default::default()
    };
    MetadataResponse { topics: vec![topic], ..Default::default() }
}

#[test]
fn a_hint_is_followed_at_once_and_without_asking_for_metadata() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.records(3);
    let asked = stand.metadata;
    for (round, code) in
        [ErrorCode::NotLeaderOrFollower, ErrorCode::FencedLeaderEpoch].into_iter().enumerate()
    {
        let node = i32::try_from(round).unwrap() + 2;
        let offset = i64::try_from(round).unwrap() + 3;
        stand.fetcher.take_record();
        let (request, ticket) = stand.next_fetch().unwrap();
        stand.log(0).error = Some(code);
        let mut answer = stand.answer(&request);
        stand.leader_epoch += 1;
        let (epoch, log) = (stand.leader_epoch, stand.log(0));
        log.epochs = vec![(3, 0), (4, 3), (5, 4)];
        log.epochs.truncate(round + 2);
        log.batches.push(under(&batch(offset, 1), offset, epoch));
        let row = &mut answer.responses[0].partitions[0];
        row.current_leader = LeaderIdAndEpoch { leader_id: node, leader_epoch: epoch };
        let endpoint = NodeEndpoint { node_id: node, host: "h".into(), port: 9094, rack: None };
        answer.node_endpoints = vec![endpoint];
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
        assert_eq!(stand.fetcher.next_timeout(), None, "{code}: no pause");
        let Some(FetcherEvent::NewLeader { leader, node: Some(place), .. }) = stand.fetcher.poll_event()
        else {
            panic!("{code}: whoever keeps the view is told")
        };
        assert_eq!((leader, place.port), (Leader { node, epoch }, 9094));
        assert_eq!(stand.record(), Ok(offset), "{code}");
        assert_eq!(stand.metadata, asked, "{code}");
    }
}

#[test]
fn brokers_that_send_us_to_each_other_are_asked_at_a_decent_pace() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.fetcher.take_record();
    let mut asked = 0;
    while stand.now < at(60_000) {
        while let Some((request, ticket)) = stand.next_fetch() {
            asked += 1;
            assert!(asked < 1000, "no pause");
            stand.log(0).error = Some(ErrorCode::NotLeaderOrFollower);
            let mut answer = stand.answer(&request);
            let row = &mut answer.responses[0].partitions[0];
            row.current_leader = LeaderIdAndEpoch { leader_id: asked % 2, leader_epoch: 10 + asked };
            stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
        }
        stand.now = stand.fetcher.next_timeout().unwrap_or(stand.now + Duration::from_secs(1));
        stand.fetcher.handle_timeout(stand.now);
    }
    assert!((20..100).contains(&asked), "{asked} times in a minute");
}

#[test]
fn a_hint_that_is_no_news_leads_to_a_question_for_metadata() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.fetcher.take_record();
    let (request, ticket) = stand.next_fetch().unwrap();
    stand.log(0).error = Some(ErrorCode::NotLeaderOrFollower);
    let mut answer = stand.answer(&request);
    let row = &mut answer.responses[0].partitions[0];
    row.current_leader = LeaderIdAndEpoch { leader_id: 2, leader_epoch: 3 };
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.fetcher.poll_event(), None);
    let asked = stand.metadata;
    assert_eq!((stand.record(), stand.metadata), (Ok(0), asked + 1));
}
