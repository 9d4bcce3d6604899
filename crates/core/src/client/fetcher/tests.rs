//! The fetcher against a pretended leader, with time that jumps.

mod errors;
mod faults;
mod order;
mod random;
mod reading;
mod stand;
