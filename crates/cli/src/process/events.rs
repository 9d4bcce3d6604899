//! What `process --json` prints: one event a line. The names and fields are promised; see `--help`.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Error, Result};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::output;

/// One thing that happened.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// Partitions are ours now, beside those that were.
    Assigned { generation: i32, partitions: Vec<i32> },
    /// Partitions are to go; what runs for them is finished and committed first.
    Revoked { partitions: Vec<i32> },
    /// Partitions are gone; nothing is committed for them.
    Lost { partitions: Vec<i32> },
    /// The command ended with 0.
    Completed { partition: i32, offset: i64, attempt: u32 },
    /// It did not, and what happens to the record then.
    Failed { partition: i32, offset: i64, attempt: u32, error: &'a str, then: &'a str },
    /// The record is acknowledged in the topic of dead letters.
    DeadLettered { partition: i32, offset: i64, attempts: u32, topic: &'a str },
    /// The group's offset of a partition moved here.
    Committed { partition: i32, offset: i64 },
    /// The last line.
    End { reason: &'a str, completed: u64, retries: u64, dead_lettered: u64, error: Option<&'a str> },
}

/// Writes events to stdout, when they were asked for. A reader that goes away ends the run.
#[derive(Debug)]
pub struct Journal {
    is_on: bool,
    at_ends: AtomicBool,
    stop: CancellationToken,
    failure: Mutex<Option<Error>>,
}

impl Journal {
    /// Writes when `is_on`; asks for a stop through `stop` when stdout takes nothing any more.
    pub fn new(is_on: bool, stop: CancellationToken) -> Self {
        Self { is_on, at_ends: AtomicBool::new(false), stop, failure: Mutex::new(None) }
    }

    /// Writes one event.
    pub fn write(&self, event: &Event<'_>) {
        if !self.is_on {
            return;
        }
        if let Err(error) = output::json(event) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.stop.cancel();
        }
    }

    /// The run ends because there is nothing left to do.
    pub fn ends_reached(&self) {
        self.at_ends.store(true, Ordering::Relaxed);
    }

    /// Why a run ended that did not fail.
    pub fn reason(&self) -> &'static str {
        if self.at_ends.load(Ordering::Relaxed) { "end" } else { "stopped" }
    }

    /// The first failure to write.
    pub fn check(&self) -> Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_name_first_and_their_fields_in_order() {
        let json = |event| serde_json::to_string(&event).unwrap();
        let failed =
            Event::Failed { partition: 1, offset: 8, attempt: 2, error: "exit status 3", then: "retry" };
        assert_eq!(
            json(failed),
            r#"{"event":"failed","partition":1,"offset":8,"attempt":2,"error":"exit status 3","then":"retry"}"#
        );
        let aside = Event::DeadLettered { partition: 1, offset: 8, attempts: 3, topic: "dead" };
        assert!(json(aside).starts_with(r#"{"event":"dead-lettered","partition":1"#));
        let end = Event::End { reason: "end", completed: 8, retries: 1, dead_lettered: 1, error: None };
        assert_eq!(
            json(end),
            r#"{"event":"end","reason":"end","completed":8,"retries":1,"dead_lettered":1,"error":null}"#
        );
    }
}
