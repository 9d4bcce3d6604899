//! Exactly once from topic to topic: what a lane writes and the offset it has come to are committed in one transaction of
//! rdkafka's producer. The first transaction of each lane is aborted on purpose, and its records come again.
//!
//! Needs a cluster with transactions, Apache Kafka for instance (`cargo xtask kafka up`):
//! `cargo run --manifest-path adapters/rdkafka/Cargo.toml --example transaction -- 127.0.0.1:9092`

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tramline::client::{Admin, NewTopic, Producer, ProducerConfig, ProducerRecord};
use tramline::processor::{Backoff, CommitPolicy, Delivered, ErrorPolicy, LaneStream, PartitionedExt};
use tramline_rdkafka::{GroupHandle, RdkafkaSource};

/// How many orders there are to be billed.
pub const ORDERS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(30);

type Transactions = ThreadedProducer<DefaultProducerContext>;

/// What the lanes share.
struct Shop {
    brokers: String,
    orders: String,
    bills: String,
    group: GroupHandle,
    billed: AtomicUsize,
    aborted: AtomicUsize,
    done: CancellationToken,
}

/// Bills the orders of one partition, some at a time.
async fn bill(mut lane: LaneStream, shop: Arc<Shop>) -> Result<(), KafkaError> {
    // One id per partition: the successor of this lane, wherever it runs, ends what this one left open.
    let id = format!("{}-{}", shop.orders, lane.topic_partition().partition);
    let producer: Transactions =
        ClientConfig::new().set("bootstrap.servers", &shop.brokers).set("transactional.id", id).create()?;
    block_in_place(|| producer.init_transactions(PATIENCE))?;
    while let Some(first) = lane.next().await {
        let mut orders = vec![first];
        while orders.len() < 100 && lane.queued() > 0 {
            orders.extend(lane.next().await);
        }
        if let Err(error) = block_in_place(|| transact(&producer, &shop, &orders)) {
            block_in_place(|| producer.abort_transaction(PATIENCE))?;
            shop.aborted.fetch_add(1, Ordering::Relaxed);
            // Nothing was marked as done: the lane starts again where the last transaction ended.
            return Err(error);
        }
        if shop.billed.fetch_add(orders.len(), Ordering::Relaxed) + orders.len() >= ORDERS {
            shop.done.cancel();
        }
        // Only now: the frontier and the committed offset are the same number.
        orders.into_iter().for_each(Delivered::done);
    }
    Ok(())
}

fn transact(producer: &Transactions, shop: &Shop, orders: &[Delivered]) -> Result<(), KafkaError> {
    producer.begin_transaction()?;
    for order in orders {
        let bill = BaseRecord::to(&shop.bills).key(order.key().unwrap_or_default());
        producer.send(bill.payload(order.value().unwrap_or_default())).map_err(|(error, _)| error)?;
    }
    let Some(last) = orders.last() else { return producer.commit_transaction(PATIENCE) };
    if last.partition() == 0 && shop.aborted.load(Ordering::Relaxed) == 0 {
        // As if something had gone wrong after everything was written.
        producer.flush(PATIENCE)?;
        return Err(KafkaError::Canceled);
    }
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(last.topic(), last.partition(), Offset::Offset(last.offset() + 1))?;
    // Who we are in the group as of now: if the partition is somebody else's, the whole transaction is refused.
    let member = shop.group.metadata().ok_or(KafkaError::Canceled)?;
    producer.send_offsets_to_transaction(&offsets, &member, PATIENCE)?;
    producer.commit_transaction(PATIENCE)
}

/// Bills all orders and gives what readers of committed records see: how many bills there are, of how many orders, and how
/// many transactions were aborted on the way.
pub async fn run(brokers: &str, name: &str) -> Result<(usize, usize, usize), Box<dyn Error + Send + Sync>> {
    let (orders, bills) = (format!("{name}-orders"), format!("{name}-bills"));
    let client = tramline::client::ClientConfig::new(brokers);
    let topics = [NewTopic::new(&orders, 3), NewTopic::new(&bills, 2)];
    for (topic, made) in Admin::new(client.clone()).create_topics(topics).await? {
        made.map_err(|error| format!("{topic}: {error}"))?;
    }
    let producer = Producer::new(client, ProducerConfig::new()).await?;
    for number in 0..ORDERS {
        let order = ProducerRecord::to(&orders).key(format!("{}", number % 50)).value(number.to_string());
        drop(producer.send(order).await?);
    }
    producer.close().await?;

    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", format!("{name}-billing"));
    config.set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
    let source = RdkafkaSource::subscribe(&config, &[&orders])?;
    let shop = Arc::new(Shop {
        brokers: brokers.to_owned(),
        orders,
        bills,
        group: source.group_handle(),
        billed: AtomicUsize::new(0),
        aborted: AtomicUsize::new(0),
        done: CancellationToken::new(),
    });
    let processor = Arc::clone(&shop);
    let (result, source) = source
        .partitioned()
        .commit(CommitPolicy::UserManaged)
        .on_error(ErrorPolicy::RestartLane(Backoff::new(Duration::from_millis(50), Duration::from_secs(1))))
        .build_lanes()?
        .lanes(shop.done.clone().cancelled_owned(), move |lane: LaneStream| {
            bill(lane, Arc::clone(&processor))
        })
        .await;
    source.close().await?;
    result?;
    let (count, billed) = block_in_place(|| read_committed(&shop))?;
    Ok((count, billed, shop.aborted.load(Ordering::Relaxed)))
}

/// How many bills a reader of committed records sees, and of how many different orders.
fn read_committed(shop: &Shop) -> Result<(usize, usize), KafkaError> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &shop.brokers).set("group.id", format!("{}-audit", shop.bills));
    config.set("isolation.level", "read_committed").set("auto.offset.reset", "earliest");
    config.set("enable.partition.eof", "true").set("enable.auto.commit", "false");
    let reader: BaseConsumer = config.create()?;
    let mut both = TopicPartitionList::new();
    for partition in 0..2 {
        both.add_partition_offset(&shop.bills, partition, Offset::Beginning)?;
    }
    reader.assign(&both)?;
    let (mut count, mut orders, mut ends) = (0, BTreeSet::new(), BTreeSet::new());
    while ends.len() < 2 {
        match reader.poll(PATIENCE) {
            Some(Ok(bill)) => {
                count += 1;
                orders.insert(bill.payload().unwrap_or_default().to_vec());
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ends.insert(partition);
            }
            Some(Err(error)) => return Err(error),
            None => {}
        }
    }
    Ok((count, orders.len()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let brokers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9092".into());
    let (bills, orders, aborted) = run(&brokers, &format!("shop-{}", std::process::id())).await?;
    println!("{bills} bills of {orders} orders, {aborted} transactions aborted");
    Ok(())
}
