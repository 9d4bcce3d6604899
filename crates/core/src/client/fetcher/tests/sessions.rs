//! Fetch sessions: what is named, what is left out, and what ends them.

use std::vec;
use std::vec::Vec;

use super::stand::*;
use crate::client::fetcher::*;
use core::time::Duration;
use tramline_wire::ErrorCode;
use tramline_wire::messages::{FetchRequest, FetchResponse};

/// A stand with sessions and this many partitions of ten records each, read up to their ends.
fn at_the_ends(partitions: i32) -> Stand {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.session = Some(Remembered::default());
    for partition in 0..partitions {
        stand.add(partition, vec![batch(0, 10)]);
        stand.assign(partition, 0);
    }
    stand.records(usize::try_from(partitions).unwrap() * 10);
    stand
}

/// Polls, and answers the fetch that follows.
fn fetch(stand: &mut Stand) -> FetchRequest {
    assert!(stand.fetcher.take_record().is_none());
    let (request, ticket) = stand.next_fetch().expect("a poll of an empty buffer asks");
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    request
}

fn named(request: &FetchRequest) -> Vec<i32> {
    request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|row| row.partition)).collect()
}

fn forgotten(request: &FetchRequest) -> Vec<i32> {
    request.forgotten_topics_data.iter().flat_map(|topic| topic.partitions.clone()).collect()
}

#[test]
fn the_first_fetch_opens_a_session_and_the_next_ones_name_what_changed() {
    let mut stand = at_the_ends(3);
    assert_eq!((stand.fetches[0].session_id, stand.fetches[0].session_epoch), (0, 0));
    assert_eq!(named(&stand.fetches[0]), [0, 1, 2]);
    let moved = fetch(&mut stand);
    assert_eq!((moved.session_id, moved.session_epoch), (1, 1));
    assert_eq!(named(&moved), [0, 1, 2], "every offset moved");
    let idle = fetch(&mut stand);
    assert_eq!((idle.session_id, idle.session_epoch, named(&idle)), (1, 2, vec![]));
    stand.log(1).batches.push(batch(10, 1));
    assert_eq!(named(&fetch(&mut stand)), Vec::<i32>::new());
    assert_eq!(stand.records(1), [10], "the answer named the one with news");
    let next = fetch(&mut stand);
    assert_eq!((next.session_epoch, named(&next)), (4, vec![1]));
}

#[test]
fn partitions_that_are_not_wanted_any_more_are_forgotten() {
    let mut stand = at_the_ends(3);
    fetch(&mut stand);
    stand.fetcher.pause(&tp(1));
    stand.fetcher.unassign(&tp(2));
    let request = fetch(&mut stand);
    assert_eq!((named(&request), forgotten(&request)), (vec![], vec![1, 2]));
    stand.log(1).batches.push(batch(10, 1));
    fetch(&mut stand);
    assert_eq!(stand.fetcher.buffered_bytes(), 0, "nothing of a paused partition is sent");
    stand.fetcher.resume(&tp(1));
    let request = fetch(&mut stand);
    assert_eq!((named(&request), forgotten(&request)), (vec![1], vec![]));
    assert_eq!(stand.records(1), [10]);
}

#[test]
fn a_session_that_is_refused_is_dropped_and_everything_is_named_at_once() {
    for (code, closes) in [
        (ErrorCode::FetchSessionIdNotFound, 0),
        (ErrorCode::InvalidFetchSessionEpoch, 1),
        (ErrorCode::FetchSessionTopicIdError, 1),
    ] {
        let mut stand = at_the_ends(2);
        fetch(&mut stand);
        let (_, ticket) = {
            stand.fetcher.take_record();
            stand.next_fetch().unwrap()
        };
        let refused = FetchResponse { error_code: code.code(), ..Default::default() };
        stand.fetcher.handle_fetch(ticket, Some(refused), stand.now);
        let full = fetch(&mut stand);
        assert_eq!((full.session_id, full.session_epoch), (closes, 0), "{code}");
        assert_eq!(named(&full), [0, 1], "{code}");
        let next = fetch(&mut stand);
        assert_eq!((next.session_id, next.session_epoch), (2, 1), "{code}: in a new session");
    }
}

#[test]
fn a_full_fetch_that_is_refused_is_not_repeated_at_once() {
    let mut stand = at_the_ends(1);
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(3)));
    for _ in 0..2 {
        stand.fetcher.take_record();
        let (_, ticket) = stand.next_fetch().unwrap();
        let code = ErrorCode::FetchSessionIdNotFound.code();
        let refused = FetchResponse { error_code: code, ..Default::default() };
        stand.fetcher.handle_fetch(ticket, Some(refused), stand.now);
    }
    assert!(stand.next_fetch().is_none(), "only after a pause");
    assert_eq!(stand.record(), Ok(3));
}

