//! Every row of the error table's columns for reading, through the fetcher.

use super::super::*;
use super::stand::*;
use crate::client::error_actions::{Action, walk};

/// What the fetcher was seen to do after its one partition was answered with an error.
fn seen(stand: &mut Stand) -> Action {
    // Nothing is fetched before somebody wants a record.
    assert!(stand.fetcher.take_record().is_none());
    stand.settle();
    match stand.fetcher.take_record() {
        Some(Err(FetchError::Refused { .. })) => return Action::Report,
        Some(Err(FetchError::OffsetOutOfRange { .. })) => return Action::OutOfRange,
        other => assert!(other.is_none(), "{other:?}"),
    }
    let asked = (stand.fetches.len(), stand.lookups);
    let refreshed = stand.metadata > 1;
    stand.now = stand.fetcher.next_timeout().expect("it asks again after a pause");
    stand.fetcher.handle_timeout(stand.now);
    stand.settle();
    assert_ne!((stand.fetches.len(), stand.lookups), asked, "it asked again");
    assert_eq!(stand.record(), Ok(0), "from the same place");
    if refreshed { Action::Refresh } else { Action::Retry }
}

#[test]
fn every_code_of_a_partition_in_a_fetch_answer_does_what_the_table_says() {
    walk::check(
        &[
            (Action::OutOfRange, &[1]),
            (Action::Report, &[2, 29, 30, 31, 17, 35, 43, 76]),
            (Action::Retry, &[75, 78]),
        ],
        // Leadership, storage, no answer, the sessions' errors in a place where they make no sense, everything unknown.
        Action::Refresh,
        |code| {
            let mut stand = Stand::with(std::vec![batch(0, 2)]);
            stand.log(0).error = Some(code);
            seen(&mut stand)
        },
    );
}

#[test]
fn every_code_of_a_partition_in_a_lookup_does_what_the_table_says() {
    walk::check(
        &[(Action::Report, &[2, 29, 30, 31, 17, 35, 43, 76]), (Action::Retry, &[75, 78])],
        Action::Refresh,
        |code| {
            let mut stand = Stand::new(FetcherConfig::default());
            stand.add(0, std::vec![batch(0, 2)]);
            stand.fetcher.assign(tp(0), 1, Start::Lookup(OffsetSpec::Earliest));
            stand.log(0).error = Some(code);
            seen(&mut stand)
        },
    );
}
