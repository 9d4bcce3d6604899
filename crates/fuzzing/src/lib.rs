//! What is asked of everything that reads bytes from elsewhere, one function per kind of bytes.
//!
//! `fuzz/` runs them under libFuzzer; the tests here run them with a bounded number of seeded cases. Each panics when a
//! decoder does, when it holds more memory than its promise, or when what it read does not survive being written and
//! read again; each tells whether the bytes were accepted, so that a run that never gets anywhere is noticed.

pub mod batches;
pub mod counting;
mod groups;
mod log_files;
mod machines;
mod messages;
mod progress;
mod random;
mod tasks;

pub use messages::probe;
pub use random::Random;

/// One kind of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the fuzz target and of its folder of seeds.
    pub name: &'static str,
    /// Reads the bytes and holds the decoder to its promises. True when they were accepted.
    pub check: fn(&[u8]) -> bool,
    /// Inputs that are accepted, to begin from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Requests of every API and version, as the broker reads them.
pub const REQUESTS: Target =
    Target { name: "requests", check: messages::check_request, seeds: messages::request_seeds };
/// Answers of every API and version, as the client reads them.
pub const RESPONSES: Target =
    Target { name: "responses", check: messages::check_response, seeds: messages::response_seeds };
/// Record batches, and what is packed inside of them.
pub const BATCHES: Target = Target { name: "batches", check: batches::check, seeds: batches::seeds };
/// Subscriptions and assignments, which members of a group send each other.
pub const MEMBERS: Target =
    Target { name: "members", check: groups::check_members, seeds: groups::member_seeds };
/// Keys and values of the group log.
pub const GROUP_LOG: Target =
    Target { name: "group_log", check: groups::check_log, seeds: groups::log_seeds };
/// The files of a partition, as the next start finds them.
pub const LOG_FILES: Target = Target { name: "log_files", check: log_files::check, seeds: log_files::seeds };
/// The text beside a committed offset.
pub const PROGRESS: Target = Target { name: "progress", check: progress::check, seeds: progress::seeds };
/// Claims, snapshots of them and headers of tasks.
pub const TASKS: Target = Target { name: "tasks", check: tasks::check, seeds: tasks::seeds };
/// Answers to the client's machines, and what happens around them.
pub const MACHINES: Target = Target { name: "machines", check: machines::check, seeds: machines::seeds };

/// Every target.
pub const ALL: [Target; 9] =
    [REQUESTS, RESPONSES, BATCHES, MEMBERS, GROUP_LOG, LOG_FILES, PROGRESS, TASKS, MACHINES];
