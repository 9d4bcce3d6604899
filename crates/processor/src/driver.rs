//! Carries a run out: one loop that waits for whatever happens first, tells the machine, does what it says.
//!
//! The loop lives in the caller's own future; only lanes have tasks. It awaits nothing but the next thing to
//! happen: commits, drains and handlers go on beside it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tramline_core::lanes::{
    self, BatchInfo, Budget, Chunk, CommitToken, Effect, LaneEnd, LaneId, LaneNumber, LaneOutcome, Offer,
    OnFailure, RevocationId, Run, RunConfig, RunEnd, SavedProgress, StopReason,
};
use tramline_core::time;
use tramline_wire::TopicPartition;

use crate::config::{Backpressure, Settings};
use crate::error::{BoxError, LaneCommitError, LaneReport, RunError, RunReport};
use crate::lane::{Cell, LaneShared, RunShared, Signal, lock};
use crate::metrics::RunMetrics;
use crate::monitor::{LOOK_EVERY, LiveProcessor, Registry, Watch};
use crate::parked::ParkedLane;
use crate::source::{CommitError, CommitOffset};
use crate::source::{RevocationHold, Source, SourceBatch, SourceEvent, SourceEvents};

mod observed;
mod outcome;
mod pausing;
mod processors;
mod saved;

pub(crate) use outcome::{LaneFailure, panic_message};
pub(crate) use processors::{ForEach, ForEachBatch, Lanes, StartLane};

/// How many of the lanes that ended are kept for the report.
const REPORTED_LANES: usize = 1024;

type CommitResult = (u64, Vec<CommitOffset>, Result<(), CommitError>);
type CommitInFlight<'a> = Pin<Box<dyn Future<Output = CommitResult> + Send + 'a>>;

/// Runs until it is over.
pub(crate) async fn run<S: Source, L: StartLane>(
    source: &S,
    settings: &Settings,
    registry: Arc<Registry>,
    shutdown: impl Future + Send,
    start: L,
) -> Result<RunReport, RunError> {
    let mut shutdown = pin!(async {
        shutdown.await;
    });
    let (signals, mut signalled) = mpsc::unbounded_channel();
    let mut driver = Driver::new(source, settings, registry, signals, start);
    let mut events = Some(source.events());
    let mut asked_to_stop = false;
    loop {
        if let Some(end) = driver.carry_out() {
            return driver.conclude(end);
        }
        driver.note_stopping();
        let (wants_batches, timeout) = (driver.run.wants_batches(), driver.next_timeout());
        tokio::select! {
            biased;
            () = &mut shutdown, if !asked_to_stop => {
                asked_to_stop = true;
                driver.run.handle_shutdown(driver.now());
            }
            event = next_event(&mut events) => match event {
                Some(event) => driver.handle_event(event),
                None => events = None,
            },
            Some(signal) = signalled.recv() => driver.handle_signal(signal),
            Some(ended) = driver.tasks.join_next_with_id() => driver.handle_task_ended(ended),
            (id, offsets, result) = commit_result(&mut driver.commit) => {
                driver.handle_commit_result(id, &offsets, result);
            }
            () = tokio::time::sleep_until(timeout) => driver.handle_timeout(),
            polled = source.poll(), if wants_batches => {
                // A change of the assignment that came before this batch must be known before it.
                while let Some(event) = events.as_mut().and_then(SourceEvents::try_next) {
                    driver.handle_event(event);
                }
                driver.handle_polled(polled);
                // A source that always has a batch must not keep the lanes from running.
                tokio::task::coop::consume_budget().await;
            }
        }
    }
}

async fn next_event<E: SourceEvents>(events: &mut Option<E>) -> Option<SourceEvent> {
    match events {
        Some(events) => events.next().await,
        None => pending().await,
    }
}

async fn commit_result(commit: &mut Option<CommitInFlight<'_>>) -> CommitResult {
    match commit {
        Some(request) => {
            let result = request.await;
            *commit = None;
            result
        }
        None => pending().await,
    }
}

struct LiveLane {
    shared: Arc<LaneShared>,
    abort: AbortHandle,
    /// Whether a batch has come.
    begun: bool,
}

