//! Worker processes: this test program again, told by its environment what to work on.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tramline::client::ClientConfig;
use tramline::queue::{Outcome, Queue, Task};

const QUEUE: &str = "TRAMLINE_TASK_KILL_QUEUE";
const BROKERS: &str = "TRAMLINE_TASK_KILL_BROKERS";
const EFFECTS: &str = "TRAMLINE_TASK_KILL_EFFECTS";

/// How long a task takes.
const WORK: Duration = Duration::from_millis(1);
/// Short, so that the tasks of a killed worker are done soon.
const LEASE: Duration = Duration::from_secs(2);

/// Works until it is killed, when the environment says on what.
pub fn run_if_asked() {
    let (Ok(name), Ok(brokers), Ok(effects)) =
        (std::env::var(QUEUE), std::env::var(BROKERS), std::env::var(EFFECTS))
    else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&brokers, &name, Path::new(&effects)));
}

async fn work(brokers: &str, name: &str, effects: &Path) {
    let client = ClientConfig::new(brokers)
        .connect_timeout(Duration::from_secs(60))
        .reconnect_backoff(Duration::from_millis(20), Duration::from_millis(200));
    let queue = Queue::open(client, name).await.unwrap();
    let worker = queue
        .worker()
        .concurrency(16)
        .lease(LEASE)
        .snapshot_every(500)
        .trim(false)
        .steal_after(Some(Duration::from_millis(200)))
        .session_timeout(Duration::from_secs(6))
        .build()
        .unwrap();
    let file = Arc::new(OpenOptions::new().create(true).append(true).open(effects).unwrap());
    let own: Arc<str> = Arc::from(worker.name());
    let handler = move |task: Task| handle(task, Arc::clone(&file), Arc::clone(&own));
    worker.run(std::future::pending::<()>(), handler).await.unwrap();
}

async fn handle(task: Task, file: Arc<File>, own: Arc<str>) -> Outcome {
    tokio::time::sleep(WORK).await;
    let line = format!("{} {} {} {own}\n", task.shard(), task.id(), task.token());
    // One call: a kill leaves the line or none.
    match (&*file).write_all(line.as_bytes()) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::retry(error),
    }
}

/// The processes. They are killed when this is dropped.
pub struct Workers {
    address: String,
    queue: String,
    folder: PathBuf,
    born: usize,
    children: Vec<Child>,
}

impl Workers {
    pub fn start(address: &str, queue: &str, folder: &Path, count: usize) -> Self {
        let mut workers = Self {
            address: address.to_owned(),
            queue: queue.to_owned(),
            folder: folder.to_owned(),
            born: 0,
            children: Vec::new(),
        };
        for _ in 0..count {
            let child = workers.spawn();
            workers.children.push(child);
        }
        workers
    }

    fn spawn(&mut self) -> Child {
        self.born += 1;
        let said = File::create(self.folder.join(format!("worker-{}.said", self.born))).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker_process", "--nocapture"])
            .env(QUEUE, &self.queue)
            .env(BROKERS, &self.address)
            .env(EFFECTS, self.folder.join(format!("worker-{}.effects", self.born)))
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap()
    }

    /// SIGKILL for one of them, and another in its place.
    pub fn kill_one(&mut self, number: u64) {
        let which = number as usize % self.children.len();
        assert!(self.children[which].try_wait().unwrap().is_none(), "a worker has ended by itself");
        self.children[which].kill().unwrap();
        self.children[which].wait().unwrap();
        self.children[which] = self.spawn();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
