//! What readers of committed records see.

use std::vec;
use std::vec::Vec;

use bytes::Bytes;

use super::stand::*;
use crate::client::fetcher::*;
use tramline_wire::messages::fetch_response::AbortedTransaction;

fn aborted(rows: &[(i64, i64)]) -> Vec<AbortedTransaction> {
    rows.iter().map(|&(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset }).collect()
}

/// A reader of committed records of one partition.
fn committed(batches: Vec<Bytes>, rows: &[(i64, i64)]) -> Stand {
    let config = FetcherConfig { isolation_level: IsolationLevel::ReadCommitted, ..Default::default() };
    let mut stand = Stand::configured(config, batches);
    stand.log(0).aborted = aborted(rows);
    stand
}

/// Everything that is handed out up to the end, which the position reaches.
fn all(stand: &mut Stand) -> Vec<i64> {
    let mut offsets = Vec::new();
    while let Some((some, _)) = stand.chunk() {
        offsets.extend(some);
    }
    assert_eq!(stand.position(0), Some(stand.log(0).end()), "also past what is not seen");
    assert_eq!(stand.fetcher.buffered_bytes(), 0);
    offsets
}

/// A committed and an aborted transaction, interleaved, and a record outside of both.
fn interleaved() -> Vec<Bytes> {
    vec![
        in_transaction(0, 7),
        in_transaction(2, 8),
        batch(4, 1),
        in_transaction(5, 7),
        end_of_transaction(7, 7, false),
        in_transaction(8, 8),
        end_of_transaction(10, 8, true),
        in_transaction(11, 7),
        end_of_transaction(13, 7, true),
    ]
}

#[test]
fn b086_aborted_records_are_not_seen_and_the_next_transaction_of_the_same_producer_is() {
    let mut stand = committed(interleaved(), &[(7, 0)]);
    assert_eq!(all(&mut stand), [2, 3, 4, 8, 9, 11, 12]);
    assert!(stand.fetches.iter().all(|fetch| fetch.isolation_level == 1));
}

#[test]
fn everything_is_seen_by_a_reader_of_uncommitted_records() {
    let mut stand = Stand::with(interleaved());
    stand.log(0).aborted = aborted(&[(7, 0)]);
    assert_eq!(all(&mut stand), [0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12]);
    assert!(stand.fetches.iter().all(|fetch| fetch.isolation_level == 0));
}

#[test]
fn b086_an_abort_without_records_hides_nothing_of_what_follows() {
    // Nothing was written before the abort: it is in the log, but not in the list; or in both, at its own offset.
    for rows in [&[][..], &[(7, 0)][..]] {
        let batches =
            vec![end_of_transaction(0, 7, false), in_transaction(1, 7), end_of_transaction(3, 7, true)];
        assert_eq!(all(&mut committed(batches, rows)), [1, 2], "{rows:?}");
    }
}

#[test]
fn b086_aborted_records_that_are_compressed_are_not_seen() {
    let batches = vec![in_transaction(0, 7), end_of_transaction(2, 7, false), batch(3, 1)];
    let header = tramline_wire::BatchHeader::parse(&batches[0]).unwrap();
    assert_eq!(header.compression().unwrap(), tramline_wire::Compression::Gzip);
    assert_eq!(all(&mut committed(batches, &[(7, 0)])), [3]);
}

#[test]
fn b086_a_list_in_another_order_means_the_same() {
    let batches = || {
        vec![
            in_transaction(0, 7),
            end_of_transaction(2, 7, false),
            in_transaction(3, 8),
            end_of_transaction(5, 8, false),
            in_transaction(6, 7),
            end_of_transaction(8, 7, false),
            in_transaction(9, 7),
            end_of_transaction(11, 7, true),
        ]
    };
    for rows in [[(7, 0), (8, 3), (7, 6)], [(7, 6), (8, 3), (7, 0)], [(8, 3), (7, 6), (7, 0)]] {
        assert_eq!(all(&mut committed(batches(), &rows)), [9, 10], "{rows:?}");
    }
}

#[test]
fn b086_a_read_that_begins_inside_an_aborted_transaction_hides_its_rest() {
    let config = FetcherConfig { isolation_level: IsolationLevel::ReadCommitted, ..Default::default() };
    let mut stand = Stand::new(config);
    stand.add(
        0,
        vec![in_transaction(0, 7), in_transaction(2, 7), end_of_transaction(4, 7, false), batch(5, 1)],
    );
    stand.log(0).aborted = aborted(&[(7, 0)]);
    stand.assign(0, 3);
    assert_eq!(all(&mut stand), [5]);
}

#[test]
fn b086_each_answer_of_a_long_transaction_is_read_with_its_own_list() {
    let mut batches: Vec<Bytes> =
        (0..20).map(|n| in_transaction(2 * n, if n % 2 == 0 { 7 } else { 8 })).collect();
    let one = batches[0].len();
    batches.extend([end_of_transaction(40, 7, false), end_of_transaction(41, 8, true)]);
    let config = FetcherConfig {
        isolation_level: IsolationLevel::ReadCommitted,
        partition_max_bytes: 3 * one,
        ..Default::default()
    };
    let mut stand = Stand::configured(config, batches);
    stand.log(0).aborted = aborted(&[(7, 0)]);
    let expected: Vec<i64> = (0..40).filter(|offset| offset / 2 % 2 == 1).collect();
    assert_eq!(all(&mut stand), expected);
    assert!(stand.fetches.len() > 5);
}

#[test]
fn a_damaged_marker_is_reported_and_not_taken_for_a_commit() {
    let batches = vec![in_transaction(0, 7), damaged(&end_of_transaction(2, 7, false)), batch(3, 1)];
    let mut stand = committed(batches, &[(7, 0)]);
    assert!(matches!(stand.error(), FetchError::Corrupt { offset: 2, .. }));
}

#[test]
fn the_end_for_readers_of_committed_records_is_before_the_open_transaction() {
    let config = FetcherConfig { isolation_level: IsolationLevel::ReadCommitted, ..Default::default() };
    for (config, end) in [(config, 4), (FetcherConfig::default(), 6)] {
        let mut stand = Stand::configured(config, vec![batch(0, 4), in_transaction(4, 7)]);
        stand.log(0).open_from = Some(4);
        stand.record().unwrap();
        assert_eq!(stand.fetcher.high_watermark(&tp(0)), Some(end));
    }
}
