//! The fold, rule by rule. What holds for every log is shown by the model next door.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::claims::task::{DEFAULT_CLASS, Unique};

/// A ledger under test with the offset of the next claims record.
struct Fold {
    ledger: Ledger,
    next: i64,
}

fn key(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

impl Fold {
    fn new(tasks: impl IntoIterator<Item = TaskMeta>) -> Self {
        let mut ledger = Ledger::new(0, 0);
        for (offset, meta) in (0..).zip(tasks) {
            ledger.add_task(offset, meta);
        }
        Self { ledger, next: 0 }
    }

    fn plain(tasks: usize) -> Self {
        Self::new(vec![TaskMeta::plain(0); tasks])
    }

    fn apply(&mut self, at: Timestamp, worker: &str, task: i64, kind: Kind) -> Verdict {
        let record = ClaimRecord { task, worker: worker.into(), kind };
        let offset = self.next;
        self.next += 1;
        self.ledger.apply(offset, at, Some(&record)).unwrap()
    }

    /// Claims for 100 ms; the token when it wins.
    fn claim(&mut self, at: Timestamp, worker: &str, task: i64) -> Result<i64, Refusal> {
        let token = self.next;
        match self.apply(at, worker, task, Kind::Claim { lease: 100, nonce: 1 }) {
            Verdict::Granted { .. } => Ok(token),
            Verdict::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn done(&mut self, at: Timestamp, worker: &str, task: i64, token: i64) -> Verdict {
        self.apply(at, worker, task, Kind::Done { token })
    }

    fn fail(&mut self, at: Timestamp, task: i64, token: i64, after: i64) -> Verdict {
        self.apply(at, "w", task, Kind::Failed { token, after, cause: "no".to_string() })
    }
}

#[test]
fn the_first_claim_on_a_free_task_wins_and_its_offset_is_the_token() {
    let mut fold = Fold::plain(2);
    assert_eq!(fold.claim(1000, "a", 1), Ok(0));
    assert_eq!(fold.claim(1000, "b", 1), Err(Refusal::Held));
    assert_eq!(fold.claim(1000, "b", 0), Ok(2), "tasks are independent");
    let lease = fold.ledger.open(1).unwrap().lease.clone().unwrap();
    assert_eq!((lease.token, &*lease.worker, lease.since, lease.expires), (0, "a", 1000, 1100));
}

#[test]
fn a_lease_that_has_run_out_is_taken_over_and_its_holder_settles_nothing() {
    let mut fold = Fold::plain(1);
    let first = fold.claim(1000, "a", 0).unwrap();
    assert_eq!(fold.claim(1099, "b", 0), Err(Refusal::Held));
    let second = fold.claim(1100, "b", 0).unwrap();
    assert_eq!(fold.done(1101, "a", 0, first), Verdict::Late);
    assert_eq!(fold.apply(1101, "a", 0, Kind::Renew { token: first, lease: 100 }), Verdict::Late);
    assert_eq!(fold.apply(1101, "a", 0, Kind::Release { token: first, started: true }), Verdict::Late);
    assert_eq!(fold.fail(1101, 0, first, 0), Verdict::Late);
    assert_eq!(fold.ledger.open(0).unwrap().lease.as_ref().unwrap().token, second);
    assert_eq!(fold.done(1150, "b", 0, second), Verdict::Done);
    assert_eq!(fold.ledger.counts().late, 4);
}

#[test]
fn a_done_task_is_never_claimable_again() {
    let mut fold = Fold::plain(1);
    let token = fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.done(1, "a", 0, token), Verdict::Done);
    assert_eq!(fold.claim(1_000_000, "b", 0), Err(Refusal::Settled));
    assert_eq!(fold.done(2, "a", 0, token), Verdict::Late, "once is once");
    assert_eq!(fold.ledger.pick(i64::MAX, None, &BTreeSet::new()), None);
    assert_eq!(fold.ledger.counts().done, 1);
}

/// N14: what a claimant thinks of the time is nowhere in its claim, and what the broker thinks cannot go back.
#[test]
fn n14_a_broker_clock_that_steps_back_neither_ends_nor_revives_a_lease() {
    let mut fold = Fold::plain(2);
    fold.claim(5000, "a", 0).unwrap();
    assert_eq!(fold.claim(10, "b", 1), Ok(1));
    let lease = fold.ledger.open(1).unwrap().lease.clone().unwrap();
    assert_eq!((lease.since, lease.expires), (5000, 5100), "a lease begins at log time, not in the past");
    assert_eq!(fold.claim(20, "c", 0), Err(Refusal::Held));
    assert_eq!(fold.ledger.log_time(), 5000);
}

#[test]
fn claims_of_one_batch_are_judged_in_their_order() {
    let mut fold = Fold::plain(1);
    assert_eq!(fold.claim(7, "a", 0), Ok(0));
    assert_eq!(fold.claim(7, "b", 0), Err(Refusal::Held));
    assert_eq!(fold.done(7, "a", 0, 0), Verdict::Done);
    assert_eq!(fold.claim(7, "b", 0), Err(Refusal::Settled));
}

/// B172: renewal and takeover in the same millisecond, in both orders.
#[test]
fn b172_between_a_renewal_and_a_takeover_the_log_order_decides() {
    let renew = Kind::Renew { token: 0, lease: 100 };
    let mut fold = Fold::plain(1);
    fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.apply(100, "a", 0, renew.clone()), Verdict::Renewed);
    assert_eq!(fold.claim(100, "b", 0), Err(Refusal::Held));

    let mut fold = Fold::plain(1);
    fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.claim(100, "b", 0), Ok(1));
    assert_eq!(fold.apply(100, "a", 0, renew), Verdict::Late);
}

