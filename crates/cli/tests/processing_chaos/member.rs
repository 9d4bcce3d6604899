//! A member of the group, as a process of its own: the runtime in key order, over a handler that dawdles and fails.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tramline::client::{ClientConfig, Consumer, OffsetReset};
use tramline::processor::{Backoff, CommitPolicy, Lane, Ordering, PartitionedExt, Retry, StopPolicy};
use tramline::wire::Record;

use crate::common::Random;
use crate::deliveries::{Deliveries, Delivery, Entry, Numbered};
use crate::{GROUP, TOPIC};

const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// How soon the group gives the partitions of a killed member without a name to another.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 4;

/// What a member's process is told, through its environment.
pub struct Member {
    pub number: u32,
    pub seed: u64,
    pub address: String,
    pub deliveries: PathBuf,
    /// A name under which it gets the partitions of a killed member of that name at once; else empty.
    pub instance: String,
    /// Whether commits carry what is completed above them.
    pub metadata: bool,
}

const NUMBER: &str = "TRAMLINE_CHAOS_MEMBER";

impl Member {
    /// Starts this test binary again. It ends by itself when its stdin does.
    pub fn start(&self, folder: &Path) -> Child {
        let stderr = folder.join(format!("member-{}", self.number));
        let stderr = OpenOptions::new().create(true).append(true).open(stderr).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["member::a_process_of_the_group", "--exact", "--ignored", "--nocapture"])
            .env(NUMBER, self.number.to_string())
            .env("TRAMLINE_CHAOS_SEED", self.seed.to_string())
            .env("TRAMLINE_CHAOS_ADDRESS", &self.address)
            .env("TRAMLINE_CHAOS_DELIVERIES", &self.deliveries)
            .env("TRAMLINE_CHAOS_INSTANCE", &self.instance)
            .env("TRAMLINE_CHAOS_METADATA", if self.metadata { "on" } else { "off" })
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap()
    }

    fn from_environment() -> Option<Self> {
        let number = std::env::var(NUMBER).ok()?.parse().unwrap();
        let told = |name: &str| std::env::var(format!("TRAMLINE_CHAOS_{name}")).unwrap();
        Some(Self {
            number,
            seed: told("SEED").parse().unwrap(),
            address: told("ADDRESS"),
            deliveries: told("DELIVERIES").into(),
            instance: told("INSTANCE"),
            metadata: told("METADATA") == "on",
        })
    }

    async fn run(self) {
        let builder = Consumer::builder(ClientConfig::new(&*self.address))
            .group(GROUP)
            .subscribe([TOPIC])
            .offset_reset(OffsetReset::Earliest)
            .session_timeout(SESSION_TIMEOUT)
            .heartbeat_interval(SESSION_TIMEOUT / 8)
            .rebalance_timeout(Duration::from_secs(10));
        let builder =
            if self.instance.is_empty() { builder } else { builder.instance_id(self.instance.as_str()) };
        let consumer = builder.build().await.unwrap();
        let run = consumer
            .partitioned()
            .ordering(Ordering::Key)
            .max_concurrent_handlers(8)
            .max_buffered_records(128)
            .commit(CommitPolicy::Periodic(COMMIT_INTERVAL))
            .commit_metadata(self.metadata)
            .stop(StopPolicy::Drain, Duration::from_secs(30))
            .on_error(Retry::new(ATTEMPTS, Backoff::new(Duration::from_millis(1), Duration::from_millis(20))))
            .build()
            .unwrap();
        let work = Arc::new(Work {
            member: self.number,
            seed: self.seed,
            deliveries: Deliveries::open(&self.deliveries),
            failures: Mutex::default(),
        });
        let handler = move |record: Record, lane: Lane| {
            let work = Arc::clone(&work);
            async move { work.handle(&record, &lane).await }
        };
        let (result, consumer) = run.for_each(tokio::io::stdin().read_u8(), handler).await;
        consumer.close().await;
        result.unwrap();
    }
}

#[test]
#[ignore = "the program of a member, which the test of the group starts"]
fn a_process_of_the_group() {
    let Some(member) = Member::from_environment() else { return };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(member.run());
    // Its stdin is read by a thread that does not end when the broker's messages end the run.
    runtime.shutdown_background();
}

/// What the handler of a member needs.
struct Work {
    member: u32,
    seed: u64,
    deliveries: Deliveries,
    /// How often a record has failed in a lane.
    failures: Mutex<HashMap<(i32, i32, i64), u64>>,
}

impl Work {
    async fn handle(&self, record: &Record, lane: &Lane) -> Result<(), &'static str> {
        let (partition, offset) = (record.partition(), record.offset());
        let numbered = Numbered::of(record.value().unwrap());
        let delivery = Delivery {
            member: self.member,
            partition,
            generation: lane.generation(),
            offset,
            record: numbered,
        };
        self.deliveries.append(Entry::Started(delivery));
        let place = (u64::from(self.member) << 48)
            ^ (u64::from(partition.cast_unsigned()) << 40)
            ^ offset.cast_unsigned();
        let mut random = Random::new(self.seed ^ place);
        // Other choices for each member, so that no record is bad for ever.
        let fails = match random.below(64) {
            0 => 2,
            1..=3 => 1,
            _ => 0,
        };
        match random.below(1000) {
            0 => tokio::time::sleep(Duration::from_millis(50 + random.below(200))).await,
            1..=100 => tokio::time::sleep(Duration::from_millis(1 + random.below(4))).await,
            101..=500 => {
                for _ in 0..=random.below(4) {
                    tokio::task::yield_now().await;
                }
            }
            _ => {}
        }
        if fails > 0 && self.failed_before((partition, delivery.generation, offset)) < fails {
            self.deliveries.append(Entry::Failed(delivery));
            assert!(random.below(32) > 0, "a handler that panics");
            return Err("a handler that fails");
        }
        self.deliveries.append(Entry::Completed(delivery));
        Ok(())
    }

    fn failed_before(&self, place: (i32, i32, i64)) -> u64 {
        let mut failures = self.failures.lock().unwrap();
        let failed = failures.entry(place).or_default();
        *failed += 1;
        *failed - 1
    }
}
