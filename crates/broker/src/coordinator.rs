//! Drives the group coordinator's machine: requests in, records to the offsets log, answers out.
//!
//! The machine decides; here is only the plumbing. Its appends go to the offsets log in their order, each once the
//! data it commits is durable; many may be on their way and share a barrier. What the log's threads report is put
//! into an inbox and worked off by whoever holds, or next takes, the machine's lock, so no thread ever waits for
//! another's barrier here.

mod rewrite;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tramline_core::group::coordinator::{
    Client, Config, Coordinator, GroupRecord, Output, Response, Seq, Token,
};
use tramline_core::time::Instant;
use tramline_log::Append;
use tramline_wire::{BatchBuilder, Compression, ErrorCode, RecordBatch, Str, TopicPartition, batches};

use crate::config::BrokerConfig;
use crate::engine::Engine;
use crate::partition::{Done, Failure, Partition, Submission, Written};
use crate::topics::Shelf;
use rewrite::Rewrite;

const READ_STEP: usize = 4 << 20;

/// What the log's threads report.
enum Report {
    /// Data that an append commits is durable, or will never be.
    Data { seq: Seq, result: Result<(), Failure> },
    /// The append's own barrier is done, or will never be.
    Append { seq: Seq, result: Result<(), Failure> },
    /// A batch of a rewrite is durable, from this offset on, or will never be.
    Rewritten(Result<i64, Failure>),
    /// What a rewrite replaces is in segments of its own.
    Sealed,
    /// What a rewrite replaces is gone.
    Removed,
}

struct PendingAppend {
    seq: Seq,
    records: Vec<GroupRecord>,
    /// Data barriers still out.
    waiting: usize,
    submitted: bool,
    result: Option<Result<(), Failure>>,
    /// Dropped with this, which is when the append is settled.
    awaited: Vec<oneshot::Sender<()>>,
}

struct State {
    machine: Coordinator,
    replies: HashMap<Token, oneshot::Sender<Response>>,
    next_token: u64,
    appends: VecDeque<PendingAppend>,
    stopped: bool,
    rewrite: Rewrite,
    /// The size of the log after the last rewrite.
    rewritten_bytes: u64,
}

pub(crate) struct GroupCoordinator {
    this: Weak<Self>,
    state: Mutex<State>,
    inbox: Mutex<VecDeque<Report>>,
    timer: Notify,
    engine: Arc<Engine>,
    log: Arc<Partition>,
    /// Bytes from which a rewrite is worth it.
    rewrite_from: u64,
    /// How often offsets whose time is over are looked for.
    expiry_interval: Duration,
    shelf: Arc<Shelf>,
    start: std::time::Instant,
    clock: fn() -> i64,
}

impl std::fmt::Debug for GroupCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupCoordinator").finish_non_exhaustive()
    }
}

/// Why a request got no answer of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered;

