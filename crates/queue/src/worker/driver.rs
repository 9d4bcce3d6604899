//! The task that is a worker: reads the followed shards, carries out what the machine says, runs handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant as TokioInstant;
use tokio_util::sync::CancellationToken;
use tramline_client::{
    ConsumeError, Consumer, Delivery, DeliveryError, FetchError, Fetched, ProducerRecord, StartOffset,
};
use tramline_core::claims::worker::{Action, WorkerStats};
use tramline_core::claims::{ClaimRecord, TaskMeta, Worker as Machine, WorkerConfig};
use tramline_core::time::Instant;

use super::Settings;
use super::jobs::{self, Ended};
use super::monitor::Progress;
use super::payloads::Payloads;
use super::shards::Wanted;
use crate::error::{ReadError, WorkError};
use crate::replay::{self, Beginning};
use crate::shared::{Shared, wall_clock};
use crate::snapshots::{self, Stored};
use crate::task::{Outcome, Task};

/// Longer than any deadline: "nothing is due".
const FAR: Duration = Duration::from_secs(3600);
/// How long a failed look at a shard's beginning waits before the next.
const AGAIN: Duration = Duration::from_millis(500);
/// Claims that may wait for the tasks they name before the reading of claims stops for a while.
const MOST_WAITING: usize = 10_000;

/// What is read to begin with a shard.
type Prepared = (i32, Result<Beginning, ReadError>);
/// An append on its way.
type Sent = (i32, ClaimRecord, Delivery);

pub(super) struct Driver<H> {
    shared: Arc<Shared>,
    progress: Arc<Progress>,
    settings: Settings,
    handler: Arc<H>,
    machine: Machine,
    begun: TokioInstant,
    consumer: Consumer,
    payloads: Arc<Payloads>,
    wanted: Wanted,
    preparing: JoinSet<Prepared>,
    prepared_for: BTreeSet<i32>,
    /// Shards whose claims are not read until tasks have caught up.
    held_back: BTreeSet<i32>,
    jobs: JoinSet<Ended>,
    running: BTreeMap<u64, (AbortHandle, CancellationToken)>,
    sent: mpsc::UnboundedSender<Sent>,
    failed: mpsc::UnboundedReceiver<(i32, ClaimRecord)>,
    /// The collector of deliveries; it ends with this.
    background: JoinSet<()>,
    writing: JoinSet<(i32, Result<Stored, DeliveryError>)>,
    trimming: JoinSet<()>,
    snapshots: BTreeMap<i32, Stored>,
}

