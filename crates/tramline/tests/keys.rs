//! Key order, batches, retries, dead letters, decoding and parked keys over the real consumer and broker, with members
//! that come and go.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Stand, soon, tp, unique};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline::client::{Admin, Consumer, ProducerConfig, ProducerRecord, StartOffset};
use tramline::prelude::*;
use tramline::processor::dead_letter::header;
use tramline::processor::{
    Backoff, DeadLetterTopic, Decoded, Ordering, Park, ParkedKey, ParkedKeys, Partitioned, RunError,
    RunReport,
};

type Ended = (Result<RunReport, RunError>, Consumer);

/// A run on its own task.
struct Running {
    parked: ParkedKeys,
    stop: CancellationToken,
    task: JoinHandle<Ended>,
}

impl Running {
    fn for_each<H: Handler>(run: Partitioned<Consumer>, handler: H) -> Self {
        let (parked, stop) = (run.parked(), CancellationToken::new());
        let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
        Self { parked, stop, task }
    }

    /// Ends well, and leaves its group.
    async fn stop(self) -> RunReport {
        self.stop.cancel();
        let (result, consumer) = soon(self.task).await.unwrap();
        soon(consumer.close()).await;
        result.unwrap_or_else(|error| panic!("{error} {error:?}"))
    }
}

async fn committed(admin: &Admin, group: &str, topic: &str, partition: i32) -> Option<i64> {
    let offsets = soon(admin.group_offsets(group)).await.unwrap();
    offsets.get(&tp(topic, partition)).map(|offset| offset.offset)
}

/// What happened to the records of one key in one partition.
#[derive(Default)]
struct OneKey {
    live: bool,
    /// In the order of their first handling.
    entered: Vec<i64>,
    done: BTreeSet<i64>,
}

/// What all members of a group did, judged as it happens.
#[derive(Default)]
struct Ledger {
    keys: BTreeMap<(i32, Vec<u8>), OneKey>,
    newest: BTreeMap<i32, i32>,
    owner: BTreeMap<i32, usize>,
    wrong: Vec<String>,
}

impl Ledger {
    fn enter(&mut self, member: usize, record: &Record, lane: &Lane) {
        let (partition, offset) = (record.partition(), record.offset());
        self.owner.insert(partition, member);
        let newest = self.newest.entry(partition).or_insert(lane.generation());
        if *newest > lane.generation() {
            self.wrong.push(format!("generation {} of {partition} wrote after {newest}", lane.generation()));
        }
        *newest = lane.generation().max(*newest);
        let key = self.keys.entry((partition, record.key().unwrap().to_vec())).or_default();
        if std::mem::replace(&mut key.live, true) {
            self.wrong.push(format!("two live handlers of the key of {offset} in {partition}"));
        }
        if let Some(before) = key.entered.iter().find(|&&seen| seen < offset && !key.done.contains(&seen)) {
            self.wrong.push(format!("{offset} of {partition} before {before} of its key was done"));
        }
        if !key.entered.contains(&offset) {
            if key.entered.last().is_some_and(|&last| offset < last) {
                self.wrong.push(format!("{offset} of {partition} was passed by a later one of its key"));
            }
            key.entered.push(offset);
        }
    }

    /// The end of a handler. A record is done when it succeeded or will be written elsewhere.
    fn leave(&mut self, record: &Record, done: bool) {
        let key = self.keys.entry((record.partition(), record.key().unwrap().to_vec())).or_default();
        key.live = false;
        if done {
            key.done.insert(record.offset());
        }
    }

    fn done(&self, partition: i32) -> BTreeSet<i64> {
        let of_it = self.keys.iter().filter(|((of, _), _)| *of == partition);
        of_it.flat_map(|(_, key)| key.done.iter().copied()).collect()
    }

    fn owned_by(&self, member: usize) -> usize {
        self.owner.values().filter(|owner| **owner == member).count()
    }
}

