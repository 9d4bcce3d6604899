//! The end: everything is given back, and librdkafka closes on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer;
use tokio::sync::oneshot;

use crate::context::decline;
use crate::error::CloseError;
use crate::shared::Shared;

impl Shared {
    /// Gives every partition back and lets librdkafka leave the group and close. Over when the receiver is told, or at once
    /// when it was closed before.
    pub(crate) fn shut(&self) -> oneshot::Receiver<()> {
        let (closed, wait) = oneshot::channel();
        let mut state = self.lock();
        // Queues keep the consumer alive.
        state.partitions.clear();
        let holds: Vec<u64> = state.holds.keys().copied().collect();
        for id in holds {
            state.release(id);
        }
        state.events.clear();
        let starting = state.starting.take();
        if let Some(consumer) = state.consumer.take() {
            consumer.context().close();
            if let Some(starting) = starting {
                decline(&consumer, starting.incremental);
            }
            while let Some(recorded) = consumer.context().take() {
                recorded.give_back(&consumer);
            }
            // Dropping it waits until it has left the group: nothing for a thread of the runtime, nor for one that the
            // runtime would wait for.
            let thread = std::thread::Builder::new().name("librdkafka close".into());
            let spawned = thread.spawn(move || {
                drop(alone(consumer));
                closed.send(()).ok();
            });
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread to close librdkafka on");
            }
        }
        drop(state);
        self.changed.notify_waiters();
        wait
    }
}

/// Waits for the end of a close.
pub(crate) async fn closed(wait: oneshot::Receiver<()>, patience: Duration) -> Result<(), CloseError> {
    // A sender that is gone means that there is nothing to wait for.
    tokio::time::timeout(patience, wait).await.map(drop).map_err(|_| CloseError::TimedOut(patience))
}

/// Waits for a commit that is under way: it has the consumer, too.
fn alone<T>(mut shared: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(alone) => return alone,
            Err(still) => shared = still,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
