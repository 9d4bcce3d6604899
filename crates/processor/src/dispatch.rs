//! A lane's processor with more than one handler, batch or attempt: feeds the dispatcher, runs its jobs.
//!
//! All handlers of a lane run in the lane's own task, so that dropping the task drops them, and a record costs
//! no allocation once as many ran at once as ever will.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::mem;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;
use tramline_core::lanes::{
    Dispatcher, DispatcherConfig, Jitter, JobId, LaneState, Start, Ticket, Work as Pulled,
};
use tramline_core::time;
use tramline_wire::Record;

use crate::batch::{Batch, BatchHandler};
use crate::dead_letter::DeadLetter;
use crate::driver::{LaneFailure, panic_message};
use crate::error::BoxError;
use crate::handler::Handler;
use crate::lane::{Counts, Lane, LaneShared, Signal};
use crate::ordering::{KeyBy, Ordering};
use crate::policy::{AnyDeadLetters, Decision, Policy};
use crate::slots::{Ended, Slots};

/// How a lane's records are dispatched.
pub(crate) struct Plan {
    pub ordering: Ordering,
    pub key_by: Option<KeyBy>,
    pub dispatcher: DispatcherConfig,
    pub policy: Policy,
}

impl Plan {
    /// One record after the other, and the first failure is the last: needs no dispatcher.
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.ordering, Ordering::Partition) && self.policy.always_fails()
    }
}

/// What handlers of one and of many records have in common.
pub(crate) trait Work: Send + Sync + 'static {
    /// What a handler is given.
    type Input: Send;

    fn input(&self, records: &Arc<Vec<Record>>) -> Self::Input;

    fn handle(&self, input: Self::Input, lane: Lane) -> impl Future<Output = Result<(), BoxError>> + Send;
}

pub(crate) struct EachRecord<H>(pub Arc<H>);

impl<H: Handler> Work for EachRecord<H> {
    type Input = Option<Record>;

    fn input(&self, records: &Arc<Vec<Record>>) -> Option<Record> {
        records.first().cloned()
    }

    async fn handle(&self, input: Option<Record>, lane: Lane) -> Result<(), BoxError> {
        match input {
            Some(record) => self.0.handle(record, lane).await.map_err(Into::into),
            None => Ok(()),
        }
    }
}

pub(crate) struct EachBatch<H>(pub Arc<H>);

impl<H: BatchHandler> Work for EachBatch<H> {
    type Input = Batch;

    fn input(&self, records: &Arc<Vec<Record>>) -> Batch {
        Batch(Arc::clone(records))
    }

    async fn handle(&self, input: Batch, lane: Lane) -> Result<(), BoxError> {
        self.0.handle(input, lane).await.map_err(Into::into)
    }
}

/// What a slot does.
enum Task<I> {
    Handle(I),
    Bury(Arc<dyn AnyDeadLetters>, Vec<DeadLetter>),
}

async fn run<W: Work>(work: Arc<W>, lane: Lane, task: Task<W::Input>) -> Result<(), BoxError> {
    match task {
        Task::Handle(input) => work.handle(input, lane).await,
        Task::Bury(letters, all) => {
            for letter in all {
                letters.write(letter).await?;
            }
            Ok(())
        }
    }
}

/// The records that one handler works on, or will.
#[derive(Default)]
struct Job {
    records: Arc<Vec<Record>>,
    tickets: Vec<Ticket>,
    attempts: u32,
    /// What the last attempt said, once its records are being written elsewhere.
    buried_for: Option<String>,
}

impl Job {
    /// The records' memory, empty; shared with nobody.
    fn records_mut(&mut self) -> &mut Vec<Record> {
        if Arc::get_mut(&mut self.records).is_none() {
            self.records = Arc::default();
        }
        Arc::get_mut(&mut self.records).expect("just made, or found to be shared with nobody")
    }

    fn offset(&self) -> Option<i64> {
        self.records.first().map(Record::offset)
    }
}

