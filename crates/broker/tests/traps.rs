//! Faults that others reported of their brokers, replayed on this one; docs/traps.md says which.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common {
    #[path = "mod.rs"]
    mod base;
    pub use base::*;
    pub mod hand;
}

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::hand::Hand;
use common::{
    FETCH, PRODUCE, Stage, batch, batch_at, create_topics, fetch, now, only_partition, only_row, produce,
    values,
};
use tokio::time::timeout;
use tramline_broker::{Answer, BrokerConfig, SteppedBroker};
use tramline_log::storage::{DirEntry, DiskStorage, MemoryStorage, OpenMode};
use tramline_log::{Storage, StorageFile};
use tramline_wire::messages::{FetchRequest, ProduceRequest};
use tramline_wire::{BatchBuilder, Compression, ErrorCode, batches, decode_response, encode_request};

const HANG: Duration = Duration::from_secs(60);

type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

fn poll(pending: &mut Pending) -> Option<Answer> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn start(broker: &SteppedBroker, topic: &str, acks: i16, text: &str) -> Pending {
    let request = produce(topic, 0, acks, batch(&[text]));
    let frame = encode_request(1, Some("test"), PRODUCE, &request).unwrap().to_bytes();
    broker.request(frame.slice(4..))
}

/// The offset of the record that an answer speaks of.
fn acked(answer: Answer) -> i64 {
    let Answer::Frame(frame) = answer else { panic!("not answered: {answer:?}") };
    let row = only_row(&decode_response::<ProduceRequest>(frame.slice(4..), PRODUCE).unwrap().1);
    assert_eq!(row.error_code, 0, "{:?}", row.error_message);
    row.base_offset
}

/// Everything that a consumer sees of the topic.
fn visible(broker: &SteppedBroker, topic: &str) -> Vec<(i64, String)> {
    let (mut found, mut next) = (Vec::new(), 0);
    loop {
        let frame = encode_request(1, Some("test"), FETCH, &fetch(topic, 0, next, 0, 1)).unwrap().to_bytes();
        let answer = poll(&mut broker.request(frame.slice(4..))).expect("a fetch without a wait");
        let Answer::Frame(frame) = answer else { panic!("not answered: {answer:?}") };
        let row = only_partition(&decode_response::<FetchRequest>(frame.slice(4..), FETCH).unwrap().1);
        assert_eq!(row.error_code, 0);
        let records = values(row.records.unwrap());
        let Some((last, _)) = records.last() else { return found };
        next = last + 1;
        found.extend(records);
    }
}

/// The process dies between a write and its barrier, the next one serves what it finds, then the power goes.
#[test]
fn b134_what_a_start_serves_has_been_forced_before() {
    let storage = MemoryStorage::new();
    let hand = Hand::open(storage.shared(), BrokerConfig::new()).unwrap();
    assert_eq!(hand.call(7, create_topics("t", 1, &[])).unwrap().topics[0].error_code, 0);
    for text in ["a", "b", "c"] {
        assert_eq!(only_row(&hand.call(PRODUCE, produce("t", 0, 1, batch(&[text]))).unwrap()).error_code, 0);
    }
    let page_cache = storage.after_kill();
    let served = visible(&Hand::open(page_cache.shared(), BrokerConfig::new()).unwrap().0, "t");
    assert_eq!(served, [(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())]);
    let after = page_cache.durable_image();
    assert_eq!(visible(&Hand::open(after.shared(), BrokerConfig::new()).unwrap().0, "t"), served);
    let lost = storage.durable_image();
    assert_eq!(
        visible(&Hand::open(lost.shared(), BrokerConfig::new()).unwrap().0, "t"),
        [],
        "no barrier before"
    );
}

/// What is looked at around every call that changes something.
type Look = Box<dyn Fn() + Send>;

/// A storage at which somebody looks in the middle of whatever is being done.
#[derive(Clone)]
struct Watched {
    inner: Arc<dyn Storage>,
    look: Arc<Mutex<Option<Look>>>,
    looking: Arc<AtomicBool>,
}

struct WatchedFile {
    file: Arc<dyn StorageFile>,
    of: Watched,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WatchedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedFile").finish_non_exhaustive()
    }
}

impl Watched {
    fn look(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            if let Some(look) = &*self.look.lock().unwrap() {
                look();
            }
            self.looking.store(false, Ordering::SeqCst);
        }
    }

    fn around<T>(&self, call: impl FnOnce() -> T) -> T {
        self.look();
        let result = call();
        self.look();
        result
    }
}

