//! What the handle, its futures and its tasks share: one lock over the machines, and who to wake.
//!
//! The lock is never held across an await, and nothing is taken out of a machine unless the same call returns it: that is
//! why every future of the consumer can be dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tramline_core::client::fetcher::{FetchError, Fetched, Fetcher};
use tramline_core::client::retry::Backoff;
use tramline_core::time::Instant;
use tramline_wire::{Record, TopicPartition};

use super::auto_commit::AutoCommits;
use super::builder::Settings;
use super::error::{CommitError, ConsumeError, SeekError};
use super::events::{Event, Revocation};
use super::membership::Membership;
use super::offsets::Commits;
use super::types::{OffsetAndMetadata, StartOffset};

/// The machines and the queues around them.
#[derive(Debug)]
pub(super) struct State {
    pub fetcher: Fetcher,
    pub membership: Option<Membership>,
    pub commits: Commits,
    pub auto: Option<AutoCommits>,
    /// What the group has committed, with the generation under which the partition was assigned then.
    committed: BTreeMap<TopicPartition, (i32, OffsetAndMetadata)>,
    events: EventQueue,
    readers: Vec<Waker>,
    waiting: usize,
    last_poll: Instant,
    /// The group refused us for good.
    pub failed: Option<ConsumeError>,
    pub life: Life,
    /// When the end comes in any case.
    pub close_deadline: Option<Instant>,
    leave_wanted: bool,
    leave_begun: bool,
    leaving: Vec<oneshot::Sender<()>>,
    ended: Vec<oneshot::Sender<()>>,
}

/// How far the end of the consumer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Running,
    /// `close` was called: nothing is handed out, ownership is being given up.
    Closing,
    /// Everything is given up; the tasks end.
    Ended,
}

/// An event before it is delivered: a token is made when it is.
#[derive(Debug)]
pub(super) enum Pending {
    Assigned { generation: i32, partitions: Vec<TopicPartition> },
    Revoked { id: u64, generation: i32, partitions: Vec<TopicPartition>, deadline: Instant },
    Lost { generation: i32, partitions: Vec<TopicPartition> },
    Reset { generation: i32, topic_partition: TopicPartition, from: Option<i64>, to: i64 },
    CommitFailed { error: CommitError },
}

#[derive(Debug, Default)]
struct EventQueue {
    queue: VecDeque<Pending>,
    handles: usize,
    wakers: Vec<Waker>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub settings: Settings,
    started: tokio::time::Instant,
    /// The fetching task looks again.
    pub fetching: Notify,
    /// The membership task looks again.
    pub grouping: Notify,
    /// The task for commits and committed offsets looks again.
    pub offsets: Notify,
}