const POISON: &[u8] = b"poison";
const ATTEMPTS: u32 = 3;

/// Takes a moment for each record, fails at every eleventh once and at poison always.
fn keyed_handler(
    member: usize,
    ledger: &Arc<Mutex<Ledger>>,
    changed: &watch::Sender<u64>,
) -> impl Handler + use<> {
    let (ledger, changed) = (Arc::clone(ledger), changed.clone());
    let tries = Arc::new(Mutex::new(BTreeMap::<(i32, i64, i32), u32>::new()));
    move |record: Record, lane: Lane| {
        let (ledger, changed, tries) = (Arc::clone(&ledger), changed.clone(), Arc::clone(&tries));
        async move {
            ledger.lock().unwrap().enter(member, &record, &lane);
            for _ in 0..record.offset() % 4 {
                tokio::task::yield_now().await;
            }
            let tried = {
                let mut tries = tries.lock().unwrap();
                let of_it =
                    tries.entry((record.partition(), record.offset(), lane.generation())).or_default();
                *of_it += 1;
                *of_it
            };
            let poison = record.value() == Some(POISON);
            let fails = poison || (record.offset() % 11 == 0 && tried == 1);
            ledger.lock().unwrap().leave(&record, !fails || (poison && tried == ATTEMPTS));
            changed.send_modify(|count| *count += 1);
            if fails { Err("cannot do it") } else { Ok(()) }
        }
    }
}

/// Twenty keys for each partition, every hundredth record poison, until the token is cancelled; gives the number of
/// records per partition.
async fn produce_until_told(
    stand: &Stand,
    topic: &str,
    partitions: i32,
) -> (CancellationToken, JoinHandle<BTreeMap<i32, i64>>) {
    let producer = stand.producer(ProducerConfig::new()).await;
    let (stop, topic) = (CancellationToken::new(), topic.to_owned());
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let mut ends = BTreeMap::new();
        while !stopped.is_cancelled() {
            for partition in 0..partitions {
                let next: i64 = ends.get(&partition).copied().unwrap_or(0);
                let record = |offset: i64| {
                    let value = if offset % 100 == 50 { POISON.to_vec() } else { b"fine".to_vec() };
                    ProducerRecord::to(&*topic).key(format!("key-{}", offset * 7 % 20)).value(value)
                };
                let records = (next..next + 5).map(record).collect();
                let base = producer.send_batch(&*topic, partition, records).await.unwrap().unwrap();
                ends.insert(partition, base + 5);
            }
        }
        producer.close().await.unwrap();
        ends
    });
    (stop, task)
}

/// Every record of a topic of one partition.
async fn everything(stand: &Stand, topic: &str) -> Vec<Record> {
    let consumer = Consumer::builder(stand.client()).assign([(tp(topic, 0), StartOffset::Earliest)]);
    let consumer = consumer.build().await.unwrap();
    let end = soon(consumer.end_offsets(&[tp(topic, 0)])).await.unwrap()[&tp(topic, 0)];
    let mut all = Vec::new();
    while i64::try_from(all.len()).unwrap() < end {
        all.push(soon(consumer.recv()).await.unwrap());
    }
    soon(consumer.close()).await;
    all
}

