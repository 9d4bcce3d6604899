//! Runs over the real consumer, each on its own task, and what tests ask about them.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tramline::client::{Admin, Consumer};
use tramline::prelude::*;
use tramline::processor::{PartitionedBuilder, RunError, RunReport};

use super::{soon, tp};

pub type Ended = (Result<RunReport, RunError>, Consumer);

/// A run on its own task.
pub struct Running {
    pub stop: CancellationToken,
    task: JoinHandle<Ended>,
}

impl Running {
    pub fn for_each<H: Handler>(
        consumer: Consumer,
        with: impl FnOnce(PartitionedBuilder<Consumer>) -> PartitionedBuilder<Consumer>,
        handler: H,
    ) -> Self {
        let run = with(consumer.partitioned()).build().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(run.for_each(stop.clone().cancelled_owned(), handler));
        Self { stop, task }
    }

    pub async fn ended(self) -> Ended {
        soon(self.task).await.unwrap()
    }

    pub async fn stop(self) -> Ended {
        self.stop.cancel();
        self.ended().await
    }
}

pub async fn committed(admin: &Admin, group: &str, topic: &str, partition: i32) -> Option<i64> {
    let offsets = soon(admin.group_offsets(group)).await.unwrap();
    offsets.get(&tp(topic, partition)).map(|offset| offset.offset)
}

/// Collects records, and lets a test wait for their number.
pub fn collector() -> (impl Handler + use<>, mpsc::UnboundedReceiver<(i32, i64)>) {
    let (send, receive) = mpsc::unbounded_channel();
    let handler = move |record: Record, _: Lane| {
        let send = send.clone();
        async move {
            send.send((record.partition(), record.offset())).unwrap();
            Ok::<_, String>(())
        }
    };
    (handler, receive)
}