struct Driver<'a, S, L> {
    source: &'a S,
    settings: &'a Settings,
    start: L,
    run: Run<SourceBatch>,
    base: Instant,
    shared: Arc<RunShared>,
    tasks: JoinSet<Result<(), LaneFailure>>,
    task_lanes: HashMap<Id, LaneNumber>,
    lanes: BTreeMap<LaneNumber, LiveLane>,
    current: HashMap<TopicPartition, LaneNumber>,
    holds: BTreeMap<RevocationId, (RevocationHold, Instant)>,
    revocations: u64,
    calls: HashMap<CommitToken, oneshot::Sender<Result<(), LaneCommitError>>>,
    next_call: u64,
    commit: Option<CommitInFlight<'a>>,
    /// What lanes that failed had completed above their frontier, for those that follow them.
    left_behind: HashMap<LaneId, SavedProgress>,
    /// What was paused before the run, and is not touched.
    paused_before: HashSet<TopicPartition>,
    failures: BTreeMap<LaneNumber, (LaneId, LaneFailure)>,
    timed_out: BTreeMap<LaneNumber, LaneId>,
    source_error: Option<BoxError>,
    commit_error: Option<CommitError>,
    ended: VecDeque<LaneReport>,
    report: RunReport,
    metrics: RunMetrics,
    watch: Watch,
    next_look: Instant,
}

impl<'a, S: Source, L: StartLane> Driver<'a, S, L> {
    fn new(
        source: &'a S,
        settings: &'a Settings,
        registry: Arc<Registry>,
        signals: mpsc::UnboundedSender<Signal>,
        start: L,
    ) -> Self {
        let known = source.commit_configuration();
        let config = RunConfig {
            commit: settings.commit,
            stop: settings.stop,
            stop_timeout: settings.stop_timeout,
            has_group: known.as_ref().is_none_or(|known| known.group.is_some()),
            on_failure: settings.policy.on_failure,
            await_capacity: settings.backpressure == Backpressure::AwaitCapacity,
            jitter: settings.seed.0,
        };
        let bytes = std::sync::Mutex::new(Budget::new(settings.max_buffered_bytes));
        let shared = Arc::new(RunShared { signals, bytes, registry });
        shared.registry.begin(&shared, settings.max_buffered_bytes);
        Self {
            source,
            settings,
            start,
            run: Run::new(config, time::Instant::ZERO),
            base: Instant::now(),
            shared,
            tasks: JoinSet::new(),
            task_lanes: HashMap::new(),
            lanes: BTreeMap::new(),
            current: HashMap::new(),
            holds: BTreeMap::new(),
            revocations: 0,
            calls: HashMap::new(),
            next_call: 0,
            commit: None,
            left_behind: HashMap::new(),
            paused_before: source.paused().into_iter().collect(),
            failures: BTreeMap::new(),
            timed_out: BTreeMap::new(),
            source_error: None,
            commit_error: None,
            ended: VecDeque::new(),
            report: RunReport::default(),
            metrics: RunMetrics::new(known.and_then(|known| known.group).as_deref()),
            watch: Watch::default(),
            next_look: Instant::now() + LOOK_EVERY,
        }
    }

    fn now(&self) -> time::Instant {
        self.machine_time(Instant::now())
    }

    fn machine_time(&self, at: Instant) -> time::Instant {
        time::Instant::from_start(at.saturating_duration_since(self.base))
    }

    /// When the machine wants to be called, or the lanes are to be looked at.
    fn next_timeout(&self) -> Instant {
        // None also when that lies beyond what the clock can say.
        let run = self.run.next_timeout().and_then(|at| self.base.checked_add(at.since_start()));
        run.map_or(self.next_look, |at| at.min(self.next_look))
    }

    fn handle_timeout(&mut self) {
        self.look_at_lanes();
        for (&number, lane) in &self.lanes {
            if let Some(progress) = self.progress_of(lane) {
                self.run.handle_progress(number, progress);
            }
        }
        self.run.handle_timeout(self.now());
    }