#[test]
fn a_holder_nobody_has_replaced_may_settle_after_its_lease_has_run_out() {
    let mut fold = Fold::plain(1);
    let token = fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.done(5000, "a", 0, token), Verdict::Done);
}

#[test]
fn a_failed_task_waits_and_comes_again_until_its_attempts_are_used_up() {
    let mut fold = Fold::new([TaskMeta { max_attempts: 2, ..TaskMeta::plain(0) }]);
    let first = fold.claim(1000, "a", 0).unwrap();
    assert_eq!(fold.fail(1010, 0, first, 500), Verdict::Failed { due: 1510, exhausted: false });
    assert_eq!(fold.claim(1509, "b", 0), Err(Refusal::NotDue));
    assert_eq!(fold.ledger.state(1509).delayed, 1);
    let second = fold.claim(1510, "b", 0).unwrap();
    assert_eq!(fold.ledger.open(0).unwrap().attempts, 2);
    assert_eq!(fold.fail(1520, 0, second, 500), Verdict::Failed { due: 1520, exhausted: true });
    // Only to be buried: no third attempt.
    let third = Kind::Claim { lease: 100, nonce: 1 };
    let granted = fold.apply(1520, "c", 0, third);
    assert_eq!(granted, Verdict::Granted { attempt: 2, burial: true, lapsed: None });
    let buried = Kind::Buried { token: fold.next - 1, cause: "no".to_string() };
    assert_eq!(fold.apply(1521, "c", 0, buried), Verdict::Buried);
    assert_eq!(fold.ledger.dead().collect::<Vec<_>>(), [0]);
    assert_eq!(fold.claim(9999, "d", 0), Err(Refusal::Settled), "a dead task stays dead");
}

/// B173: the last attempt fails, but its lease was lost: one terminal state, one count.
#[test]
fn b173_a_failure_after_the_lease_was_lost_does_not_count_twice() {
    let mut fold = Fold::new([TaskMeta { max_attempts: 2, ..TaskMeta::plain(0) }]);
    let first = fold.claim(0, "a", 0).unwrap();
    let second = fold.claim(100, "b", 0).unwrap();
    assert_eq!(fold.fail(101, 0, first, 0), Verdict::Late);
    assert_eq!(fold.ledger.open(0).unwrap().attempts, 2);
    assert_eq!(
        fold.apply(102, "b", 0, Kind::Buried { token: second, cause: String::new() }),
        Verdict::Buried
    );
    assert_eq!(fold.apply(103, "a", 0, Kind::Buried { token: first, cause: String::new() }), Verdict::Late);
    assert_eq!((fold.ledger.counts().buried, fold.ledger.dead().count()), (1, 1));
}

