//! Both ends of a group in memory, with jumping time: for tests, here and in other crates.
//!
//! [`Node`] is a coordinator with its log; [`Net`] puts members and a node on a network that delays, breaks
//! and repeats, all out of one seed, and checks at every step that no partition has two owners.

mod delivery;
mod net;
mod node;

pub use net::{CommitOutcome, Faults, MemberIndex, Net, Revoking};
pub use node::{Durability, Node, Request};

#[cfg(test)]
mod tests;
