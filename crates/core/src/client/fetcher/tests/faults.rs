//! Fragments, damage, limits, refusals, lost leaders.

use std::vec;

use bytes::{Bytes, BytesMut};

use super::stand::*;
use crate::client::fetcher::*;
use core::time::Duration;
use tramline_wire::ErrorCode;
use tramline_wire::batch::BatchError;

fn joined(parts: &[&[u8]]) -> Option<Bytes> {
    Some(Bytes::from(parts.concat()))
}

#[test]
fn a_fragment_at_the_end_is_dropped_and_asked_for_again() {
    let mut stand = Stand::with(vec![batch(0, 2), batch(2, 2)]);
    stand.log(0).raw = joined(&[&batch(0, 2), &batch(2, 2)[..70]]);
    assert_eq!(stand.records(4), [0, 1, 2, 3]);
    assert_eq!(stand.fetches.len(), 2);
    assert_eq!(stand.fetches[1].topics[0].partitions[0].fetch_offset, 2);
}

#[test]
fn an_answer_that_ends_inside_a_header_is_a_fragment_and_no_damage() {
    for cut in 1..61 {
        let mut stand = Stand::with(vec![batch(0, 1), batch(1, 1)]);
        stand.log(0).raw = joined(&[&batch(0, 1), &batch(1, 1)[..cut]]);
        assert_eq!(stand.records(2), [0, 1], "cut at {cut}");
    }
}

#[test]
fn b083_a_fragment_alone_is_asked_for_whole() {
    let whole = batch_of(0, 1, 3000);
    let config = FetcherConfig { partition_max_bytes: 500, ..Default::default() };
    let mut stand = Stand::configured(config, vec![whole.clone(), batch(1, 1)]);
    stand.log(0).raw = Some(whole.slice(..500));
    assert_eq!(stand.records(1), [0]);
    let asked = |stand: &Stand, n: usize| {
        (stand.fetches[n].max_bytes, stand.fetches[n].topics[0].partitions[0].partition_max_bytes)
    };
    assert_eq!(asked(&stand, 1).1, i32::try_from(whole.len()).unwrap());
    assert!(asked(&stand, 1).0 >= asked(&stand, 1).1);
    assert_eq!(stand.record(), Ok(1));
    assert_eq!(asked(&stand, 2).1, 500, "once read, the usual size again");
}

#[test]
fn a_fragment_too_short_to_say_its_size_doubles_what_is_asked_for() {
    let whole = batch(0, 1);
    let config = FetcherConfig { partition_max_bytes: 10, max_bytes: 1000, ..Default::default() };
    let mut stand = Stand::configured(config, vec![whole.clone()]);
    stand.log(0).raw = Some(whole.slice(..10));
    assert_eq!(stand.record(), Ok(0));
    assert_eq!(stand.fetches[1].topics[0].partitions[0].partition_max_bytes, 20);
}

#[test]
fn b083_a_batch_that_can_never_fit_is_reported_with_the_limit_it_needs() {
    let large = batch_of(3, 1, 500);
    let config = FetcherConfig { max_bytes: 500, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 3), large.clone()]);
    // The broker returns the first batch whole; the limit is the reader's to enforce.
    assert_eq!(stand.records(3), [0, 1, 2]);
    let error = stand.error();
    let FetchError::RecordExceedsMaxBytes { offset, needed_bytes, max_bytes, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((offset, needed_bytes, max_bytes), (3, large.len(), 500));
    assert_eq!(stand.position(0), Some(3));
    assert!(stand.next_fetch().is_none(), "asking again would be the same question for ever");
    // With the limit that was named, it is read.
    let config = FetcherConfig { max_bytes: large.len(), ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 3), large]);
    assert_eq!(stand.records(4), [0, 1, 2, 3]);
}

