//! Exchanges in flight on one connection: who waits for which answer, and when nothing on it can be trusted any more.
//!
//! A connection answers in the order it was asked. The machine keeps the waiters in that order and checks the
//! correlation id of every answer against the oldest of them. Anything that breaks the pairing (a foreign id, an
//! answer nobody asked for, undecodable bytes, an answer that did not come in time) *poisons* the connection: from
//! then on nothing can be started, and every waiter is handed out by [`Connection::poll_lost`] as "connection lost,
//! possibly sent". A waiter whose caller went away keeps its slot, so that the late answer meets its own question.
//!
//! Drive it so: [`start`](Connection::start) before each request is written, [`handle_answer`](Connection::handle_answer)
//! with the id of each frame that arrives, [`poison`](Connection::poison) when the socket ends or an answer cannot be
//! decoded, [`handle_timeout`](Connection::handle_timeout) when [`next_timeout`](Connection::next_timeout) is due, and
//! `poll_lost` until it is empty after each of the latter.

use alloc::collections::VecDeque;

use crate::time::Instant;

/// Why a connection can no longer be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Poison {
    /// The peer answered another request than the oldest one in flight.
    #[error("the peer answered request {got} while {expected} was the oldest in flight")]
    WrongCorrelationId {
        /// The id of the oldest request in flight.
        expected: i32,
        /// The id in the answer.
        got: i32,
    },
    /// The peer answered although nothing was asked.
    #[error("the peer sent answer {got} although nothing is in flight")]
    UnexpectedAnswer {
        /// The id in the answer.
        got: i32,
    },
    /// Bytes of an answer, or the frame around it, do not decode.
    #[error("an answer does not decode")]
    Undecodable,
    /// An answer did not come within its time; it could still come and would be taken for another's.
    #[error("no answer to request {correlation_id} within its time")]
    TimedOut {
        /// The id of the request that waited longest.
        correlation_id: i32,
    },
    /// The socket ended, from either side.
    #[error("the connection was closed")]
    Closed,
}

#[derive(Debug)]
struct Slot<W> {
    correlation_id: i32,
    deadline: Instant,
    waiter: W,
}

/// The exchanges of one connection; `W` is whatever the driver needs to complete one of them.
#[derive(Debug)]
pub struct Connection<W> {
    in_flight: VecDeque<Slot<W>>,
    last_id: i32,
    poison: Option<Poison>,
}

impl<W> Default for Connection<W> {
    fn default() -> Self {
        Self { in_flight: VecDeque::new(), last_id: 0, poison: None }
    }
}

impl<W> Connection<W> {
    /// A connection on which nothing was asked yet. Correlation ids start at 1.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The id that the next request will get.
    #[must_use]
    pub const fn next_correlation_id(&self) -> i32 {
        self.last_id.wrapping_add(1) & i32::MAX
    }

    fn next_id(&mut self) -> i32 {
        self.last_id = self.next_correlation_id();
        self.last_id
    }

    /// Gives a request its correlation id and its place among the waiters.
    ///
    /// # Errors
    /// The waiter back, when the connection is poisoned: the request must not be written.
    pub fn start(&mut self, deadline: Instant, waiter: W) -> Result<i32, W> {
        if self.poison.is_some() {
            return Err(waiter);
        }
        let correlation_id = self.next_id();
        self.in_flight.push_back(Slot { correlation_id, deadline, waiter });
        Ok(correlation_id)
    }

    /// Gives an id to a request that is never answered (produce with acks 0). It occupies no slot.
    ///
    /// `None` when the connection is poisoned: the request must not be written.
    pub fn start_unanswered(&mut self) -> Option<i32> {
        if self.poison.is_some() { None } else { Some(self.next_id()) }
    }

    /// An answer with this correlation id arrived. Gives the waiter it belongs to.
    ///
    /// # Errors
    /// When it is not the answer to the oldest request in flight; the connection is poisoned then.
    pub fn handle_answer(&mut self, correlation_id: i32) -> Result<W, Poison> {
        if let Some(poison) = &self.poison {
            return Err(poison.clone());
        }
        let cause = match self.in_flight.front() {
            None => Poison::UnexpectedAnswer { got: correlation_id },
            Some(slot) if slot.correlation_id != correlation_id => {
                Poison::WrongCorrelationId { expected: slot.correlation_id, got: correlation_id }
            }
            Some(_) => match self.in_flight.pop_front() {
                Some(slot) => return Ok(slot.waiter),
                None => Poison::UnexpectedAnswer { got: correlation_id },
            },
        };
        self.poison(cause.clone());
        Err(cause)
    }

