//! A lane's processor with more than one handler, batch or attempt: feeds the dispatcher, runs its jobs.
//!
//! All handlers of a lane run in the lane's own task, so that dropping the task drops them, and a record costs
//! no allocation once as many ran at once as ever will.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::mem;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, Span};
use tramline_core::lanes::{
    Dispatcher, DispatcherConfig, Jitter, JobId, LaneState, Start, Ticket, Work as Pulled,
};
use tramline_core::time;
use tramline_wire::Record;

use crate::decode::Values;
use crate::driver::LaneFailure;
use crate::lane::{Counts, Lane, LaneShared};
use crate::ordering::{KeyBy, Ordering};
use crate::policy::Policy;
use crate::slots::{Ended, Slots};
use crate::spans;
use crate::stats::Sampler;

mod failures;
mod noted;
mod parking;
mod work;

use failures::Stage;
pub(crate) use work::{EachBatch, EachRecord, Items, Work};
use work::{Failed, Task, run};

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

/// The records that one handler works on, or will. Boxed, since it is passed on a lot and used again.
struct Job<V: Values> {
    records: Items<V>,
    tickets: Vec<Ticket>,
    /// How often it was handled, and how often since it was last parked.
    attempts: u32,
    tries: u32,
    stage: Stage,
    /// What the last attempt said, while the next one is waited for.
    rests_for: Option<(Instant, String)>,
    /// Since when its handler is measured, and for how many calls it stands.
    begun: Option<Instant>,
    stands_for: u32,
}

impl<V: Values> Default for Job<V> {
    fn default() -> Self {
        Self {
            records: Arc::default(),
            tickets: Vec::new(),
            attempts: 0,
            tries: 0,
            stage: Stage::Handling,
            rests_for: None,
            begun: None,
            stands_for: 0,
        }
    }
}

impl<V: Values> Job<V> {
    /// The records' memory, empty; shared with nobody.
    fn records_mut(&mut self) -> &mut Vec<V::Item> {
        if Arc::get_mut(&mut self.records).is_none() {
            self.records = Arc::default();
        }
        Arc::get_mut(&mut self.records).expect("just made, or found to be shared with nobody")
    }

    fn offset(&self) -> Option<i64> {
        self.records.first().map(|item| V::record(item).offset())
    }
}

struct Engine<'a, V: Values> {
    lane: &'a Arc<LaneShared>,
    plan: &'a Plan,
    values: V,
    dispatcher: Dispatcher<V::Item>,
    started: Instant,
    jitter: Jitter,
    /// By slot.
    running: Vec<Option<(JobId, Box<Job<V>>)>>,
    /// Those that will be handled again.
    resting: HashMap<JobId, Box<Job<V>>>,
    parked: HashMap<JobId, Box<Job<V>>>,
    /// How many records were parked when that was last shown.
    shown_parked: usize,
    #[expect(clippy::vec_box, reason = "the boxes are what is used again")]
    spare: Vec<Box<Job<V>>>,
    completed: Vec<Ticket>,
    counts: Counts,
    sampler: Sampler,
    /// How long calls took, until the lane is told.
    handled: Vec<(Duration, u32)>,
    /// The oldest unfinished record when the lane was told of it.
    noted: Option<i64>,
    /// A job failed or comes again since then.
    turned: bool,
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

type Output = Ended<Result<(), Failed>>;

