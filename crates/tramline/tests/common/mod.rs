//! What the tests over real sockets share: a cluster, topics and groups of their own, and patience.
//!
//! `TRAMLINE_TEST_BROKERS` names an existing cluster; without it each test starts its own embedded broker in a
//! temporary directory. Tests that configure or restart the broker always use an embedded one.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

pub mod running;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tramline::broker::{Broker, BrokerConfig, BrokerHandle};
use tramline::client::{
    Admin, ClientConfig, Consumer, ConsumerBuilder, Event, Events, NewTopic, OffsetReset, Producer,
    ProducerConfig, ProducerRecord,
};
use tramline::wire::TopicPartition;

/// Longer than anything here takes; a hang fails the test instead of the suite.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, but not for ever.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// A cluster to test against.
pub struct Stand {
    brokers: String,
    own: Option<Own>,
}

struct Own {
    broker: Option<BrokerHandle>,
    directory: tempfile::TempDir,
    config: BrokerConfig,
}

async fn start(directory: &tempfile::TempDir, port: u16, config: &BrokerConfig) -> BrokerHandle {
    let builder = Broker::builder(directory.path()).listen(format!("127.0.0.1:{port}"));
    builder.config(config.clone()).start().await.unwrap()
}

impl Stand {
    /// The given cluster, or a broker of its own.
    pub async fn start() -> Self {
        match std::env::var("TRAMLINE_TEST_BROKERS") {
            Ok(brokers) => {
                // Counted by `cargo xtask kafka test`, in the output that the test runner keeps of each test.
                let test = std::thread::current().name().unwrap_or("?").to_owned();
                println!("on the given cluster: {test}");
                Self { brokers, own: None }
            }
            Err(_) => {
                let delay = Duration::from_millis(50);
                Self::embedded(BrokerConfig::new().group_initial_rebalance_delay(delay)).await
            }
        }
    }

    /// A broker of its own in any case.
    pub async fn embedded(config: BrokerConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let broker = start(&directory, 0, &config).await;
        Self {
            brokers: broker.local_addr().to_string(),
            own: Some(Own { broker: Some(broker), directory, config }),
        }
    }

    /// Stops the broker and starts it again on the same directory and port: in order, or as a crash would.
    pub async fn restart(&mut self, in_order: bool) {
        if in_order {
            let own = self.own.as_mut().expect("an embedded broker");
            own.broker.take().expect("it runs").shutdown().await.unwrap();
        } else {
            self.stop().await;
        }
        self.start_again().await;
    }

    /// Ends the broker as a crash would.
    pub async fn stop(&mut self) {
        let own = self.own.as_mut().expect("an embedded broker");
        own.broker.take().expect("it runs").abort().await;
    }

    /// Starts a broker that was ended, on the same directory and port.
    pub async fn start_again(&mut self) {
        let port = self.brokers.rsplit_once(':').expect("an address").1.parse().expect("a port");
        let own = self.own.as_mut().expect("an embedded broker");
        own.broker = Some(start(&own.directory, port, &own.config).await);
    }

    /// Ends an own broker, which must go down well.
    pub async fn close(self) {
        if let Some(own) = self.own {
            soon(own.broker.expect("it runs").shutdown()).await.unwrap();
        }
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(&self.brokers)
    }

    pub fn admin(&self) -> Admin {
        Admin::new(self.client())
    }

    /// A new topic under a name nobody used before.
    pub async fn topic(&self, partitions: i32) -> String {
        let name = unique("topic");
        self.admin().create_topics([NewTopic::new(&name, partitions)]).await.unwrap()[&*name]
            .as_ref()
            .unwrap_or_else(|error| panic!("{error}"));
        name
    }

    pub async fn producer(&self, config: ProducerConfig) -> Producer {
        soon(Producer::new(self.client(), config)).await.unwrap()
    }

    /// Writes numbers as text into one partition, as one batch.
    pub async fn produce(&self, topic: &str, partition: i32, values: Range<i64>) {
        let producer = self.producer(ProducerConfig::new()).await;
        let records = values.map(|n| ProducerRecord::to(topic).value(n.to_string())).collect();
        soon(producer.send_batch(topic, partition, records)).await.unwrap();
        producer.close().await.unwrap();
    }

    /// A member of a group that reacts quickly.
    pub fn member(&self, topic: &str, group: &str) -> ConsumerBuilder {
        Consumer::builder(self.client())
            .group(group)
            .subscribe([topic])
            .offset_reset(OffsetReset::Earliest)
            .session_timeout(Duration::from_secs(6))
            .heartbeat_interval(Duration::from_millis(100))
            .fetch_max_wait(Duration::from_millis(100))
    }
}

/// A name nobody used before, also on a cluster that is kept.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("{what}-{now:x}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

/// Waits for a change of the assignment, and carries it out: revocations are given up at once.
pub async fn assigned(events: &mut Events, owned: &mut BTreeSet<i32>) {
    match soon(events.next()).await.expect("the consumer lives") {
        Event::Assigned { partitions, .. } => owned.extend(partitions.iter().map(|tp| tp.partition)),
        Event::Revoked(revocation) => {
            owned.retain(|owned| revocation.partitions().iter().all(|tp| tp.partition != *owned));
        }
        Event::Lost { partitions, .. } => {
            owned.retain(|owned| partitions.iter().all(|tp| tp.partition != *owned));
        }
        other => panic!("{other:?}"),
    }
}
