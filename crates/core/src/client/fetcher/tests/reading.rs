//! What a reader sees of a sound log: order, positions, gaps, limits, requests.

use std::vec;

use super::stand::*;
use crate::client::fetcher::*;
use core::time::Duration;

#[test]
fn records_come_in_order_and_position_and_lag_follow() {
    let mut stand = Stand::with(vec![batch(0, 2), batch(2, 1)]);
    assert_eq!(stand.records(3), [0, 1, 2]);
    assert_eq!(stand.position(0), Some(3));
    assert_eq!(stand.fetcher.high_watermark(&tp(0)), Some(3));
}

#[test]
fn a_poll_at_the_end_gives_nothing_and_moves_nothing() {
    let mut stand = Stand::with(vec![batch(0, 3)]);
    stand.records(3);
    assert_eq!(stand.record(), Err("nothing more".into()));
    assert_eq!(stand.position(0), Some(3));
    stand.log(0).batches.push(batch(3, 1));
    assert_eq!(stand.record(), Ok(3));
}

#[test]
fn b052_records_below_the_position_are_dropped() {
    let mut stand = Stand::new(FetcherConfig::default());
    stand.add(0, vec![batch(0, 10)]);
    stand.assign(0, 7);
    assert_eq!(stand.records(3), [7, 8, 9]);
}

#[test]
fn control_records_are_passed_and_the_position_with_them() {
    let mut stand = Stand::with(vec![control(0), batch(1, 1), control(2), control(3)]);
    assert_eq!(stand.chunk(), Some((vec![1], 4)));
    assert_eq!(stand.position(0), Some(4));
}

#[test]
fn nothing_but_control_records_still_moves_the_position() {
    let mut stand = Stand::with(vec![batch(0, 1), control(1)]);
    assert_eq!(stand.record(), Ok(0));
    assert_eq!(stand.position(0), Some(1));
    assert_eq!(stand.chunk(), Some((vec![], 2)), "an empty chunk says so");
}

#[test]
fn b085_a_batch_emptied_by_compaction_does_not_trap_the_reader() {
    let mut stand = Stand::with(vec![batch(0, 1), emptied(100, 109), batch(200, 1)]);
    assert_eq!(stand.records(1), [0]);
    assert_eq!(stand.chunk(), Some((vec![200], 201)));
    let mut alone = Stand::with(vec![emptied(0, 109)]);
    assert_eq!(alone.chunk(), Some((vec![], 110)));
}

#[test]
fn the_position_is_per_record_and_past_the_batch_with_its_last() {
    let mut stand = Stand::with(vec![batch(0, 3), control(3), batch(4, 1)]);
    assert_eq!(stand.record(), Ok(0));
    assert_eq!(stand.position(0), Some(1));
    assert_eq!(stand.records(2), [1, 2]);
    assert_eq!(stand.position(0), Some(3));
    assert_eq!(stand.fetcher.position(&tp(0)).unwrap().leader_epoch, Some(3));
}

#[test]
fn b196_a_chunk_is_bounded_and_the_rest_stays_in_front() {
    let config = FetcherConfig { max_poll_records: 4, ..Default::default() };
    let mut stand = Stand::configured(config, vec![batch(0, 6), batch(6, 3)]);
    assert_eq!(stand.chunk(), Some((vec![0, 1, 2, 3], 4)));
    assert_eq!(stand.record(), Ok(4), "records and chunks can be mixed");
    assert_eq!(stand.chunk(), Some((vec![5, 6, 7, 8], 9)));
    assert_eq!(stand.fetches.len(), 1);
}

#[test]
fn without_prefetch_the_next_fetch_waits_for_a_poll_of_an_empty_buffer() {
    let mut stand = Stand::with(vec![batch(0, 2)]);
    assert!(stand.next_fetch().is_none(), "nobody has polled");
    assert!(stand.fetcher.take_record().is_none());
    stand.settle();
    assert_eq!(stand.fetches.len(), 1);
    stand.log(0).batches.push(batch(2, 1));
    assert_eq!(stand.record(), Ok(0));
    assert!(stand.next_fetch().is_none(), "a record is left");
    assert_eq!(stand.record(), Ok(1));
    assert!(stand.next_fetch().is_none(), "the last one is in the caller's hands");
    assert!(stand.fetcher.take_record().is_none());
    assert!(stand.next_fetch().is_some());
}