impl GroupCoordinator {
    /// Replays the offsets log. Blocks.
    pub(crate) fn load(
        config: &BrokerConfig,
        engine: Arc<Engine>,
        log: Arc<Partition>,
        shelf: Arc<Shelf>,
        clock: fn() -> i64,
    ) -> Result<Arc<Self>, String> {
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
        let settings = Config {
            min_session_timeout: config.group_min_session_timeout,
            max_session_timeout: config.group_max_session_timeout,
            max_group_size: config.group_max_size,
            max_bytes: config.group_max_bytes,
            initial_rebalance_delay: config.group_initial_rebalance_delay,
            offsets_retention: config.offsets_retention,
            ..Config::default()
        };
        let mut machine = Coordinator::new(settings, seed);
        replay(&log, &mut machine)?;
        machine.loaded(Instant::ZERO);
        let state = State {
            machine,
            replies: HashMap::new(),
            next_token: 0,
            appends: VecDeque::new(),
            stopped: false,
            rewrite: Rewrite::Idle,
            rewritten_bytes: 0,
        };
        let coordinator = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            state: Mutex::new(state),
            inbox: Mutex::default(),
            timer: Notify::new(),
            engine,
            log,
            rewrite_from: config.group_log_bytes,
            expiry_interval: config.offsets_retention_check_interval,
            shelf,
            start: std::time::Instant::now(),
            clock,
        });
        coordinator.with(|_, _, _| ());
        Ok(coordinator)
    }

    /// Hands a request to the machine and waits for its answer. When the future is dropped, the machine learns that
    /// the connection is gone.
    pub(crate) async fn call(
        &self,
        client_id: &str,
        host: IpAddr,
        version: i16,
        handle: impl FnOnce(&mut Coordinator, Instant, i64, &Client),
    ) -> Result<Response, Unanswered> {
        let (sender, receiver) = oneshot::channel();
        let host = format!("/{host}");
        let token = self.with(|state, now, wall| {
            if state.stopped {
                return None;
            }
            let token = Token(state.next_token);
            state.next_token += 1;
            state.replies.insert(token, sender);
            let client = Client { id: Str::from(client_id), host: Str::from(host), version, token };
            handle(&mut state.machine, now, wall, &client);
            Some(token)
        });
        let _gone = Gone { coordinator: self, token: token.ok_or(Unanswered)? };
        self.timer.notify_one();
        receiver.await.map_err(|_| Unanswered)
    }

    /// Runs something on the machine and sees to its outputs.
    fn with<T>(&self, run: impl FnOnce(&mut State, Instant, i64) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = run(&mut state, self.now(), (self.clock)());
            self.see_to_outputs(&mut state);
            result
        };
        self.pump();
        result
    }

    /// Looks at the machine. A report that came meanwhile found the lock taken and relies on us to work it off.
    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        let result = look(&self.lock());
        self.pump();
        result
    }

    /// Deletes the topic's offsets, and waits until that is settled: a topic of the same name that is created
    /// afterwards does not find them.
    pub(crate) async fn topic_deleted(&self, topic: &str) {
        let (settled, wait) = oneshot::channel::<()>();
        self.with(|state, _, _| {
            state.machine.topic_deleted(topic);
            self.see_to_outputs(state);
            if let Some(last) = state.appends.back_mut() {
                last.awaited.push(settled);
            }
        });
        // The sender is dropped with its append.
        let _ = wait.await;
    }

    /// Answers everyone who waits, and refuses requests from now on.
    pub(crate) fn stop(&self) {
        // Under one lock: a request let in between the two would wait, and nobody would answer it.
        self.with(|state, now, _| {
            state.machine.shutdown(now);
            state.stopped = true;
        });
    }

    /// Lets time pass for the machine until it is cancelled by being dropped.
    pub(crate) async fn keep_time(&self) {
        let mut expiry = tokio::time::Instant::now() + self.expiry_interval;
        loop {
            let next = self.look(|state| state.machine.next_timeout());
            let next = next.map_or(expiry, |at| expiry.min((self.start + at.since_start()).into()));
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.timer.notified() => continue,
            }
            self.with(|state, now, wall| state.machine.handle_timeout(now, wall));
            let now = tokio::time::Instant::now();
            if now >= expiry {
                expiry = now + self.expiry_interval;
                self.with(|state, _, wall| state.machine.expire_offsets(wall));
            }
        }
    }

    fn now(&self) -> Instant {
        Instant::from_start(self.start.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see_to_outputs(&self, state: &mut State) {
        while let Some(output) = state.machine.poll_output() {
            match output {
                Output::Reply { token, response } => {
                    if let Some(reply) = state.replies.remove(&token) {
                        let _ = reply.send(response);
                    }
                }
                Output::Append { seq, records, commits } => {
                    let topics = self.shelf.now();
                    let mut waiting = 0;
                    for commit in commits {
                        // A topic deleted meanwhile has no data to be durable.
                        let Some(partition) = topics.partition(&commit.topic_partition) else { continue };
                        if commit.offset > 0 {
                            waiting += 1;
                            let done =
                                self.report(move |result| Report::Data { seq, result: result.map(drop) });
                            self.engine
                                .submit(partition, Submission::WhenDurable { offset: commit.offset, done });
                        }
                    }
                    state.appends.push_back(PendingAppend {
                        seq,
                        records,
                        waiting,
                        submitted: false,
                        result: None,
                        awaited: Vec::new(),
                    });
                }
                _ => tracing::error!("an output of the coordinator that its driver does not know"),
            }
        }
        self.submit_ready(state);
    }

    /// Submits appends in their order, as far as the data they commit is durable.
    fn submit_ready(&self, state: &mut State) {
        if state.rewrite == Rewrite::Due {
            if state.appends.iter().any(|append| append.submitted) {
                return;
            }
            self.begin_rewrite(state);
        }
        for append in state.appends.iter_mut().filter(|append| !append.submitted) {
            if append.result.is_none() && append.waiting > 0 {
                return;
            }
            append.submitted = true;
            if append.result.is_some() {
                continue;
            }
            match encode(std::mem::take(&mut append.records), (self.clock)()) {
                Ok(batch) => {
                    let seq = append.seq;
                    let done = self.report(move |result| Report::Append { seq, result: result.map(drop) });
                    self.engine
                        .submit(&self.log, Submission::Append { batch, forced: true, done, room: None });
                }
                Err(reason) => {
                    tracing::error!(reason, "group records that cannot be written");
                    append.result = Some(Err(Failure::Storage));
                }
            }
        }
    }

    /// A callback for the log's threads: reports once, also when it is dropped unused.
    fn report(&self, make: impl FnOnce(Result<Written, Failure>) -> Report + Send + 'static) -> Done {
        struct Reporter<F: FnOnce(Result<Written, Failure>) -> Report>(Weak<GroupCoordinator>, Option<F>);
        impl<F: FnOnce(Result<Written, Failure>) -> Report> Reporter<F> {
            fn send(&mut self, result: Result<Written, Failure>) {
                let Some(make) = self.1.take() else { return };
                let Some(coordinator) = self.0.upgrade() else { return };
                coordinator.inbox.lock().unwrap_or_else(PoisonError::into_inner).push_back(make(result));
                coordinator.pump();
            }
        }
        impl<F: FnOnce(Result<Written, Failure>) -> Report> Drop for Reporter<F> {
            fn drop(&mut self) {
                self.send(Err(Failure::Storage));
            }
        }
        let mut reporter = Reporter(self.this.clone(), Some(make));
        Box::new(move |result| reporter.send(result))
    }

    /// Works off the inbox, unless someone holds the machine: they look again after letting go of it.
    fn pump(&self) {
        loop {
            if self.inbox.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let reports = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            for report in reports {
                self.note(&mut state, report);
            }
            self.submit_ready(&mut state);
            self.settle(&mut state);
            self.consider_rewrite(&mut state);
            drop(state);
            self.timer.notify_one();
        }
    }

    fn note(&self, state: &mut State, report: Report) {
        let (seq, result, of_data) = match report {
            Report::Data { seq, result } => (seq, result, true),
            Report::Append { seq, result } => (seq, result, false),
            Report::Rewritten(result) => return self.rewritten(state, result),
            // A failure has closed the log, which the batches behind it tell.
            Report::Sealed => return,
            Report::Removed => return self.rewrite_over(state),
        };
        let Some(append) = state.appends.iter_mut().find(|append| append.seq == seq) else { return };
        if !of_data {
            append.result = Some(result);
            return;
        }
        append.waiting = append.waiting.saturating_sub(1);
        // What was deleted need not be durable.
        if let Err(failure) = result
            && failure != Failure::Deleted
        {
            append.result = Some(Err(failure));
        }
    }

    /// Tells the machine what became of its appends, in their order.
    fn settle(&self, state: &mut State) {
        while let Some(result) = state.appends.front().and_then(|append| append.result.clone()) {
            let Some(append) = state.appends.pop_front() else { return };
            match result {
                Ok(()) => state.machine.appended(self.now(), append.seq),
                Err(failure) => {
                    let code = match failure {
                        Failure::Stopping => ErrorCode::NotCoordinator,
                        _ => ErrorCode::KafkaStorageError,
                    };
                    state.machine.append_failed(self.now(), append.seq, code.code());
                }
            }
            self.see_to_outputs(state);
        }
    }
}

/// Tells the machine that the asker is gone, unless it was answered.
struct Gone<'a> {
    coordinator: &'a GroupCoordinator,
    token: Token,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let answered = self.coordinator.look(|state| !state.replies.contains_key(&self.token));
        if !answered {
            self.coordinator.with(|state, now, _| {
                state.replies.remove(&self.token);
                state.machine.connection_closed(now, self.token);
            });
            // The group may have something to do earlier now.
            self.coordinator.timer.notify_one();
        }
    }
}

