//! A lane's queue, order and end.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(pub i64);

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
        pinned: vec![Pinned { records: offsets.len(), bytes: 100 }],
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
    lane.offer(Chunk {
        records: vec![],
        first_offset: 11,
        next_offset: 11,
        leader_epoch: None,
        pinned: vec![],
    });
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
    lane.offer(Chunk {
        records: vec![],
        first_offset: 7,
        next_offset: 7,
        leader_epoch: None,
        pinned: vec![],
    });
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
    assert_eq!(stopped.final_commit().map(|progress| progress.frontier.offset), Some(2));
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
fn the_first_reason_to_stop_stays_unless_the_partition_is_lost_and_haste_is_never_taken_back() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1], 2));
    let (_, ticket) = take(&mut lane);
    lane.complete(ticket);
    let standing = |lane: &Lane<At>| (lane.state(), lane.stop_reason());
    assert_eq!(standing(&lane), (LaneState::Running, None));
    for (reason, hurry, state) in [
        (StopReason::Revoke, false, LaneState::Draining),
        (StopReason::Shutdown, false, LaneState::Draining),
        (StopReason::Shutdown, true, LaneState::Cancelling),
        (StopReason::Failure, false, LaneState::Cancelling),
    ] {
        lane.stop(reason, hurry);
        assert_eq!(standing(&lane), (state, Some(StopReason::Revoke)));
    }
    lane.stop(StopReason::Lost, false);
    assert_eq!(standing(&lane), (LaneState::Cancelling, Some(StopReason::Lost)));
    assert_eq!(lane.finish().final_frontier(), None);
    assert_eq!(standing(&lane), (LaneState::Stopped, Some(StopReason::Lost)));
}

#[test]
fn a_lane_that_ended_by_itself_hands_out_nothing_and_may_still_be_committed() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[0, 1, 2], 3));
    for _ in 0..2 {
        let (_, ticket) = take(&mut lane);
        lane.complete(ticket);
    }
    assert_eq!((lane.completed(), lane.delivered(), lane.position()), (2, 2, Some(2)));
    let frontier = Frontier { offset: 2, leader_epoch: Some(1) };
    assert_eq!(lane.finish().final_frontier(), Some(frontier));
    assert_eq!((lane.pull().work, lane.offer(chunk(&[3], 4))), (Work::End, Offer::Refused));
}

#[test]
fn the_figures_tell_what_is_queued_what_is_out_and_how_far_it_got() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[5, 6, 7, 8], 9));
    let tickets: Vec<_> = (0..3).map(|_| take(&mut lane).1).collect();
    lane.complete(tickets[1]);
    assert_eq!((lane.queued(), lane.unfinished(), lane.delivered(), lane.completed()), (1, 2, 3, 1));
    assert_eq!(
        (lane.oldest_unfinished(), lane.last_processed(), lane.position()),
        (Some(5), Some(6), Some(8))
    );
}

#[test]
fn a_lane_is_named_by_its_partition_and_generation() {
    let id = LaneId { topic_partition: TopicPartition::new("orders", 3), generation: 7 };
    assert_eq!(id.to_string(), "orders-3 in generation 7");
}

#[test]
fn t177_what_was_queued_and_dropped_is_where_to_read_again() {
    let mut lane = Lane::new(10, 1);
    lane.offer(chunk(&[0, 1, 2], 3));
    let (_, ticket) = take(&mut lane);
    lane.complete(ticket);
    lane.stop(StopReason::Shutdown, true);
    let stopped = lane.finish();
    assert_eq!(
        (stopped.rewind_to, stopped.final_commit().map(|progress| progress.frontier.offset)),
        (Some(1), Some(1))
    );
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
fn bytes_of_a_batch_are_free_once_its_last_record_is_completed_or_given_up() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[0, 1, 2], 3));
    let tickets: Vec<_> = (0..3).map(|_| take(&mut lane).1).collect();
    assert_eq!((lane.queued(), lane.held_bytes()), (0, 100));
    lane.complete(tickets[1]);
    lane.complete(tickets[1]);
    lane.give_up(tickets[0]);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (0, 100));
    lane.complete(tickets[2]);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (100, 0));
    lane.offer(chunk(&[3], 4));
    lane.offer(chunk(&[4], 5));
    assert_eq!(lane.stop(StopReason::Lost, true), 200);
    assert_eq!((lane.queued(), lane.finish().freed_bytes), (0, 0));
}

#[test]
fn a_lane_that_ends_gives_back_what_its_processor_never_finished() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[0, 1], 2));
    let (_, ticket) = take(&mut lane);
    assert_eq!((lane.finish().freed_bytes, lane.held_bytes()), (100, 0));
    lane.give_up(ticket);
    assert_eq!(lane.take_freed(), 0);
}

#[test]
fn records_of_one_chunk_hold_the_memory_of_their_own_batch_only() {
    let mut lane = Lane::new(10, usize::MAX);
    let pinned = vec![Pinned { records: 1, bytes: 10 }, Pinned { records: 2, bytes: 20 }];
    lane.offer(Chunk { pinned, ..chunk(&[0, 1, 2], 3) });
    let tickets: Vec<_> = (0..3).map(|_| take(&mut lane).1).collect();
    lane.complete(tickets[0]);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (10, 20));
}