/// Six rebalances while keyed records flow, some of which fail once and some always. What members do is judged by
/// [`Ledger`]; what is committed is looked at after each rebalance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t262_b050_keys_keep_their_order_through_retries_and_rebalances_and_poison_becomes_dead_letters() {
    const PARTITIONS: i32 = 4;
    let stand = Stand::start().await;
    let (topic, aside) = (stand.topic(PARTITIONS).await, stand.topic(1).await);
    let (group, admin) = (unique("group"), stand.admin());
    let producer = Arc::new(stand.producer(ProducerConfig::new()).await);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let (changed, mut changes) = watch::channel(0);
    let (flowing, produced) = produce_until_told(&stand, &topic, PARTITIONS).await;
    let member = async |number| {
        let consumer = stand.member(&topic, &group).max_poll_records(20).build().await.unwrap();
        let backoff = Backoff::every(Duration::from_millis(2));
        let letters = DeadLetterTopic::new(Arc::clone(&producer), &*aside);
        let builder = consumer.partitioned().ordering(Ordering::Key).max_concurrent_handlers(4);
        let builder =
            builder.commit(CommitPolicy::Periodic(Duration::from_millis(50))).max_buffered_records(32);
        let policy = Retry::new(ATTEMPTS, backoff).then(ErrorPolicy::dead_letter(letters));
        let run = builder.on_error(policy).build().unwrap();
        Running::for_each(run, keyed_handler(number, &ledger, &changed))
    };
    let half = usize::try_from(PARTITIONS).unwrap() / 2;
    let first = member(0).await;
    drop(soon(changes.wait_for(|_| ledger.lock().unwrap().owned_by(0) == 2 * half)).await.unwrap());
    for round in 1..=3 {
        let second = member(round).await;
        drop(soon(changes.wait_for(|_| ledger.lock().unwrap().owned_by(round) == half)).await.unwrap());
        for partition in 0..PARTITIONS {
            let committed = committed(&admin, &group, &topic, partition).await.unwrap_or(0);
            let done = ledger.lock().unwrap().done(partition);
            let undone = (0..committed).find(|offset| !done.contains(offset));
            assert_eq!(undone, None, "round {round}: partition {partition} committed at {committed}");
        }
        second.stop().await;
        drop(soon(changes.wait_for(|_| ledger.lock().unwrap().owned_by(0) == 2 * half)).await.unwrap());
        assert_eq!(ledger.lock().unwrap().wrong, [] as [String; 0], "round {round}");
    }
    flowing.cancel();
    let ends = soon(produced).await.unwrap();
    for (&partition, &end) in &ends {
        let all = usize::try_from(end).unwrap();
        drop(soon(changes.wait_for(|_| ledger.lock().unwrap().done(partition).len() == all)).await.unwrap());
    }
    let report = first.stop().await;
    assert!(
        report.uncommitted.is_empty() && report.retries > 0 && report.records_dead_lettered > 0,
        "{report:?}"
    );
    assert_eq!(ledger.lock().unwrap().wrong, [] as [String; 0]);
    let mut poison = BTreeSet::new();
    for (&partition, &end) in &ends {
        assert_eq!(committed(&admin, &group, &topic, partition).await, Some(end), "partition {partition}");
        poison.extend((50..end).step_by(100).map(|offset| (partition.to_string(), offset.to_string())));
    }
    let text = |record: &Record, name| {
        String::from_utf8(record.header(name).flatten().unwrap_or_default().to_vec()).unwrap()
    };
    let mut written = BTreeSet::new();
    for letter in everything(&stand, &aside).await {
        assert_eq!((letter.value(), text(&letter, header::TOPIC)), (Some(POISON), topic.clone()));
        assert_eq!(text(&letter, header::CAUSE), "cannot do it");
        assert_eq!(text(&letter, header::ATTEMPTS), ATTEMPTS.to_string());
        written.insert((text(&letter, header::PARTITION), text(&letter, header::OFFSET)));
    }
    assert_eq!(written, poison);
    stand.close().await;
}

