//! The records, written while members work on them.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tramline::client::{Admin, ClientConfig, NewTopic, Producer, ProducerConfig, ProducerRecord};

use crate::checker::Written;
use crate::common::Random;
use crate::deliveries::Numbered;
use crate::{Size, TOPIC};

/// Records sent before the first of them is waited for.
const WINDOW: usize = 5000;

/// A producer at work.
pub struct Load {
    allowed: Arc<watch::Sender<u64>>,
    task: JoinHandle<Written>,
}

impl Load {
    pub async fn start(address: &str, size: Size, seed: u64) -> Self {
        let config = ClientConfig::new(address);
        let topic = NewTopic::new(TOPIC, size.partitions);
        for (topic, created) in Admin::new(config.clone()).create_topics([topic]).await.unwrap() {
            created.unwrap_or_else(|error| panic!("{topic}: {error}"));
        }
        let producer = Producer::new(config, ProducerConfig::new()).await.unwrap();
        let allowed = Arc::new(watch::Sender::new(0));
        let task = tokio::spawn(produce(producer, size, seed, allowed.subscribe()));
        Self { allowed, task }
    }

    /// So many records may be written by now.
    pub fn allow(&self, records: u64) {
        self.allowed.send_replace(records);
    }

    /// Where every record is, when all are acknowledged.
    pub async fn finish(self) -> Written {
        self.allowed.send_replace(u64::MAX);
        self.task.await.unwrap()
    }
}

async fn produce(producer: Producer, size: Size, seed: u64, mut allowed: watch::Receiver<u64>) -> Written {
    let mut random = Random::new(seed);
    let mut of_key = vec![0; size.keys as usize];
    let mut written: Written = vec![Vec::new(); size.partitions as usize];
    let mut sent = 0;
    while sent < size.records {
        let most = (*allowed.wait_for(|allowed| *allowed > sent).await.unwrap()).min(size.records);
        let mut deliveries = Vec::with_capacity(WINDOW);
        while sent < most && deliveries.len() < WINDOW {
            let key = random.below(size.keys) as u32;
            let record = Numbered { key, of_key: of_key[key as usize] };
            of_key[key as usize] += 1;
            let send = ProducerRecord::to(TOPIC).key(format!("key {key}")).value(record.value());
            deliveries.push((record, producer.send(send).await.unwrap()));
            sent += 1;
        }
        for (record, delivery) in deliveries {
            let place = delivery.await.unwrap();
            let partition = &mut written[place.topic_partition.partition as usize];
            assert_eq!(place.offset, Some(partition.len() as i64), "one producer's records, in their order");
            partition.push(record);
        }
    }
    producer.close().await.unwrap();
    written
}
