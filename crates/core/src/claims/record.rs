//! The records of a claims partition: one line of text each, readable with any Kafka tool.
//!
//! `KIND task=N field=value ...`; `cause=` comes last and takes the rest of the line. Unknown fields are passed over, and a
//! record of an unknown kind, or without a field it needs, changes nothing: newer writers do not stop older readers.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;

use tramline_wire::Str;

use crate::time::Timestamp;

/// The longest cause that is written, in bytes.
const LONGEST_CAUSE: usize = 400;
/// The longest name of a worker, in bytes.
const LONGEST_WORKER: usize = 120;

/// A record of a claims partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The task it is about, by its offset in the tasks partition of the same number.
    pub task: i64,
    /// Who wrote it. Unique per run of a worker.
    pub worker: Str,
    /// What it says.
    pub kind: Kind,
}

/// What a claims record says. A token is the offset of the claim under which its writer holds the task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The writer wants the task.
    Claim {
        /// How long it wants it without renewing, in milliseconds of log time.
        lease: i64,
        /// Tells the writer's claims apart, so that it knows its own when it reads it.
        nonce: u64,
    },
    /// The holder goes on.
    Renew {
        /// Its token.
        token: i64,
        /// For how long from this record on, in milliseconds.
        lease: i64,
    },
    /// The holder gives the task back.
    Release {
        /// Its token.
        token: i64,
        /// Whether it had begun to work on it: only then the attempt counts.
        started: bool,
    },
    /// The holder has done the task.
    Done {
        /// Its token.
        token: i64,
    },
    /// The attempt failed; the task comes again unless this was its last attempt.
    Failed {
        /// The holder's token.
        token: i64,
        /// How long to wait before the next attempt, in milliseconds.
        after: i64,
        /// Why, in words.
        cause: String,
    },
    /// The task is dead: its letter is in the topic of the dead.
    Buried {
        /// The holder's token.
        token: i64,
        /// Why, in words.
        cause: String,
    },
    /// A dead task was published again under another offset.
    Revived,
}

/// A text as one word of limited length.
#[must_use]
pub fn word(text: &str) -> String {
    let plain = |letter: char| if letter.is_whitespace() || letter.is_control() { '_' } else { letter };
    cut(text, LONGEST_WORKER).chars().map(plain).collect()
}

/// A text as one line of limited length.
fn line(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let shown: String = cut(text.trim(), LONGEST_CAUSE).chars().map(plain).collect();
    String::from(shown.trim())
}

fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl ClaimRecord {
    /// The record as it is written.
    #[must_use]
    pub fn encode(&self) -> String {
        let (name, fields) = match &self.kind {
            Kind::Claim { lease, nonce } => ("claim", format!(" lease={lease} n={nonce}")),
            Kind::Renew { token, lease } => ("renew", format!(" token={token} lease={lease}")),
            Kind::Release { token, started } => {
                ("release", format!(" token={token} started={}", u8::from(*started)))
            }
            Kind::Done { token } => ("done", format!(" token={token}")),
            Kind::Failed { token, after, .. } => ("failed", format!(" token={token} after={after}")),
            Kind::Buried { token, .. } => ("buried", format!(" token={token}")),
            Kind::Revived => ("revived", String::new()),
        };
        let mut text = format!("{name} task={}{fields} w={}", self.task, word(&self.worker));
        if let Kind::Failed { cause, .. } | Kind::Buried { cause, .. } = &self.kind {
            // Writing into a string does not fail.
            let _ = write!(text, " cause={}", line(cause));
        }
        text
    }

    /// Reads a record; `None` when it is of an unknown kind or says nothing that can be used.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(bytes).ok()?;
        let (name, fields) = text.split_once(' ')?;
        let fields = Fields::read(fields)?;
        let token = || fields.token.filter(|&token| token >= 0);
        let lease = || fields.lease.filter(|&lease| lease > 0);
        let cause = || fields.cause.unwrap_or_default().to_string();
        let kind = match name {
            "claim" => Kind::Claim { lease: lease()?, nonce: fields.nonce? },
            "renew" => Kind::Renew { token: token()?, lease: lease()? },
            "release" => Kind::Release { token: token()?, started: fields.started },
            "done" => Kind::Done { token: token()? },
            "failed" => Kind::Failed { token: token()?, after: fields.after.max(0), cause: cause() },
            "buried" => Kind::Buried { token: token()?, cause: cause() },
            "revived" => Kind::Revived,
            _ => return None,
        };
        Some(Self { task: fields.task?, worker: Str::from(fields.worker), kind })
    }
}

