//! What threads share, under a scheduler that tries out their orders: a lost wake-up shows as a deadlock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use shuttle::sync::{Condvar, Mutex as Shuttled, mpsc};
use shuttle::thread;
use tramline_core::lanes::{Chunk, HasOffset, Lane, LaneState, Offer, StopReason, Work};

/// Over the scheduler's locks.
mod sync {
    pub(crate) use shuttle::sync::atomic::AtomicBool;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// The very code of the crate.
#[allow(clippy::duplicate_mod, reason = "compiled once more, over other locks")]
#[path = "slots.rs"]
mod slots;

use slots::Slots;
use sync::lock;

/// How many orders are tried.
const ORDERS: usize = 1_000;

/// Something that happens once, on whatever thread.
#[derive(Default)]
struct Flag(Shuttled<(bool, Option<Waker>)>);

impl Flag {
    /// Wakes whoever waits, for nothing.
    fn nudge(&self) {
        let waker = lock(&self.0).1.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn raise(&self) {
        let waker = {
            let mut state = lock(&self.0);
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn raised(&self) {
        poll_fn(|cx| {
            let mut state = lock(&self.0);
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[test]
fn every_wake_of_a_slot_is_seen_and_its_future_ends_once() {
    shuttle::check_random(
        || {
            let flags: Vec<Arc<Flag>> = (0..3).map(|_| Arc::default()).collect();
            let mut slots = Slots::new();
            let wait = |flag: Arc<Flag>| async move { flag.raised().await };
            for flag in &flags {
                assert!(slots.start(wait(Arc::clone(flag))).1.is_pending());
            }
            let raisers: Vec<_> = flags
                .iter()
                .map(|flag| {
                    let flag = Arc::clone(flag);
                    thread::spawn(move || {
                        flag.nudge();
                        flag.raise();
                    })
                })
                .collect();
            let mut ended = Vec::new();
            shuttle::future::block_on(async {
                while ended.len() < flags.len() {
                    poll_fn(|cx| slots.poll_woken(cx, |at, output| ended.push((at, output.is_ok())))).await;
                    if ended.len() == 2 {
                        // A slot is used again while the wakers of its former future may still be around.
                        let again = Arc::new(Flag::default());
                        again.raise();
                        assert!(slots.start(wait(again)).1.is_ready());
                    }
                }
            });
            ended.sort_unstable();
            assert_eq!(ended, [(0, true), (1, true), (2, true)]);
            raisers.into_iter().for_each(|raiser| raiser.join().unwrap());
        },
        ORDERS,
    );
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct At(i64);

impl HasOffset for At {
    fn offset(&self) -> i64 {
        self.0
    }

    fn leader_epoch(&self) -> Option<i32> {
        None
    }
}

const RECORDS: i64 = 6;

/// A lane as its processor, two workers and the coordinator share it.
struct Shared {
    lane: Shuttled<Lane<At>>,
    work: Condvar,
    /// What a worker is about to complete, noted before.
    completing: Shuttled<Vec<i64>>,
}

impl Shared {
    /// The processor: takes what is there and hands it to the workers; says when there is room again.
    fn process(
        &self,
        workers: &[mpsc::Sender<(i64, tramline_core::lanes::Ticket)>],
        room: &mpsc::Sender<()>,
    ) {
        let mut next = 0;
        loop {
            let mut lane = lock(&self.lane);
            let pull = lane.pull();
            match pull.work {
                Work::Record(At(offset), ticket) => {
                    drop(lane);
                    assert_eq!(offset, next, "in order");
                    next += 1;
                    workers[usize::try_from(offset).unwrap() % workers.len()].send((offset, ticket)).unwrap();
                }
                Work::Wait => drop(self.work.wait(lane).unwrap()),
                Work::End => return,
                Work::OutOfOrder { .. } => panic!("out of order"),
            }
            if pull.room {
                room.send(()).unwrap();
            }
        }
    }

    /// A worker. How many of its completions counted.
    fn complete(&self, records: &mpsc::Receiver<(i64, tramline_core::lanes::Ticket)>) -> u64 {
        let mut counted = 0;
        while let Ok((offset, ticket)) = records.recv() {
            lock(&self.completing).push(offset);
            counted += u64::from(lock(&self.lane).complete(ticket));
        }
        counted
    }

    /// What may be committed now covers nothing that nobody is done with.
    fn snapshot(&self, before: i64) -> i64 {
        let at = lock(&self.lane).frontier().map_or(0, |frontier| frontier.offset);
        let done = lock(&self.completing).clone();
        assert!(before <= at && (0..at).all(|offset| done.contains(&offset)), "{at} over {done:?}");
        at
    }

    /// The coordinator: feeds the lane while it may, looks at its frontier in between, stops it.
    fn coordinate(&self, room: &mpsc::Receiver<()>, hurry: bool) -> i64 {
        let mut left: VecDeque<i64> = (0..RECORDS).collect();
        let mut frontier = 0;
        while let Some(first) = left.pop_front() {
            let second = left.pop_front();
            let records: Vec<At> = [Some(first), second].into_iter().flatten().map(At).collect();
            let next_offset = first + records.len() as i64;
            let chunk =
                Chunk { records, first_offset: first, next_offset, leader_epoch: None, pinned: Vec::new() };
            let offer = lock(&self.lane).offer(chunk);
            self.work.notify_all();
            frontier = self.snapshot(frontier);
            if offer == Offer::Full {
                // Paused until there is room; a signal may be older than the last offer.
                while lock(&self.lane).state() == LaneState::Paused {
                    room.recv().unwrap();
                }
            }
        }
        lock(&self.lane).stop(StopReason::Revoke, hurry);
        self.work.notify_all();
        self.snapshot(frontier)
    }
}

#[test]
fn b019_completions_from_two_workers_against_offers_snapshots_and_the_stop_of_a_lane() {
    for hurry in [false, true] {
        shuttle::check_random(
            move || {
                let shared = Arc::new(Shared {
                    lane: Shuttled::new(Lane::new(2, usize::MAX)),
                    work: Condvar::new(),
                    completing: Shuttled::default(),
                });
                let (room, has_room) = mpsc::channel();
                let mut senders = Vec::new();
                let workers: Vec<_> = (0..2)
                    .map(|_| {
                        let (send, records) = mpsc::channel();
                        senders.push(send);
                        let shared = Arc::clone(&shared);
                        thread::spawn(move || shared.complete(&records))
                    })
                    .collect();
                let processing = Arc::clone(&shared);
                let processor = thread::spawn(move || {
                    processing.process(&senders, &room);
                    // The processor has ended: what workers complete from here on must not count.
                    let stopped = lock(&processing.lane).finish();
                    let counted = lock(&processing.lane).completed();
                    (stopped.final_frontier().map_or(0, |frontier| frontier.offset), counted)
                });
                let last = shared.coordinate(&has_room, hurry);
                let (committed, counted) = processor.join().unwrap();
                let all: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
                assert_eq!(all, counted, "a completion counted after the end");
                assert!(last <= committed, "{last} before, {committed} at the end");
                assert_eq!(lock(&shared.lane).frontier().map_or(0, |at| at.offset), committed, "moved later");
            },
            ORDERS,
        );
    }
}
