//! The frontier against examples and against a naive model.

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn at(tracker: &OffsetTracker) -> Option<i64> {
    tracker.frontier().map(|frontier| frontier.offset)
}

const SETS: [[i64; 3]; 4] = [[0, 1, 2], [10, 12, 13], [1000, 1002, 1010], [10, 1 << 32, 9_000_000_000]];

#[test]
fn t090_in_order_completion_commits_each_offset_plus_one_with_its_own_epoch() {
    for set in SETS {
        let mut tracker = OffsetTracker::new();
        let tickets: Vec<_> =
            set.iter().zip(5..).map(|(&offset, epoch)| tracker.deliver(offset, Some(epoch))).collect();
        assert_eq!(tracker.frontier(), None);
        for ((&offset, epoch), ticket) in set.iter().zip(5..).zip(tickets) {
            assert!(tracker.complete(ticket));
            assert_eq!(tracker.frontier(), Some(Frontier { offset: offset + 1, leader_epoch: Some(epoch) }));
        }
    }
}

#[test]
fn t091_completion_out_of_order_waits_for_the_first() {
    for set in SETS {
        let mut tracker = OffsetTracker::new();
        let tickets: Vec<_> = set.iter().map(|&offset| tracker.deliver(offset, None)).collect();
        tracker.complete(tickets[2]);
        assert_eq!(at(&tracker), None);
        tracker.complete(tickets[0]);
        assert_eq!(at(&tracker), Some(set[0] + 1));
        tracker.complete(tickets[1]);
        assert_eq!(at(&tracker), Some(set[2] + 1));
    }
}

#[test]
fn t092_the_last_processed_offset_may_be_ahead_of_the_frontier() {
    let mut tracker = OffsetTracker::new();
    tracker.deliver(10, None);
    let twelve = tracker.deliver(12, None);
    let thirteen = tracker.deliver(13, None);
    tracker.complete(thirteen);
    tracker.complete(twelve);
    assert_eq!((at(&tracker), tracker.last_processed()), (None, Some(13)));
}

#[test]
fn t093_a_ticket_used_twice_does_not_release_another_record() {
    let mut tracker = OffsetTracker::new();
    let first = tracker.deliver(1, None);
    assert!(tracker.complete(first));
    let second = tracker.deliver(2, None);
    assert!(!tracker.complete(first), "the slot was given to another delivery");
    assert_eq!(at(&tracker), Some(2));
    assert!(tracker.complete(second));
    assert_eq!(at(&tracker), Some(3));
}

#[test]
fn t094_completed_in_order_leaves_no_bookkeeping() {
    let mut tracker = OffsetTracker::new();
    for offset in 0..10_000 {
        let ticket = tracker.deliver(offset * 3, None);
        tracker.complete(ticket);
    }
    assert_eq!((tracker.unfinished(), tracker.slots.len()), (0, 1));
}

#[test]
fn t095_memory_is_that_of_the_unfinished_records() {
    let mut tracker = OffsetTracker::new();
    let first = tracker.deliver(0, None);
    for offset in 1..10_000 {
        let ticket = tracker.deliver(offset, None);
        tracker.complete(ticket);
    }
    assert_eq!((tracker.unfinished(), tracker.slots.len(), at(&tracker)), (1, 2, None));
    tracker.complete(first);
    assert_eq!((tracker.unfinished(), at(&tracker)), (0, Some(10_000)));
}

#[test]
fn b013_a_traversed_tail_counts_once_nothing_is_unfinished() {
    let mut tracker = OffsetTracker::new();
    let ticket = tracker.deliver(0, Some(1));
    tracker.traverse(2, Some(3));
    assert_eq!(at(&tracker), None);
    tracker.complete(ticket);
    assert_eq!(tracker.frontier(), Some(Frontier { offset: 2, leader_epoch: Some(3) }));
    tracker.traverse(1, None);
    assert_eq!(at(&tracker), Some(2));
}

#[test]
fn what_was_looked_at_only_up_to_the_record_itself_keeps_the_records_epoch() {
    let mut tracker = OffsetTracker::new();
    let ticket = tracker.deliver(0, Some(1));
    tracker.traverse(1, Some(3));
    tracker.complete(ticket);
    assert_eq!(tracker.frontier(), Some(Frontier { offset: 1, leader_epoch: Some(1) }));
}

