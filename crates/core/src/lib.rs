//! Every decision of Tramline, without I/O: client machines, groups, lanes, claims.
//!
//! The crate is `no_std`, so that a socket, a file, a clock, a thread or a randomly ordered map cannot
//! slip in: the compiler refuses them. Time is always an argument ([`time::Instant`] for deadlines,
//! [`time::Timestamp`] for what is written down).
//!
//! Two shapes of machine live here. An *event machine* takes what happened through `handle_*` methods
//! and says what to do next through `poll_*` methods; call `poll_*` until it answers `None` after each
//! `handle_*`, and come back with `handle_timeout(now)` when `next_timeout()` is due. A *ledger machine*
//! turns a request into records to append and replies to send; only `replay` of such a record changes
//! its durable state, so that running, restarting and testing take one path.

#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod claims;
pub mod client;
pub mod group;
pub mod lanes;
pub mod time;