fn encode(records: Vec<GroupRecord>, now: i64) -> Result<Append, String> {
    let mut builder = BatchBuilder::new(Compression::None);
    for record in records {
        builder
            .append(now, Some(&record.key), record.value.as_deref(), &[])
            .map_err(|error| error.to_string())?;
    }
    Append::check(builder.build()).map_err(|error| error.to_string())
}

fn replay(log: &Partition, machine: &mut Coordinator) -> Result<(), String> {
    let mut offset = log.reader.log_start();
    let end = log.reader.log_end();
    while offset < end {
        let slice = match log.reader.read(offset, READ_STEP, end, true) {
            Ok(slice) => slice,
            Err(tramline_log::ReadError::Damaged { from, next }) => {
                tracing::error!(
                    from,
                    next,
                    "committed offsets and groups are lost: their log is damaged there"
                );
                offset = next;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        let bytes = slice.read().map_err(|error| error.to_string())?;
        for batch in batches(bytes) {
            let (_, bytes) = batch.map_err(|error| error.to_string())?;
            let batch =
                RecordBatch::decode(TopicPartition::new("", 0), bytes).map_err(|error| error.to_string())?;
            for record in &batch {
                if let Err(error) = machine.replay(record.key().unwrap_or_default(), record.value()) {
                    tracing::error!(offset = record.offset(), %error, "a record of the offsets log is skipped");
                }
            }
        }
        if slice.next_offset() <= offset {
            return Err(format!("the offsets log does not go on at {offset}"));
        }
        offset = slice.next_offset();
    }
    Ok(())
}
