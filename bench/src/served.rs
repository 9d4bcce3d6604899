//! The broker in a process of its own: this same program, started again.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tramline_broker::{Broker, BrokerHandle};
use tramline_log::storage::{DelayedStorage, DiskStorage};

/// What the hidden subcommand is called.
const SERVE: &str = "serve-for-bench";

/// What a broker has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Barriers.
    pub barriers: u64,
    /// Groups written.
    pub groups: u64,
    /// Batches appended.
    pub batches: u64,
}

impl std::ops::Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            barriers: self.barriers - earlier.barriers,
            groups: self.groups - earlier.groups,
            batches: self.batches - earlier.batches,
        }
    }
}

/// A running broker; it is stopped when this is dropped.
#[derive(Debug)]
pub struct Served {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
    address: String,
}

impl Served {
    /// Starts a broker in `dir` whose barriers take `delay` longer.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(dir: &Path, delay: Duration) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(SERVE)
            .arg(dir)
            .arg(delay.as_micros().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let words = BufReader::new(child.stdout.take().context("the broker has no stdout")?);
        let mut served = Self { child, orders, words, address: String::new() };
        served.address = served.line()?;
        Ok(served)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has counted so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn counters(&mut self) -> Result<Counters> {
        writeln!(self.orders.as_mut().context("the broker has no stdin")?, "counters")?;
        let line = self.line()?;
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next().context("a counter is missing")?.context("a counter is no number");
        Ok(Counters { barriers: next()?, groups: next()?, batches: next()? })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.words.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "the broker ended");
        Ok(line.trim().to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its stdin ends, and so it does.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Becomes the broker when this process was started as one; to be called first in `main`.
///
/// # Errors
/// The broker cannot start.
pub fn serve_if_asked() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(SERVE) {
        return Ok(());
    }
    let dir = arguments.next().context("no directory")?;
    let delay = Duration::from_micros(arguments.next().context("no delay")?.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let builder = if delay.is_zero() {
            Broker::builder(dir)
        } else {
            Broker::builder_on(Arc::new(DelayedStorage::new(DiskStorage::shared(), delay)), dir)
        };
        let broker = builder.listen("127.0.0.1:0").start().await?;
        println!("{}", broker.local_addr());
        let broker = tokio::task::spawn_blocking(move || answer(broker)).await?;
        broker.abort().await;
        std::process::exit(0);
    })
}

/// Answers questions on stdin until it ends.
fn answer(broker: BrokerHandle) -> BrokerHandle {
    for _ in std::io::stdin().lines() {
        let metrics = broker.metrics();
        println!("{} {} {}", metrics.barriers, metrics.groups_written, metrics.batches_in);
    }
    broker
}

/// Processor seconds a process has used so far, all threads, those that ended too.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    // Clock ticks of user and system time; a tick is 10 ms on every Linux that matters.
    const TICK: f64 = 0.01;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field, the name, may hold spaces; it ends with the last parenthesis.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 * TICK
}