    /// Nothing on this connection can be trusted any more. The first cause is the one that is kept.
    pub fn poison(&mut self, cause: Poison) {
        self.poison.get_or_insert(cause);
    }

    /// Why the connection is unusable, if it is.
    #[must_use]
    pub fn poisoned(&self) -> Option<&Poison> {
        self.poison.as_ref()
    }

    /// The next waiter whose answer will never be known, oldest first. Empty until the connection is poisoned.
    pub fn poll_lost(&mut self) -> Option<W> {
        self.poison.as_ref()?;
        self.in_flight.pop_front().map(|slot| slot.waiter)
    }

    /// How many answers are still owed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to say.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.poison.is_some() {
            return None;
        }
        self.in_flight.iter().map(|slot| slot.deadline).min()
    }

    /// Poisons the connection when any request in flight is past its deadline.
    pub fn handle_timeout(&mut self, now: Instant) {
        let late = self.in_flight.iter().find(|slot| slot.deadline <= now).map(|slot| slot.correlation_id);
        if let Some(correlation_id) = late {
            self.poison(Poison::TimedOut { correlation_id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::vec::Vec;

    fn at(ms: u64) -> Instant {
        Instant::from_start(Duration::from_millis(ms))
    }

    fn lost(connection: &mut Connection<&'static str>) -> Vec<&'static str> {
        core::iter::from_fn(|| connection.poll_lost()).collect()
    }

    #[test]
    fn answers_meet_their_questions_in_order() {
        let mut connection = Connection::new();
        for n in 0..50 {
            assert_eq!(connection.start(at(100), n), Ok(n + 1));
        }
        for n in 0..50 {
            assert_eq!(connection.handle_answer(n + 1), Ok(n));
        }
        assert_eq!(connection.in_flight(), 0);
    }

    #[test]
    fn a_foreign_correlation_id_loses_every_waiter_and_starts_nothing_more() {
        let mut connection = Connection::new();
        connection.start(at(100), "a").unwrap();
        connection.start(at(100), "b").unwrap();
        assert_eq!(connection.handle_answer(2), Err(Poison::WrongCorrelationId { expected: 1, got: 2 }));
        assert_eq!(lost(&mut connection), ["a", "b"]);
        assert_eq!(connection.start(at(200), "c"), Err("c"));
        assert_eq!(connection.start_unanswered(), None);
        assert!(connection.handle_answer(1).is_err());
    }

    #[test]
    fn an_answer_nobody_asked_for_poisons() {
        let mut connection = Connection::<&str>::new();
        assert_eq!(connection.start_unanswered(), Some(1));
        assert_eq!(connection.handle_answer(1), Err(Poison::UnexpectedAnswer { got: 1 }));
    }

    #[test]
    fn a_timeout_poisons_so_that_a_late_answer_is_nobodys() {
        let mut connection = Connection::new();
        connection.start(at(300), "slow join").unwrap();
        connection.start(at(100), "produce").unwrap();
        assert_eq!(connection.next_timeout(), Some(at(100)));
        connection.handle_timeout(at(99));
        assert_eq!(connection.poisoned(), None);
        connection.handle_timeout(at(100));
        assert_eq!(connection.poisoned(), Some(&Poison::TimedOut { correlation_id: 2 }));
        assert_eq!(lost(&mut connection), ["slow join", "produce"]);
        assert!(connection.handle_answer(1).is_err());
        assert_eq!(connection.next_timeout(), None);
    }

    #[test]
    fn unanswered_requests_take_an_id_but_no_slot() {
        let mut connection = Connection::new();
        connection.start(at(100), "a").unwrap();
        assert_eq!(connection.start_unanswered(), Some(2));
        assert_eq!(connection.start(at(100), "b"), Ok(3));
        assert_eq!(connection.handle_answer(1), Ok("a"));
        assert_eq!(connection.handle_answer(3), Ok("b"));
    }

    #[test]
    fn ids_wrap_to_zero_and_never_become_negative() {
        let mut connection = Connection::<()> { last_id: i32::MAX - 1, ..Connection::new() };
        assert_eq!(connection.start_unanswered(), Some(i32::MAX));
        assert_eq!(connection.start_unanswered(), Some(0));
    }

    #[test]
    fn the_first_cause_is_kept() {
        let mut connection = Connection::<()>::new();
        connection.poison(Poison::Undecodable);
        connection.poison(Poison::Closed);
        assert_eq!(connection.poisoned(), Some(&Poison::Undecodable));
    }
}
