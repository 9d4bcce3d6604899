//! A few futures side by side in one task, in memory that is used again and again.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::lane::lock;

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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;

    async fn next<F: Future>(slots: &mut Slots<F>) -> Vec<(usize, Ended<F::Output>)> {
        let mut all = Vec::new();
        poll_fn(|cx| slots.poll_woken(cx, |at, output| all.push((at, output)))).await;
        all
    }

    #[tokio::test]
    async fn futures_end_in_any_order_and_their_slots_are_used_again() {
        let wait = |receiver: oneshot::Receiver<u32>| async move { receiver.await.unwrap() };
        let mut slots = Slots::new();
        let mut senders = Vec::new();
        for _ in 0..3 {
            let (sender, receiver) = oneshot::channel::<u32>();
            senders.push(Some(sender));
            assert!(slots.start(wait(receiver)).1.is_pending());
        }
        for (round, at) in (0..).zip([2, 0, 1]) {
            senders[at].take().unwrap().send(round).unwrap();
            let ended = next(&mut slots).await;
            assert_eq!(ended.len(), 1);
            assert_eq!((ended[0].0, *ended[0].1.as_ref().unwrap()), (at, round));
        }
        let (sender, receiver) = oneshot::channel::<u32>();
        sender.send(9).unwrap();
        let (at, polled) = slots.start(wait(receiver));
        assert!(at < 3 && matches!(polled, Poll::Ready(Ok(9))));
        assert_eq!(slots.slots.len(), 3);
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_future_only() {
        let mut slots = Slots::new();
        let run = |panics: bool| async move {
            tokio::task::yield_now().await;
            assert!(!panics, "no");
            7
        };
        let (bad, _) = slots.start(run(true));
        let (good, _) = slots.start(run(false));
        let mut ended = Vec::new();
        while ended.len() < 2 {
            ended.extend(next(&mut slots).await);
        }
        assert!(ended.iter().any(|(at, output)| *at == bad && output.is_err()));
        assert!(ended.iter().any(|(at, output)| *at == good && matches!(output, Ok(7))));
    }
}
