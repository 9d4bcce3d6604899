//! A few futures side by side in one task, in memory that is used again and again.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use super::sync::{AtomicBool, Mutex, lock};

/// What the wakers of all slots share.
#[derive(Default)]
struct Woken {
    slots: Vec<usize>,
    /// Who waits for one of them.
    task: Option<Waker>,
}

struct SlotWaker {
    slot: usize,
    /// Whether the slot is among the woken ones, so that it is there once.
    listed: AtomicBool,
    woken: Arc<Mutex<Woken>>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut woken = lock(&self.woken);
            woken.slots.push(self.slot);
            woken.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

struct Slot<F> {
    future: Pin<Box<Option<F>>>,
    shared: Arc<SlotWaker>,
    waker: Waker,
}

/// Futures that run side by side. A slot is made when there are more at once than ever before; starting one in
/// a slot that is free allocates nothing.
pub(crate) struct Slots<F> {
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
    woken: Arc<Mutex<Woken>>,
    /// The woken slots that are being looked at.
    looking_at: Vec<usize>,
}

/// What a future came to: its output, or what it panicked with.
pub(crate) type Ended<T> = std::thread::Result<T>;

impl<F: Future> Slots<F> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), woken: Arc::default(), looking_at: Vec::new() }
    }

    /// Puts the future into a slot and polls it once. Its output when that was enough.
    pub(crate) fn start(&mut self, future: F) -> (usize, Poll<Ended<F::Output>>) {
        let at = self.free.pop().unwrap_or_else(|| {
            let at = self.slots.len();
            let shared = Arc::new(SlotWaker {
                slot: at,
                listed: AtomicBool::new(false),
                woken: Arc::clone(&self.woken),
            });
            let waker = Waker::from(Arc::clone(&shared));
            self.slots.push(Slot { future: Box::pin(None), shared, waker });
            at
        });
        self.slots[at].future.as_mut().set(Some(future));
        let polled = self.poll_slot(at).unwrap_or(Poll::Pending);
        (at, polled)
    }

    /// None when the slot is free.
    fn poll_slot(&mut self, at: usize) -> Option<Poll<Ended<F::Output>>> {
        let slot = &mut self.slots[at];
        let future = slot.future.as_mut().as_pin_mut()?;
        slot.shared.listed.store(false, Ordering::Release);
        let mut cx = Context::from_waker(&slot.waker);
        // A future that panicked is dropped and never polled again.
        let polled = match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
            Ok(Poll::Pending) => return Some(Poll::Pending),
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        slot.future.as_mut().set(None);
        self.free.push(at);
        Some(Poll::Ready(polled))
    }

    /// Polls every future that was woken since; ready when any of them ended, which `ended` is told.
    pub(crate) fn poll_woken(
        &mut self,
        cx: &Context<'_>,
        mut ended: impl FnMut(usize, Ended<F::Output>),
    ) -> Poll<()> {
        let mut looking_at = mem::take(&mut self.looking_at);
        {
            let mut woken = lock(&self.woken);
            mem::swap(&mut woken.slots, &mut looking_at);
            if woken.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
                woken.task = Some(cx.waker().clone());
            }
        }
        let mut any = false;
        for at in looking_at.drain(..) {
            if let Some(Poll::Ready(output)) = self.poll_slot(at) {
                any = true;
                ended(at, output);
            }
        }
        self.looking_at = looking_at;
        if any { Poll::Ready(()) } else { Poll::Pending }
    }
}
