//! Why an admin call, or one item of it, did not succeed.

use tramline_wire::{ErrorCode, Str};

use crate::error::CallError;

/// An admin call has no usable answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The cluster could not be asked.
    #[error(transparent)]
    Call(CallError),
    /// The whole request was refused.
    #[error(transparent)]
    Refused(Refusal),
    /// The answer lacks what was asked for: a fault of the broker.
    #[error("the broker's answer says nothing about {0}")]
    Missing(String),
}

impl AdminError {
    /// Whether the same call can succeed later without any change by the caller.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Call(error) => error.is_retriable(),
            Self::Refused(refusal) => refusal.code.is_retriable(),
            Self::Missing(_) => false,
        }
    }
}

/// A broker declined one item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub struct Refusal {
    /// Kafka's error.
    pub code: ErrorCode,
    /// What the broker said about it, if anything.
    pub message: Option<Str>,
}

impl Refusal {
    pub(super) const fn new(code: ErrorCode, message: Option<Str>) -> Self {
        Self { code, message }
    }

    /// The outcome of an item by its code.
    pub(super) fn check(code: i16, message: Option<&Str>) -> Result<(), Self> {
        match ErrorCode::from(code) {
            code if code.is_ok() => Ok(()),
            code => Err(Self::new(code, message.cloned())),
        }
    }

    fn text(&self) -> String {
        match &self.message {
            Some(message) if !message.is_empty() => format!("{message} ({})", self.code),
            _ => match meaning(self.code) {
                Some(meaning) => format!("{meaning} ({})", self.code),
                None => self.code.to_string(),
            },
        }
    }
}

/// What the codes say that brokers send without a message of their own.
const fn meaning(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::UnknownTopicOrPartition => "no such topic or partition",
        ErrorCode::GroupIdNotFound => "no such group",
        ErrorCode::NonEmptyGroup => "the group has live members",
        ErrorCode::InvalidGroupId => "not a group's name",
        ErrorCode::TopicAlreadyExists => "the topic exists",
        ErrorCode::InvalidTopicException => "not a topic's name",
        ErrorCode::TopicAuthorizationFailed
        | ErrorCode::GroupAuthorizationFailed
        | ErrorCode::ClusterAuthorizationFailed => "not allowed",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_a_message_says_what_its_code_means() {
        let text = |code, message: Option<&str>| Refusal::new(code, message.map(Str::from)).to_string();
        assert_eq!(text(ErrorCode::NonEmptyGroup, None), "the group has live members (NON_EMPTY_GROUP)");
        assert_eq!(text(ErrorCode::NonEmptyGroup, Some("busy")), "busy (NON_EMPTY_GROUP)");
        assert_eq!(text(ErrorCode::CorruptMessage, None), "CORRUPT_MESSAGE");
    }
}