#[test]
fn what_is_done_here_and_what_was_done_before_are_one_range_where_they_meet() {
    let mut tracker = OffsetTracker::new();
    tracker.begin(10);
    let saved = [12..15, 17..18].into();
    tracker.resume(SavedProgress { base: 10, done: saved, newest_epoch: None, incarnation: None });
    tracker.deliver(10, None);
    let eleven = tracker.deliver(11, None);
    tracker.complete(eleven);
    assert_eq!(tracker.progress().unwrap().done, [11..15, 17..18]);
}

#[test]
fn b014_gaps_between_neighbours_do_not_stall() {
    let mut tracker = OffsetTracker::new();
    let tickets: Vec<_> = [0, 2, 4, 6].iter().map(|&offset| tracker.deliver(offset, None)).collect();
    let frontiers: Vec<_> = [0, 1, 3, 2]
        .iter()
        .map(|&next| {
            tracker.complete(tickets[next]);
            at(&tracker)
        })
        .collect();
    assert_eq!(frontiers, [Some(1), Some(3), Some(3), Some(7)]);
}

/// What a tracker is, told the slow way: every delivery ever made, and whether it is completed.
#[derive(Default)]
struct Naive {
    deliveries: Vec<(i64, Option<i32>, bool)>,
    /// After how many deliveries which offset was reached.
    traversed: Vec<(usize, i64, Option<i32>)>,
}

impl Naive {
    fn frontier(&self) -> Option<Frontier> {
        let done = self.deliveries.iter().take_while(|delivery| delivery.2).count();
        let delivered = self.deliveries[..done].last().map(|&(offset, epoch, _)| (offset + 1, epoch));
        let passed =
            self.traversed.iter().filter(|&&(after, ..)| after <= done).map(|&(_, to, epoch)| (to, epoch));
        let mut best = None;
        // In the order in which they happened: an equal offset keeps the earlier epoch.
        for (offset, leader_epoch) in delivered.into_iter().chain(passed) {
            if best.is_none_or(|known: Frontier| known.offset < offset) {
                best = Some(Frontier { offset, leader_epoch });
            }
        }
        best
    }
}

#[derive(Clone, Debug)]
enum Step {
    Deliver { gap: i64, epoch: Option<i32> },
    Complete(usize),
    Traverse { by: i64, epoch: Option<i32> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![4 => 0..3i64, 1 => Just(1i64 << 33)];
    let epoch = proptest::option::of(0..5i32);
    proptest::collection::vec(
        prop_oneof![
            3 => (gap, epoch.clone()).prop_map(|(gap, epoch)| Step::Deliver { gap, epoch }),
            4 => any::<usize>().prop_map(Step::Complete),
            1 => (0..4i64, epoch).prop_map(|(by, epoch)| Step::Traverse { by, epoch }),
        ],
        0..200,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn t096_and_t110_the_frontier_matches_a_naive_model_and_never_goes_back(steps in steps()) {
        let mut tracker = OffsetTracker::new();
        let mut naive = Naive::default();
        let mut tickets = Vec::new();
        let mut next = 7;
        let mut before = None;
        for step in steps {
            match step {
                Step::Deliver { gap, epoch } => {
                    tickets.push(tracker.deliver(next + gap, epoch));
                    naive.deliveries.push((next + gap, epoch, false));
                    next += gap + 1;
                }
                Step::Complete(which) => {
                    if !tickets.is_empty() {
                        let which = which % tickets.len();
                        let fresh = !std::mem::replace(&mut naive.deliveries[which].2, true);
                        prop_assert_eq!(tracker.complete(tickets[which]), fresh);
                    }
                }
                Step::Traverse { by, epoch } => {
                    next += by;
                    tracker.traverse(next, epoch);
                    if by > 0 || naive.deliveries.is_empty() && naive.traversed.is_empty() {
                        naive.traversed.push((naive.deliveries.len(), next, epoch));
                    }
                }
            }
            prop_assert_eq!(tracker.frontier(), naive.frontier());
            prop_assert!(before.map(|f: Frontier| f.offset) <= at(&tracker));
            before = tracker.frontier();
            let unfinished = naive.deliveries.iter().filter(|delivery| !delivery.2).count();
            prop_assert_eq!(tracker.unfinished(), unfinished);
            prop_assert_eq!(tracker.oldest_unfinished(), naive.deliveries.iter().find(|d| !d.2).map(|d| d.0));
        }
    }
}