#[test]
fn b083_a_fragment_of_a_batch_that_can_never_fit_is_reported_too() {
    let large = batch_of(0, 1, 500);
    let config = FetcherConfig { max_bytes: 500, ..Default::default() };
    let mut stand = Stand::configured(config, vec![large.clone()]);
    stand.log(0).raw = Some(large.slice(..500));
    let error = stand.error();
    assert!(
        matches!(error, FetchError::RecordExceedsMaxBytes { offset: 0, needed_bytes, .. } if needed_bytes == large.len()),
        "{error:?}"
    );
}

#[test]
fn b083_other_partitions_go_on_beside_one_that_stands_still() {
    let config = FetcherConfig { max_bytes: 500, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch_of(0, 1, 600)]);
    stand.add(1, vec![batch(0, 3)]);
    stand.assign(1, 0);
    let mut seen = vec![];
    let mut errors = 0;
    while seen.len() < 3 {
        match stand.fetcher.take_record() {
            Some(Ok(record)) => seen.push(record.offset()),
            Some(Err(_)) => errors += 1,
            None => stand.settle(),
        }
    }
    assert_eq!((seen, errors), (vec![0, 1, 2], 1), "reported once");
    stand.fetcher.pause(&tp(1));
    assert!(matches!(stand.fetcher.take_record(), Some(Err(_))), "and again when nothing else is left");
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(1)));
    assert!(stand.fetcher.take_record().is_none());
}

#[test]
fn damage_is_reported_at_its_offset_after_everything_before_it() {
    let mut stand = Stand::with(vec![batch(0, 2), damaged(&batch(2, 2)), batch(4, 1)]);
    assert_eq!(stand.chunk(), Some((vec![0, 1], 2)));
    let error = stand.error();
    let FetchError::Corrupt { offset: 2, source: BatchError::Crc { stored, computed, .. }, .. } = error
    else {
        panic!("{error:?}")
    };
    assert_ne!(stored, computed);
    assert_eq!(stand.position(0), Some(2));
    // Read again: the damage was on the way, not in the log.
    *stand.log(0) = Log { batches: vec![batch(0, 2), batch(2, 2), batch(4, 1)], ..Default::default() };
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.records(3), [2, 3, 4]);
}

#[test]
fn a_truncated_answer_is_never_reported_as_damage() {
    let whole = [&batch(0, 3)[..], &batch(3, 3)[..]].concat();
    for cut in 0..whole.len() {
        let mut stand = Stand::with(vec![batch(0, 3), batch(3, 3)]);
        stand.log(0).raw = Some(Bytes::from(whole[..cut].to_vec()));
        assert_eq!(stand.records(6), [0, 1, 2, 3, 4, 5], "cut at {cut}");
    }
}

#[test]
fn bytes_that_are_no_batch_are_reported_and_the_position_stays() {
    let mut stand = Stand::with(vec![batch(0, 1)]);
    let mut old = BytesMut::from(&batch(0, 1)[..]);
    old[16] = 1;
    stand.log(0).raw = Some(old.freeze());
    let error = stand.error();
    assert!(matches!(error, FetchError::Corrupt { source: BatchError::WrongMagic { .. }, .. }), "{error:?}");
    assert_eq!(stand.position(0), Some(0));
}

#[test]
fn an_answer_without_anything_new_is_a_broken_peer_and_no_endless_loop() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.add(0, vec![batch(0, 10)]);
    stand.assign(0, 5);
    stand.log(0).raw = Some(batch(0, 3));
    let error = stand.error();
    assert!(matches!(error, FetchError::BrokenPeer { offset: 5, .. }), "{error:?}");
}

#[test]
fn out_of_range_reaches_the_caller_without_a_reset_policy() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.add(0, vec![batch(0, 3)]);
    stand.assign(0, 99);
    let error = stand.error();
    assert!(matches!(error, FetchError::OffsetOutOfRange { offset: 99, .. }), "{error:?}");
    assert_eq!(stand.position(0), Some(99));
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(1)));
    assert_eq!(stand.record(), Ok(1));
}

