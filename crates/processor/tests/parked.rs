//! Keys that stop at a record that failed: what goes on beside them, how they are bounded, what is done about
//! each, and what becomes of them when the lane stops.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use common::{Running, secs, settle, tp};
use tramline_processor::testing::{MemoryLog, MemorySource};
use tramline_processor::{
    Backoff, Batch, ConfigErrorKind, DeadLetter, DeadLetters, ErrorPolicy, Handler, Lane, LaneKey, Ordering,
    Park, ParkedError, ParkedId, ParkedKey, ParkedKeys, PartitionedBuilder, PartitionedExt, Retry, RunError,
};
use tramline_wire::Record;

/// Fails at the offsets it is told to; notes what it did.
#[derive(Clone, Default)]
struct Faulty(Arc<Mutex<FaultyState>>);

#[derive(Default)]
struct FaultyState {
    bad: BTreeSet<i64>,
    tried: Vec<i64>,
    done: Vec<i64>,
}

impl Faulty {
    fn at(bad: &[i64]) -> Self {
        let faulty = Self::default();
        faulty.0.lock().unwrap().bad = bad.iter().copied().collect();
        faulty
    }

    fn mend(&self, offset: i64) {
        self.0.lock().unwrap().bad.remove(&offset);
    }

    fn done(&self) -> Vec<i64> {
        self.0.lock().unwrap().done.clone()
    }

    /// Without regard to an order between keys, which is nobody's promise.
    fn done_sorted(&self) -> Vec<i64> {
        let mut done = self.done();
        done.sort_unstable();
        done
    }

    fn tried(&self) -> Vec<i64> {
        self.0.lock().unwrap().tried.clone()
    }

    fn work(&self, offset: i64) -> Result<(), String> {
        let state = &mut *self.0.lock().unwrap();
        state.tried.push(offset);
        if state.bad.contains(&offset) {
            return Err(format!("cannot do {offset}"));
        }
        state.done.push(offset);
        Ok(())
    }

    fn handler(&self) -> impl Handler + use<> {
        let faulty = self.clone();
        move |record: Record, _: Lane| {
            let faulty = faulty.clone();
            async move {
                tokio::task::yield_now().await;
                faulty.work(record.offset())
            }
        }
    }
}

/// A run, its parked keys, and what its handler did.
struct Stand {
    log: MemoryLog,
    run: Running,
    parked: ParkedKeys,
    faulty: Faulty,
}

impl Stand {
    /// Keys of partition 0, of which the records at `bad` fail.
    fn new(
        keys: &[&str],
        bad: &[i64],
        with: impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource>,
    ) -> Self {
        let (log, faulty) = (MemoryLog::new(), Faulty::at(bad));
        produce(&log, keys);
        let (source, control) = MemorySource::new(&log);
        control.assign(&[tp(0)]);
        let run = with(source.partitioned()).build().unwrap();
        let parked = run.parked();
        let run = Running::of(run, control, faulty.handler());
        Self { log, run, parked, faulty }
    }

    fn only(&self) -> ParkedKey {
        let mut list = self.parked.list();
        assert_eq!(list.len(), 1, "{list:?}");
        list.remove(0)
    }
}

fn produce(log: &MemoryLog, keys: &[&str]) {
    for key in keys {
        log.produce(&tp(0), Some(key.as_bytes()), None);
    }
}

