//! The write side of the node: writer threads that step write actors, and the one committer.
//!
//! A partition belongs to one writer thread, so its groups follow each other. Barriers belong to the node: write
//! actors hand their partition to the committer, which makes everything handed to it durable. In this form it forces
//! each touched log once per turn, a few at a time; whoever arrives meanwhile shares the partition's next turn.
//! Without threads the same steps are taken by hand, one at a time ([`Engine::step_writer`],
//! [`Engine::step_committer`]): that is how the crash tests walk through every storage call.
//!
//! Locks, in this order: actor, mailbox, queues. Answers are given with none of them held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tracing::error;

use crate::blocking::{Threads, WorkQueue};
use crate::metrics::Metrics;
use crate::partition::{Failure, Partition, Submission};
use crate::write_actor::{Answers, WriteActor};

type Queue = Arc<WorkQueue<Arc<Partition>>>;

#[derive(Debug)]
pub(crate) struct Engine {
    writers: Vec<Queue>,
    committer: Queue,
    writer_threads: Threads,
    committer_threads: Threads,
    metrics: Arc<Metrics>,
    leader_epoch: i32,
    checkpoint_interval: Duration,
    clock: fn() -> i64,
}

impl Engine {
    pub(crate) fn new(
        writers: usize,
        leader_epoch: i32,
        checkpoint_interval: Duration,
        metrics: Arc<Metrics>,
        clock: fn() -> i64,
    ) -> Self {
        Self {
            writers: (0..writers.max(1)).map(|_| Arc::new(WorkQueue::new())).collect(),
            committer: Arc::new(WorkQueue::new()),
            writer_threads: Threads::default(),
            committer_threads: Threads::default(),
            metrics,
            leader_epoch,
            checkpoint_interval,
            clock,
        }
    }

    /// Starts the threads. Without this call, step by hand.
    pub(crate) fn start(self: &Arc<Self>, committers: usize) -> std::io::Result<()> {
        for (number, queue) in self.writers.iter().enumerate() {
            let (engine, queue) = (Arc::clone(self), Arc::clone(queue));
            self.writer_threads.spawn(format!("tramline-write-{number}"), move || {
                while let Some(partition) = queue.pop() {
                    engine.write(&partition);
                }
            })?;
        }
        for number in 0..committers.max(1) {
            let (engine, queue) = (Arc::clone(self), Arc::clone(&self.committer));
            self.committer_threads.spawn(format!("tramline-commit-{number}"), move || {
                while let Some(partition) = queue.pop() {
                    engine.commit(&partition);
                }
            })?;
        }
        Ok(())
    }

    /// Queues something for the partition's write actor; never blocks. Submissions of one caller keep their order.
    pub(crate) fn submit(&self, partition: &Arc<Partition>, submission: Submission) {
        self.metrics.batches_waiting.inc();
        let mut mailbox = partition.mailbox();
        mailbox.queue.push_back(submission);
        if mailbox.scheduled {
            return;
        }
        mailbox.scheduled = true;
        drop(mailbox);
        self.schedule(partition);
    }

    fn schedule(&self, partition: &Arc<Partition>) {
        if self.writer_of(partition).push(Arc::clone(partition)).is_err() {
            // The writers have stopped.
            let queue = {
                let mut mailbox = partition.mailbox();
                mailbox.scheduled = false;
                std::mem::take(&mut mailbox.queue)
            };
            for submission in queue {
                self.metrics.batches_waiting.dec();
                submission.fail(Failure::Stopping);
            }
        }
    }

    fn writer_of(&self, partition: &Partition) -> &Queue {
        // The topic id is random; its first bytes spread topics, the number spreads their partitions.
        let seed = u32::from_be_bytes(*partition.topic_id.as_bytes().first_chunk::<4>().unwrap_or(&[0; 4]));
        let place = (seed as usize).wrapping_add(usize::try_from(partition.id.partition).unwrap_or(0));
        &self.writers[place % self.writers.len()]
    }

    /// One step of one writer by hand; `false` when there is nothing to do.
    pub(crate) fn step_writer(&self) -> bool {
        self.writers.iter().find_map(|queue| queue.try_pop()).is_some_and(|partition| {
            self.write(&partition);
            true
        })
    }

    /// One step of the committer by hand; `false` when there is nothing to do.
    pub(crate) fn step_committer(&self) -> bool {
        self.committer.try_pop().is_some_and(|partition| {
            self.commit(&partition);
            true
        })
    }

    /// Writes what is queued for the partition as one group.
    fn write(&self, partition: &Arc<Partition>) {
        if catch_unwind(AssertUnwindSafe(|| self.write_group(partition))).is_err() {
            self.after_panic(partition);
        }
        let mut mailbox = partition.mailbox();
        if mailbox.queue.is_empty() {
            mailbox.scheduled = false;
            return;
        }
        drop(mailbox);
        self.schedule(partition);
    }