#[test]
fn b094_b209_out_of_range_follows_the_reset_policy_and_says_what_was_skipped() {
    for (policy, to) in [(OffsetReset::Earliest, 1000), (OffsetReset::Latest, 1010)] {
        let config = FetcherConfig { offset_reset: policy, ..Default::default() };
        let mut stand = Stand::configured(config, vec![batch(1000, 10)]);
        stand.log(0).start = 1000;
        while stand.position(0) != Some(to) {
            stand.fetcher.take_record();
            stand.settle();
        }
        let gap = FetcherEvent::Reset { topic_partition: tp(0), from: Some(0), to };
        assert_eq!(stand.fetcher.poll_event(), Some(gap));
        assert_eq!(stand.fetcher.poll_event(), None);
    }
}

#[test]
fn a_lost_offset_behind_buffered_records_waits_for_them() {
    let config =
        FetcherConfig { prefetch_bytes: 1 << 20, offset_reset: OffsetReset::Earliest, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 2), batch(2, 2)]);
    stand.log(0).raw = Some(batch(0, 2));
    let (request, ticket) = stand.next_fetch().unwrap();
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    *stand.log(0) = Log { start: 50, batches: vec![batch(50, 1)], ..Default::default() };
    let (request, ticket) = stand.next_fetch().unwrap();
    assert_eq!(request.topics[0].partitions[0].fetch_offset, 2);
    let answer = stand.answer(&request);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    assert_eq!(stand.records(3), [0, 1, 50]);
    let gap = FetcherEvent::Reset { topic_partition: tp(0), from: Some(2), to: 50 };
    assert_eq!(stand.fetcher.poll_event(), Some(gap));
}

#[test]
fn no_committed_offset_and_no_policy_is_an_error() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.add(0, vec![batch(0, 3)]);
    stand.fetcher.assign(tp(0), 1, Start::Awaiting);
    stand.fetcher.no_position(&tp(0), 1);
    assert!(matches!(stand.error(), FetchError::NoPosition { .. }));
    assert_eq!(stand.position(0), None);
    stand.fetcher.resume(&tp(0));
    assert_eq!(stand.fetcher.awaiting_position().count(), 1, "resuming asks again");
}

#[test]
fn a_refusal_reaches_the_caller() {
    for code in
        [ErrorCode::TopicAuthorizationFailed, ErrorCode::CorruptMessage, ErrorCode::InvalidTopicException]
    {
        let mut stand = Stand::with(vec![batch(0, 3)]);
        stand.log(0).error = Some(code);
        let error = stand.error();
        assert!(matches!(error, FetchError::Refused { code: got, .. } if got == code), "{error:?}");
        stand.fetcher.resume(&tp(0));
        assert_eq!(stand.record(), Ok(0));
    }
}

#[test]
fn a_leader_that_is_none_any_more_is_looked_up_again() {
    for code in [
        ErrorCode::NotLeaderOrFollower,
        ErrorCode::FencedLeaderEpoch,
        ErrorCode::UnknownTopicOrPartition,
        ErrorCode::KafkaStorageError,
        ErrorCode::UnknownTopicId,
        ErrorCode::Unknown(4242),
    ] {
        let mut stand = Stand::with(vec![batch(0, 3)]);
        stand.fetcher.take_record();
        stand.log(0).error = Some(code);
        let (request, ticket) = stand.next_fetch().unwrap();
        let answer = stand.answer(&request);
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
        stand.leaders.insert(0, 2);
        assert!(stand.next_fetch().is_none(), "{code}: only after a pause");
        assert_eq!(stand.record(), Ok(0), "{code}");
        assert_eq!(stand.metadata, 2, "{code}");
    }
}

#[test]
fn b079_transient_errors_never_reset_the_position() {
    let config = FetcherConfig { offset_reset: OffsetReset::Earliest, ..Default::default() };
    let mut stand = Stand::new(config);
    stand.add(0, vec![batch(0, 10)]);
    stand.assign(0, 7);
    for code in [ErrorCode::UnknownLeaderEpoch, ErrorCode::OffsetNotAvailable, ErrorCode::RequestTimedOut] {
        stand.log(0).error = Some(code);
        stand.fetcher.take_record();
        stand.settle();
        assert_eq!(stand.position(0), Some(7), "{code}");
        stand.now += Duration::from_secs(10);
        stand.fetcher.handle_timeout(stand.now);
    }
    assert_eq!(stand.record(), Ok(7));
}

