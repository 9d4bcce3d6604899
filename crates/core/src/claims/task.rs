//! What a task's record says about how the task wants to be worked on: its key and headers.
//!
//! A record without any of these headers is a task like any other, so that whatever writes to the topic adds tasks.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use bytes::Bytes;
use tramline_wire::Record;

use crate::time::Timestamp;

/// How urgent a task is unless it says so: the middle of 0 (most urgent) to 9.
pub const DEFAULT_CLASS: u8 = 5;
/// The least urgent class.
pub const LAST_CLASS: u8 = 9;
/// How often a task is begun unless it says so.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;

const CLASS: &str = "tl-class";
const DELAY: &str = "tl-delay";
const NOT_BEFORE: &str = "tl-not-before";
const ATTEMPTS: &str = "tl-max-attempts";
const UNIQUE: &str = "tl-unique";
const WINDOW: &str = "tl-window";

/// How a task wants to be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskMeta {
    /// Tasks of one key are worked on in order, one after the other.
    pub key: Option<Bytes>,
    /// Which tasks are tried first, 0 before 9.
    pub class: u8,
    /// Log time before which it is not given to anybody; 0 for at once.
    pub not_before: Timestamp,
    /// How often it is begun before it is dead.
    pub max_attempts: u32,
    /// Under which name it exists only once.
    pub unique: Option<Unique>,
    /// When its record was appended.
    pub published: Timestamp,
}

/// A name that one task of a shard has within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// The name.
    pub id: Bytes,
    /// How long after the first task others of the name are passed over, in milliseconds.
    pub window: i64,
}

impl TaskMeta {
    /// A task appended at `published` that wants nothing in particular.
    #[must_use]
    pub const fn plain(published: Timestamp) -> Self {
        Self {
            key: None,
            class: DEFAULT_CLASS,
            not_before: 0,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            unique: None,
            published,
        }
    }

    /// What a record of a tasks partition says. Headers that make no sense count as missing. Nothing of the record is
    /// kept alive.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let published = record.timestamp();
        let plain = Self::plain(published);
        let number = |name| number(record, name);
        let delayed = number(DELAY).map_or(0, |delay| published.saturating_add(delay));
        let unique = record
            .header(UNIQUE)
            .flatten()
            .map(|id| Unique { id: Bytes::copy_from_slice(id), window: number(WINDOW).unwrap_or(i64::MAX) });
        Self {
            key: record.key().map(Bytes::copy_from_slice),
            class: number(CLASS)
                .and_then(|class| u8::try_from(class).ok())
                .map_or(plain.class, |class| class.min(LAST_CLASS)),
            not_before: number(NOT_BEFORE).unwrap_or(0).max(delayed),
            max_attempts: number(ATTEMPTS)
                .and_then(|attempts| u32::try_from(attempts).ok())
                .map_or(plain.max_attempts, |attempts| attempts.max(1)),
            unique,
            published,
        }
    }

    /// The headers by which [`of`](Self::of) reads this: `delay` milliseconds after it was appended, and not before
    /// `not_before`. The key is the record's own.
    #[must_use]
    pub fn headers(&self, delay: i64) -> Vec<(&'static str, Bytes)> {
        let plain = Self::plain(0);
        let mut headers = Vec::new();
        let mut put = |name, number: String| headers.push((name, Bytes::from(number)));
        if self.class != plain.class {
            put(CLASS, self.class.to_string());
        }
        if delay > 0 {
            put(DELAY, delay.to_string());
        }
        if self.not_before > 0 {
            put(NOT_BEFORE, self.not_before.to_string());
        }
        if self.max_attempts != plain.max_attempts {
            put(ATTEMPTS, self.max_attempts.to_string());
        }
        if let Some(unique) = &self.unique {
            put(WINDOW, unique.window.to_string());
            headers.push((UNIQUE, unique.id.clone()));
        }
        headers
    }
}

/// A header that is a number and not negative.
fn number(record: &Record, name: &str) -> Option<i64> {
    let text = core::str::from_utf8(record.header(name)??).ok()?;
    text.parse().ok().filter(|&number: &i64| number >= 0)
}

#[cfg(test)]
mod tests {
    use std::vec;

    use tramline_wire::{Str, TopicPartition};

    use super::*;

    fn record(headers: Vec<(Str, Option<Bytes>)>) -> Record {
        let key = Some(Bytes::from_static(b"k"));
        Record::from_parts(TopicPartition::new("q.tasks", 0), 3, 1000, key, None, headers)
    }

    #[test]
    fn a_task_reads_as_it_was_written() {
        let meta = TaskMeta {
            key: Some(Bytes::from_static(b"k")),
            class: 0,
            not_before: 5000,
            max_attempts: 2,
            unique: Some(Unique { id: Bytes::from_static(b"u"), window: 60_000 }),
            published: 1000,
        };
        let headers = meta.headers(0).into_iter().map(|(name, value)| (name.into(), Some(value)));
        assert_eq!(TaskMeta::of(&record(headers.collect())), meta);
    }

    #[test]
    fn a_delay_counts_from_the_append() {
        let headers = TaskMeta::plain(0).headers(250);
        let headers = headers.into_iter().map(|(name, value)| (name.into(), Some(value))).collect();
        assert_eq!(TaskMeta::of(&record(headers)).not_before, 1250);
    }

    #[test]
    fn headers_that_make_no_sense_count_as_missing() {
        let odd =
            |name: &'static str, value: &'static [u8]| (Str::from(name), Some(Bytes::from_static(value)));
        let headers = vec![
            odd(CLASS, b"-1"),
            odd(ATTEMPTS, b"many"),
            odd(DELAY, b"\xff"),
            (Str::from(NOT_BEFORE), None),
            odd(UNIQUE, b"u"),
        ];
        let meta = TaskMeta::of(&record(headers));
        let plain = TaskMeta::plain(1000);
        assert_eq!((meta.class, meta.max_attempts, meta.not_before), (plain.class, plain.max_attempts, 0));
        assert_eq!(meta.unique.unwrap().window, i64::MAX, "without a window it is for ever");
        assert_eq!(TaskMeta::of(&record(vec![odd(ATTEMPTS, b"0"), odd(CLASS, b"77")])).max_attempts, 1);
    }
}
