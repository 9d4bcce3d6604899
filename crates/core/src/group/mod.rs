//! Consumer groups, both ends: the coordinator's ledger machine, the member's event machine, and what
//! they exchange (subscriptions, assignments, assignors).
//!
//! Nothing here does I/O; `testing` (with the feature of that name) runs both ends against each other in memory with jumping time.

pub mod assignor;
mod codes;
pub mod coordinator;
pub mod member;
pub mod protocol;
mod seeded;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use seeded::Seeded;