#[test]
fn a_record_that_became_a_copy_keeps_its_own_bytes_until_it_is_completed_and_its_batch_no_longer() {
    let mut lane = Lane::new(10, usize::MAX);
    lane.offer(chunk(&[0, 1], 2));
    let (_, first) = take(&mut lane);
    let (_, mut second) = take(&mut lane);
    lane.copied(&mut second, 7);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (0, 107), "the batch is still that of the first");
    lane.complete(first);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (100, 7));
    assert!(lane.complete(second));
    assert_eq!((lane.take_freed(), lane.held_bytes(), at(&lane)), (7, 0, Some(2)));
    lane.offer(chunk(&[2], 3));
    let (_, mut late) = take(&mut lane);
    assert_eq!(lane.finish().freed_bytes, 100);
    lane.copied(&mut late, 7);
    assert_eq!((lane.take_freed(), lane.held_bytes()), (0, 0), "nothing of a lane that has ended counts");
}

/// Ten bytes in a batch of a thousand.
#[derive(Debug, PartialEq, Eq)]
struct Small(i64, bool);

impl HasOffset for Small {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        None
    }

    fn copied(&self, below: usize) -> Option<(Self, usize)> {
        (10 < below).then_some((Self(self.0, true), 12))
    }
}

#[test]
fn small_records_of_a_large_batch_are_copied_and_let_it_go() {
    let config = |at_once, copy_above| LaneConfig { copy_above, ..LaneConfig::new(10, at_once) };
    let copies = |config, bytes| {
        let mut lane = Lane::with_config(config);
        let records = (0..3).map(|offset| Small(offset, false)).collect();
        let pinned = vec![Pinned { records: 3, bytes }];
        lane.offer(Chunk { records, first_offset: 0, next_offset: 3, leader_epoch: None, pinned });
        let mut copied = Vec::new();
        let mut last = 0;
        for _ in 0..3 {
            let pull = lane.pull();
            last = pull.freed_bytes;
            let Work::Record(record, ticket) = pull.work else { panic!("a record") };
            assert_eq!(pull.copied_bytes, if record.1 { 12 } else { 0 });
            copied.push(record.1);
            if config.at_once == 1 {
                lane.complete(ticket);
            }
        }
        (copied, last, lane.held_bytes())
    };
    assert_eq!(copies(config(8, 500), 1000), (vec![true; 3], 1000, 36));
    assert_eq!(copies(config(8, 1000), 1000), (vec![false; 3], 0, 1000), "not a large batch");
    assert_eq!(copies(config(8, 100), 160), (vec![false; 3], 0, 160), "not a small record");
    assert_eq!(
        copies(config(1, 500), 1000),
        (vec![false, false, true], 1000, 0),
        "the queue holds the batch"
    );
}

#[test]
fn no_more_than_max_ahead_records_are_handed_out_past_a_stuck_one() {
    let mut lane = Lane::with_config(LaneConfig { max_ahead: 2, ..LaneConfig::new(10, usize::MAX) });
    lane.offer(chunk(&[0, 1, 2, 3], 4));
    let tickets: Vec<_> = (0..3).map(|_| take(&mut lane).1).collect();
    lane.complete(tickets[1]);
    lane.complete(tickets[2]);
    assert_eq!((lane.pull().work, lane.held_back_by(), lane.ahead()), (Work::Wait, Some(0), 2));
    lane.complete(tickets[0]);
    assert_eq!((lane.held_back_by(), take(&mut lane).0), (None, 3));
}

#[test]
fn what_an_earlier_lane_completed_is_passed_over_and_stays_in_the_progress() {
    let mut lane = Lane::new(10, usize::MAX);
    let saved =
        || SavedProgress { base: 10, done: vec![12..14, 16..20], newest_epoch: None, incarnation: None };
    assert!(!lane.resume(saved(), 11));
    assert!(lane.resume(saved(), 10));
    lane.offer(chunk(&[10, 11, 12, 13, 14], 15));
    let tickets: Vec<_> = [10, 11, 14]
        .map(|expected| {
            let (offset, ticket) = take(&mut lane);
            assert_eq!(offset, expected);
            ticket
        })
        .into();
    lane.complete(tickets[1]);
    assert_eq!((lane.already_done(), lane.queued()), (2, 0));
    let progress = lane.progress().unwrap();
    assert_eq!((progress.frontier.offset, progress.done), (10, vec![11..14, 16..20]));
    lane.complete(tickets[0]);
    lane.complete(tickets[2]);
    assert_eq!(at(&lane), Some(15));
    lane.offer(chunk(&[17, 18, 21], 22));
    assert_eq!(take(&mut lane).0, 21);
    assert_eq!(
        at(&lane),
        Some(19),
        "holes and what was done before are passed, as far as they were looked at"
    );
}

#[test]
fn records_of_a_newer_epoch_than_the_saved_one_are_not_those_that_were_completed() {
    let mut lane = Lane::new(10, usize::MAX);
    let saved =
        SavedProgress { base: 0, done: [1..5, 6..9].into(), newest_epoch: Some(4), incarnation: None };
    assert!(lane.resume(saved, 0));
    let records = vec![Elected(0, 4), Elected(1, 4), Elected(2, 5), Elected(3, 5)];
    lane.offer(Chunk { records, first_offset: 0, next_offset: 4, leader_epoch: Some(5), pinned: vec![] });
    for expected in [0, 2, 3] {
        let Work::Record(record, _) = lane.pull().work else { panic!("a record") };
        assert_eq!(record.0, expected);
    }
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
        pinned: vec![],
    });
    for (offset, epoch) in [(1, 3), (3, 5)] {
        let Work::Record(_, ticket) = lane.pull().work else { panic!("a record") };
        lane.complete(ticket);
        let expected = Frontier { offset, leader_epoch: Some(epoch) };
        assert_eq!(lane.frontier(), Some(expected));
    }
}

mod restarts;