/// Waits until exactly these keys are parked.
async fn parked(keys: &ParkedKeys, count: usize) -> Vec<ParkedKey> {
    soon(async {
        loop {
            let list = keys.list();
            if list.len() == count {
                return list;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn produce_keys(stand: &Stand, topic: &str, records: &[(&str, &str)]) {
    let producer = stand.producer(ProducerConfig::new()).await;
    let record = |&(key, value): &(&str, &str)| {
        ProducerRecord::to(topic).key(key.to_owned()).value(value.to_owned()).header("h", "1".to_owned())
    };
    soon(producer.send_batch(topic, 0, records.iter().map(record).collect())).await.unwrap();
    producer.close().await.unwrap();
}

/// Notes what it handles, and fails at values that are not allowed yet.
#[derive(Clone, Default)]
struct Allowing(Arc<Mutex<(BTreeSet<String>, Vec<i64>)>>);

impl Allowing {
    fn allow(&self, value: &str) {
        self.0.lock().unwrap().0.insert(value.to_owned());
    }

    fn done(&self) -> Vec<i64> {
        self.0.lock().unwrap().1.clone()
    }

    fn handler(&self) -> impl Handler + use<> {
        let state = Arc::clone(&self.0);
        move |record: Record, _: Lane| {
            let state = &mut *state.lock().unwrap();
            let value = String::from_utf8_lossy(record.value().unwrap_or_default()).into_owned();
            let fails = value != "fine" && !state.0.contains(&value);
            if !fails {
                state.1.push(record.offset());
            }
            std::future::ready(if fails { Err(format!("{value} is not allowed")) } else { Ok(()) })
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_keys_move_with_their_partition_come_again_in_order_and_leave_through_the_handle() {
    let stand = Stand::start().await;
    let (topic, aside) = (stand.topic(1).await, stand.topic(1).await);
    let (group, admin) = (unique("group"), stand.admin());
    produce_keys(&stand, &topic, &[("a", "x"), ("b", "fine"), ("a", "fine"), ("c", "y"), ("c", "fine")])
        .await;
    let allowing = Allowing::default();
    let member = async || {
        let consumer = stand.member(&topic, &group).build().await.unwrap();
        let builder = consumer.partitioned().ordering(Ordering::Key).max_concurrent_handlers(4);
        let run = builder.on_error(Park::new()).commit(CommitPolicy::Periodic(Duration::from_millis(20)));
        Running::for_each(run.build().unwrap(), allowing.handler())
    };
    let first = member().await;
    let before = parked(&first.parked, 2).await;
    assert_eq!(before.iter().map(|key| key.id.offset).collect::<Vec<_>>(), [0, 3]);
    // The partition goes to another member, and does not wait for what is parked.
    let report = first.stop().await;
    // The offset is that of the first parked record; beside it stands what was completed behind it.
    assert_eq!((report.keys_parked, committed(&admin, &group, &topic, 0).await), (2, Some(0)));
    let second = member().await;
    let list = parked(&second.parked, 2).await;
    assert!(list[0].id.lane.generation > before[0].id.lane.generation);
    assert!(second.parked.resume(&before[0].id).await.is_err(), "an id of a former assignment names nothing");
    allowing.allow("x");
    second.parked.resume(&list[0].id).await.unwrap();
    let arrives = async { while committed(&admin, &group, &topic, 0).await != Some(3) {} };
    soon(arrives).await;
    let producer = Arc::new(stand.producer(ProducerConfig::new()).await);
    let letters = DeadLetterTopic::new(Arc::clone(&producer), &*aside);
    assert_eq!(soon(second.parked.dead_letter_all(&list[1].id, letters)).await.unwrap(), 2);
    let arrives = async { while committed(&admin, &group, &topic, 0).await != Some(5) {} };
    soon(arrives).await;
    let done = allowing.done();
    assert_eq!(done.iter().copied().filter(|&offset| offset == 0 || offset == 2).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(second.stop().await.records_dead_lettered, 2);
    let written = everything(&stand, &aside).await;
    let seen: Vec<_> =
        written.iter().map(|record| (record.key(), record.value(), record.header("h"))).collect();
    let one = Some(Some(&b"1"[..]));
    assert_eq!(seen, [(Some(&b"c"[..]), Some(&b"y"[..]), one), (Some(b"c"), Some(b"fine"), one)]);
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_the_cluster_refuses_leaves_its_record_parked() {
    let stand = Stand::start().await;
    let (topic, group) = (stand.topic(1).await, unique("group"));
    produce_keys(&stand, &topic, &[("a", "x"), ("b", "fine")]).await;
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let run = consumer.partitioned().ordering(Ordering::Key).on_error(Park::new()).build().unwrap();
    let run = Running::for_each(run, Allowing::default().handler());
    let list = parked(&run.parked, 1).await;
    let producer = Arc::new(stand.producer(ProducerConfig::new()).await);
    let letters = DeadLetterTopic::new(producer, "not a topic name");
    let refused = soon(run.parked.dead_letter(&list[0].id, letters)).await.unwrap_err();
    assert!(refused.is_retriable(), "{refused}");
    assert_eq!(parked(&run.parked, 1).await[0].id, list[0].id);
    assert_eq!(run.stop().await.records_dead_lettered, 0);
    assert_eq!(committed(&stand.admin(), &group, &topic, 0).await, Some(0), "the parked record comes again");
    stand.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_decoded_values_have_one_key_and_undecodable_records_become_raw_dead_letters() {
    let stand = Stand::start().await;
    let (topic, aside) = (stand.topic(1).await, stand.topic(1).await);
    let (group, admin) = (unique("group"), stand.admin());
    let records = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "x"), ("b", "4"), ("a", "5")];
    produce_keys(&stand, &topic, &records).await;
    let producer = Arc::new(stand.producer(ProducerConfig::new()).await);
    let letters = DeadLetterTopic::new(Arc::clone(&producer), &*aside);
    let consumer = stand.member(&topic, &group).build().await.unwrap();
    let decode = |record: &Record| {
        let text = std::str::from_utf8(record.value().unwrap_or_default()).unwrap_or_default();
        text.parse::<u32>().map_err(|error| error.to_string())
    };
    let builder = consumer.partitioned().ordering(Ordering::Key).max_concurrent_handlers(2);
    let builder = builder.max_handler_batch_size(10).on_error(ErrorPolicy::dead_letter(letters));
    let run = builder.decode(decode).build().unwrap();
    let (send, mut seen) = watch::channel(BTreeMap::<Vec<u8>, Vec<u32>>::new());
    let handler = move |batch: Batch<Decoded<u32>>, _: Lane| {
        let key = batch[0].record.key().map(<[u8]>::to_vec);
        let one_key = batch.iter().all(|decoded| decoded.record.key().map(<[u8]>::to_vec) == key);
        send.send_modify(|seen| {
            seen.entry(key.unwrap_or_default())
                .or_default()
                .extend(batch.iter().map(|decoded| decoded.value));
        });
        std::future::ready(if one_key { Ok(()) } else { Err("keys are mixed") })
    };
    let stop = CancellationToken::new();
    let task = tokio::spawn(run.for_each_batch(stop.clone().cancelled_owned(), handler));
    let all = |seen: &BTreeMap<Vec<u8>, Vec<u32>>| seen.values().map(Vec::len).sum::<usize>() == 5;
    assert_eq!(
        *soon(seen.wait_for(all)).await.unwrap(),
        [(b"a".to_vec(), vec![1, 3, 5]), (b"b".to_vec(), vec![2, 4])].into()
    );
    stop.cancel();
    let (result, consumer) = soon(task).await.unwrap();
    assert_eq!(result.unwrap().records_dead_lettered, 1);
    soon(consumer.close()).await;
    assert_eq!(committed(&admin, &group, &topic, 0).await, Some(6));
    let written = everything(&stand, &aside).await;
    assert_eq!((written.len(), written[0].key(), written[0].value()), (1, Some(&b"a"[..]), Some(&b"x"[..])));
    let cause = String::from_utf8_lossy(written[0].header(header::CAUSE).flatten().unwrap()).into_owned();
    assert_eq!(cause, "cannot be decoded: invalid digit found in string");
    stand.close().await;
}
