//! What a failure is called on stderr: its causes, each said once, and what to do next where that is known.

use std::fmt::Write;

use tramline::broker::StartError;
use tramline::client::{AdminError, BuildConsumerError, CallError, ConsumeError, FetchError, Refusal};
use tramline::wire::ErrorCode;

/// The text of an error: `what failed: why`, and a line with the next step.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Many errors carry the words of their cause already.
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    if let Some(hint) = error.chain().find_map(hint) {
        let _ = write!(text, "\n  {hint}");
    }
    text
}

fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = cause.downcast_ref::<CallError>() {
        return of_call(error);
    }
    match cause.downcast_ref::<AdminError>() {
        Some(AdminError::Call(error)) => return of_call(error),
        Some(AdminError::Refused(refusal)) => return of_code(refusal.code),
        _ => {}
    }
    if let Some(refusal) = cause.downcast_ref::<Refusal>() {
        return of_code(refusal.code);
    }
    if let Some(BuildConsumerError::UnknownTopic(_)) = cause.downcast_ref() {
        return of_code(ErrorCode::UnknownTopicOrPartition);
    }
    if let Some(ConsumeError::Partition(FetchError::OffsetOutOfRange { .. })) = cause.downcast_ref() {
        return Some("`tramline topic describe TOPIC` shows where each partition starts and ends");
    }
    match cause.downcast_ref::<StartError>()? {
        StartError::NotLoopback { .. } => Some("with --insecure it is allowed all the same"),
        StartError::Bind { .. } => Some("choose another address, or any free port: --listen 127.0.0.1:0"),
        StartError::Foreign { .. } => {
            Some("give the broker a folder of its own: --data DIR; it is made when missing")
        }
        StartError::InUse { .. } => {
            Some("stop the other broker first, or give this one a folder of its own: --data DIR")
        }
        _ => None,
    }
}

fn of_call(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::Unreachable { .. } => Some(
            "is a broker running there? Start one with `tramline serve --data DIR`, or name another with -b HOST:PORT",
        ),
        CallError::NotKafka { .. } => {
            Some("name the address of a broker with -b HOST:PORT; TLS is not spoken yet")
        }
        CallError::BadAddress(_) => Some("name brokers as -b HOST:PORT[,HOST:PORT...]"),
        _ => None,
    }
}

fn of_code(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::UnknownTopicOrPartition => {
            Some("`tramline topic list` shows the topics there are, `tramline topic create NAME` makes one")
        }
        ErrorCode::KafkaStorageError => Some(
            "the broker could not write: is its disk full? It says more on its own stderr, and needs a restart then",
        ),
        ErrorCode::GroupIdNotFound => Some("`tramline group list` shows the groups there are"),
        ErrorCode::NonEmptyGroup => Some("stop its members first"),
        _ => None,
    }
}
