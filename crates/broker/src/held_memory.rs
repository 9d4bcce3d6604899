//! What connections hold in memory, over all of them, and who has to go when it is too much.
//!
//! A connection holds the request that is arriving, those that are worked on, and answers that the peer has not taken.
//! Each is bounded, but there are thousands of connections, and a peer can be as slow as it likes. So when the sum comes
//! to the limit, the connection that has got on with nothing for the longest time is closed: whoever sends whole requests
//! and takes its answers is the last to go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Who holds less is left alone; so much for each connection comes on top of the limit.
const SMALL: usize = 64 << 10;

/// The sum, and who holds what.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    limit: usize,
    total: AtomicUsize,
    holders: Mutex<HashMap<u64, Holder>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Holder {
    bytes: usize,
    /// When it began to hold more than little, or last got on.
    since: Instant,
    evicted: CancellationToken,
}

/// What one connection holds; nothing once this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    of: Arc<HeldMemory>,
    key: u64,
    /// What is counted for it.
    bytes: usize,
    evicted: CancellationToken,
}

impl HeldMemory {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, total: AtomicUsize::new(0), holders: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// A connection that holds nothing yet.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        Hold { of: Arc::clone(self), key, bytes: 0, evicted: CancellationToken::new() }
    }

    /// Bytes held now by connections that hold more than little.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<u64, Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_room(&self, holders: &mut HashMap<u64, Holder>) {
        while self.total() > self.limit {
            let oldest =
                holders.iter().min_by_key(|(key, holder)| (holder.since, **key)).map(|(key, _)| *key);
            let Some(holder) = oldest.and_then(|key| holders.remove(&key)) else { return };
            self.total.fetch_sub(holder.bytes, Ordering::Relaxed);
            holder.evicted.cancel();
        }
    }
}

impl Hold {
    /// Holds so much from now on. `got_on`: a request has arrived whole, or an answer was taken.
    pub(crate) fn set(&mut self, bytes: usize, got_on: bool) {
        let bytes = if bytes < SMALL { 0 } else { bytes };
        if (bytes == self.bytes && !(got_on && bytes > 0)) || self.evicted.is_cancelled() {
            return;
        }
        let mut holders = self.of.holders();
        match holders.remove(&self.key) {
            // Evicted meanwhile, and not counted any more.
            None if self.bytes > 0 => {
                self.bytes = 0;
                return;
            }
            None => self.of.total.fetch_add(bytes, Ordering::Relaxed),
            Some(before) if bytes == 0 => self.of.total.fetch_sub(before.bytes, Ordering::Relaxed),
            Some(before) => {
                let since = if got_on { Instant::now() } else { before.since };
                self.of.total.fetch_add(bytes, Ordering::Relaxed);
                self.of.total.fetch_sub(before.bytes, Ordering::Relaxed);
                holders.insert(self.key, Holder { bytes, since, evicted: before.evicted });
                self.bytes = bytes;
                return self.of.make_room(&mut holders);
            }
        };
        self.bytes = bytes;
        if bytes > 0 {
            let holder = Holder { bytes, since: Instant::now(), evicted: self.evicted.clone() };
            holders.insert(self.key, holder);
            self.of.make_room(&mut holders);
        }
    }

    /// Told when the memory is needed for others.
    pub(crate) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(holder) = self.of.holders().remove(&self.key) {
            self.of.total.fetch_sub(holder.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn who_got_on_with_nothing_for_the_longest_time_goes_first_and_little_counts_as_nothing() {
        let memory = Arc::new(HeldMemory::new(3 * MIB));
        let mut slow = memory.hold();
        slow.set(MIB, false);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let (mut busy, mut late) = (memory.hold(), memory.hold());
        busy.set(MIB, false);
        let mut little: Vec<Hold> = (0..1000).map(|_| memory.hold()).collect();
        little.iter_mut().for_each(|hold| hold.set(SMALL - 1, false));
        assert_eq!(memory.total(), 2 * MIB);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        slow.set(MIB + SMALL, false);
        busy.set(MIB + SMALL, true);
        late.set(MIB, false);
        assert!(
            slow.evicted().is_cancelled() && !busy.evicted().is_cancelled() && !late.evicted().is_cancelled()
        );
        assert_eq!(memory.total(), 2 * MIB + SMALL);
        slow.set(2 * MIB, true);
        assert_eq!(memory.total(), 2 * MIB + SMALL, "who has to go is not counted any more");
        drop(busy);
        late.set(0, true);
        drop((late, slow, little));
        assert_eq!((memory.total(), memory.holders().len()), (0, 0));
    }

    #[test]
    fn one_that_alone_holds_too_much_goes_itself() {
        let memory = Arc::new(HeldMemory::new(MIB));
        let mut greedy = memory.hold();
        greedy.set(MIB, false);
        assert!(!greedy.evicted().is_cancelled());
        greedy.set(MIB + 1, false);
        assert!(greedy.evicted().is_cancelled());
        assert_eq!(memory.total(), 0);
    }
}