impl Storage for Watched {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.around(|| self.inner.open(path, mode))?;
        Ok(Arc::new(WatchedFile { file, of: self.clone() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.around(|| self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around(|| self.inner.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.around(|| self.inner.sync_dir(dir))
    }
}

impl StorageFile for WatchedFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        self.file.read_at(buf, pos)
    }

    fn write_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        self.of.around(|| self.file.write_at(parts, pos))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.of.around(|| self.file.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.of.around(|| self.file.sync_data())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

struct Sent {
    pending: Pending,
    text: String,
    acks: i16,
    offset: i64,
}

/// Fetches run in the middle of every write, roll and barrier: all that was acked is there, in order, at any moment.
#[test]
fn b140_what_was_acked_is_readable_at_every_step_of_a_write_a_roll_and_a_barrier() {
    let watched =
        Watched { inner: MemoryStorage::new().shared(), look: Arc::default(), looking: Arc::default() };
    let broker = SteppedBroker::open(Arc::new(watched.clone()), "/data", BrokerConfig::new()).unwrap();
    let broker = Arc::new(broker);
    let creation = encode_request(1, None, 7, &create_topics("t", 1, &[("segment.bytes", "4096")])).unwrap();
    let mut created = broker.request(creation.to_bytes().slice(4..));
    assert!(matches!(poll(&mut created), Some(Answer::Frame(_))));
    let waiting: Arc<Mutex<Vec<Sent>>> = Arc::default();
    let looks = Arc::new(Mutex::new((0, Vec::new())));
    let look = {
        let (broker, waiting, looks) = (Arc::clone(&broker), Arc::clone(&waiting), Arc::clone(&looks));
        move || {
            let (count, promised) = &mut *looks.lock().unwrap();
            *count += 1;
            let mut waiting = waiting.lock().unwrap();
            waiting.retain_mut(|sent| match poll(&mut sent.pending) {
                Some(answer) => {
                    assert_eq!(acked(answer), sent.offset);
                    promised.push((sent.offset, sent.text.clone()));
                    false
                }
                None => true,
            });
            // Behind a record that waits for its barrier nothing is visible yet.
            let barrier = waiting.iter().filter(|sent| sent.acks == -1).map(|sent| sent.offset).min();
            let seen = visible(&broker, "t");
            assert!(seen.iter().map(|(offset, _)| *offset).eq(0..seen.len() as i64), "{seen:?}");
            for (offset, text) in promised.iter().filter(|(offset, _)| barrier.is_none_or(|at| *offset < at))
            {
                assert_eq!(seen.get(*offset as usize).map(|(_, text)| text), Some(text), "acked at {offset}");
            }
        }
    };
    *watched.look.lock().unwrap() = Some(Box::new(look.clone()));
    for group in 0..12 {
        for member in 0..3 {
            let acks = if (group + member) % 3 == 0 { -1 } else { 1 };
            let text = format!("{group}.{member} {}", "x".repeat(200));
            let mut pending = start(&broker, "t", acks, &text);
            assert!(poll(&mut pending).is_none());
            waiting.lock().unwrap().push(Sent { pending, text, acks, offset: group * 3 + member });
        }
        while broker.step_writer() || broker.step_committer() {
            look();
        }
    }
    *watched.look.lock().unwrap() = None;
    let (count, promised) = &*looks.lock().unwrap();
    assert_eq!((promised.len(), waiting.lock().unwrap().len()), (36, 0));
    assert!(*count > 100, "looked only {count} times");
}

/// Twice as many buffers as one system call takes at most, several times over.
#[test]
fn b142_five_thousand_tiny_requests_go_into_one_group_on_a_real_disk() {
    const REQUESTS: i64 = 5000;
    let dir = tempfile::tempdir().unwrap();
    let open = || SteppedBroker::open(DiskStorage::shared(), dir.path(), BrokerConfig::new()).unwrap();
    let broker = open();
    let creation = encode_request(1, None, 7, &create_topics("t", 1, &[])).unwrap().to_bytes();
    assert!(matches!(poll(&mut broker.request(creation.slice(4..))), Some(Answer::Frame(_))));
    let text = |n: i64| char::from(b'a' + u8::try_from(n % 26).unwrap()).to_string();
    let mut waiting: Vec<Pending> = (0..REQUESTS).map(|n| start(&broker, "t", -1, &text(n))).collect();
    assert!(waiting.iter_mut().all(|pending| poll(pending).is_none()));
    broker.settle();
    let metrics = broker.metrics();
    assert_eq!((metrics.groups_written, metrics.batches_in, metrics.barriers), (1, 5000, 1));
    for (n, pending) in (0..).zip(&mut waiting) {
        assert_eq!(acked(poll(pending).unwrap()), n);
    }
    let expected: Vec<(i64, String)> = (0..REQUESTS).map(|n| (n, text(n))).collect();
    assert_eq!(visible(&broker, "t"), expected);
    broker.shutdown().unwrap();
    assert_eq!(visible(&open(), "t"), expected);
}

#[tokio::test]
async fn b151_a_batch_above_the_limit_of_its_topic_and_records_without_a_needed_key_are_refused() {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic_with("small", 1, &[("max.message.bytes", "51200")]).await;
    client.create_topic_with("compact", 1, &[("cleanup.policy", "compact")]).await;
    for codec in [Compression::None, Compression::Gzip] {
        // Ten megabytes that compress to less than the limit are what the topic takes.
        let row = client.produce("small", 0, -1, batch_at(&[&"x".repeat(10 << 20)], now(), codec)).await;
        let expected = if codec == Compression::None { ErrorCode::MessageTooLarge } else { ErrorCode::None };
        assert_eq!(ErrorCode::from(row.error_code), expected, "{codec}: {:?}", row.error_message);
    }
    let mut builder = BatchBuilder::new(Compression::None);
    for key in [Some(&b"k"[..]), None, Some(&b"l"[..])] {
        builder.append(now(), key, Some(b"v"), &[]).unwrap();
    }
    let row = client.produce("compact", 0, -1, builder.build()).await;
    assert_eq!(ErrorCode::from(row.error_code), ErrorCode::InvalidRecord);
    let at_fault: Vec<i32> = row.record_errors.iter().map(|error| error.batch_index).collect();
    assert_eq!((at_fault, row.base_offset), (vec![1], -1));
    assert!(client.values("compact", 0, 0).await.is_empty());
}

/// A record dated 2099 would keep its segment, and with it all later ones, for as long.
#[test]
fn b161_a_timestamp_of_the_future_is_refused_or_replaced_and_holds_no_retention_up() {
    const YEAR_2099: i64 = 4_070_908_800_000;
    let hand = Hand::open(MemoryStorage::new().shared(), BrokerConfig::new()).unwrap();
    let two_hours = ("retention.ms", "7200000");
    for (topic, stamp) in [("own", "CreateTime"), ("broker", "LogAppendTime")] {
        let configs = [two_hours, ("segment.bytes", "4096"), ("message.timestamp.type", stamp)];
        assert_eq!(hand.call(7, create_topics(topic, 1, &configs)).unwrap().topics[0].error_code, 0);
    }
    let send = |topic: &str, timestamp: i64| {
        let records = batch_at(&[&"x".repeat(1500)], timestamp, Compression::None);
        only_row(&hand.call(PRODUCE, produce(topic, 0, -1, records)).unwrap())
    };
    for _ in 0..8 {
        let refused = send("own", YEAR_2099);
        assert_eq!(ErrorCode::from(refused.error_code), ErrorCode::InvalidTimestamp);
        assert_eq!(refused.record_errors[0].batch_index, 0);
        assert_eq!(send("own", now() - 3 * 3_600_000).error_code, 0);
        assert_eq!(send("broker", YEAR_2099).error_code, 0);
    }
    for _ in 0..2 {
        hand.0.maintain();
        hand.0.settle();
    }
    let row = only_partition(&hand.call(FETCH, fetch("own", 0, 8, 0, 1)).unwrap());
    assert_eq!((row.error_code, row.log_start_offset), (0, 8), "all of it was old");
    let row = only_partition(&hand.call(FETCH, fetch("broker", 0, 0, 0, 1)).unwrap());
    let stamped = batches(row.records.unwrap()).map(|found| found.unwrap().0.max_timestamp);
    assert!(stamped.into_iter().all(|timestamp| timestamp <= now()));
}

/// A reader at the end of the log takes whatever it gets and asks for what follows, while writers with and without
/// barriers push the high watermark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b166_a_reader_that_races_the_writers_at_the_high_watermark_sees_every_offset_once() {
    const EACH: i64 = 400;
    let stage = Stage::new().await;
    stage.client().await.create_topic_with("t", 1, &[("segment.bytes", "16384")]).await;
    let mut writers = Vec::new();
    for acks in [-1, 1, 0] {
        let mut client = stage.client().await;
        writers.push(tokio::spawn(async move {
            for n in 0..EACH {
                let batch = batch(&[&format!("{acks} {n}"), "second"]);
                client.send(PRODUCE, &produce("t", 0, acks, batch)).await;
                if acks != 0 {
                    assert_eq!(only_row(&client.receive::<ProduceRequest>(PRODUCE).await.1).error_code, 0);
                }
            }
            client
        }));
    }
    let mut reader = stage.client().await;
    let mut next = 0;
    while next < 3 * 2 * EACH {
        let answer = timeout(HANG, reader.call(FETCH, &fetch("t", 0, next, 1000, 1))).await.unwrap();
        let row = only_partition(&answer);
        assert_eq!(row.error_code, 0);
        for (offset, _) in values(row.records.unwrap()) {
            assert_eq!(offset, next);
            next += 1;
        }
        assert!(next <= row.high_watermark, "{next} is above the high watermark {}", row.high_watermark);
    }
    for writer in writers {
        writer.await.unwrap();
    }
}
