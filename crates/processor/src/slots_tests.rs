//! Futures in slots, on one thread. With several see `interleavings`.

use std::future::{Future, poll_fn};
use std::task::Poll;

use tokio::sync::oneshot;

use crate::slots::{Ended, Slots};

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