#[test]
fn an_answer_that_never_came_ends_the_session() {
    let mut stand = at_the_ends(2);
    fetch(&mut stand);
    stand.fetcher.take_record();
    let (lost, ticket) = stand.next_fetch().unwrap();
    // The broker counted it.
    stand.answer(&lost);
    stand.fetcher.handle_fetch(ticket, None, stand.now);
    stand.now += Duration::from_secs(1);
    stand.fetcher.handle_timeout(stand.now);
    let full = fetch(&mut stand);
    assert_eq!((full.session_id, full.session_epoch, named(&full)), (1, 0, vec![0, 1]));
}

#[test]
fn a_broker_without_sessions_is_asked_in_full_every_time() {
    let mut stand = at_the_ends(2);
    stand.session = None;
    fetch(&mut stand);
    for _ in 0..3 {
        let full = fetch(&mut stand);
        assert_eq!((full.session_id, full.session_epoch, named(&full)), (0, 0, vec![0, 1]));
    }
    let config = FetcherConfig { fetch_sessions: false, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 1)]);
    assert_eq!(stand.records(1), [0]);
    assert_eq!((stand.fetches[0].session_id, stand.fetches[0].session_epoch), (0, -1));
}

#[test]
fn a_topic_under_a_new_id_begins_a_new_session() {
    let mut stand = at_the_ends(2);
    fetch(&mut stand);
    stand.topic_id = 8;
    stand.fetcher.metadata_changed(&stand.view());
    for partition in 0..2 {
        stand.fetcher.seek(&tp(partition), Start::Offset(Position::at(10)));
    }
    let full = fetch(&mut stand);
    assert_eq!((full.session_id, full.session_epoch, named(&full)), (1, 0, vec![0, 1]));
}

#[test]
fn a_row_that_was_not_asked_for_ends_the_session_and_a_missing_one_is_waited_for() {
    let mut stand = at_the_ends(2);
    fetch(&mut stand);
    stand.fetcher.take_record();
    let (request, ticket) = stand.next_fetch().unwrap();
    stand.add(5, vec![]);
    let mut answer = stand.answer(&request);
    let stray =
        tramline_wire::messages::fetch_response::PartitionData { partition_index: 5, ..Default::default() };
    answer.responses.push(tramline_wire::messages::fetch_response::FetchableTopicResponse {
        topic_id: stand.fetches[0].topics[0].topic_id,
        partitions: vec![stray],
        ..Default::default()
    });
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    stand.fetcher.take_record();
    let (full, ticket) = stand.next_fetch().unwrap();
    assert_eq!((full.session_epoch, named(&full)), (0, vec![0, 1]));
    let mut answer = stand.answer(&full);
    answer.responses[0].partitions.remove(0);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    let next = fetch(&mut stand);
    assert_eq!((next.session_epoch, named(&next)), (0, vec![1]), "the other one waits out its pause");
}

#[test]
fn epochs_go_on_at_one_after_the_largest() {
    let mut session = super::super::session::Session::default();
    let mut answer = FetchResponse { session_id: 5, ..Default::default() };
    session.next(Vec::new());
    assert!(session.answered(false, &answer));
    session.set_epoch(i32::MAX);
    assert!(session.answered(true, &answer));
    assert_eq!(session.next(Vec::new()).session_epoch, 1);
    answer.session_id = 0;
    assert!(session.answered(true, &answer), "the broker closed it");
    let next = session.next(Vec::new());
    assert_eq!((next.session_id, next.session_epoch), (0, 0));
}

#[test]
fn an_idle_reader_of_two_hundred_partitions_sends_a_fixed_few_bytes() {
    let size = |request: &FetchRequest| {
        tramline_wire::encode_request(1, Some("tramline"), 17, request).unwrap().len()
    };
    let mut stand = at_the_ends(200);
    fetch(&mut stand);
    let with = size(&fetch(&mut stand));
    let config = FetcherConfig { fetch_sessions: false, ..Default::default() };
    let mut stand = Stand::new(config);
    for partition in 0..200 {
        stand.add(partition, vec![]);
        stand.assign(partition, 0);
    }
    let without = size(&fetch(&mut stand));
    std::println!("bytes of a fetch request, 200 idle partitions: {with} in a session, {without} without");
    assert!(with < 100 && without > 200 * 32, "{with} and {without}");
}