/// The whole life of a lane whose records go through a dispatcher.
pub(crate) async fn dispatch<W: Work>(
    lane: Arc<LaneShared>,
    work: Arc<W>,
    values: W::Values,
    plan: Arc<Plan>,
) -> Result<(), LaneFailure> {
    let handle = Lane::new(Arc::clone(&lane));
    let make = |task, span| run(Arc::clone(&work), handle.clone(), task).instrument(span);
    let mut slots = Slots::new();
    let mut ended: Vec<(usize, Output)> = Vec::new();
    let mut engine = Engine::new(&lane, &plan, values);
    loop {
        engine.exchange();
        engine.obey(&mut slots, &make, &mut ended);
        engine.settle(&mut slots, &make, &mut ended);
        let mut all_started = false;
        for _ in 0..STARTS_BETWEEN_LOOKS {
            let Some((id, mut job)) = engine.start() else {
                all_started = true;
                break;
            };
            // Handlers that never wait must not keep others from running.
            tokio::task::coop::consume_budget().await;
            let task = Task::Handle(work.input(&mut job.records), job.attempts);
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

impl<'a, V: Values> Engine<'a, V> {
    fn new(lane: &'a Arc<LaneShared>, plan: &'a Plan, values: V) -> Self {
        Self {
            lane,
            plan,
            values,
            dispatcher: Dispatcher::new(plan.dispatcher),
            started: Instant::now(),
            jitter: Jitter::new(plan.dispatcher.seed.0 ^ lane.number.0),
            running: Vec::new(),
            resting: HashMap::new(),
            parked: HashMap::new(),
            shown_parked: 0,
            spare: Vec::new(),
            completed: Vec::new(),
            counts: Counts::default(),
            sampler: Sampler::default(),
            handled: Vec::new(),
            noted: None,
            turned: false,
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
        let (mut has_room, mut freed_bytes, mut copied_bytes) = (false, 0, 0);
        let stops;
        let (hurried, held_bytes) = {
            let mut cell = self.lane.cell();
            for ticket in self.completed.drain(..) {
                cell.lane.complete(ticket);
            }
            cell.counts.add(&mem::take(&mut self.counts));
            for (took, times) in self.handled.drain(..) {
                cell.durations.note(took, times);
            }
            while self.pulled.len() < room {
                let pull = cell.lane.pull();
                has_room |= pull.room;
                freed_bytes += pull.freed_bytes;
                copied_bytes += pull.copied_bytes;
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
            stops = cell.lane.stop_reason().is_some();
            freed_bytes += cell.lane.take_freed();
            (cell.lane.state() == LaneState::Cancelling, cell.lane.held_bytes())
        };
        if has_room {
            self.lane.signal_room();
        }
        self.lane.settle_bytes(copied_bytes, freed_bytes, held_bytes);
        if hurried {
            self.begin_nothing_more();
        }
        self.admit();
        if stops && !mem::replace(&mut self.stopping, true) {
            let (resting, freed) = (&mut self.resting, &mut self.freed);
            self.dispatcher.give_up_resting(|id| {
                *freed = true;
                resting.remove(&id);
            });
            self.give_up_parked();
        }
        self.show_parked();
    }

    fn admit(&mut self) {
        for (record, ticket) in self.pulled.drain(..) {
            let item = self.values.admit(record);
            match self.plan.ordering {
                Ordering::Partition => self.dispatcher.admit_together(item, ticket),
                Ordering::Unordered => self.dispatcher.admit_alone(item, ticket),
                Ordering::Key => match self.values.key(&item, self.plan.key_by.as_ref()) {
                    None => self.dispatcher.admit_by_key(item, ticket),
                    Some(key) => self.dispatcher.admit_under(item, ticket, key.0),
                },
            }
        }
        if self.dispatcher.parked_keys() > 0 {
            self.lane.note_copies(|note| self.dispatcher.take_copied(note));
        }
    }

    fn begin_nothing_more(&mut self) {
        self.closed = true;
        self.pulled.clear();
        self.resting.clear();
        self.give_up_parked();
        self.dispatcher.drop_waiting();
    }

    /// The next job, with its records.
    fn start(&mut self) -> Option<(JobId, Box<Job<V>>)> {
        // Only who rests needs the clock.
        let now = if self.resting.is_empty() { time::Instant::ZERO } else { self.now() };
        let mut job = self.spare.pop().unwrap_or_default();
        let mut records = mem::take(job.records_mut());
        let tickets = &mut job.tickets;
        let start = self.dispatcher.start(now, V::is_alone, |record, ticket| {
            records.push(record);
            tickets.push(ticket);
        });
        *job.records_mut() = records;
        match start {
            Some(Start::Fresh(id)) => {
                (job.attempts, job.tries) = (1, 1);
                Some((id, job))
            }
            Some(Start::Again(id)) => {
                self.spare.push(job);
                let mut job = self.resting.remove(&id).expect("a job that rested was kept");
                job.attempts = job.attempts.saturating_add(1);
                job.tries = job.tries.saturating_add(1);
                job.rests_for = None;
                self.turned = true;
                Some((id, job))
            }
            None => {
                self.spare.push(job);
                None
            }
        }
    }

    /// Lets a slot do the task for the job.
    fn begin<I, F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        make: &impl Fn(Task<I>, Span) -> F,
        task: Task<I>,
        mut job: (JobId, Box<Job<V>>),
        ended: &mut Vec<(usize, Output)>,
    ) {
        let handles = matches!(task, Task::Handle(..));
        job.1.begun = (handles && self.sampler.is_due()).then(Instant::now);
        let first = job.1.records.first().map(V::record);
        let span = spans::around(first, job.1.records.len(), job.1.attempts);
        let (at, polled) = slots.start(make(task, span));
        if handles {
            self.note_begun(&mut job.1, polled.is_pending());
        }
        if self.running.len() <= at {
            self.running.resize_with(at + 1, || None);
        }
        self.running[at] = Some(job);
        if let Poll::Ready(output) = polled {
            ended.push((at, output));
        }
    }

    fn complete(&mut self, id: JobId, mut job: Box<Job<V>>) {
        self.dispatcher.finish(id);
        self.freed = true;
        self.completed.append(&mut job.tickets);
        job.records_mut().clear();
        job.stage = Stage::Handling;
        self.spare.push(job);
    }

    /// Polls what was woken, without waiting for any.
    async fn look<F: Future<Output = Result<(), Failed>>>(
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
    async fn wait<F: Future<Output = Result<(), Failed>>>(
        &mut self,
        slots: &mut Slots<F>,
        ended: &mut Vec<(usize, Output)>,
    ) {
        self.note_oldest();
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

impl<V: Values> Drop for Engine<'_, V> {
    fn drop(&mut self) {
        self.lane.parked.close();
    }
}