/// B170: an attempt counts when it was begun.
#[test]
fn b170_a_claim_given_back_before_it_was_begun_is_no_attempt() {
    let mut fold = Fold::plain(1);
    let token = fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.apply(1, "a", 0, Kind::Release { token, started: false }), Verdict::Released);
    assert_eq!(fold.ledger.open(0).unwrap().attempts, 0);
    let token = fold.claim(2, "a", 0).unwrap();
    assert_eq!(fold.apply(3, "a", 0, Kind::Release { token, started: true }), Verdict::Released);
    assert_eq!(fold.ledger.open(0).unwrap().attempts, 1);
    assert_eq!(fold.claim(3, "b", 0), Ok(4), "free at once, not after the lease");
}

/// B176: a dead worker's task is visibly held until its lease ends, and free then.
#[test]
fn b176_the_task_of_a_killed_worker_is_claimed_by_it_until_its_lease_ends() {
    let mut fold = Fold::plain(1);
    fold.claim(1000, "killed", 0).unwrap();
    assert_eq!((fold.ledger.state(1099).claimed, fold.ledger.state(1099).ready), (1, 0));
    assert_eq!((fold.ledger.state(1100).claimed, fold.ledger.state(1100).ready), (0, 1));
    assert_eq!(fold.ledger.next_due(), Some(1100));
    assert_eq!(fold.ledger.pick(1100, None, &BTreeSet::new()), Some(0));
    fold.claim(1100, "b", 0).unwrap();
    let causes = &fold.ledger.open(0).unwrap().causes;
    assert_eq!(causes[..], ["the lease of killed (token 0) ran out".to_string()]);
}

#[test]
fn a_later_task_of_a_key_waits_until_the_earlier_one_is_done_or_dead() {
    let keyed = |key| TaskMeta { key, max_attempts: 1, ..TaskMeta::plain(0) };
    let mut fold = Fold::new([keyed(key("k")), keyed(key("k")), keyed(key("other")), keyed(key("k"))]);
    assert_eq!(fold.claim(0, "a", 1), Err(Refusal::KeyOrder));
    assert_eq!(fold.ledger.state(0).behind_key, 2);
    let first = fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.claim(0, "b", 1), Err(Refusal::KeyOrder), "also while the earlier one is held");
    assert!(fold.claim(0, "b", 2).is_ok(), "another key is another line");
    fold.done(1, "a", 0, first);
    let second = fold.claim(1, "b", 1).unwrap();
    assert_eq!(fold.ledger.pick(1, None, &BTreeSet::new()), None, "the third waits for the second");
    fold.apply(2, "b", 1, Kind::Buried { token: second, cause: String::new() });
    assert_eq!(fold.ledger.pick(2, None, &BTreeSet::new()), Some(3));
    assert!(fold.claim(2, "b", 3).is_ok());
}

#[test]
fn a_task_is_given_to_nobody_before_its_time_by_the_log() {
    let mut fold = Fold::new([TaskMeta { not_before: 500, ..TaskMeta::plain(0) }]);
    assert_eq!(fold.ledger.pick(499, None, &BTreeSet::new()), None);
    assert_eq!(fold.ledger.next_due(), Some(500));
    assert_eq!(fold.claim(499, "a", 0), Err(Refusal::NotDue));
    assert_eq!(fold.ledger.pick(500, None, &BTreeSet::new()), Some(0));
    assert!(fold.claim(500, "a", 0).is_ok());
}