struct Engine<'a> {
    lane: &'a Arc<LaneShared>,
    plan: &'a Plan,
    dispatcher: Dispatcher<Record>,
    started: Instant,
    jitter: Jitter,
    /// By slot.
    running: Vec<Option<(JobId, Job)>>,
    resting: HashMap<JobId, Job>,
    spare: Vec<Job>,
    completed: Vec<Ticket>,
    counts: Counts,
    pulled: Vec<(Record, Ticket)>,
    /// The lane hands out no more records.
    closed: bool,
    /// The lane was told to stop.
    stopping: bool,
    failed: bool,
    /// Places were given back since the lane was asked last, so that it may have more.
    freed: bool,
}

/// How many jobs are started before those that wait are looked at, which must happen also while input never
/// runs dry and handlers end at once.
const STARTS_BETWEEN_LOOKS: usize = 64;

type Output = Ended<Result<(), BoxError>>;

/// The whole life of a lane whose records go through a dispatcher.
pub(crate) async fn dispatch<W: Work>(
    lane: Arc<LaneShared>,
    work: Arc<W>,
    plan: Arc<Plan>,
) -> Result<(), LaneFailure> {
    let handle = Lane(Arc::clone(&lane));
    let make = |task| run(Arc::clone(&work), handle.clone(), task);
    let mut slots = Slots::new();
    let mut ended: Vec<(usize, Output)> = Vec::new();
    let mut engine = Engine::new(&lane, &plan);
    loop {
        engine.exchange();
        let mut all_started = false;
        for _ in 0..STARTS_BETWEEN_LOOKS {
            let Some((id, job)) = engine.start() else {
                all_started = true;
                break;
            };
            // Handlers that never wait must not keep others from running.
            tokio::task::coop::consume_budget().await;
            let task = Task::Handle(work.input(&job.records));
            engine.begin(&mut slots, &make, task, (id, job), &mut ended);
            engine.settle(&mut slots, &make, &mut ended);
        }
        if engine.freed || !all_started {
            engine.look(&mut slots, &mut ended).await;
        } else if engine.closed && engine.dispatcher.pending() == 0 {
            return Ok(());
        } else {
            engine.wait(&mut slots, &mut ended).await;
        }
        engine.settle(&mut slots, &make, &mut ended);
    }
}

