//! The transaction of the examples on a cluster that has transactions; the embedded broker has none.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;
#[path = "../examples/transaction.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod transaction;

use std::collections::BTreeSet;

use common::{soon, unique};
use tramline::client::{ClientConfig, Consumer, IsolationLevel, StartOffset, TopicPartition};

/// How many bills Tramline's own consumer sees up to the ends, and how many different ones.
async fn bills(brokers: &str, topic: &str, isolation: IsolationLevel) -> (usize, usize) {
    let both = [0, 1].map(|partition| TopicPartition::new(topic, partition));
    let start = both.clone().map(|place| (place, StartOffset::Earliest));
    let builder = Consumer::builder(ClientConfig::new(brokers)).isolation_level(isolation);
    let consumer = builder.assign(start).build().await.unwrap();
    let ends = consumer.end_offsets(&both).await.unwrap();
    let (mut count, mut different) = (0, BTreeSet::new());
    // The last thing in each partition is the end of a transaction, which is passed and not seen.
    while both.iter().any(|place| consumer.position(place) != Some(ends[place])) {
        let fetched = consumer.next_batch().await.unwrap();
        count += fetched.records.len();
        different.extend(fetched.records.iter().map(|bill| bill.value().unwrap_or_default().to_vec()));
    }
    consumer.close().await;
    (count, different.len())
}

/// Every order is billed once for readers of committed records, although a transaction was aborted after its records were
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_and_offsets_of_lanes_are_committed_together() {
    let Ok(brokers) = std::env::var("TRAMLINE_TEST_BROKERS") else {
        println!("skipped: no TRAMLINE_TEST_BROKERS (cargo xtask kafka up)");
        return;
    };
    let name = unique("shop");
    let (billed, orders, aborted) = soon(transaction::run(&brokers, &name)).await.unwrap();
    assert_eq!((billed, orders), (transaction::ORDERS, transaction::ORDERS));
    assert!(aborted >= 1, "one was aborted on purpose");
    let topic = format!("{name}-bills");
    let committed = soon(bills(&brokers, &topic, IsolationLevel::ReadCommitted)).await;
    assert_eq!(
        committed,
        (transaction::ORDERS, transaction::ORDERS),
        "our own reader of committed records agrees"
    );
    let (everything, different) = soon(bills(&brokers, &topic, IsolationLevel::ReadUncommitted)).await;
    assert!(everything > transaction::ORDERS, "{everything}: aborted bills are in the log");
    assert_eq!(different, transaction::ORDERS);
}
