//! The checker, on short histories that hold and on such that do not.

use crate::checker::{Summary, check};
use crate::deliveries::{Delivery, Entry, Numbered};

/// Offsets 0 to 3 are a, b, a, b.
fn written() -> Vec<Vec<Numbered>> {
    vec![(0..4).map(numbered).collect()]
}

fn numbered(offset: u32) -> Numbered {
    Numbered { key: offset % 2, of_key: offset / 2 }
}

fn at(member: u32, generation: i32, offset: u32) -> Delivery {
    Delivery { member, partition: 0, generation, offset: i64::from(offset), record: numbered(offset) }
}

fn handled(member: u32, generation: i32, offsets: impl IntoIterator<Item = u32>) -> Vec<Entry> {
    let both = |offset| {
        let at = at(member, generation, offset);
        [Entry::Started(at), Entry::Completed(at)]
    };
    offsets.into_iter().flat_map(both).collect()
}

fn committed(offset: i64) -> Vec<Entry> {
    vec![Entry::Committed { partition: 0, offset }]
}

fn killed(member: u32) -> Vec<Entry> {
    vec![Entry::Ended { member, killed: true }]
}

fn verdict(parts: &[Vec<Entry>]) -> Result<Summary, String> {
    check(&written(), &parts.concat())
}

#[track_caller]
fn refused(parts: &[Vec<Entry>], because: &str) {
    let wrong = verdict(parts).unwrap_err();
    assert!(wrong.contains(because), "{wrong}");
}

#[test]
fn a_kill_with_keys_out_of_step_and_what_was_open_again_is_fine_and_counted() {
    let cut = vec![Entry::Started(at(1, 1, 2)), Entry::Failed(at(1, 1, 2)), Entry::Started(at(1, 1, 2))];
    let first = [handled(1, 1, [1, 0]), committed(1), handled(1, 1, [3]), cut, killed(1)].concat();
    let summary = verdict(&[first, handled(2, 2, 1..4), committed(4)]).unwrap();
    let expected = Summary {
        completions: 6,
        failures: 1,
        histories: 2,
        kills: 1,
        interrupted: 1,
        again_after_kill: 2,
        again_after_handover: 0,
        most_again_in_a_history: 2,
        exposed: 2,
        commits_seen: 2,
        late: 0,
    };
    assert_eq!(summary, expected);
}

#[test]
fn a_record_that_was_never_completed_is_a_loss() {
    refused(&[handled(1, 1, 0..3), committed(3)], "1 records of partition 0 were never completed");
    refused(&[handled(1, 1, 0..4), committed(3)], "ends at 4, and 3 is committed");
}

#[test]
fn a_commit_above_the_frontier_or_back_is_refused() {
    refused(
        &[handled(1, 1, [0, 1]), committed(3), handled(1, 1, [2, 3]), committed(4)],
        "3 of 0 is committed",
    );
    refused(&[handled(1, 1, 0..4), committed(4), committed(3), committed(4)], "went back from 4 to 3");
}

#[test]
fn two_records_of_a_key_at_once_or_out_of_order_are_refused() {
    let both = vec![Entry::Started(at(1, 1, 0)), Entry::Started(at(1, 1, 2))];
    refused(&[both], "while another of its key runs");
    refused(&[handled(1, 1, [2])], "although record 0 of its key was never completed");
    refused(&[handled(1, 1, [0, 2, 0])], "again, or after a later one of its key");
    let failed = vec![Entry::Started(at(1, 1, 0)), Entry::Failed(at(1, 1, 0)), Entry::Started(at(1, 1, 2))];
    refused(&[failed], "after another of its key has failed");
}

#[test]
fn a_lane_that_begins_below_a_commit_or_after_its_successor_is_refused() {
    refused(
        &[handled(1, 1, [0, 1]), committed(2), killed(1), handled(2, 2, 0..4)],
        "although 2 is committed",
    );
    refused(&[handled(1, 2, [0]), handled(1, 1, [1])], "began after a newer lane");
    refused(&[handled(1, 1, [0]), killed(1), handled(1, 1, [1])], "after the end of its member");
}

#[test]
fn a_record_that_comes_again_without_need_is_refused() {
    let twice = [handled(1, 1, 0..4), handled(2, 2, [0, 1]), handled(2, 2, [0])];
    refused(&twice, "again, or after a later one of its key");
    refused(&[handled(1, 1, [0]), vec![Entry::Completed(at(1, 1, 1))]], "ended and had not begun");
}
