//! Producers that send numbered records without a pause, and the book of what they sent and were told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tramline::client::{Acks, ClientConfig, Delivery, Producer, ProducerConfig, ProducerRecord};
use tramline::wire::TopicPartition;

use crate::TOPICS;
use crate::common::{PATIENCE, Random};

/// The last producer waits for the log only, and may store a record twice.
pub const PRODUCERS: u32 = 6;
const WRITTEN: u32 = PRODUCERS - 1;
const KEYS: u64 = 12;
/// Records a producer has unacknowledged at most.
const WINDOW: usize = 200;
/// Records that may be sent beyond the acknowledgements waited for: more than all windows hold, so that a kill meets
/// requests in flight.
const SLACK: u64 = 5000;

/// Whether the producer is idempotent.
pub fn is_forced(producer: u32) -> bool {
    producer != WRITTEN
}

/// A numbered record: `number` counts the records of its producer, `of_key` those of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    pub producer: u32,
    pub number: u64,
    pub key: u32,
    pub of_key: u64,
}

impl Numbered {
    pub fn topic(&self) -> &'static str {
        TOPICS[self.key as usize % TOPICS.len()].0
    }

    pub fn key_text(&self) -> String {
        format!("p{}-k{}", self.producer, self.key)
    }

    /// The value: the numbers, then bytes that only the seed and the numbers decide.
    pub fn value(&self, seed: u64) -> Bytes {
        let mut random = Random::new(seed ^ (u64::from(self.producer) << 56) ^ self.number);
        let length = if random.below(300) == 0 { random.below(40_000) } else { random.below(300) };
        let mut value = Vec::with_capacity(32 + length as usize);
        value.extend(self.producer.to_be_bytes());
        value.extend(self.number.to_be_bytes());
        value.extend(self.key.to_be_bytes());
        value.extend(self.of_key.to_be_bytes());
        while value.len() < 24 + length as usize {
            value.extend(random.next().to_be_bytes());
        }
        value.into()
    }

    /// The numbers a value begins with.
    pub fn of(value: &[u8]) -> Self {
        let long = |at: usize| u64::from_be_bytes(value[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().unwrap());
        Self { producer: short(0), number: long(4), key: short(12), of_key: long(16) }
    }
}

/// An acknowledgement.
#[derive(Clone, Debug)]
pub struct Ack {
    pub record: Numbered,
    pub place: TopicPartition,
    pub offset: i64,
    /// How many times the broker had been started again when it came.
    pub run: usize,
}

/// What was sent and what was acknowledged.
pub struct Ledger {
    seed: u64,
    acks: Mutex<Vec<Ack>>,
    count: watch::Sender<u64>,
    /// How many records may be sent by now, so that whoever reads them after a start keeps up.
    allowance: watch::Sender<u64>,
    sent: AtomicU64,
    written: AtomicU64,
    in_flight_at_kills: AtomicU64,
    run: AtomicU64,
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            acks: Mutex::default(),
            count: watch::Sender::new(0),
            allowance: watch::Sender::new(SLACK),
            sent: AtomicU64::new(0),
            written: AtomicU64::new(0),
            in_flight_at_kills: AtomicU64::new(0),
            run: AtomicU64::new(0),
        }
    }

    /// Every acknowledgement so far, in the order they came.
    pub fn acks(&self) -> MutexGuard<'_, Vec<Ack>> {
        self.acks.lock().unwrap()
    }

    pub fn acked(&self) -> u64 {
        *self.count.borrow()
    }

    pub fn acked_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub fn in_flight_at_kills(&self) -> u64 {
        self.in_flight_at_kills.load(Ordering::Relaxed)
    }

    pub fn note_kill(&self) {
        let in_flight = self.sent.load(Ordering::Relaxed).saturating_sub(self.acked());
        self.in_flight_at_kills.fetch_add(in_flight, Ordering::Relaxed);
    }

    pub fn note_start(&self) {
        self.run.fetch_add(1, Ordering::Relaxed);
    }

    fn ack(&self, record: Numbered, place: TopicPartition, offset: i64) {
        let run = self.run.load(Ordering::Relaxed) as usize;
        self.acks().push(Ack { record, place, offset, run });
        if !is_forced(record.producer) {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        self.count.send_modify(|count| *count += 1);
    }
}

/// The producers at work.
pub struct Load {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<Vec<u64>>>,
}

impl Load {
    pub fn start(runtime: &Runtime, address: &str, ledger: &Arc<Ledger>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let config = ClientConfig::new(address)
            .reconnect_backoff(Duration::from_millis(5), Duration::from_millis(40))
            .retry_backoff(Duration::from_millis(5), Duration::from_millis(40));
        let producers = (0..PRODUCERS)
            .map(|id| runtime.spawn(produce(id, config.clone(), Arc::clone(ledger), Arc::clone(&stop))))
            .collect();
        Self { ledger: Arc::clone(ledger), stop, producers }
    }

    /// Waits until so many more records are acknowledged.
    pub async fn further_acks(&self, further: u64) {
        let target = self.ledger.acked() + further;
        self.ledger.allowance.send_replace(target + SLACK);
        let mut count = self.ledger.count.subscribe();
        let reached = timeout(PATIENCE, count.wait_for(|count| *count >= target)).await.is_ok();
        assert!(reached, "no further {further} acknowledgements within {PATIENCE:?}");
    }

    /// Stops sending and waits for every acknowledgement. How many records each producer sent of each key.
    pub async fn finish(self) -> Vec<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.ledger.allowance.send_replace(u64::MAX);
        let mut sent = Vec::new();
        for producer in self.producers {
            let keys = timeout(PATIENCE, producer).await.expect("a producer does not end").unwrap();
            sent.push(keys);
        }
        sent
    }
}

async fn produce(id: u32, client: ClientConfig, ledger: Arc<Ledger>, stop: Arc<AtomicBool>) -> Vec<u64> {
    let acks = if is_forced(id) { Acks::Forced } else { Acks::Written };
    let producer = Producer::new(client, ProducerConfig::new().acks(acks)).await.unwrap();
    let mut random = Random::new(ledger.seed.wrapping_mul(31).wrapping_add(u64::from(id)));
    let (open, deliveries) = mpsc::channel(WINDOW);
    let collector = tokio::spawn(collect(deliveries, Arc::clone(&ledger)));
    let mut sent = vec![0; KEYS as usize];
    let mut allowance = ledger.allowance.subscribe();
    for number in 0.. {
        allowance.wait_for(|most| ledger.sent.load(Ordering::Relaxed) < *most).await.unwrap();
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = random.below(KEYS) as u32;
        let record = Numbered { producer: id, number, key, of_key: sent[key as usize] };
        sent[key as usize] += 1;
        let send = ProducerRecord::to(record.topic()).key(record.key_text()).value(record.value(ledger.seed));
        let delivery = producer.send(send).await.unwrap();
        ledger.sent.fetch_add(1, Ordering::Relaxed);
        open.send((record, delivery)).await.unwrap();
    }
    drop(open);
    collector.await.unwrap();
    producer.close().await.unwrap();
    sent
}

async fn collect(mut deliveries: mpsc::Receiver<(Numbered, Delivery)>, ledger: Arc<Ledger>) {
    while let Some((record, delivery)) = deliveries.recv().await {
        let written = delivery.await.unwrap_or_else(|error| panic!("{record:?}: {error}"));
        let offset = written.offset.expect("an acknowledgement tells the offset");
        ledger.ack(record, written.topic_partition, offset);
    }
}
