//! The transaction of the examples on a cluster that has transactions; the embedded broker has none.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;
#[path = "../examples/transaction.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod transaction;

use common::{soon, unique};

/// Every order is billed once for readers of committed records, although a transaction was aborted after its records were
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_and_offsets_of_lanes_are_committed_together() {
    let Ok(brokers) = std::env::var("TRAMLINE_TEST_BROKERS") else {
        println!("skipped: no TRAMLINE_TEST_BROKERS (cargo xtask kafka up)");
        return;
    };
    let (bills, orders, aborted) = soon(transaction::run(&brokers, &unique("shop"))).await.unwrap();
    assert_eq!((bills, orders), (transaction::ORDERS, transaction::ORDERS));
    assert!(aborted >= 1, "one was aborted on purpose");
}
