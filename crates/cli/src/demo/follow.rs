//! Watches the results topic while the run goes on: how far every lane is, and who works on it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use tokio::sync::watch;
use tramline::client::{ClientConfig, Consumer, StartOffset};

use super::replay;

/// What the results say about one partition.
#[derive(Debug, Clone, Default)]
pub struct LaneView {
    pub member: String,
    pub generation: i32,
    /// The offset of the newest completed event.
    pub offset: i64,
    pub completed: u64,
}

/// What the results say so far.
#[derive(Debug, Default)]
pub struct Seen {
    completed: HashSet<(i32, i64)>,
    pub lanes: Vec<LaneView>,
    pub last_completion: Option<Instant>,
}

/// The results as seen so far, shared with the task that reads them.
#[derive(Debug, Clone)]
pub struct Follow {
    seen: Arc<Mutex<Seen>>,
    completed: watch::Receiver<u64>,
}

impl Follow {
    /// Begins to read the results topic from its start.
    pub async fn start(config: &ClientConfig, results: &str, partitions: usize) -> Result<Self> {
        let consumer =
            Consumer::builder(config.clone()).assign_topic(results, StartOffset::Earliest).build().await?;
        let seen =
            Arc::new(Mutex::new(Seen { lanes: vec![LaneView::default(); partitions], ..Seen::default() }));
        let (count, completed) = watch::channel(0);
        let follow = Self { seen, completed };
        let seen = Arc::clone(&follow.seen);
        tokio::spawn(async move {
            while let Ok(batch) = consumer.next_batch().await {
                let mut seen = lock(&seen);
                for result in batch.records.iter().filter_map(|record| replay::done(record).ok()) {
                    seen.note(result.partition, result.offset, &result.member, result.generation);
                }
                count.send_replace(seen.completed.len() as u64);
            }
        });
        Ok(follow)
    }

    /// How many events have a result.
    pub fn completed(&self) -> u64 {
        *self.completed.borrow()
    }

    /// Waits until at least `count` events have a result; `false` when the results cannot be read any more.
    pub async fn reaches(&self, count: u64) -> bool {
        self.completed.clone().wait_for(|completed| *completed >= count).await.is_ok()
    }

    /// Looks at what was seen.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

/// Nothing is left half-done under this lock, so a panic elsewhere does not spoil what it guards.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn note(&mut self, partition: i32, offset: i64, member: &str, generation: i32) {
        if !self.completed.insert((partition, offset)) {
            return;
        }
        self.last_completion = Some(Instant::now());
        if let Some(lane) = usize::try_from(partition).ok().and_then(|index| self.lanes.get_mut(index)) {
            lane.completed += 1;
            lane.offset = offset;
            if generation >= lane.generation {
                member.clone_into(&mut lane.member);
                lane.generation = generation;
            }
        }
    }
}