impl<'a> Engine<'a> {
    fn new(lane: &'a Arc<LaneShared>, plan: &'a Plan) -> Self {
        Self {
            lane,
            plan,
            dispatcher: Dispatcher::new(plan.dispatcher),
            started: Instant::now(),
            jitter: Jitter::new(plan.dispatcher.seed.0 ^ lane.number.0),
            running: Vec::new(),
            resting: HashMap::new(),
            spare: Vec::new(),
            completed: Vec::new(),
            counts: Counts::default(),
            pulled: Vec::new(),
            closed: false,
            stopping: false,
            failed: false,
            freed: false,
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant::from_start(self.started.elapsed())
    }

    /// Tells the lane what is completed, and takes what there is room for.
    fn exchange(&mut self) {
        self.freed = false;
        let room = if self.closed { 0 } else { self.dispatcher.room() };
        let (mut has_room, mut freed_bytes) = (false, 0);
        let hurried = {
            let mut cell = self.lane.cell();
            for ticket in self.completed.drain(..) {
                cell.lane.complete(ticket);
            }
            cell.counts.add(&mem::take(&mut self.counts));
            while self.pulled.len() < room {
                let pull = cell.lane.pull();
                has_room |= pull.room;
                freed_bytes += pull.freed_bytes;
                match pull.work {
                    Pulled::Record(record, ticket) => self.pulled.push((record, ticket)),
                    Pulled::Wait => break,
                    Pulled::End => {
                        self.closed = true;
                        break;
                    }
                    Pulled::OutOfOrder { offset, expected } => {
                        cell.out_of_order = Some((offset, expected));
                        self.closed = true;
                        break;
                    }
                }
            }
            self.stopping = cell.lane.stop_reason().is_some();
            cell.lane.state() == LaneState::Cancelling
        };
        if has_room {
            self.lane.signal_room();
        }
        self.lane.run.give_bytes_back(freed_bytes);
        if hurried {
            self.begin_nothing_more();
        }
        self.admit();
        if self.stopping {
            let (resting, freed) = (&mut self.resting, &mut self.freed);
            self.dispatcher.give_up_resting(|id| {
                *freed = true;
                resting.remove(&id);
            });
        }
    }

    fn admit(&mut self) {
        for (record, ticket) in self.pulled.drain(..) {
            match (self.plan.ordering, &self.plan.key_by) {
                (Ordering::Partition, _) => self.dispatcher.admit_together(record, ticket),
                (Ordering::Unordered, _) => self.dispatcher.admit_alone(record, ticket),
                (Ordering::Key, None) => self.dispatcher.admit_by_key(record, ticket),
                (Ordering::Key, Some(key_by)) => {
                    let key = (key_by.0)(&record);
                    self.dispatcher.admit_under(record, ticket, key.0);
                }
            }
        }
    }

    fn begin_nothing_more(&mut self) {
        self.closed = true;
        self.pulled.clear();
        self.resting.clear();
        self.dispatcher.drop_waiting();
    }

    /// The next job, with its records.
    fn start(&mut self) -> Option<(JobId, Job)> {
        // Only who rests needs the clock.
        let now = if self.resting.is_empty() { time::Instant::ZERO } else { self.now() };
        let mut job = self.spare.pop().unwrap_or_default();
        let mut records = mem::take(job.records_mut());
        let tickets = &mut job.tickets;
        let start = self.dispatcher.start(now, |record, ticket| {
            records.push(record);
            tickets.push(ticket);
        });
        *job.records_mut() = records;
        match start {
            Some(Start::Fresh(id)) => {
                job.attempts = 1;
                Some((id, job))
            }
            Some(Start::Again(id)) => {
                self.spare.push(job);
                let mut job = self.resting.remove(&id).expect("a job that rested was kept");
                job.attempts += 1;
                Some((id, job))
            }
            None => {
                self.spare.push(job);
                None
            }
        }
    }

    /// Lets a slot do the task for the job.
    fn begin<I, F: Future<Output = Result<(), BoxError>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>) -> F,
        task: Task<I>,
        job: (JobId, Job),
        ended: &mut Vec<(usize, Output)>,
    ) {
        let (at, polled) = slots.start(make(task));
        if self.running.len() <= at {
            self.running.resize_with(at + 1, || None);
        }
        self.running[at] = Some(job);
        if let Poll::Ready(output) = polled {
            ended.push((at, output));
        }
    }

    /// Deals with every job that ended.
    fn settle<I, F: Future<Output = Result<(), BoxError>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>) -> F,
        ended: &mut Vec<(usize, Output)>,
    ) {
        while let Some((at, output)) = ended.pop() {
            let Some((id, mut job)) = self.running.get_mut(at).and_then(Option::take) else {
                continue;
            };
            let failure = match output {
                Ok(Ok(())) => {
                    if job.buried_for.is_some() {
                        self.counts.dead_lettered += job.tickets.len() as u64;
                    }
                    self.complete(id, job);
                    continue;
                }
                Ok(Err(error)) => LaneFailure::Handler { offset: job.offset(), error },
                Err(panic) => LaneFailure::Panicked(panic_message(panic.as_ref())),
            };
            match self.decide(&job, failure) {
                Verdict::Again(until) => {
                    self.counts.retries += 1;
                    self.dispatcher.rest(id, until);
                    self.resting.insert(id, job);
                }
                Verdict::Skip => {
                    self.counts.skipped += job.tickets.len() as u64;
                    self.complete(id, job);
                }
                Verdict::Bury(letters, cause) => {
                    let all = self.letters(&job, &cause);
                    job.buried_for = Some(cause);
                    self.begin(slots, make, Task::Bury(letters, all), (id, job), ended);
                }
                Verdict::GiveUp => self.give_up(id),
                Verdict::Fail(failure) => {
                    self.give_up(id);
                    self.fail(failure);
                }
            }
        }
    }

    fn give_up(&mut self, id: JobId) {
        self.dispatcher.give_up(id);
        self.freed = true;
    }

    fn complete(&mut self, id: JobId, mut job: Job) {
        self.dispatcher.finish(id);
        self.freed = true;
        self.completed.append(&mut job.tickets);
        job.records_mut().clear();
        job.buried_for = None;
        self.spare.push(job);
    }

    /// What becomes of a job that failed.
    fn decide(&mut self, job: &Job, failure: LaneFailure) -> Verdict {
        let (lane, offset) = (&self.lane.id, job.offset());
        if let Some(cause) = &job.buried_for {
            let error = match failure {
                LaneFailure::Handler { error, .. } => error,
                other => other.to_string().into(),
            };
            return Verdict::Fail(LaneFailure::DeadLetter { offset, error, cause: cause.clone() });
        }
        let text = failure.to_string();
        let attempts = job.attempts;
        if self.failed {
            tracing::warn!(%lane, offset, attempts, error = text, "a handler failed beside the first one");
            return Verdict::GiveUp;
        }
        match self.plan.policy.decide(attempts, self.jitter.draw()) {
            Decision::Again(_) if self.stopping => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; left to the next owner");
                Verdict::GiveUp
            }
            Decision::Again(wait) => {
                tracing::debug!(%lane, offset, attempts, error = text, ?wait, "failed; will be tried again");
                Verdict::Again(self.now() + wait)
            }
            Decision::Skip => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; skipped");
                Verdict::Skip
            }
            Decision::Bury(letters) => {
                tracing::warn!(%lane, offset, attempts, error = text, "failed; becomes a dead letter");
                Verdict::Bury(letters, text)
            }
            Decision::Fail => Verdict::Fail(failure),
        }
    }

    fn letters(&self, job: &Job, cause: &str) -> Vec<DeadLetter> {
        let letter = |record: &Record| DeadLetter {
            record: record.clone(),
            lane: self.lane.id.clone(),
            attempts: job.attempts,
            cause: cause.to_owned(),
        };
        job.records.iter().map(letter).collect()
    }

    /// The lane has failed: nothing more is begun, and what runs is told to hurry.
    fn fail(&mut self, failure: LaneFailure) {
        self.begin_nothing_more();
        if mem::replace(&mut self.failed, true) {
            tracing::warn!(lane = %self.lane.id, error = %failure, "a handler failed beside the first one");
            return;
        }
        self.lane.cell().failure = Some(failure);
        // The coordinator is gone only when the run is over.
        let _ = self.lane.run.signals.send(Signal::Failing(self.lane.number));
        self.lane.hurry.cancel();
    }

    /// Polls what was woken, without waiting for any.
    async fn look<F: Future<Output = Result<(), BoxError>>>(
        &self,
        slots: &mut Slots<F>,
        ended: &mut Vec<(usize, Output)>,
    ) {
        poll_fn(|cx| {
            let _ = slots.poll_woken(cx, |at, output| ended.push((at, output)));
            Poll::Ready(())
        })
        .await;
    }

    /// Until a job ended, a rest is over, or something happened to the lane.
    async fn wait<F: Future<Output = Result<(), BoxError>>>(
        &self,
        slots: &mut Slots<F>,
        ended: &mut Vec<(usize, Output)>,
    ) {
        self.lane.note_working(Instant::now());
        let rested = self.dispatcher.next_timeout().and_then(|at| self.started.checked_add(at.since_start()));
        let rest = async {
            match rested {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = poll_fn(|cx| slots.poll_woken(cx, |at, output| ended.push((at, output)))) => {}
            () = self.lane.wake.notified() => {}
            () = rest => {}
        }
    }
}

enum Verdict {
    Again(time::Instant),
    Skip,
    Bury(Arc<dyn AnyDeadLetters>, String),
    /// It stays unfinished.
    GiveUp,
    Fail(LaneFailure),
}
