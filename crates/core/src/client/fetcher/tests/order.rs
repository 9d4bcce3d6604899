//! Seeks, pauses, revocations and assignments against data that is buffered or under way.

use std::vec;

use super::stand::*;
use crate::client::fetcher::*;

/// A stand whose first fetch is under way.
fn under_way() -> (Stand, tramline_wire::messages::FetchRequest, FetchTicket) {
    let mut stand = Stand::with(vec![batch(0, 10)]);
    stand.fetcher.take_record();
    let (request, ticket) = stand.next_fetch().unwrap();
    (stand, request, ticket)
}

#[test]
fn a_seek_hides_what_is_buffered() {
    let mut stand = Stand::with(vec![batch(0, 10), batch(10, 10)]);
    assert_eq!(stand.records(2), [0, 1]);
    assert!(stand.fetcher.seek(&tp(0), Start::Offset(Position::at(15))));
    assert_eq!(stand.position(0), Some(15));
    assert_eq!(stand.fetcher.buffered_bytes(), 0);
    assert_eq!(stand.record(), Ok(15));
    assert!(stand.fetcher.seek(&tp(0), Start::Offset(Position::at(3))));
    assert_eq!(stand.records(2), [3, 4]);
}

#[test]
fn a_seek_hides_what_is_under_way() {
    let (mut stand, request, ticket) = under_way();
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(5)));
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.fetcher.buffered_bytes(), 0);
    assert_eq!(stand.position(0), Some(5));
    assert_eq!(stand.record(), Ok(5));
}

#[test]
fn a_seek_back_to_the_offset_under_way_still_reads_it_once() {
    let (mut stand, request, ticket) = under_way();
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(0)));
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.fetcher.buffered_bytes(), 0, "the answer belongs to the time before the seek");
    assert_eq!(stand.records(10), (0..10).collect::<vec::Vec<_>>());
}

#[test]
fn a_seek_survives_a_pause_and_a_resume() {
    let mut stand = Stand::with(vec![batch(0, 20)]);
    stand.record().unwrap();
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(10)));
    stand.fetcher.pause(&tp(0));
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.record(), Ok(10));
}

#[test]
fn a_pause_takes_effect_before_the_next_record_and_loses_nothing() {
    let mut stand = Stand::with(vec![batch(0, 10)]);
    assert_eq!(stand.records(3), [0, 1, 2]);
    stand.fetcher.pause(&tp(0));
    assert!(stand.fetcher.take_record().is_none());
    assert!(stand.fetcher.take_batch().is_none());
    assert!(stand.next_fetch().is_none(), "nothing is asked for either");
    assert_eq!(stand.position(0), Some(3));
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.records(7), [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(stand.fetches.len(), 1, "nothing was read twice");
}

#[test]
fn an_answer_that_arrives_during_a_pause_is_kept() {
    let (mut stand, request, ticket) = under_way();
    stand.fetcher.pause(&tp(0));
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert!(stand.fetcher.take_record().is_none());
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.fetcher.take_record().unwrap().unwrap().offset(), 0);
}

#[test]
fn resuming_what_is_not_paused_changes_nothing() {
    let mut stand = Stand::with(vec![batch(0, 60)]);
    stand.records(50);
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.record(), Ok(50));
}

#[test]
fn a_paused_partition_with_a_full_buffer_does_not_stop_the_others() {
    let config = FetcherConfig { prefetch_bytes: 100, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 50)]);
    stand.settle();
    stand.fetcher.pause(&tp(0));
    stand.add(1, vec![batch(0, 2)]);
    stand.assign(1, 0);
    stand.fetcher.handle_metadata(Some(&stand.view()), stand.now);
    assert_eq!(stand.records(2), [0, 1]);
    assert_eq!(stand.position(1), Some(2));
}

#[test]
fn nothing_of_a_withheld_partition_is_handed_out_and_its_position_stays_readable() {
    let (mut stand, request, ticket) = under_way();
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.record(), Ok(0));
    stand.fetcher.withhold(&tp(0));
    assert!(stand.fetcher.take_record().is_none());
    assert!(stand.next_fetch().is_none());
    assert_eq!(stand.position(0), Some(1));
    assert_eq!(stand.fetcher.owned(&tp(0)), Some(1));
    assert_eq!(stand.fetcher.assignment().count(), 0);
    assert!(!stand.fetcher.seek(&tp(0), Start::Offset(Position::at(5))));
    stand.fetcher.unassign(&tp(0));
    assert_eq!(stand.position(0), None);
}

#[test]
fn a_partition_that_leaves_and_comes_back_between_two_polls_starts_anew() {
    let (mut stand, request, ticket) = under_way();
    stand.fetcher.withhold(&tp(0));
    stand.fetcher.unassign(&tp(0));
    stand.fetcher.assign(tp(0), 2, Start::Awaiting);
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.fetcher.buffered_bytes(), 0, "the answer belongs to the earlier assignment");
    stand.fetcher.position_known(&tp(0), 2, Position::at(7));
    let fetched = loop {
        match stand.fetcher.take_batch() {
            Some(fetched) => break fetched.unwrap(),
            None => stand.settle(),
        }
    };
    assert_eq!((fetched.generation, fetched.next_offset, fetched.records.len()), (2, 10, 3));
}

#[test]
fn partitions_take_turns() {
    let config = FetcherConfig { max_poll_records: 2, ..Default::default() };
    let mut stand = Stand::new(config);
    for partition in 0..3 {
        stand.add(partition, vec![batch(0, 4)]);
        stand.assign(partition, 0);
    }
    let mut turns = vec![];
    while turns.len() < 6 {
        match stand.fetcher.take_batch() {
            Some(fetched) => turns.push(fetched.unwrap().topic_partition.partition),
            None => stand.settle(),
        }
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}
