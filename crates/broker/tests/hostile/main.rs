//! Clients that mean harm, or are broken: each costs its own connection, and the others go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod asking;
mod batches;
mod frames;
mod groups;
mod slow;

use std::time::Duration;

/// Generous, and only there so that a hang is a failure instead of a stuck test run.
const HANG: Duration = Duration::from_secs(20);

/// A frame with a request header in front of `body`.
fn request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(key.to_be_bytes());
    frame.extend(version.to_be_bytes());
    frame.extend(7_i32.to_be_bytes());
    frame.extend((-1_i16).to_be_bytes());
    frame.extend(body);
    [&i32::try_from(frame.len()).unwrap().to_be_bytes()[..], &frame].concat()
}
