//! What a member tells its owner.

use alloc::vec::Vec;

use tramline_wire::{ErrorCode, Str, TopicPartition};

use crate::client::error_actions::{Action, Operation, action};
use crate::time::Instant;

/// Names one revocation, so that a late acknowledgement is never taken for one of a later revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevocationId(pub u64);

/// What happened to the membership.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// These partitions are ours from now on, in addition to those kept. Comes after every rebalance, also
    /// with nothing added.
    Assigned {
        /// The generation that assigned them.
        generation: i32,
        /// What was added.
        added: Vec<TopicPartition>,
    },
    /// These partitions have to be given up. They stay ours, and may be committed, until
    /// `Member::revocation_done(id)` is called or `deadline` passes; heartbeats go on meanwhile.
    Revoked {
        /// The name to acknowledge with.
        id: RevocationId,
        /// What is given up.
        partitions: Vec<TopicPartition>,
        /// When they stop being ours in any case.
        deadline: Instant,
    },
    /// These partitions are not ours any more and another member may own them already: stop at once, commit
    /// nothing. Names partitions of an unacknowledged revocation too, which is over by this.
    Lost {
        /// What was lost.
        partitions: Vec<TopicPartition>,
    },
    /// The partition counts of these topics are needed: call `Member::handle_metadata` with the topics that
    /// exist. The member waits for it when it leads an assignment.
    MetadataNeeded {
        /// The topics of the whole group when this member leads it, else its own.
        topics: Vec<Str>,
    },
    /// The member left, as asked by `Member::leave`.
    Left,
    /// The member can not go on; it sends nothing more. Partitions it owned were reported lost before.
    Failed(MemberError),
}

/// Why a member can not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The coordinator refused with a code that trying again can not change, for example 82
    /// FENCED_INSTANCE_ID (another process uses this instance id) or 30 GROUP_AUTHORIZATION_FAILED.
    #[error("the coordinator refused {request} with error code {code}")]
    Refused {
        /// Which request.
        request: &'static str,
        /// The Kafka error code.
        code: i16,
    },
    /// The coordinator chose an assignor that this member did not offer, or sent a message that does not fit
    /// the request.
    #[error("the coordinator answered {request} with something it can not answer: {detail}")]
    BrokenPeer {
        /// Which request.
        request: &'static str,
        /// What did not fit.
        detail: &'static str,
    },
    /// The subscription or an assignment is longer than the format can say.
    #[error("a message to the group is too large for its format")]
    TooLarge,
}

/// What a commit has to carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitContext {
    /// The group.
    pub group_id: Str,
    /// The member id given by the coordinator.
    pub member_id: Str,
    /// The generation.
    pub generation: i32,
    /// The instance id of a static member.
    pub instance_id: Option<Str>,
}

/// What a failed commit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitVerdict {
    /// Try the same commit again after a backoff; the coordinator is looked for when it has to be.
    Retry,
    /// A rebalance came between. Ownership is kept: commit what is still owned again, with the new context,
    /// once the rebalance is over.
    RetryAfterRebalance,
    /// The membership the commit was made in is over; the partitions are lost, the commit must not be repeated.
    Fenced,
    /// Trying again can not change it.
    Refused,
}

impl CommitVerdict {
    /// What a refusal with `code` means for commits of a group without members: the group must be empty, so errors of
    /// membership are final.
    #[must_use]
    pub fn without_membership(code: i16) -> Self {
        match action(Operation::OffsetCommit, ErrorCode::from(code)) {
            Action::Retry | Action::FindCoordinator => Self::Retry,
            Action::Rejoin => Self::RetryAfterRebalance,
            Action::LoseGeneration | Action::LoseMember | Action::Fenced => Self::Fenced,
            _ => Self::Refused,
        }
    }
}