#[test]
fn the_more_urgent_class_is_tried_first_and_the_oldest_in_it_when_first_is_asked_for() {
    let class = |class| TaskMeta { class, ..TaskMeta::plain(0) };
    let mut fold = Fold::new([class(DEFAULT_CLASS), class(2), class(9), class(2)]);
    let mut seen = BTreeSet::new();
    let mut order = vec![];
    while let Some(task) = fold.ledger.pick(0, None, &seen) {
        seen.insert(task);
        order.push(task);
    }
    assert_eq!(order, [1, 3, 0, 2]);
}

#[test]
fn a_random_pick_reaches_every_task_that_can_be_taken() {
    let mut fold = Fold::plain(20);
    let token = fold.claim(0, "a", 7).unwrap();
    fold.done(0, "a", 7, token);
    let picked: BTreeSet<i64> =
        (0..400).filter_map(|random| fold.ledger.pick(0, Some(random), &BTreeSet::new())).collect();
    assert_eq!(picked, (0..20).filter(|task| *task != 7).collect());
}

#[test]
fn the_second_task_of_a_name_is_passed_over_within_the_window() {
    let named = |published| {
        let unique = Some(Unique { id: Bytes::from_static(b"u"), window: 100 });
        TaskMeta { unique, ..TaskMeta::plain(published) }
    };
    let mut fold = Fold::new([named(1000), named(1099), named(1050), named(1100), named(1150)]);
    let open: Vec<i64> = fold.ledger.all_open().map(|(task, _)| task).collect();
    assert_eq!(
        open,
        [0, 3],
        "a clock that steps back does not matter, and each window begins with a task that is there"
    );
    assert_eq!(fold.ledger.duplicates(), 3);
    assert!(fold.ledger.is_settled(1));
    assert_eq!(fold.claim(2000, "a", 1), Err(Refusal::Settled));
}

#[test]
fn a_revived_task_is_not_dead_any_more() {
    let mut fold = Fold::plain(1);
    let token = fold.claim(0, "a", 0).unwrap();
    assert_eq!(fold.apply(0, "r", 0, Kind::Revived), Verdict::Late, "it is not dead");
    fold.apply(1, "a", 0, Kind::Buried { token, cause: String::new() });
    assert_eq!(fold.ledger.state(1).dead, 1);
    assert_eq!(fold.apply(2, "r", 0, Kind::Revived), Verdict::Revived);
    assert_eq!(fold.apply(3, "r", 0, Kind::Revived), Verdict::Late);
    assert_eq!(fold.ledger.state(3).dead, 0);
}

#[test]
fn a_claim_of_a_task_not_read_yet_is_not_judged_before_it_is() {
    let mut fold = Fold::plain(1);
    let claim = ClaimRecord { task: 1, worker: "a".into(), kind: Kind::Claim { lease: 100, nonce: 1 } };
    assert_eq!(fold.ledger.apply(0, 10, Some(&claim)), Err(Behind { task: 1 }));
    assert_eq!((fold.ledger.claims_end(), fold.ledger.log_time()), (0, 0), "nothing has changed");
    fold.ledger.add_task(1, TaskMeta::plain(0));
    assert!(matches!(fold.ledger.apply(0, 10, Some(&claim)), Ok(Verdict::Granted { .. })));
}

/// S42: unknown records are inert, and B179: a task that is gone is settled, not an error.
#[test]
fn what_cannot_be_read_only_advances_the_position_and_the_log_time() {
    let mut ledger = Ledger::new(100, 0);
    assert_eq!(ledger.apply(4, 77, None), Ok(Verdict::Inert));
    assert_eq!((ledger.claims_end(), ledger.log_time(), ledger.counts().inert), (5, 77, 1));
    let gone = ClaimRecord { task: 3, worker: "a".into(), kind: Kind::Claim { lease: 100, nonce: 1 } };
    assert_eq!(ledger.apply(5, 78, Some(&gone)), Ok(Verdict::Refused(Refusal::Settled)));
    assert_eq!(ledger.apply(4, 99, Some(&gone)), Ok(Verdict::Replayed));
}
