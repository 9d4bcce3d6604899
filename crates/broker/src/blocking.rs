//! File work off the runtime's workers: a few threads of our own, or, in step-by-step tests, the caller itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A queue that threads wait on; closing it lets them finish what is queued and end.
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> std::fmt::Debug for WorkQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}

impl<T> WorkQueue<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { items: VecDeque::new(), closed: false }), filled: Condvar::new() }
    }

    /// Gives the item back when the queue is closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// The next item; `None` when the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn try_pop(&self) -> Option<T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).items.pop_front()
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.filled.notify_all();
    }
}

/// Threads of our own, joined by name when the node stops.
#[derive(Debug, Default)]
pub(crate) struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    pub(crate) fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let handle = std::thread::Builder::new().name(name).spawn(body)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Waits for every thread; their queues must be closed.
    pub(crate) fn join(&self) {
        let handles = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            // A thread that panicked has already said so on stderr; its partition stays unanswered no longer than
            // its replies, which the unwinding has dropped.
            let _ = handle.join();
        }
    }
}

/// Runs closures that block.
#[derive(Debug)]
pub(crate) struct Pool {
    queue: Option<Arc<WorkQueue<Job>>>,
    threads: Threads,
}

/// The pool is stopping, or the closure panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotRun;

impl Pool {
    /// A pool of `count` threads.
    pub(crate) fn threads(name: &str, count: usize) -> std::io::Result<Self> {
        let queue = Arc::new(WorkQueue::<Job>::new());
        let threads = Threads::default();
        for number in 0..count {
            let queue = Arc::clone(&queue);
            threads.spawn(format!("{name}-{number}"), move || {
                while let Some(job) = queue.pop() {
                    // A panic is a bug of ours; the caller sees `NotRun`, the thread lives on for the others.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                }
            })?;
        }
        Ok(Self { queue: Some(queue), threads })
    }

    /// A pool that runs everything in the caller, at once.
    pub(crate) fn inline() -> Self {
        Self { queue: None, threads: Threads::default() }
    }

    /// Runs `work` and gives its result. When the future is dropped the work still runs to its end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotRun> {
        let Some(queue) = &self.queue else { return Ok(work()) };
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            let _ = sender.send(work());
        });
        queue.push(job).map_err(|_| NotRun)?;
        receiver.await.map_err(|_| NotRun)
    }

    /// Ends the threads after what is queued. Blocks.
    pub(crate) fn stop(&self) {
        if let Some(queue) = &self.queue {
            queue.close();
        }
        self.threads.join();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }
}