fn by_key(
    policy: impl Into<ErrorPolicy>,
) -> impl FnOnce(PartitionedBuilder<MemorySource>) -> PartitionedBuilder<MemorySource> {
    let policy = policy.into();
    |builder| builder.ordering(Ordering::Key).max_concurrent_handlers(4).on_error(policy)
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_parks_with_its_later_records_and_other_keys_go_on() {
    let stand = Stand::new(&["a", "b", "a", "b"], &[0], by_key(Park::new()));
    settle().await;
    produce(&stand.log, &["a", "c"]);
    tokio::time::sleep(secs(7)).await;
    assert_eq!((stand.faulty.done(), stand.faulty.tried().len()), (vec![1, 3, 5], 4));
    let parked = stand.only();
    assert_eq!((parked.id.offset, &parked.id.lane.topic_partition), (0, &tp(0)));
    assert_eq!((parked.key, parked.failed, parked.waiting), (LaneKey::from("a"), 1, 2));
    assert_eq!((parked.attempts, &*parked.error, parked.busy), (1, "cannot do 0", false));
    assert!(secs(7) <= parked.since && parked.since < secs(8));
    assert_eq!(stand.log.committed(&tp(0)), None, "nothing above the parked record may be committed");
    stand.faulty.mend(0);
    stand.parked.resume(&parked.id).await.unwrap();
    settle().await;
    assert_eq!(stand.faulty.done(), [1, 3, 5, 0, 2, 4]);
    assert!(stand.parked.list().is_empty());
    let report = stand.run.stop().await.0.unwrap();
    assert_eq!((report.keys_parked, report.records_completed), (1, 6));
    assert_eq!(stand.log.committed(&tp(0)), Some(6));
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_after_it_was_resumed_parks_again_under_the_same_id_after_fresh_attempts() {
    let policy = Retry::new(2, Backoff::every(secs(1))).then(Park::new());
    let stand = Stand::new(&["a", "a"], &[0], by_key(policy));
    tokio::time::sleep(secs(3)).await;
    let parked = stand.only();
    assert_eq!((parked.attempts, stand.faulty.tried()), (2, vec![0, 0]));
    stand.parked.resume(&parked.id).await.unwrap();
    let again = stand.parked.resume(&parked.id).await;
    assert!(matches!(again, Err(ParkedError::NotParked)), "{again:?}");
    tokio::time::sleep(secs(3)).await;
    assert_eq!((stand.only().id, stand.only().attempts), (parked.id, 4));
    assert_eq!(stand.faulty.tried(), [0, 0, 0, 0]);
    stand.run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn skip_completes_exactly_the_failed_record() {
    let stand = Stand::new(&["a", "b", "a", "a"], &[0, 2], by_key(Park::new()));
    settle().await;
    let first = stand.only().id;
    assert_eq!(stand.parked.skip(&first).await.unwrap(), 1);
    settle().await;
    let second = stand.only();
    assert_eq!((second.id.offset, second.waiting), (2, 1));
    let stale = stand.parked.skip(&first).await;
    assert!(
        matches!(stale, Err(ParkedError::NotParked)),
        "a stale id must not hit the next record: {stale:?}"
    );
    assert_eq!(stand.parked.skip(&second.id).await.unwrap(), 1);
    settle().await;
    assert_eq!(stand.faulty.done(), [1, 3]);
    let report = stand.run.stop().await.0.unwrap();
    assert_eq!((report.records_skipped, report.keys_parked, report.records_completed), (2, 2, 4));
    assert_eq!(stand.log.committed(&tp(0)), Some(4));
}

/// Keeps letters, once it is allowed to; refuses those of the given offsets.
#[derive(Clone, Default)]
struct Letters {
    kept: Arc<Mutex<Vec<DeadLetter>>>,
    refused: BTreeSet<i64>,
    gate: Option<tokio_util::sync::CancellationToken>,
}

impl DeadLetters for Letters {
    type Error = String;

    async fn write(&self, letter: DeadLetter) -> Result<(), String> {
        if let Some(gate) = &self.gate {
            gate.cancelled().await;
        }
        if self.refused.contains(&letter.record.offset()) {
            return Err("no room".to_owned());
        }
        self.kept.lock().unwrap().push(letter);
        Ok(())
    }
}

impl Letters {
    fn kept(&self) -> Vec<(i64, u32)> {
        self.kept.lock().unwrap().iter().map(|letter| (letter.record.offset(), letter.attempts)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_completes_the_failed_record_when_it_is_acknowledged_and_the_rest_goes_on() {
    let stand = Stand::new(&["a", "a", "b"], &[0], by_key(Park::new()));
    settle().await;
    let letters = Letters { gate: Some(Default::default()), ..Letters::default() };
    let id = stand.only().id;
    let (parked, to) = (stand.parked.clone(), letters.clone());
    let writing = tokio::spawn({
        let id = id.clone();
        async move { parked.dead_letter(&id, to).await }
    });
    settle().await;
    assert!(stand.only().busy);
    assert!(matches!(stand.parked.skip(&id).await, Err(ParkedError::Busy)));
    assert_eq!(stand.faulty.done(), [2], "what waits behind waits for the acknowledgement");
    letters.gate.as_ref().unwrap().cancel();
    assert_eq!(writing.await.unwrap().unwrap(), 1);
    settle().await;
    assert_eq!((letters.kept(), stand.faulty.done()), (vec![(0, 1)], vec![2, 1]));
    assert_eq!(letters.kept.lock().unwrap()[0].cause, "cannot do 0");
    let report = stand.run.stop().await.0.unwrap();
    assert_eq!((report.records_dead_lettered, report.records_completed), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn all_of_a_key_becomes_dead_letters_in_order_and_what_comes_later_is_handled() {
    let stand = Stand::new(&["a", "a", "b", "a"], &[0, 1, 3], by_key(Park::new()));
    settle().await;
    let letters = Letters::default();
    assert_eq!(stand.parked.dead_letter_all(&stand.only().id, letters.clone()).await.unwrap(), 3);
    produce(&stand.log, &["a"]);
    settle().await;
    assert_eq!((letters.kept(), stand.faulty.done()), (vec![(0, 1), (1, 0), (3, 0)], vec![2, 4]));
    assert!(
        letters.kept.lock().unwrap()[2].cause.contains("behind offset 0, which failed with: cannot do 0")
    );
    assert_eq!(stand.run.stop().await.0.unwrap().records_dead_lettered, 3);
    assert_eq!(stand.log.committed(&tp(0)), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_cannot_be_written_leaves_its_record_parked_with_all_after_it() {
    let stand = Stand::new(&["a", "a", "a"], &[0], by_key(Park::new()));
    settle().await;
    let letters = Letters { refused: [1].into(), ..Letters::default() };
    let failed = stand.parked.dead_letter_all(&stand.only().id, letters.clone()).await.unwrap_err();
    assert!(failed.is_retriable());
    assert!(matches!(failed, ParkedError::Write { offset: 1, written: 1, .. }), "{failed:?}");
    let left = stand.only();
    assert_eq!((left.id.offset, left.waiting, left.busy, left.attempts), (1, 1, false, 0));
    assert_eq!((letters.kept(), stand.faulty.done()), (vec![(0, 1)], vec![]));
    stand.parked.resume(&left.id).await.unwrap();
    settle().await;
    assert_eq!(stand.faulty.done(), [1, 2]);
    stand.run.stop().await.0.unwrap();
    assert_eq!(stand.log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn in_partition_order_the_partition_is_parked_and_other_partitions_go_on() {
    let (log, faulty) = (MemoryLog::new(), Faulty::at(&[1]));
    log.produce_many(&tp(0), 5);
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0), tp(1)]);
    let run = source.partitioned().on_error(Park::new()).build().unwrap();
    let parked = run.parked();
    let run = Running::of(run, control, faulty.handler());
    settle().await;
    log.produce_many(&tp(1), 1);
    settle().await;
    assert_eq!(faulty.done(), [0, 0]);
    let list = parked.list();
    assert_eq!((list.len(), list[0].id.offset, list[0].waiting), (1, 1, 3));
    assert_eq!(parked.skip(&list[0].id).await.unwrap(), 1);
    settle().await;
    assert_eq!(faulty.done(), [0, 0, 2, 3, 4]);
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(5));
}

#[tokio::test(start_paused = true)]
async fn without_an_order_the_record_alone_is_parked() {
    let with = |b: PartitionedBuilder<MemorySource>| b.ordering(Ordering::Unordered).on_error(Park::new());
    let stand = Stand::new(&["a", "a", "a"], &[0], with);
    settle().await;
    assert_eq!((stand.only().waiting, stand.faulty.done()), (0, vec![1, 2]));
    stand.faulty.mend(0);
    stand.parked.resume(&stand.only().id).await.unwrap();
    settle().await;
    assert_eq!(stand.faulty.done(), [1, 2, 0]);
    stand.run.stop().await.0.unwrap();
    assert_eq!(stand.log.committed(&tp(0)), Some(3));
}

#[tokio::test(start_paused = true)]
async fn as_many_parked_keys_as_may_be_hold_the_partition_back_until_one_leaves() {
    let policy = Park::new().max_keys(2);
    let with = |b: PartitionedBuilder<MemorySource>| by_key(policy)(b).max_buffered_records(4);
    let stand = Stand::new(&["a", "b"], &[0, 1], with);
    settle().await;
    for n in 0..20 {
        produce(&stand.log, &[&format!("good-{n}")]);
        settle().await;
    }
    assert_eq!((stand.parked.list().len(), stand.faulty.done()), (2, vec![]));
    assert_eq!(stand.run.control.paused(), [tp(0)]);
    stand.parked.skip(&stand.parked.list()[0].id).await.unwrap();
    settle().await;
    assert_eq!(stand.faulty.done_sorted(), (2..22).collect::<Vec<_>>());
    assert!(stand.run.control.paused().is_empty());
    stand.run.stop().await.0.unwrap();
    assert_eq!(stand.log.committed(&tp(0)), Some(1));
}

#[tokio::test(start_paused = true)]
async fn as_many_parked_records_as_may_be_hold_the_partition_back() {
    let policy = Park::new().max_records(3);
    let with = |b: PartitionedBuilder<MemorySource>| by_key(policy)(b).max_buffered_records(4);
    let stand = Stand::new(&["a"], &[0], with);
    settle().await;
    for _ in 0..20 {
        produce(&stand.log, &["a"]);
        settle().await;
    }
    produce(&stand.log, &["b"]);
    settle().await;
    assert_eq!((stand.only().waiting, stand.faulty.done()), (2, vec![]));
    assert_eq!(stand.run.control.paused(), [tp(0)]);
    stand.faulty.mend(0);
    stand.parked.resume(&stand.only().id).await.unwrap();
    settle().await;
    let of_a: Vec<i64> = stand.faulty.done().into_iter().filter(|&offset| offset < 21).collect();
    assert_eq!((of_a, stand.faulty.done().len()), ((0..21).collect(), 22));
    stand.run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_no_more_may_be_parked_another_policy_may_decide() {
    let skipping = Park::new().max_keys(1).when_full(ErrorPolicy::Skip);
    let stand = Stand::new(&["a", "b", "c"], &[0, 1], by_key(skipping));
    settle().await;
    assert_eq!((stand.only().id.offset, stand.faulty.done()), (0, vec![2]));
    let report = stand.run.stop().await.0.unwrap();
    assert_eq!((report.keys_parked, report.records_skipped), (1, 1));

    let stopping = Park::new().max_keys(1).when_full(ErrorPolicy::StopPartition);
    let stand = Stand::new(&["a", "b", "c"], &[0, 1], by_key(stopping));
    settle().await;
    assert!(stand.parked.list().is_empty(), "the lane is gone");
    assert_eq!(stand.run.stop().await.0.unwrap().lane_failures, 1);

    let ending = Park::new().max_keys(1).when_full(ErrorPolicy::StopRun);
    let error = Stand::new(&["a", "b"], &[0, 1], by_key(ending)).run.ended().await.0.unwrap_err();
    assert!(matches!(error, RunError::Handler { offset: Some(1), .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_revocation_does_not_wait_for_parked_keys_and_they_come_again_in_order() {
    let stand = Stand::new(&["a", "b", "a", "b"], &[0], by_key(Park::new()));
    settle().await;
    let old = stand.only().id;
    let asked = tokio::time::Instant::now();
    stand.run.control.revoke(&[tp(0)]).released().await;
    assert!(asked.elapsed() < secs(1));
    assert_eq!(stand.log.committed(&tp(0)), Some(0), "the beginning, beside what is completed above it");
    assert!(matches!(stand.parked.resume(&old).await, Err(ParkedError::LaneClosed)));
    stand.faulty.mend(0);
    stand.run.control.assign(&[tp(0)]);
    settle().await;
    let done = stand.faulty.done();
    let of_a: Vec<i64> = done.iter().copied().filter(|offset| offset % 2 == 0).collect();
    assert_eq!((of_a, done.len()), (vec![0, 2], 4), "the other key was done and does not run again");
    stand.run.stop().await.0.unwrap();
    assert_eq!(stand.log.committed(&tp(0)), Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_loss_a_shutdown_and_a_failure_leave_parked_records_unfinished() {
    let stand = Stand::new(&["ok", "a", "b"], &[1], by_key(Park::new()));
    settle().await;
    let id = stand.only().id;
    stand.run.control.lose(&[tp(0)]);
    settle().await;
    assert!(stand.parked.list().is_empty() && stand.log.commits().is_empty());
    assert!(matches!(stand.parked.skip(&id).await, Err(ParkedError::LaneClosed)));
    stand.run.control.assign(&[tp(0)]);
    settle().await;
    let asked = tokio::time::Instant::now();
    assert_eq!(stand.only().id.offset, 1);
    let control = stand.run.control.clone();
    stand.run.stop().await.0.unwrap();
    assert!(asked.elapsed() < secs(1), "a drain does not wait for parked keys");
    assert_eq!((stand.log.committed(&tp(0)), control.position(&tp(0))), (Some(1), Some(1)));
    assert!(stand.parked.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn while_a_lane_drains_nothing_is_parked_and_nothing_can_be_ordered() {
    let (log, gate) = (MemoryLog::new(), tokio_util::sync::CancellationToken::new());
    produce(&log, &["a", "slow"]);
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    let run = by_key(Park::new())(source.partitioned()).build().unwrap();
    let (parked, held) = (run.parked(), gate.clone());
    let handler = move |record: Record, _: Lane| {
        let held = held.clone();
        async move {
            if record.offset() == 1 {
                held.cancelled().await;
            }
            Err::<(), _>("never")
        }
    };
    let run = Running::of(run, control, handler);
    settle().await;
    let id = parked.list()[0].id.clone();
    let revoking = run.control.revoke(&[tp(0)]);
    settle().await;
    assert!(!revoking.is_released() && parked.list().is_empty());
    assert!(matches!(parked.resume(&id).await, Err(ParkedError::LaneClosed)));
    gate.cancel();
    revoking.released().await;
    let report = run.stop().await.0.unwrap();
    assert_eq!(
        (report.keys_parked, log.commits().len()),
        (1, 0),
        "what fails in a drain is left to the next owner"
    );
}

#[tokio::test(start_paused = true)]
async fn an_ordered_dead_letter_that_meets_a_revocation_is_finished_first() {
    let stand = Stand::new(&["a", "a"], &[0], by_key(Park::new()));
    settle().await;
    let letters = Letters { gate: Some(Default::default()), ..Letters::default() };
    let (parked, to, id) = (stand.parked.clone(), letters.clone(), stand.only().id);
    let writing = tokio::spawn(async move { parked.dead_letter(&id, to).await });
    settle().await;
    let revoking = stand.run.control.revoke(&[tp(0)]);
    tokio::time::sleep(secs(1)).await;
    assert!(stand.log.commits().is_empty());
    letters.gate.as_ref().unwrap().cancel();
    revoking.released().await;
    assert_eq!(writing.await.unwrap().unwrap(), 1);
    assert_eq!((stand.faulty.done(), stand.log.committed(&tp(0))), (vec![1], Some(2)));
    stand.run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_parks_as_it_was_and_a_panic_parks_like_any_failure() {
    let (log, state) = (MemoryLog::new(), Arc::new(Mutex::new((true, Vec::new()))));
    produce(&log, &["a", "b", "a", "a"]);
    let (source, control) = MemorySource::new(&log);
    control.assign(&[tp(0)]);
    let builder =
        source.partitioned().ordering(Ordering::Key).max_handler_batch_size(2).on_error(Park::new());
    let run = builder.build().unwrap();
    let (parked, noted) = (run.parked(), Arc::clone(&state));
    let handler = move |batch: Batch, _: Lane| {
        let state = Arc::clone(&noted);
        async move {
            let mut state = state.lock().unwrap();
            let fails = state.0 && batch[0].key() == Some(b"a");
            if fails {
                drop(state);
                panic!("too much");
            }
            state.1.push(batch.iter().map(Record::offset).collect::<Vec<_>>());
            Ok::<_, String>(())
        }
    };
    let run = Running::of_batches(run, control, handler);
    settle().await;
    let list = parked.list();
    assert_eq!((list.len(), list[0].failed, list[0].waiting), (1, 2, 1));
    assert_eq!(list[0].error, "panicked: too much");
    assert_eq!(state.lock().unwrap().1, [vec![1]]);
    state.lock().unwrap().0 = false;
    parked.resume(&list[0].id).await.unwrap();
    settle().await;
    assert_eq!(state.lock().unwrap().1, [vec![1], vec![0, 2], vec![3]]);
    run.stop().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn runs_that_park_nothing_answer_so_and_parking_that_makes_no_sense_is_refused() {
    let stand = Stand::new(&["a"], &[], by_key(ErrorPolicy::StopRun));
    settle().await;
    let lane = stand.run.monitor.snapshot()[0].lane.clone();
    let nothing = stand.parked.skip(&ParkedId { lane: lane.clone(), offset: 0 }).await;
    assert!(matches!(nothing, Err(ParkedError::NotParked)), "{nothing:?}");
    stand.run.stop().await.0.unwrap();
    assert!(matches!(stand.parked.skip(&ParkedId { lane, offset: 0 }).await, Err(ParkedError::LaneClosed)));
    for park in [
        Park::new().max_keys(0),
        Park::new().max_records(0),
        Park::new().when_full(Park::new().into()),
        Park::new().when_full(Retry::new(3, Backoff::default()).into()),
    ] {
        let (source, _) = MemorySource::new(&MemoryLog::new());
        let error = source.partitioned().on_error(park).build().unwrap_err();
        assert!(matches!(error.kind, ConfigErrorKind::OutOfRange { setting: "on_error", .. }), "{error}");
    }
}