    fn handle_event(&mut self, event: SourceEvent) {
        let now = self.now();
        match event {
            SourceEvent::Assigned { generation, partitions } => {
                tracing::info!(generation, partitions = %names(&partitions), "assigned");
                self.forget_absent(&partitions);
                self.run.handle_assigned(now, generation, partitions);
            }
            SourceEvent::Revoked { partitions, deadline, hold } => {
                tracing::info!(lanes = %self.lanes_of(&partitions), "revoked");
                self.forget_absent(&partitions);
                self.revocations += 1;
                let id = RevocationId(self.revocations);
                self.holds.insert(id, (hold, Instant::now()));
                let release_by = deadline.map(|at| self.machine_time(at));
                self.forget_pauses(&partitions);
                self.run.handle_revoked(now, id, &partitions, release_by);
            }
            SourceEvent::Lost { partitions } => {
                tracing::warn!(lanes = %self.lanes_of(&partitions), "lost");
                self.forget_absent(&partitions);
                self.forget_pauses(&partitions);
                self.run.handle_lost(now, &partitions);
            }
            SourceEvent::SetBack { generation, partitions } => {
                tracing::warn!(lanes = %self.lanes_of(&partitions), "set back");
                self.forget_absent(&partitions);
                self.forget_pauses(&partitions);
                self.left_behind.retain(|lane, _| !partitions.contains(&lane.topic_partition));
                // Records under offsets that were given anew: the old lane ends as a lost one does, without a commit.
                self.run.handle_lost(now, &partitions);
                self.run.handle_assigned(now, generation, partitions);
            }
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Room(number) => {
                // The lane may have been filled again meanwhile; it signals anew then.
                let has_room = self
                    .lanes
                    .get(&number)
                    .is_some_and(|lane| lane.shared.cell().lane.state() != lanes::LaneState::Paused);
                if has_room {
                    self.run.handle_lane_room(number);
                }
            }
            Signal::BytesRoom => {
                if !lock(&self.shared.bytes).is_over() {
                    self.run.handle_bytes_room();
                }
            }
            Signal::HoldsNothing(number) => self.handle_holds_nothing(number),
            Signal::Commit(number, reply) => {
                self.next_call += 1;
                let token = CommitToken(self.next_call);
                self.calls.insert(token, reply);
                let progress = self.lanes.get(&number).and_then(|lane| self.progress_of(lane));
                self.run.handle_commit_requested(self.now(), number, token, progress);
            }
            Signal::Failing(number) => {
                if let Some(lane) = self.lanes.get(&number).map(|lane| Arc::clone(&lane.shared)) {
                    self.note_failure(number, &lane);
                    self.run.handle_lane_failing(self.now(), number);
                }
            }
        }
    }

    fn handle_polled(&mut self, polled: Result<Option<SourceBatch>, S::Error>) {
        let now = self.now();
        match polled {
            Ok(Some(batch)) => {
                let info = BatchInfo {
                    topic_partition: batch.topic_partition.clone(),
                    generation: batch.generation,
                    first_offset: batch.first_offset,
                };
                self.run.handle_batch(now, &info, batch);
            }
            Ok(None) => self.run.handle_source_closed(now),
            Err(error) => match S::fetch_blocked(&error) {
                Some(blocked) => self.handle_fetch_blocked(&blocked, &error),
                None => {
                    self.source_error = Some(Box::new(error));
                    self.run.handle_source_failed(now);
                }
            },
        }
    }

    fn handle_task_ended(&mut self, ended: Result<(Id, Result<(), LaneFailure>), JoinError>) {
        let (task, result) = match ended {
            Ok((task, result)) => (task, result.map_err(Some)),
            Err(error) => (error.id(), Err(LaneFailure::of(error))),
        };
        if let Some(number) = self.task_lanes.remove(&task)
            && let Some(lane) = self.lanes.remove(&number)
        {
            self.lane_ended(number, &lane.shared, result);
        }
    }

