//! A lane's queue, order and end.

use std::vec;
use std::vec::Vec;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(i64);

impl HasOffset for At {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        None
    }
}

fn chunk(offsets: &[i64], next_offset: i64) -> Chunk<At> {
    Chunk {
        records: offsets.iter().map(|&offset| At(offset)).collect(),
        first_offset: offsets.first().copied().unwrap_or(next_offset - 1),
        next_offset,
        leader_epoch: Some(1),
        bytes: 100,
    }
}

fn take(lane: &mut Lane<At>) -> (i64, Ticket) {
    match lane.pull().work {
        Work::Record(At(offset), ticket) => (offset, ticket),
        other => panic!("{other:?}"),
    }
}

fn at(lane: &Lane<At>) -> Option<i64> {
    lane.frontier().map(|frontier| frontier.offset)
}

#[test]
fn one_record_is_out_at_a_time_and_the_next_waits_for_it() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1], 2));
    let (offset, ticket) = take(&mut lane);
    assert_eq!((offset, lane.pull().work), (0, Work::Wait));
    lane.complete(ticket);
    assert_eq!(take(&mut lane).0, 1);
}

#[test]
fn t106_markers_behind_the_last_record_let_the_frontier_reach_the_end() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0], 2));
    let (_, ticket) = take(&mut lane);
    lane.complete(ticket);
    assert_eq!(at(&lane), Some(2));
    lane.offer(chunk(&[], 5));
    assert_eq!((lane.pull().work, at(&lane)), (Work::Wait, Some(5)));
}

#[test]
fn t099_the_end_of_a_partition_between_two_records_is_nothing_to_wait_for() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[10], 11));
    lane.offer(Chunk { records: vec![], first_offset: 11, next_offset: 11, leader_epoch: None, bytes: 0 });
    lane.offer(chunk(&[12], 13));
    let (_, ten) = take(&mut lane);
    let (offset, twelve) = take(&mut lane);
    assert_eq!((offset, lane.pull().work), (12, Work::Wait));
    lane.complete(twelve);
    assert_eq!((at(&lane), lane.unfinished()), (None, 1), "the first one alone is waited for");
    lane.complete(ten);
    assert_eq!(at(&lane), Some(13));
}

#[test]
fn t111_a_batch_that_covers_nothing_makes_no_frontier() {
    let mut lane = Lane::<At>::new(10, 1);
    lane.offer(Chunk { records: vec![], first_offset: 7, next_offset: 7, leader_epoch: None, bytes: 0 });
    assert_eq!((lane.pull().work, at(&lane)), (Work::Wait, None));
}

#[test]
fn t098_t120_what_comes_after_the_stop_is_refused_and_what_was_queued_is_drained() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1], 2));
    lane.stop(StopReason::Revoke, false);
    assert_eq!(lane.state(), LaneState::Draining);
    assert_eq!(lane.offer(chunk(&[2], 3)), Offer::Refused);
    for expected in [0, 1] {
        let (offset, ticket) = take(&mut lane);
        assert_eq!(offset, expected);
        lane.complete(ticket);
    }
    assert_eq!(lane.pull().work, Work::End);
    let stopped = lane.finish();
    assert_eq!(stopped.final_commit().map(|frontier| frontier.offset), Some(2));
    assert_eq!(stopped.rewind_to, None);
}

#[test]
fn t161_a_lost_lane_ends_at_once_and_has_nothing_to_commit() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1], 2));
    let (_, ticket) = take(&mut lane);
    lane.complete(ticket);
    lane.stop(StopReason::Shutdown, false);
    assert_eq!(lane.stop(StopReason::Lost, true), 100);
    assert_eq!(lane.stop(StopReason::Shutdown, false), 0);
    assert_eq!(lane.stop_reason(), Some(StopReason::Lost));
    assert_eq!(lane.pull().work, Work::End);
    assert_eq!(lane.finish().final_commit(), None);
}

#[test]
fn t177_what_was_queued_and_dropped_is_where_to_read_again() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1, 2], 3));
    let (_, ticket) = take(&mut lane);
    lane.complete(ticket);
    lane.stop(StopReason::Shutdown, true);
    let stopped = lane.finish();
    assert_eq!((stopped.rewind_to, stopped.final_commit().map(|f| f.offset)), (Some(1), Some(1)));
}

#[test]
fn t104_a_completion_after_the_end_is_ignored() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0], 1));
    let (_, ticket) = take(&mut lane);
    lane.stop(StopReason::Revoke, false);
    assert_eq!(lane.finish().rewind_to, Some(0));
    assert!(!lane.complete(ticket));
    assert_eq!((at(&lane), lane.last_processed(), lane.completed()), (None, None, 0));
}

#[test]
fn t190_t191_a_full_lane_says_so_once_and_says_once_that_there_is_room() {
    let mut lane = Lane::new(4, usize::MAX);
    assert_eq!(lane.offer(chunk(&[0, 1, 2], 3)), Offer::Taken);
    assert_eq!(lane.offer(chunk(&[3, 4, 5], 6)), Offer::Full);
    assert_eq!(lane.state(), LaneState::Paused);
    let rooms: Vec<bool> = (0..6).map(|_| lane.pull().room).collect();
    assert_eq!(rooms, [false, false, false, true, false, false]);
}

#[test]
fn bytes_of_a_batch_are_free_once_none_of_it_is_queued() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[0, 1], 2));
    assert_eq!(lane.pull().freed_bytes, 0);
    assert_eq!(lane.pull().freed_bytes, 100);
    lane.offer(chunk(&[2], 3));
    lane.offer(chunk(&[3], 4));
    assert_eq!(lane.stop(StopReason::Lost, true), 200);
    assert_eq!((lane.queued(), lane.finish().freed_bytes), (0, 0));
}

#[test]
fn an_offset_that_comes_back_is_reported_and_not_handed_out() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[5], 6));
    take(&mut lane);
    lane.offer(chunk(&[4], 5));
    assert_eq!(lane.pull().work, Work::OutOfOrder { offset: 4, expected: 6 });
}

#[test]
fn an_offset_that_comes_twice_in_a_row_is_reported_and_not_handed_out() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[5, 5], 6));
    take(&mut lane);
    assert_eq!(lane.pull().work, Work::OutOfOrder { offset: 5, expected: 6 });
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[5], 9));
    take(&mut lane);
    lane.offer(chunk(&[8], 9));
    assert_eq!(lane.pull().work, Work::OutOfOrder { offset: 8, expected: 9 }, "what was looked at is passed");
}

#[test]
fn bytes_of_batches_without_records_are_freed_with_those_of_the_next_record() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[], 2));
    lane.offer(chunk(&[], 4));
    lane.offer(chunk(&[4], 5));
    let pull = lane.pull();
    assert!(matches!(pull.work, Work::Record(At(4), _)), "{pull:?}");
    assert_eq!(pull.freed_bytes, 300);
}

/// A record that knows its own leader epoch.
struct Elected(i64, i32);

impl HasOffset for Elected {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        Some(self.1)
    }
}

#[test]
fn t138_a_records_own_leader_epoch_comes_before_that_of_its_chunk() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(Chunk {
        records: vec![Elected(0, 3), Elected(1, 4)],
        first_offset: 0,
        next_offset: 3,
        leader_epoch: Some(5),
        bytes: 0,
    });
    for (offset, epoch) in [(1, 3), (3, 5)] {
        let Work::Record(_, ticket) = lane.pull().work else { panic!("a record") };
        lane.complete(ticket);
        let expected = Frontier { offset, leader_epoch: Some(epoch) };
        assert_eq!(lane.frontier(), Some(expected));
    }
}
