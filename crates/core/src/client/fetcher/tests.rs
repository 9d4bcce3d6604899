//! The fetcher against a pretended leader, with time that jumps.

mod epochs;
mod errors;
mod faults;
mod order;
mod random;
mod reading;
mod sessions;
mod stand;
mod transactions;