impl Shared {
    pub(super) fn new(settings: Settings, membership: Option<Membership>, backoff: Backoff) -> Arc<Self> {
        let commits = Commits::new(&settings, backoff);
        let auto = AutoCommits::new(&settings);
        let fetcher = Fetcher::new(settings.fetcher.clone());
        Arc::new(Self {
            state: Mutex::new(State {
                fetcher,
                membership,
                commits,
                auto,
                committed: BTreeMap::new(),
                events: EventQueue::default(),
                readers: Vec::new(),
                waiting: 0,
                last_poll: Instant::ZERO,
                failed: None,
                life: Life::Running,
                close_deadline: None,
                leave_wanted: false,
                leave_begun: false,
                leaving: Vec::new(),
                ended: Vec::new(),
            }),
            settings,
            started: tokio::time::Instant::now(),
            fetching: Notify::new(),
            grouping: Notify::new(),
            offsets: Notify::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machines' clock.
    pub(super) fn now(&self) -> Instant {
        Instant::from_start(self.started.elapsed())
    }

    /// An instant of the machines' clock on tokio's.
    pub(super) fn tokio_instant(&self, at: Instant) -> tokio::time::Instant {
        self.started + at.since_start()
    }

    /// How long after the start of the machines' clock this is.
    pub(super) fn since_start(&self, at: tokio::time::Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    /// Wakes every task: something changed that all of them act on.
    pub(super) fn wake_tasks(&self) {
        self.fetching.notify_one();
        self.grouping.notify_one();
        self.offsets.notify_one();
    }

    // Reading.

    pub(super) fn waiting(&self) -> Waiting<'_> {
        let mut state = self.lock();
        state.waiting += 1;
        Waiting { shared: self }
    }

    /// Waits for what `poll` gives. The first look is free: only one that has to wait counts as waiting.
    pub(super) async fn wait_for<T>(
        &self,
        poll: impl Fn(&Self, &mut Context<'_>) -> Poll<Result<T, ConsumeError>>,
    ) -> Result<T, ConsumeError> {
        let mut waiting = None;
        std::future::poll_fn(|cx| {
            let polled = poll(self, cx);
            if polled.is_pending() && waiting.is_none() {
                waiting = Some(self.waiting());
            }
            polled
        })
        .await
    }

    pub(super) fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<Result<Fetched, ConsumeError>> {
        self.poll_taken(cx, Fetcher::take_batch, |fetched| &fetched.topic_partition)
    }

    pub(super) fn poll_record(&self, cx: &mut Context<'_>) -> Poll<Result<Record, ConsumeError>> {
        self.poll_taken(cx, Fetcher::take_record, Record::topic_partition)
    }

    fn poll_taken<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Fetcher) -> Option<Result<T, FetchError>>,
        partition: impl FnOnce(&T) -> &TopicPartition,
    ) -> Poll<Result<T, ConsumeError>> {
        let now = self.now();
        let mut state = self.lock();
        if state.life > Life::Running {
            return Poll::Ready(Err(ConsumeError::Closed));
        }
        state.last_poll = now;
        if state.membership.as_mut().is_some_and(|membership| membership.poll_resumed(now)) {
            self.grouping.notify_one();
        }
        if state.asked_for_more() {
            self.offsets.notify_one();
        }
        let taken = take(&mut state.fetcher);
        if let Some(Ok(taken)) = &taken {
            state.handed_out(partition(taken));
        }
        // Not for every record: waking the task costs more than handing one out.
        if state.fetcher.take_news() {
            self.fetching.notify_one();
        }
        if let Some(taken) = taken {
            return Poll::Ready(taken.map_err(ConsumeError::from));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        register(&mut state.readers, cx);
        Poll::Pending
    }

    pub(super) fn position(&self, topic_partition: &TopicPartition) -> Option<i64> {
        self.lock().fetcher.position(topic_partition).map(|position| position.offset)
    }

    pub(super) fn seek(&self, topic_partition: &TopicPartition, to: StartOffset) -> Result<(), SeekError> {
        if let StartOffset::At(offset) = to
            && offset < 0
        {
            return Err(SeekError::Negative { offset });
        }
        let mut state = self.lock();
        if !state.fetcher.seek(topic_partition, to.for_fetcher()) {
            return Err(SeekError::NotAssigned(topic_partition.clone()));
        }
        if let Some(auto) = &mut state.auto {
            auto.machine.sought(topic_partition);
        }
        drop(state);
        self.fetching.notify_one();
        self.offsets.notify_one();
        Ok(())
    }

    pub(super) fn pause(&self, partitions: &mut dyn Iterator<Item = &TopicPartition>) {
        let mut state = self.lock();
        for topic_partition in partitions {
            state.fetcher.pause(topic_partition);
        }
    }

    pub(super) fn resume(&self, partitions: &mut dyn Iterator<Item = &TopicPartition>) {
        let mut state = self.lock();
        for topic_partition in partitions {
            state.fetcher.resume(topic_partition);
        }
        state.wake_readers();
        self.fetching.notify_one();
        self.offsets.notify_one();
    }

    pub(super) fn paused(&self) -> Vec<TopicPartition> {
        self.lock().fetcher.paused().cloned().collect()
    }

    pub(super) fn assignment(&self) -> Vec<TopicPartition> {
        self.lock().fetcher.assignment().map(|(topic_partition, _)| topic_partition.clone()).collect()
    }

    pub(super) fn lag(&self, topic_partition: &TopicPartition) -> Option<i64> {
        let state = self.lock();
        let end = state.fetcher.high_watermark(topic_partition)?;
        let position = state.fetcher.position(topic_partition)?;
        // An end that cannot be is no reason to run over.
        Some(end.saturating_sub(position.offset).max(0))
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.lock().fetcher.buffered_bytes()
    }

    // Events.

    pub(super) fn events_taken(&self) {
        let mut state = self.lock();
        state.events.handles += 1;
        if state.events.handles > 1 {
            return;
        }
        // The first handle learns what happened before it existed.
        let mut assigned: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        for (topic_partition, generation) in state.fetcher.assignment() {
            assigned.entry(generation).or_default().push(topic_partition.clone());
        }
        let known =
            assigned.into_iter().map(|(generation, partitions)| Pending::Assigned { generation, partitions });
        state.events.queue.extend(known);
    }

    pub(super) fn events_dropped(&self) {
        let now = self.now();
        let mut state = self.lock();
        state.events.handles -= 1;
        if state.events.handles > 0 {
            return;
        }
        let undelivered = std::mem::take(&mut state.events.queue);
        for pending in undelivered {
            if let Pending::Revoked { id, .. } = pending {
                state.release(id, now);
            }
        }
        self.grouping.notify_one();
        self.offsets.notify_one();
    }

    pub(super) fn poll_event(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.lock();
        if let Some(pending) = state.events.queue.pop_front() {
            drop(state);
            return Poll::Ready(Some(self.deliver(pending)));
        }
        if state.life == Life::Ended {
            return Poll::Ready(None);
        }
        register(&mut state.events.wakers, cx);
        Poll::Pending
    }

    pub(super) fn take_event(self: &Arc<Self>) -> Option<Event> {
        let pending = self.lock().events.queue.pop_front()?;
        Some(self.deliver(pending))
    }

    fn deliver(self: &Arc<Self>, pending: Pending) -> Event {
        match pending {
            Pending::Assigned { generation, partitions } => Event::Assigned { generation, partitions },
            Pending::Lost { generation, partitions } => Event::Lost { generation, partitions },
            Pending::Reset { generation, topic_partition, from, to } => {
                Event::PositionReset { generation, topic_partition, from, to }
            }
            Pending::CommitFailed { error } => Event::CommitFailed { error },
            Pending::Revoked { id, generation, partitions, deadline } => Event::Revoked(Revocation {
                shared: Arc::clone(self),
                id,
                generation,
                partitions,
                deadline: self.tokio_instant(deadline),
            }),
        }
    }

    pub(super) fn release(&self, id: u64) {
        let now = self.now();
        self.lock().release(id, now);
        self.grouping.notify_one();
        self.offsets.notify_one();
    }

    // The end.

    pub(super) async fn close(&self) {
        let (ended, wait) = oneshot::channel();
        {
            let now = self.now();
            let mut state = self.lock();
            if state.life == Life::Ended {
                return;
            }
            if state.life == Life::Running {
                state.life = Life::Closing;
                let patience = self.settings.rebalance_timeout + self.settings.request_timeout;
                state.close_deadline = Some(now + patience);
                // A member commits before it gives its partitions up.
                if state.membership.is_none() {
                    state.queue_last_commits(now);
                }
            }
            state.ended.push(ended);
            state.wake_readers();
        }
        self.wake_tasks();
        // An error means the tasks are gone with their runtime: nothing is left to wait for.
        wait.await.ok();
    }

    pub(super) async fn unsubscribe(&self) {
        let (left, wait) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.membership.as_ref().is_none_or(|membership| membership.left)
                || state.life > Life::Running
            {
                return;
            }
            state.leave_wanted = true;
            state.leaving.push(left);
        }
        self.grouping.notify_one();
        // An error means the tasks are gone with their runtime: nothing is left to wait for.
        wait.await.ok();
    }

    /// The member has left its group, or cannot go on.
    pub(super) fn left(&self) {
        for waiting in std::mem::take(&mut self.lock().leaving) {
            waiting.send(()).ok();
        }
    }

    /// The handle is gone: the tasks end without telling the group.
    pub(super) fn dropped(&self) {
        self.lock().life = Life::Ended;
        self.wake_tasks();
    }

    pub(super) fn ended(&self) {
        let mut state = self.lock();
        state.life = Life::Ended;
        state.wake_readers();
        for waker in std::mem::take(&mut state.events.wakers) {
            waker.wake();
        }
        let waiting = std::mem::take(&mut state.ended).into_iter().chain(std::mem::take(&mut state.leaving));
        for waiting in waiting.collect::<Vec<_>>() {
            waiting.send(()).ok();
        }
        drop(state);
        self.wake_tasks();
    }
}

impl State {
    pub(super) fn wake_readers(&mut self) {
        for waker in std::mem::take(&mut self.readers) {
            waker.wake();
        }
    }

    /// Whether the member is to leave now; true once.
    pub(super) fn begin_leaving(&mut self) -> bool {
        let begin = (self.leave_wanted || self.life == Life::Closing) && !self.leave_begun;
        self.leave_begun |= begin;
        begin
    }

    /// Whether the program has asked for records lately enough.
    pub(super) fn poll_expires_at(&self, interval: Duration) -> Option<Instant> {
        (self.waiting == 0).then(|| self.last_poll + interval)
    }

    pub(super) fn has_event_handle(&self) -> bool {
        self.events.handles > 0
    }

    /// The group has this for a partition that is ours.
    pub(super) fn note_committed(&mut self, topic_partition: &TopicPartition, at: Option<OffsetAndMetadata>) {
        match (self.fetcher.owned(topic_partition), at) {
            (Some(generation), Some(at)) => {
                self.committed.insert(topic_partition.clone(), (generation, at));
            }
            _ => {
                self.committed.remove(topic_partition);
            }
        }
    }

    pub(super) fn last_committed(&self, topic_partition: &TopicPartition) -> Option<OffsetAndMetadata> {
        let (generation, at) = self.committed.get(topic_partition)?;
        (self.fetcher.owned(topic_partition) == Some(*generation)).then(|| at.clone())
    }

    /// Queues an event when somebody listens.
    pub(super) fn publish(&mut self, pending: Pending) {
        if self.events.handles == 0 {
            return;
        }
        self.events.queue.push_back(pending);
        for waker in std::mem::take(&mut self.events.wakers) {
            waker.wake();
        }
    }

    /// Gives up the partitions of a held revocation, after what is done of them is committed.
    pub(super) fn release(&mut self, id: u64, now: Instant) {
        if !self.commits_before_release(id, now) {
            self.release_now(id, now);
        }
    }

    pub(super) fn release_now(&mut self, id: u64, now: Instant) {
        let Some(membership) = &mut self.membership else { return };
        for topic_partition in membership.release(id, now) {
            self.give_up(&topic_partition);
        }
    }
}

fn register(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

/// A future that waits for records: while it lives, the program counts as polling.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    shared: &'a Shared,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.waiting -= 1;
        state.last_poll = now;
    }
}