#[test]
fn prefetch_reads_ahead_up_to_its_bytes_and_never_moves_the_position() {
    let one = batch_of(0, 1, 400).len();
    let config = FetcherConfig { prefetch_bytes: 3 * one, partition_max_bytes: one, ..Default::default() };
    let batches = (0..10).map(|offset| batch_of(offset, 1, 400)).collect();
    let mut stand = Stand::configured(config, batches);
    stand.settle();
    while let Some((request, ticket)) = stand.next_fetch() {
        let answer = stand.answer(&request);
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    }
    assert_eq!(
        stand.fetcher.buffered_bytes(),
        one,
        "a partition with as much as one answer is not asked for"
    );
    assert_eq!(stand.position(0), Some(0));
    assert_eq!(stand.records(10), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_fetch_carries_exactly_what_was_configured() {
    let config = FetcherConfig {
        min_bytes: 17,
        max_wait: Duration::from_millis(1234),
        partition_max_bytes: 5_000,
        fetch_max_bytes: 60_000,
        ..Default::default()
    };
    let mut stand = Stand::configured(config, vec![batch(0, 1)]);
    stand.fetcher.take_record();
    let (request, _) = stand.next_fetch().unwrap();
    assert_eq!((request.min_bytes, request.max_wait_ms, request.max_bytes), (17, 1234, 60_000));
    assert_eq!((request.session_id, request.session_epoch, request.replica_id), (0, 0, -1));
    assert_eq!(request.isolation_level, 0);
    let part = &request.topics[0].partitions[0];
    assert_eq!((part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch), (0, 5_000, 3));
    assert!(!request.topics[0].topic_id.is_zero());
}

#[test]
fn one_fetch_per_leader_is_under_way() {
    let mut stand = Stand::new(FetcherConfig::default());
    for partition in 0..4 {
        stand.add(partition, vec![batch(0, 1)]);
        stand.leaders.insert(partition, partition % 2);
        stand.assign(partition, 0);
    }
    stand.fetcher.take_record();
    let (first, ticket) = stand.next_fetch().unwrap();
    let (second, _) = stand.next_fetch().unwrap();
    assert!(stand.next_fetch().is_none());
    let asked = |request: &tramline_wire::messages::FetchRequest| {
        request.topics[0].partitions.iter().map(|p| p.partition).collect::<vec::Vec<_>>()
    };
    assert_eq!((asked(&first), asked(&second)), (vec![0, 2], vec![1, 3]));
    stand.fetcher.handle_fetch(ticket, None, stand.now);
}

#[test]
fn a_partition_at_its_end_does_not_keep_busy_ones_waiting() {
    let one = batch_of(0, 1, 400).len();
    let config = FetcherConfig {
        prefetch_bytes: 100 * one,
        partition_max_bytes: 2 * one,
        max_wait: Duration::from_millis(500),
        ..Default::default()
    };
    let mut stand = Stand::new(config);
    stand.add(0, vec![]);
    stand.add(1, (0..100).map(|offset| batch_of(offset, 1, 400)).collect());
    stand.assign(0, 0);
    stand.assign(1, 0);
    let (both, ticket) = stand.next_fetch().unwrap();
    assert_eq!((both.topics[0].partitions.len(), both.max_wait_ms), (2, 500));
    let answer = stand.answer(&both);
    stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    // The second has enough, so only the first is asked for; nothing is taken meanwhile, so the waits grow.
    let mut waits = vec![];
    let mut wait_out = |stand: &mut Stand| {
        let (request, ticket) = stand.next_fetch().unwrap();
        assert_eq!(request.topics[0].partitions.len(), 1);
        waits.push(request.max_wait_ms);
        stand.now += Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap());
        let answer = stand.answer(&request);
        stand.fetcher.handle_fetch(ticket, Some(answer), stand.now);
    };
    for _ in 0..12 {
        wait_out(&mut stand);
    }
    // A record is taken, and the second still has enough for a moment: it is asked for soon.
    assert_eq!(stand.fetcher.take_record().unwrap().unwrap().offset(), 0);
    let (request, _) = stand.next_fetch().unwrap();
    assert_eq!((request.topics[0].partitions.len(), request.max_wait_ms), (2, 500), "it has room again");
    assert_eq!(waits, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]);
}

#[test]
fn b092_later_partitions_do_not_starve_under_a_byte_limit() {
    let one = batch_of(0, 1, 1000).len();
    let config = FetcherConfig { fetch_max_bytes: 2 * one, partition_max_bytes: one, ..Default::default() };
    // Without a session the reader asks in the order of who waited longest; in one the broker keeps the order.
    for session in [false, true] {
        let mut stand = Stand::new(config.clone());
        stand.session = session.then(Remembered::default);
        for partition in 0..10 {
            stand.add(partition, (0..50).map(|offset| batch_of(offset, 1, 1000)).collect());
            stand.assign(partition, 0);
        }
        for _ in 0..100 {
            stand.record().unwrap();
        }
        let positions: vec::Vec<i64> = (0..10).map(|partition| stand.position(partition).unwrap()).collect();
        let (least, most) = (positions.iter().min().unwrap(), positions.iter().max().unwrap());
        assert!(most - least <= 1 + i64::from(session), "{session}: {positions:?}");
    }
}

#[test]
fn starts_are_looked_up_at_the_leader() {
    let mut stand = Stand::new(FetcherConfig::default());
    for partition in 0..3 {
        stand.add(partition, vec![batch(5, 5)]);
        stand.log(partition).start = 5;
    }
    stand.fetcher.assign(tp(0), 1, Start::Lookup(OffsetSpec::Earliest));
    stand.fetcher.assign(tp(1), 1, Start::Lookup(OffsetSpec::Latest));
    stand.fetcher.assign(tp(2), 1, Start::Lookup(OffsetSpec::Timestamp(99)));
    assert_eq!(stand.position(0), None, "not known yet");
    assert_eq!(stand.record(), Ok(5));
    assert_eq!(
        (stand.position(1), stand.position(2)),
        (Some(10), Some(10)),
        "no record is late enough: the end"
    );
    assert_eq!(stand.lookups, 2, "all of a leader's in one request, the timestamp again");
    assert!(stand.fetcher.poll_event().is_none(), "a start is not a reset");
}

#[test]
fn a_partition_that_awaits_its_committed_offset_is_not_read_before() {
    let config = FetcherConfig { offset_reset: OffsetReset::Earliest, ..Default::default() };
    let mut stand = Stand::new(config);
    for partition in 0..2 {
        stand.add(partition, vec![batch(0, 10)]);
        stand.fetcher.assign(tp(partition), 4, Start::Awaiting);
    }
    assert_eq!(stand.record(), Err("nothing more".into()));
    assert_eq!(stand.fetcher.awaiting_position().count(), 2);
    stand.fetcher.position_known(&tp(0), 3, Position::at(1));
    assert_eq!(stand.fetcher.awaiting_position().count(), 2, "an answer for an earlier assignment");
    stand.fetcher.position_known(&tp(0), 4, Position::at(8));
    stand.fetcher.no_position(&tp(1), 4);
    let mut all = stand.records(12);
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9]);
}