    /// The processor of a lane has ended, or is not waited for any longer: `Err(None)` when it was dropped.
    fn lane_ended(
        &mut self,
        number: LaneNumber,
        lane: &Arc<LaneShared>,
        result: Result<(), Option<LaneFailure>>,
    ) {
        self.note_failure(number, lane);
        let outcome = match result {
            Ok(()) if self.failures.contains_key(&number) => LaneOutcome::Failed,
            Ok(()) => {
                let (out_of_order, asked_to_stop) = {
                    let cell = lane.cell();
                    (cell.out_of_order, cell.lane.stop_reason().is_some())
                };
                let failure = match out_of_order {
                    Some((offset, expected)) => Some(LaneFailure::OutOfOrder { offset, expected }),
                    None if asked_to_stop => None,
                    None => Some(LaneFailure::EndedEarly),
                };
                if let Some(failure) = failure {
                    self.failures.insert(number, (lane.id.clone(), failure));
                }
                if out_of_order.is_some() { LaneOutcome::Broken } else { LaneOutcome::Finished }
            }
            Err(Some(failure)) => {
                self.failures.insert(number, (lane.id.clone(), failure));
                LaneOutcome::Failed
            }
            Err(None) => LaneOutcome::Aborted,
        };
        self.finish_lane(number, lane, outcome);
    }

    /// Takes the failure of a lane whose handlers may not all have ended.
    fn note_failure(&mut self, number: LaneNumber, lane: &LaneShared) {
        if let Some(failure) = lane.cell().failure.take() {
            self.failures.insert(number, (lane.id.clone(), failure));
        }
    }

    /// The text of a lane's failure. The failure itself is kept only when the run may end with it.
    fn failure_text(&mut self, number: LaneNumber, outcome: LaneOutcome) -> Option<String> {
        let (lane, failure) = self.failures.get(&number)?;
        let text = failure.to_string();
        if outcome == LaneOutcome::Failed && self.settings.policy.on_failure != OnFailure::StopRun {
            tracing::warn!(%lane, error = text, then = ?self.settings.policy.on_failure, "lane failed");
            self.failures.remove(&number);
        }
        Some(text)
    }

    fn finish_lane(&mut self, number: LaneNumber, lane: &Arc<LaneShared>, outcome: LaneOutcome) {
        let failure = self.failure_text(number, outcome);
        let (stopped, report) = {
            let mut cell = lane.cell();
            let reason = cell.lane.stop_reason();
            let stopped = cell.lane.finish();
            let report = LaneReport {
                lane: lane.id.clone(),
                reason,
                frontier: cell.lane.frontier().map(|frontier| frontier.offset),
                last_processed: cell.lane.last_processed(),
                stopped_in: cell.stop_asked.map_or(Duration::ZERO, |asked| asked.elapsed()),
                outcome,
                failure: failure.clone(),
                fetch_blocked: cell.fetch_blocked.take().map(|trouble| trouble.error),
            };
            (stopped, report)
        };
        let (frontier, reason) = (report.frontier, report.reason);
        tracing::debug!(lane = %lane.id, ?outcome, ?reason, ?frontier, took = ?report.stopped_in, "lane ended");
        if self.ended.len() == REPORTED_LANES {
            self.ended.pop_front();
        }
        self.ended.push_back(report);
        lane.hurry.cancel();
        self.shared.give_bytes_back(stopped.freed_bytes);
        self.note_ended(lane, failure.is_some());
        if self.current.get(&lane.id.topic_partition) == Some(&number) {
            self.current.remove(&lane.id.topic_partition);
        }
        let progress = self.final_progress(&lane.id, outcome, &stopped);
        let end = LaneEnd { outcome, progress, rewind_to: stopped.rewind_to };
        self.run.handle_lane_ended(self.now(), number, end);
        self.note_absent(lane, failure);
    }

