//! What the tests share: an embedded broker, members of groups over both clients, and handlers that can be held.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig as RdkafkaConfig;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline::broker::{Broker, BrokerConfig, BrokerHandle};
use tramline::client::{
    Admin, Assignor, ClientConfig, Consumer, NewTopic, OffsetReset, Producer, ProducerConfig, ProducerRecord,
    StartOffset,
};
use tramline::processor::{
    Handler, Lane, Monitor, PartitionedBuilder, PartitionedExt, RunError, RunReport, Source,
};
use tramline::wire::{Record, TopicPartition};
use tramline_rdkafka::RdkafkaSource;

/// Longer than anything here takes; a hang fails the test instead of the suite.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits, but not for ever.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Waits until this holds.
pub async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A name nobody used before.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("{what}-{now:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

/// A broker of its own.
pub struct Stand {
    pub address: String,
    broker: Option<BrokerHandle>,
    directory: tempfile::TempDir,
}

fn config() -> BrokerConfig {
    BrokerConfig::new()
        .group_initial_rebalance_delay(Duration::from_millis(20))
        .group_session_timeouts(Duration::from_millis(100), Duration::from_secs(60))
}

impl Stand {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let builder = Broker::builder(directory.path()).listen("127.0.0.1:0").config(config());
        let broker = builder.start().await.unwrap();
        Self { address: broker.local_addr().to_string(), broker: Some(broker), directory }
    }

    /// Ends the broker as a crash would.
    pub async fn stop(&mut self) {
        self.broker.take().unwrap().abort().await;
    }

    /// Starts it again on the same directory and port.
    pub async fn start_again(&mut self) {
        let builder = Broker::builder(self.directory.path()).listen(&*self.address).config(config());
        self.broker = Some(builder.start().await.unwrap());
    }

    pub async fn close(mut self) {
        if let Some(broker) = self.broker.take() {
            soon(broker.shutdown()).await.unwrap();
        }
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(&self.address)
    }

    pub async fn topic(&self, partitions: i32) -> String {
        let name = unique("topic");
        let created =
            Admin::new(self.client()).create_topics([NewTopic::new(&name, partitions)]).await.unwrap();
        created[&*name].as_ref().unwrap();
        name
    }

    /// Writes numbers as text into one partition, with the key that `key` gives.
    pub async fn produce_keyed(&self, topic: &str, partition: i32, values: Range<i64>, keys: i64) {
        let producer = Producer::new(self.client(), ProducerConfig::new()).await.unwrap();
        let record = |n: i64| ProducerRecord::to(topic).key((n % keys).to_string()).value(n.to_string());
        soon(producer.send_batch(topic, partition, values.map(record).collect())).await.unwrap();
        producer.close().await.unwrap();
    }

    pub async fn produce(&self, topic: &str, partition: i32, values: Range<i64>) {
        self.produce_keyed(topic, partition, values, 10).await;
    }

    /// What the group has committed.
    pub async fn committed(&self, topic: &str, group: &str, partition: i32) -> Option<i64> {
        let start = [(tp(topic, partition), StartOffset::Earliest)];
        let reader = Consumer::builder(self.client()).group(group).assign(start).build().await.unwrap();
        let committed = soon(reader.committed(&[tp(topic, partition)])).await.unwrap();
        committed[&tp(topic, partition)].as_ref().map(|at| at.offset)
    }

    /// The settings of a member of a group over rdkafka that reacts quickly.
    pub fn rdkafka(&self, group: &str) -> RdkafkaConfig {
        let mut config = RdkafkaConfig::new();
        config.set("bootstrap.servers", &self.address).set("group.id", group);
        config.set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
        config.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "100");
        config.set("fetch.wait.max.ms", "50").set("reconnect.backoff.max.ms", "200");
        config
    }
}

/// A client by which the same scenario is run.
pub trait Client: Send + Sync + 'static {
    type Source: Source;
    /// Whether members keep what they had in a rebalance.
    const COOPERATIVE: bool;
    /// Joins the group.
    fn join(stand: &Stand, topic: &str, group: &str) -> impl Future<Output = Self::Source> + Send;
    /// Leaves it.
    fn leave(source: Self::Source) -> impl Future<Output = ()> + Send;
}

/// Tramline's own consumer.
pub struct Ours<const COOPERATIVE: bool>;

impl<const COOPERATIVE: bool> Client for Ours<COOPERATIVE> {
    type Source = Consumer;
    const COOPERATIVE: bool = COOPERATIVE;

    async fn join(stand: &Stand, topic: &str, group: &str) -> Consumer {
        let assignor = if COOPERATIVE { Assignor::CooperativeSticky } else { Assignor::Range };
        let builder = Consumer::builder(stand.client()).group(group).subscribe([topic]).assignors([assignor]);
        let builder =
            builder.offset_reset(OffsetReset::Earliest).heartbeat_interval(Duration::from_millis(100));
        builder.session_timeout(Duration::from_secs(6)).build().await.unwrap()
    }