#[derive(Default)]
struct Fields<'a> {
    task: Option<Timestamp>,
    token: Option<i64>,
    lease: Option<i64>,
    nonce: Option<u64>,
    after: i64,
    started: bool,
    worker: &'a str,
    cause: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn read(mut text: &'a str) -> Option<Self> {
        let mut fields = Self { started: true, ..Self::default() };
        while !text.is_empty() {
            if let Some(cause) = text.strip_prefix("cause=") {
                fields.cause = Some(cause);
                break;
            }
            let (field, rest) = text.split_once(' ').unwrap_or((text, ""));
            text = rest;
            let Some((name, value)) = field.split_once('=') else { continue };
            match name {
                "task" => fields.task = Some(value.parse().ok().filter(|&task| task >= 0)?),
                "token" => fields.token = Some(value.parse().ok()?),
                "lease" => fields.lease = Some(value.parse().ok()?),
                "n" => fields.nonce = Some(value.parse().ok()?),
                "after" => fields.after = value.parse().ok()?,
                "started" => fields.started = value != "0",
                "w" => fields.worker = value,
                _ => {}
            }
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> [Kind; 7] {
        [
            Kind::Claim { lease: 30_000, nonce: u64::MAX },
            Kind::Renew { token: 9, lease: 1 },
            Kind::Release { token: 9, started: false },
            Kind::Done { token: 9 },
            Kind::Failed { token: 9, after: 1500, cause: "exit 1: no such host=db task=4".into() },
            Kind::Buried { token: 9, cause: String::new() },
            Kind::Revived,
        ]
    }

    #[test]
    fn every_record_reads_as_it_was_written() {
        for kind in every_kind() {
            let record = ClaimRecord { task: 17, worker: "host-1".into(), kind };
            assert_eq!(ClaimRecord::decode(record.encode().as_bytes()), Some(record));
        }
    }

    #[test]
    fn a_claim_is_a_line_that_a_person_can_read() {
        let record =
            ClaimRecord { task: 17, worker: "a b".into(), kind: Kind::Claim { lease: 30_000, nonce: 5 } };
        assert_eq!(record.encode(), "claim task=17 lease=30000 n=5 w=a_b");
    }

    #[test]
    fn unknown_fields_are_passed_over_and_unknown_kinds_say_nothing() {
        let newer = b"claim task=1 colour=red lease=5 n=2 w=x";
        assert_eq!(ClaimRecord::decode(newer).unwrap().kind, Kind::Claim { lease: 5, nonce: 2 });
        for inert in [
            &b"promise task=1 w=x"[..],
            b"claim",
            b"",
            b"\xff\xfe task=1",
            b"claim task=-1 lease=5 n=1",
            b"claim task=1 lease=0 n=1",
            b"claim task=1 lease=-5 n=1",
            b"claim task=1 n=1",
            b"done task=1",
            b"{\"type\":\"claim\"}",
        ] {
            assert_eq!(ClaimRecord::decode(inert), None, "{inert:?}");
        }
    }

    #[test]
    fn a_long_cause_is_cut_at_a_letter() {
        let cause = "\u{df}".repeat(400);
        let record = ClaimRecord { task: 1, worker: "w".into(), kind: Kind::Buried { token: 2, cause } };
        let text = record.encode();
        assert!(text.len() < 500);
        let Some(ClaimRecord { kind: Kind::Buried { cause, .. }, .. }) = ClaimRecord::decode(text.as_bytes())
        else {
            panic!("{text}")
        };
        assert_eq!(cause.chars().count(), 200);
    }
}