impl<H, F> Driver<H>
where
    H: Fn(Task) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    pub async fn start(
        shared: &Arc<Shared>,
        settings: &Settings,
        progress: &Arc<Progress>,
        machine: WorkerConfig,
        handler: Arc<H>,
    ) -> Result<Self, WorkError> {
        let topics = &shared.topics;
        let both = |shard| [topics.tasks_of(shard), topics.claims_of(shard)];
        let all: Vec<_> = shared.all_shards().flat_map(both).collect();
        let consumer =
            shared.reader(all.iter().map(|partition| (partition.clone(), StartOffset::At(0)))).await?;
        consumer.pause(&all);
        let mut seed = [0; 16];
        // Without randomness workers are in step, which costs collisions and nothing else.
        let _ = getrandom::fill(&mut seed);
        let (sent, on_their_way) = mpsc::unbounded_channel();
        let (failing, failed) = mpsc::unbounded_channel();
        let mut background = JoinSet::new();
        background.spawn(collect(on_their_way, failing));
        progress.tell(WorkerStats::default(), std::iter::empty());
        Ok(Self {
            shared: Arc::clone(shared),
            progress: Arc::clone(progress),
            settings: settings.clone(),
            handler,
            machine: Machine::new(machine, seed),
            begun: TokioInstant::now(),
            consumer,
            payloads: Arc::new(Payloads::new(Arc::clone(shared), settings.payload_bytes)),
            wanted: Wanted::start(shared, settings).await?,
            preparing: JoinSet::new(),
            prepared_for: BTreeSet::new(),
            held_back: BTreeSet::new(),
            jobs: JoinSet::new(),
            running: BTreeMap::new(),
            sent,
            failed,
            background,
            writing: JoinSet::new(),
            trimming: JoinSet::new(),
            snapshots: BTreeMap::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_start(self.begun.elapsed())
    }

    pub async fn run(mut self, shutdown: impl Future) -> Result<WorkerStats, WorkError> {
        let mut shutdown = pin!(shutdown);
        let mut give_up_at = None;
        loop {
            self.carry_out().await?;
            self.note_dry();
            self.follow_wanted();
            self.tell();
            if give_up_at.is_some() && self.machine.in_hand() == 0 {
                break;
            }
            let due = self.next_timeout();
            tokio::select! {
                batch = self.consumer.next_batch() => self.read(batch)?,
                Some(ended) = self.jobs.join_next() => self.ended(ended.ok()),
                Some((shard, record)) = self.failed.recv() => {
                    self.machine.handle_append_failed(shard, &record, self.now());
                }
                Some(Ok(prepared)) = self.preparing.join_next() => self.begin(prepared)?,
                Some(Ok((shard, stored))) = self.writing.join_next() => self.stored(shard, stored),
                Some(_) = self.trimming.join_next() => {}
                () = self.wanted.changed(), if give_up_at.is_none() => {}
                () = tokio::time::sleep_until(due) => self.machine.handle_timeout(self.now()),
                _ = &mut shutdown, if give_up_at.is_none() => {
                    self.machine.stop();
                    give_up_at = Some(TokioInstant::now() + self.settings.drain_timeout);
                }
                () = tokio::time::sleep_until(give_up_at.unwrap_or(due + FAR)), if give_up_at.is_some() => {
                    if self.running.is_empty() {
                        // What is left waits for a broker that does not answer.
                        break;
                    }
                    self.running.keys().for_each(|&id| self.machine.give_up(id));
                    give_up_at = Some(TokioInstant::now() + self.settings.settle_timeout);
                }
            }
        }
        self.end().await
    }

    fn tell(&self) {
        // A shard that is not begun with stands at the beginning.
        let coming = self.prepared_for.iter().map(|&shard| (shard, 0));
        let followed = self.machine.shards();
        let followed = followed.filter_map(|shard| Some((shard, self.machine.ledger(shard)?.claims_end())));
        self.progress.tell(self.machine.stats(), coming.chain(followed));
    }

    async fn end(self) -> Result<WorkerStats, WorkError> {
        let Self { sent, mut background, mut writing, mut trimming, wanted, consumer, machine, .. } = self;
        // What was given back must be in the log when this returns, for whoever asks next. A snapshot half written is
        // passed over by readers; one that is nearly written is worth a moment, too.
        drop(sent);
        let _ = tokio::time::timeout(self.settings.settle_timeout, async {
            while background.join_next().await.is_some() {}
            while writing.join_next().await.is_some() {}
            while trimming.join_next().await.is_some() {}
        })
        .await;
        wanted.leave().await;
        consumer.close().await;
        let stats = machine.stats();
        self.progress.tell(stats, std::iter::empty());
        Ok(stats)
    }

    /// May choose another shard to look into, which is to be followed before anything is waited for.
    fn note_dry(&mut self) {
        let now = self.now();
        let dry = self.machine.is_dry(now) && self.preparing.is_empty();
        self.wanted.note(dry, getrandom::u64().unwrap_or(0));
    }

    fn next_timeout(&self) -> TokioInstant {
        let machine = self.machine.next_timeout().map(|at| self.begun + at.since_start());
        let visit = self.wanted.next_visit();
        machine.into_iter().chain(visit).min().unwrap_or_else(|| TokioInstant::now() + FAR)
    }

    /// Begins with shards that are wanted, ends with those that are not.
    fn follow_wanted(&mut self) {
        let followed: BTreeSet<i32> = self.machine.shards().collect();
        for shard in self.wanted.all() {
            if followed.contains(&shard) {
                self.machine.set_taking(shard, true);
            } else {
                self.prepare(shard, Duration::ZERO);
            }
        }
        for shard in followed {
            if self.wanted.has(shard) {
                continue;
            }
            self.machine.set_taking(shard, false);
            if self.machine.remove_shard(shard) {
                let topics = &self.shared.topics;
                self.consumer.pause(&[topics.tasks_of(shard), topics.claims_of(shard)]);
                self.held_back.remove(&shard);
            }
        }
    }

    fn prepare(&mut self, shard: i32, after: Duration) {
        if !self.prepared_for.insert(shard) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.preparing.spawn(async move {
            tokio::time::sleep(after).await;
            (shard, replay::beginning(&shared, shard).await)
        });
    }

    fn begin(&mut self, (shard, beginning): Prepared) -> Result<(), WorkError> {
        self.prepared_for.remove(&shard);
        let known = self.machine.ledger(shard).is_some();
        if !self.wanted.has(shard) && !known {
            return Ok(());
        }
        let beginning = match beginning {
            Ok(beginning) => beginning,
            Err(error) if error.is_retriable() || is_passing(&error) => {
                tracing::warn!(shard, %error, "cannot begin with a shard yet");
                self.prepare(shard, AGAIN);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (tasks, claims) = (self.shared.topics.tasks_of(shard), self.shared.topics.claims_of(shard));
        self.consumer.seek(&tasks, beginning.ledger.tasks_end()).map_err(ReadError::from)?;
        self.consumer.seek(&claims, beginning.ledger.claims_end()).map_err(ReadError::from)?;
        if let Some(stored) = beginning.snapshot {
            self.snapshots.insert(shard, stored);
        }
        let (ledger, ends, wall, now) = (beginning.ledger, beginning.ends, wall_clock(), self.now());
        if known {
            self.machine.handle_restart(shard, ledger, ends, wall, now);
        } else {
            self.machine.add_shard(shard, ledger, ends, wall, now);
        }
        self.held_back.remove(&shard);
        self.consumer.resume(&[tasks, claims]);
        Ok(())
    }

    fn read(&mut self, batch: Result<Fetched, ConsumeError>) -> Result<(), WorkError> {
        let batch = match batch {
            Ok(batch) => batch,
            Err(ConsumeError::Partition(FetchError::OffsetOutOfRange { topic_partition, offset })) => {
                // Somebody deleted what a newer snapshot covers.
                tracing::info!(%topic_partition, offset, "a shard is begun again from its newest snapshot");
                let shard = topic_partition.partition;
                let topics = &self.shared.topics;
                self.consumer.pause(&[topics.tasks_of(shard), topics.claims_of(shard)]);
                self.prepare(shard, Duration::ZERO);
                return Ok(());
            }
            Err(error) => return Err(ReadError::from(error).into()),
        };
        let now = self.now();
        let bytes: usize = batch.records.iter().map(tramline_wire::Record::payload_len).sum();
        self.progress.read(bytes as u64);
        let shard = batch.topic_partition.partition;
        if batch.topic_partition.topic == self.shared.topics.tasks {
            for record in &batch.records {
                self.payloads.keep(shard, record);
                self.machine.handle_task(shard, record.offset(), TaskMeta::of(record), now);
            }
            self.machine.handle_tasks_read(shard, batch.next_offset, now);
        } else {
            for record in &batch.records {
                let value = record.value().unwrap_or_default();
                self.machine.handle_claim(shard, record.offset(), record.timestamp(), value, now);
            }
        }
        self.balance(shard);
        Ok(())
    }

    /// Does not read claims far beyond the tasks they name.
    fn balance(&mut self, shard: i32) {
        let waiting = self.machine.waiting_for_tasks(shard);
        let claims = self.shared.topics.claims_of(shard);
        if waiting > MOST_WAITING && self.held_back.insert(shard) {
            self.consumer.pause([&claims]);
        } else if waiting == 0 && self.held_back.remove(&shard) {
            self.consumer.resume([&claims]);
        }
    }

    /// Does everything the machine asks for.
    async fn carry_out(&mut self) -> Result<(), WorkError> {
        while let Some(action) = self.machine.poll(self.now()) {
            match action {
                Action::Append { shard, record } => {
                    let append = ProducerRecord::to(self.shared.topics.claims.clone())
                        .partition(shard)
                        .value(record.encode());
                    let delivery = self.shared.producer.send(append).await?;
                    // The collector lives as long as this.
                    let _ = self.sent.send((shard, record, delivery));
                }
                Action::Start(held) => {
                    let lost = CancellationToken::new();
                    let id = held.id;
                    let job = jobs::handle(
                        Arc::clone(&self.shared),
                        Arc::clone(&self.payloads),
                        Arc::clone(&self.handler),
                        held,
                        lost.clone(),
                    );
                    self.running.insert(id, (self.jobs.spawn(job), lost));
                }
                Action::Bury { held, cause } => {
                    let id = held.id;
                    let job = jobs::bury(Arc::clone(&self.shared), Arc::clone(&self.payloads), held, cause);
                    self.running.insert(id, (self.jobs.spawn(job), CancellationToken::new()));
                }
                Action::Stop { id, why } => {
                    if let Some((handle, lost)) = self.running.remove(&id) {
                        tracing::warn!(?why, "a task was lost while it was worked on");
                        lost.cancel();
                        handle.abort();
                    }
                }
                Action::Snapshot { shard, snapshot } => {
                    let shared = Arc::clone(&self.shared);
                    self.writing
                        .spawn(async move { (shard, snapshots::write(&shared, shard, &snapshot).await) });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn ended(&mut self, ended: Option<Ended>) {
        match ended {
            Some(Ended::Handler(id, outcome)) => {
                self.running.remove(&id);
                self.machine.handle_outcome(id, outcome);
            }
            Some(Ended::Letter(id, cause)) => {
                self.running.remove(&id);
                self.machine.handle_letter(id, cause);
            }
            // Stopped.
            None => {}
        }
    }

    fn stored(&mut self, shard: i32, stored: Result<Stored, DeliveryError>) {
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(shard, %error, "a snapshot was not written; the next one will be");
                return;
            }
        };
        if let Some(previous) = self.snapshots.insert(shard, stored) {
            let (shared, keep_history) = (Arc::clone(&self.shared), !self.settings.trim);
            self.trimming.spawn(async move {
                snapshots::trim(&shared, shard, previous, keep_history).await;
            });
        }
    }
}

/// Waits for the outcome of appends in their order, and tells which failed.
async fn collect(mut sent: mpsc::UnboundedReceiver<Sent>, failed: mpsc::UnboundedSender<(i32, ClaimRecord)>) {
    while let Some((shard, record, delivery)) = sent.recv().await {
        if let Err(error) = delivery.await {
            tracing::warn!(shard, record = record.encode(), %error, "a claims record was not acknowledged");
            if failed.send((shard, record)).is_err() {
                return;
            }
        }
    }
}

/// What a moving snapshot can cause: the log was shortened between two questions about it.
fn is_passing(error: &ReadError) -> bool {
    matches!(
        error,
        ReadError::Consume(ConsumeError::Partition(FetchError::OffsetOutOfRange { .. }))
            | ReadError::NoSnapshot { .. }
    )
}