    async fn leave(source: Consumer) {
        soon(source.close()).await;
    }
}

/// rdkafka's consumer.
pub struct Rdkafka<const COOPERATIVE: bool>;

impl<const COOPERATIVE: bool> Client for Rdkafka<COOPERATIVE> {
    type Source = RdkafkaSource;
    const COOPERATIVE: bool = COOPERATIVE;

    async fn join(stand: &Stand, topic: &str, group: &str) -> RdkafkaSource {
        let mut config = stand.rdkafka(group);
        config.set("partition.assignment.strategy", if COOPERATIVE { "cooperative-sticky" } else { "range" });
        RdkafkaSource::subscribe(&config, &[topic]).unwrap()
    }

    async fn leave(source: RdkafkaSource) {
        soon(source.close()).await.unwrap();
    }
}

/// A run on its own task.
pub struct Running<S> {
    pub monitor: Monitor,
    stop: CancellationToken,
    task: JoinHandle<(Result<RunReport, RunError>, S)>,
}

impl<S: Source> Running<S> {
    pub fn start<H: Handler>(
        source: S,
        with: impl FnOnce(PartitionedBuilder<S>) -> PartitionedBuilder<S>,
        handler: H,
    ) -> Self {
        let run = with(source.partitioned()).build().map_err(|error| error.kind).unwrap();
        let (monitor, stop) = (run.monitor(), CancellationToken::new());
        let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
        Self { monitor, stop, task }
    }

    pub fn lanes(&self) -> BTreeSet<i32> {
        self.monitor.snapshot().iter().map(|lane| lane.lane.topic_partition.partition).collect()
    }

    pub fn is_stopping(&self, partition: i32) -> bool {
        let lanes = self.monitor.snapshot();
        lanes.iter().any(|lane| {
            lane.lane.topic_partition.partition == partition
                && lane.state == tramline::processor::LaneState::Draining
        })
    }

    pub async fn stop(self) -> (RunReport, S) {
        let (result, source) = self.end().await;
        (result.unwrap(), source)
    }

    /// Stops it, however it ends.
    pub async fn end(self) -> (Result<RunReport, RunError>, S) {
        self.stop.cancel();
        soon(self.task).await.unwrap()
    }
}

/// What handlers were given and finished, and which of them wait.
#[derive(Clone, Default)]
pub struct Probe(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    begun: BTreeMap<i32, Vec<i64>>,
    done: BTreeMap<i32, Vec<i64>>,
    gates: BTreeMap<(i32, i64), CancellationToken>,
    dropped: Vec<(i32, i64)>,
    by_key: BTreeMap<Vec<u8>, Vec<i64>>,
}

impl Probe {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    /// The handler of this record waits until the token is cancelled.
    pub fn hold(&self, partition: i32, offset: i64) -> CancellationToken {
        self.seen().gates.entry((partition, offset)).or_default().clone()
    }

    pub fn begun(&self, partition: i32) -> Vec<i64> {
        self.seen().begun.get(&partition).cloned().unwrap_or_default()
    }

    pub fn done(&self, partition: i32) -> Vec<i64> {
        self.seen().done.get(&partition).cloned().unwrap_or_default()
    }

    pub fn dropped(&self) -> Vec<(i32, i64)> {
        self.seen().dropped.clone()
    }

    /// The offsets in the order in which they were finished, by key.
    pub fn by_key(&self) -> BTreeMap<Vec<u8>, Vec<i64>> {
        self.seen().by_key.clone()
    }

    pub fn handler(&self) -> impl Handler + use<> {
        let probe = self.clone();
        move |record: Record, lane: Lane| {
            let probe = probe.clone();
            async move {
                let (partition, offset) = (record.partition(), record.offset());
                let gate = {
                    let mut seen = probe.seen();
                    seen.begun.entry(partition).or_default().push(offset);
                    seen.gates.get(&(partition, offset)).cloned()
                };
                let mut unfinished = Unfinished(probe.clone(), Some((partition, offset)));
                if let Some(gate) = gate {
                    tokio::select! {
                        () = gate.cancelled() => {}
                        () = lane.stopping() => return Err(std::io::Error::other("given up")),
                    }
                }
                unfinished.1 = None;
                let mut seen = probe.seen();
                seen.done.entry(partition).or_default().push(offset);
                seen.by_key.entry(record.key().unwrap_or_default().to_vec()).or_default().push(offset);
                Ok::<(), std::io::Error>(())
            }
        }
    }
}

struct Unfinished(Probe, Option<(i32, i64)>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(record) = self.1 {
            self.0.seen().dropped.push(record);
        }
    }
}