    fn write_group(&self, partition: &Arc<Partition>) {
        let mut actor = partition.actor();
        let group: Vec<Submission> = std::mem::take(&mut partition.mailbox().queue).into();
        if group.is_empty() {
            return;
        }
        let members = group.len();
        let log_start = partition.reader.log_start();
        let result = actor.write_group(group, self.leader_epoch, (self.clock)());
        for _ in 0..members {
            self.metrics.batches_waiting.dec();
        }
        self.metrics.batches_in.add(result.appended);
        self.metrics.record_bytes_in.add(result.appended_bytes);
        self.metrics.batches_refused.add(result.refused);
        if result.appended > 0 {
            self.metrics.groups_written.add(1);
        }
        if let Some(reason) = &result.failed {
            self.fenced(partition, reason);
        }
        publish(partition, &actor);
        drop(actor);
        if partition.reader.log_start() != log_start {
            partition.wake();
        }
        if result.ask_committer {
            self.ask(partition);
        }
        result.answers.give();
    }

    fn ask(&self, partition: &Arc<Partition>) {
        if self.committer.push(Arc::clone(partition)).is_err() {
            // The committer has stopped, so its threads cannot be in the middle of this partition's barrier.
            self.commit(partition);
        }
    }

    /// Makes what the partition's waiters wait for durable, and answers them.
    fn commit(&self, partition: &Arc<Partition>) {
        if catch_unwind(AssertUnwindSafe(|| self.barrier(partition))).is_err() {
            self.after_panic(partition);
        }
        // Only now may another turn begin: answers of one partition are given in order.
        let done = partition.actor().release();
        if !done {
            self.ask(partition);
        }
    }

    fn barrier(&self, partition: &Arc<Partition>) {
        let (ticket, answers) = {
            let mut actor = partition.actor();
            let begun = actor.begin_barrier();
            publish(partition, &actor);
            begun
        };
        self.give_after_barrier(answers);
        let Some(ticket) = ticket else { return };
        let forced = ticket.force();
        let mut actor = partition.actor();
        let (answers, outcome) = match forced {
            Ok(forced) => actor.end_barrier(forced),
            Err(reason) => (actor.barrier_failed(), Err(reason.to_string())),
        };
        publish(partition, &actor);
        drop(actor);
        match outcome {
            Ok(()) => self.metrics.barriers.add(1),
            Err(reason) => {
                self.metrics.barriers_failed.add(1);
                self.fenced(partition, &reason);
            }
        }
        self.give_after_barrier(answers);
        self.checkpoint_when_due(partition);
    }

    fn give_after_barrier(&self, answers: Answers) {
        self.metrics.acks_after_barrier.add(answers.len());
        answers.give();
    }

    fn checkpoint_when_due(&self, partition: &Arc<Partition>) {
        let interval = i64::try_from(self.checkpoint_interval.as_millis()).unwrap_or(i64::MAX);
        let now = (self.clock)();
        if now.saturating_sub(partition.last_checkpoint()) < interval {
            return;
        }
        partition.set_last_checkpoint(now);
        let mut actor = partition.actor();
        if actor.is_closed() {
            return;
        }
        let checkpointed = actor.log().map(tramline_log::Log::checkpoint);
        publish(partition, &actor);
        if let Some(Err(reason)) = checkpointed {
            let mut answers = Answers::default();
            actor.fence(&mut answers);
            drop(actor);
            self.fenced(partition, &reason.to_string());
            answers.give();
        }
    }

    fn fenced(&self, partition: &Partition, reason: &str) {
        // The barrier of a topic that is being deleted may fail because its directory is gone.
        if !partition.is_deleted() && partition.set_fenced() {
            self.metrics.partitions_fenced.add(1);
            error!(partition = %partition.id, reason, "a storage failure closes the partition for writing; reads go on, the next start recovers");
        }
    }

    /// A bug of ours must cost one partition, not its waiters' patience.
    fn after_panic(&self, partition: &Arc<Partition>) {
        let mut answers = Answers::default();
        partition.actor().fence(&mut answers);
        self.fenced(partition, "internal error");
        answers.give();
        let queue = std::mem::take(&mut partition.mailbox().queue);
        for submission in queue {
            self.metrics.batches_waiting.dec();
            submission.fail(Failure::Storage);
        }
    }

    /// Ends the threads after everything queued is written and forced. Blocks.
    pub(crate) fn stop(&self) {
        for queue in &self.writers {
            queue.close();
        }
        self.writer_threads.join();
        self.committer.close();
        self.committer_threads.join();
    }

    /// Lets the threads end without waiting for them.
    pub(crate) fn abandon(&self) {
        for queue in &self.writers {
            queue.close();
        }
        self.committer.close();
    }
}

/// Lets everyone see how far the log has come.
fn publish(partition: &Partition, actor: &WriteActor) {
    let (durable, written_down) = actor.durable();
    partition.note_durable(durable, written_down);
    partition.publish(actor.high_watermark());
}
