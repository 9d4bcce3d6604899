//! A process that is asked to end by a signal while records flow.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::running::committed;
use common::{Stand, soon, unique};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tramline::prelude::*;

const RECORDS: i64 = 4_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t263_after_a_signal_under_load_everything_is_processed_and_only_what_was_in_flight_again() {
    for policy in [StopPolicy::Drain, StopPolicy::Cancel] {
        let stand = Stand::start().await;
        let (topic, group, admin) = (stand.topic(2).await, unique("group"), stand.admin());
        for partition in 0..2 {
            stand.produce(&topic, partition, 0..RECORDS / 2).await;
        }
        let times = Arc::new(Mutex::new(BTreeMap::<(i32, i64), usize>::new()));
        let (count, mut counted) = watch::channel(0);
        let (mut runs, mut in_flight) = (0, 0);
        while times.lock().unwrap().len() < RECORDS as usize {
            runs += 1;
            let consumer = stand.member(&topic, &group).max_poll_records(100).build().await.unwrap();
            let (noted, count) = (Arc::clone(&times), count.clone());
            let handler = move |record: Record, lane: Lane| {
                let (times, count) = (Arc::clone(&noted), count.clone());
                async move {
                    *times.lock().unwrap().entry((record.partition(), record.offset())).or_default() += 1;
                    count.send_modify(|count| *count += 1);
                    tokio::task::yield_now().await;
                    // Cut short in the middle of its work; what it did is done.
                    if lane.is_stopping() { Err("in the middle") } else { Ok(()) }
                }
            };
            let run = consumer.partitioned().stop(policy, Duration::from_secs(30)).build().unwrap();
            let mut terminate = signal(SignalKind::terminate()).unwrap();
            let task = tokio::spawn(run.for_each(async move { terminate.recv().await }, handler));
            let until = (*count_of(&counted) + 700).min(RECORDS as usize);
            drop(soon(counted.wait_for(|count| until <= *count)).await.unwrap());
            let pid = std::process::id().to_string();
            assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
            let (_, consumer) = soon(task).await.unwrap();
            // One record in each of two lanes.
            in_flight += 2;
            soon(consumer.close()).await;
            assert!(runs < 100, "no progress");
        }
        let again: usize = times.lock().unwrap().values().map(|times| times - 1).sum();
        let most = if policy == StopPolicy::Drain { 0 } else { in_flight };
        assert!(again <= most, "{policy:?}: {again} again, of {most} in flight over {runs} runs");
        for partition in 0..2 {
            assert_eq!(committed(&admin, &group, &topic, partition).await, Some(RECORDS / 2), "{policy:?}");
        }
        stand.close().await;
    }
}

fn count_of(counted: &watch::Receiver<usize>) -> watch::Ref<'_, usize> {
    counted.borrow()
}