#[test]
fn b079_a_failed_lookup_is_repeated_and_never_turned_into_a_reset() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.add(0, vec![batch(0, 3)]);
    stand.fetcher.assign(tp(0), 1, Start::Lookup(OffsetSpec::Earliest));
    stand.log(0).error = Some(ErrorCode::NotLeaderOrFollower);
    stand.settle();
    stand.up = false;
    for _ in 0..5 {
        stand.now += Duration::from_secs(2);
        stand.fetcher.handle_timeout(stand.now);
        stand.settle();
    }
    assert_eq!(stand.position(0), None);
    stand.up = true;
    assert_eq!(stand.record(), Ok(0));
}

#[test]
fn b095_a_broker_that_is_away_is_asked_again_with_growing_pauses() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.fetcher.take_record();
    stand.settle();
    assert_eq!(stand.record(), Ok(0));
    stand.fetcher.seek(&tp(0), Start::Offset(Position::at(1)));
    stand.up = false;
    let mut asked = vec![];
    while stand.now < at(20_000) {
        let before = stand.fetches.len() + stand.metadata;
        stand.fetcher.take_record();
        stand.settle();
        if stand.fetches.len() + stand.metadata > before {
            asked.push(stand.now.since_start().as_millis());
        }
        stand.now =
            stand.fetcher.next_timeout().unwrap_or(at(20_000)).max(stand.now + Duration::from_millis(1));
        stand.fetcher.handle_timeout(stand.now);
    }
    assert!((10..60).contains(&asked.len()), "neither given up nor spinning: {asked:?}");
    stand.up = true;
    assert_eq!(stand.record(), Ok(1), "and nothing is lost when it is back");
}

#[test]
fn b089_a_recreated_topic_is_noticed_by_its_id() {
    for (policy, expected) in [(OffsetReset::None, None), (OffsetReset::Earliest, Some(0))] {
        let config = FetcherConfig { offset_reset: policy, ..Default::default() };
        let mut stand = Stand::configured(config, vec![batch(0, 100)]);
        stand.records(50);
        *stand.log(0) = Log { batches: vec![batch(0, 5)], ..Default::default() };
        stand.topic_id = 8;
        stand.fetcher.metadata_changed(&stand.view());
        match expected {
            Some(offset) => assert_eq!(stand.record(), Ok(offset)),
            None => {
                let error = stand.error();
                assert!(matches!(error, FetchError::TopicRecreated { offset: 50, .. }), "{error:?}");
            }
        }
    }
}

#[test]
fn b091_a_leader_without_epochs_is_read_from() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    let mut view = stand.view();
    for topic in view.topics.values_mut() {
        topic.partitions[0].leader_epoch = -1;
    }
    stand.fetcher.handle_metadata(Some(&view), stand.now);
    assert_eq!(stand.records(3), [0, 1, 2]);
    assert_eq!(stand.fetches[0].topics[0].partitions[0].current_leader_epoch, -1);
}

#[test]
fn a_recreated_topic_without_a_leader_so_far_is_asked_about_until_it_has_one() {
    let config = FetcherConfig { offset_reset: OffsetReset::Earliest, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 2)]);
    assert_eq!(stand.records(2), [0, 1]);
    stand.topic_id += 1;
    *stand.log(0) = Log { batches: vec![batch(0, 1)], ..Default::default() };
    stand.leaders.insert(0, -1);
    stand.fetcher.metadata_changed(&stand.view());
    stand.settle();
    assert!(stand.metadata > 0, "nobody else would ask");
    stand.leaders.insert(0, 1);
    assert_eq!(stand.records(1), [0]);
}