    /// Does what the machine says until it says nothing more. Some when the run is over.
    fn carry_out(&mut self) -> Option<RunEnd> {
        while let Some(effect) = self.run.poll_effect() {
            match effect {
                Effect::StartLane { lane, id } => self.start_lane(lane, id),
                Effect::Deliver { lane, batch } => self.deliver(lane, batch),
                Effect::StopLane { lane, reason, hurry } => self.stop_lane(lane, reason, hurry),
                Effect::AbortLane { lane } => self.abort_lane(lane),
                Effect::AbandonLane { lane } => {
                    if let Some(live) = self.lanes.remove(&lane) {
                        self.finish_lane(lane, &live.shared, LaneOutcome::Abandoned);
                    }
                }
                Effect::Pause(partition) => self.set_paused(&partition, true),
                Effect::Resume(partition) => self.set_paused(&partition, false),
                Effect::Commit(request) => {
                    let source = self.source;
                    let offsets: Vec<_> =
                        request.offsets.into_iter().map(|commit| self.commit_offset(commit)).collect();
                    self.commit = Some(Box::pin(async move {
                        let result = source.commit(offsets.clone()).await;
                        (request.id, offsets, result)
                    }));
                }
                Effect::CommitDone { token, answer } => {
                    if let Some(reply) = self.calls.remove(&token) {
                        // The caller may have stopped waiting.
                        let _ = reply.send(answer.map_err(LaneCommitError::from));
                    }
                }
                Effect::ReleaseRevocation(id) => {
                    if let Some((hold, since)) = self.holds.remove(&id) {
                        self.note_released(since.elapsed());
                        drop(hold);
                    }
                }
                Effect::Seek { topic_partition, offset } => self.source.seek(&topic_partition, offset),
                Effect::End(end) => return Some(end),
                other => debug_assert!(false, "an effect this driver does not know: {other:?}"),
            }
        }
        None
    }

    fn start_lane(&mut self, number: LaneNumber, id: LaneId) {
        self.note_started(&id);
        let shared = Arc::new(LaneShared {
            number,
            cell: std::sync::Mutex::new(Cell::new(lanes::Lane::with_config(
                self.settings.lane(self.start.at_once()),
            ))),
            wake: Notify::new(),
            hurry: CancellationToken::new(),
            parked: ParkedLane::default(),
            metrics: self.metrics.lane(&id.topic_partition),
            group: self.source.group_metadata(),
            run: Arc::clone(&self.shared),
            id,
        });
        lock(&self.shared.registry.lanes).insert(number, Arc::clone(&shared));
        self.current.insert(shared.id.topic_partition.clone(), number);
        let processor = self.start.start(Arc::clone(&shared));
        let alive = LiveProcessor::new(&self.shared.registry);
        let abort = self.tasks.spawn(async move {
            let _alive = alive;
            processor.await
        });
        self.task_lanes.insert(abort.id(), number);
        self.lanes.insert(number, LiveLane { shared, abort, begun: false });
    }

    fn deliver(&mut self, number: LaneNumber, batch: SourceBatch) {
        let first_offset = batch.first_offset;
        self.begin_lane(number, &batch);
        let Some(lane) = self.lanes.get(&number) else {
            self.run.handle_lane_refused(number, first_offset);
            return;
        };
        let pinned = batch.pinned();
        let bytes = pinned.iter().map(|pinned| pinned.bytes).sum();
        // Before the lane can give them back.
        lock(&self.shared.bytes).take(bytes);
        let offer = lane.shared.cell().lane.offer(Chunk {
            records: batch.records,
            first_offset,
            next_offset: batch.next_offset,
            leader_epoch: batch.leader_epoch,
            pinned,
        });
        lane.shared.wake.notify_one();
        match offer {
            Offer::Taken => {}
            Offer::Full => self.run.handle_lane_full(number),
            Offer::Refused => {
                self.shared.give_bytes_back(bytes);
                self.run.handle_lane_refused(number, first_offset);
            }
        }
        // Whoever holds nothing gets more all the same: one that is stuck must not starve the others.
        if lock(&self.shared.bytes).is_over() && lane.shared.cell().lane.held_bytes() > 0 {
            self.run.handle_bytes_over(number);
        }
    }

    fn stop_lane(&mut self, number: LaneNumber, reason: StopReason, hurry: bool) {
        let Some(lane) = self.lanes.get(&number) else {
            return;
        };
        let freed = {
            let mut cell = lane.shared.cell();
            cell.stop_asked.get_or_insert_with(Instant::now);
            cell.lane.stop(reason, hurry)
        };
        if hurry {
            lane.shared.hurry.cancel();
        }
        lane.shared.wake.notify_one();
        self.shared.give_bytes_back(freed);
        tracing::debug!(lane = %lane.shared.id, ?reason, hurry, "lane stops");
    }

    fn abort_lane(&mut self, number: LaneNumber) {
        if let Some(lane) = self.lanes.get(&number) {
            self.note_overrun(&lane.shared.id);
            self.timed_out.insert(number, lane.shared.id.clone());
            lane.abort.abort();
        }
    }
}

fn names(partitions: &[TopicPartition]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
