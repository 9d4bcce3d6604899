//! What each error code means for each kind of request: one table, used by every machine of the client.
//!
//! The rows are those of Kafka's own clients, as the project's notes on the wire protocol tabulate them (read in
//! the sources of `Sender`, `FetchCollector`, `ConsumerCoordinator` and `AbstractCoordinator`). A code that a column does
//! not list has the column's [default](Operation::otherwise). Where this table says something else, it is for a reason:
//!
//! - **13 in every column** is no code that brokers send. It stands for "no answer" (the connection could not be made, broke,
//!   or took too long), so that this too is decided here. `kafka-clients` 4.4 counts it among the errors after which
//!   metadata is asked for, so producing refreshes where the notes only retry.
//! - **Produce, codes without a row**: what `kafka-clients` 4.4 calls retriable is retried, since its sender does that with
//!   every such error (found by asking the library for each of its codes: 14, 15, 16, 41, 51, 70, 71, 75, 78, 80, 83, 84,
//!   88, 89, 106, 122, 123 and 133). Everything else, codes unknown to us among them, is told to the caller.
//! - **Fetch and `ListOffsets`, 17, 35, 43, 76**: told, as Kafka's consumer does with every code it does not list. No time
//!   and no other leader changes them, and a reader that waits in silence is a reader that hangs.
//! - **`FindCoordinator`** has no column in the notes. Kafka's consumer gives up on what it does not call retriable; we ask
//!   again, since whoever waits has a time limit, except after the refusals that are final for a group or a client.
//! - **Metadata** has none either: a topic that is refused is told, one that is not there (yet) is asked for again.
//! - **`InitProducerId`** for a producer without transactions: what Kafka calls retriable is retried, the rest is final.

use tramline_wire::ErrorCode;
use tramline_wire::ErrorCode as E;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Records were to be written; the code of a partition.
    Produce,
    /// A producer id was asked for.
    InitProducerId,
    /// Records were to be read; the code of a partition or of the whole answer.
    Fetch,
    /// Where a log begins or ends, or where a time or an epoch lies in it.
    ListOffsets,
    /// What there is was asked for; the code of a topic.
    Metadata,
    /// Offsets were to be committed; the code of a partition.
    OffsetCommit,
    /// Committed offsets were asked for; the code of a partition or of the whole answer.
    OffsetFetch,
    /// The coordinator of a group was asked for.
    FindCoordinator,
    /// A member showed that it lives.
    Heartbeat,
    /// A member asked to join.
    JoinGroup,
    /// A member asked for its assignment.
    SyncGroup,
}

/// What an error asks of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask again after a backoff.
    Retry,
    /// The leader is probably elsewhere, or the topic not there yet: ask for metadata, then again after a backoff.
    Refresh,
    /// The coordinator is elsewhere: find it, then ask again.
    FindCoordinator,
    /// Asking again cannot help: tell whoever asked. Nothing else ends.
    Report,
    /// Nothing this producer or member sends can succeed any more: tell whoever asked, and everybody else.
    Fatal,
    /// Written before: success, though the offset is not told.
    AlreadyWritten,
    /// Too large as one batch: send it as two, or report it when it is one record.
    Split,
    /// The sequence does not follow. Just retry unless it is the oldest unacknowledged batch; then start a new epoch.
    OutOfOrder,
    /// The broker does not know this producer's state any more: start a new epoch.
    NewEpoch,
    /// The offset is not in the log: the reset policy decides.
    OutOfRange,
    /// The fetch session is over: the next fetch names everything again.
    NewSession,
    /// Join again under the member id that the answer carries.
    TakeMemberId,
    /// A rebalance has begun: join it. What is owned is kept.
    Rejoin,
    /// The generation is over, and with it all that was owned; join again under the same member id.
    LoseGeneration,
    /// The member is not known, and all that was owned is lost; join again as a new one.
    LoseMember,
    /// Another process goes on under this instance id: all that was owned is lost, and this member ends.
    Fenced,
}

impl Operation {
    /// Every operation, in the order of the columns.
    pub const ALL: [Self; 11] = [
        Self::Produce,
        Self::InitProducerId,
        Self::Fetch,
        Self::ListOffsets,
        Self::Metadata,
        Self::OffsetCommit,
        Self::OffsetFetch,
        Self::FindCoordinator,
        Self::Heartbeat,
        Self::JoinGroup,
        Self::SyncGroup,
    ];

    /// What is done about a code that has no row, or no cell in its row: also about one that nobody knows.
    #[must_use]
    pub const fn otherwise(self, code: ErrorCode) -> Action {
        match self {
            Self::Produce | Self::InitProducerId if code.is_retriable() => Action::Retry,
            Self::Produce | Self::OffsetCommit | Self::OffsetFetch => Action::Report,
            // Taken for something that passes: another node may serve it, or the same one later.
            Self::Fetch | Self::ListOffsets | Self::Metadata => Action::Refresh,
            Self::FindCoordinator => Action::Retry,
            Self::InitProducerId | Self::Heartbeat | Self::JoinGroup | Self::SyncGroup => Action::Fatal,
        }
    }
}

impl Action {
    /// Whether the same request goes out again, for whoever does nothing else about it.
    #[must_use]
    pub const fn asks_again(self) -> bool {
        matches!(self, Self::Retry | Self::Refresh | Self::FindCoordinator)
    }
}

/// The action for an error (any code but 0) in the answer to `operation`.
#[must_use]
pub const fn action(operation: Operation, code: ErrorCode) -> Action {
    let mut row = 0;
    while row < ROWS.len() {
        if ROWS[row].0.code() == code.code()
            && let Some(action) = ROWS[row].1[operation as usize]
        {
            return action;
        }
        row += 1;
    }
    operation.otherwise(code)
}

type Cell = Option<Action>;

/// No cell: the column's default.
const __: Cell = None;
const RETRY: Cell = Some(Action::Retry);
const META: Cell = Some(Action::Refresh);
const COORD: Cell = Some(Action::FindCoordinator);
const TELL: Cell = Some(Action::Report);
const FATAL: Cell = Some(Action::Fatal);
const SESS: Cell = Some(Action::NewSession);
const GEN: Cell = Some(Action::LoseGeneration);
const MEMB: Cell = Some(Action::LoseMember);
const JOIN: Cell = Some(Action::Rejoin);
const RANGE: Cell = Some(Action::OutOfRange);
const ID: Cell = Some(Action::TakeMemberId);
const FENCE: Cell = Some(Action::Fenced);

const fn produce(action: Action) -> [Cell; 11] {
    [Some(action), __, __, __, __, __, __, __, __, __, __]
}

#[rustfmt::skip]
const ROWS: &[(ErrorCode, [Cell; 11])] = &[
    //                                     produce init   fetch  list   meta   commit ofetch find   beat   join   sync
    (E::OffsetOutOfRange,                 [__,    __,    RANGE, __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::CorruptMessage,                   [RETRY, __,    TELL,  TELL,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::UnknownTopicOrPartition,          [META,  __,    META,  META,  __,    RETRY, TELL,  __,    __,    __,    __   ]),
    (E::LeaderNotAvailable,               [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::NotLeaderOrFollower,              [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::RequestTimedOut,                  [RETRY, __,    __,    __,    __,    COORD, __,    __,    __,    __,    __   ]),
    (E::ReplicaNotAvailable,              [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::MessageTooLarge,                  produce(Action::Split)),
    (E::OffsetMetadataTooLarge,           [__,    __,    __,    __,    __,    TELL,  __,    __,    __,    __,    __   ]),
    (E::NetworkException,                 [META,  RETRY, META,  META,  __,    COORD, COORD, RETRY, COORD, COORD, COORD]),
    (E::CoordinatorLoadInProgress,        [__,    __,    __,    __,    __,    RETRY, RETRY, __,    RETRY, RETRY, RETRY]),
    (E::CoordinatorNotAvailable,          [__,    __,    __,    __,    __,    COORD, COORD, __,    COORD, COORD, COORD]),
    (E::NotCoordinator,                   [__,    __,    __,    __,    __,    COORD, COORD, __,    COORD, COORD, COORD]),
    (E::InvalidTopicException,            [TELL,  __,    TELL,  TELL,  TELL,  __,    __,    __,    __,    __,    __   ]),
    (E::RecordListTooLarge,               produce(Action::Report)),
    (E::NotEnoughReplicas,                produce(Action::Retry)),
    (E::NotEnoughReplicasAfterAppend,     produce(Action::Retry)),
    (E::IllegalGeneration,                [__,    __,    __,    __,    __,    GEN,   __,    __,    GEN,   __,    GEN  ]),
    (E::InconsistentGroupProtocol,        [__,    __,    __,    __,    __,    FATAL, __,    __,    __,    FATAL, FATAL]),
    (E::InvalidGroupId,                   [__,    __,    __,    __,    __,    FATAL, __,    FATAL, __,    FATAL, FATAL]),
    (E::UnknownMemberId,                  [__,    __,    __,    __,    __,    MEMB,  __,    __,    MEMB,  MEMB,  MEMB ]),
    (E::InvalidSessionTimeout,            [__,    __,    __,    __,    __,    FATAL, __,    __,    __,    FATAL, FATAL]),
    (E::RebalanceInProgress,              [__,    __,    __,    __,    __,    JOIN,  __,    __,    JOIN,  RETRY, JOIN ]),
    (E::InvalidCommitOffsetSize,          [__,    __,    __,    __,    __,    TELL,  __,    __,    __,    __,    __   ]),
    (E::TopicAuthorizationFailed,         [TELL,  __,    TELL,  TELL,  TELL,  TELL,  TELL,  __,    FATAL, FATAL, FATAL]),
    (E::GroupAuthorizationFailed,         [__,    __,    TELL,  TELL,  __,    TELL,  TELL,  FATAL, FATAL, FATAL, FATAL]),
    (E::ClusterAuthorizationFailed,       [FATAL, FATAL, TELL,  TELL,  TELL,  TELL,  TELL,  FATAL, FATAL, FATAL, FATAL]),
    (E::InvalidTimestamp,                 produce(Action::Report)),
    (E::UnsupportedVersion,               [FATAL, FATAL, TELL,  TELL,  __,    __,    __,    FATAL, __,    __,    __   ]),
    (E::UnsupportedForMessageFormat,      [TELL,  __,    TELL,  TELL,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::OutOfOrderSequenceNumber,         produce(Action::OutOfOrder)),
    (E::DuplicateSequenceNumber,          produce(Action::AlreadyWritten)),
    (E::InvalidProducerEpoch,             produce(Action::NewEpoch)),
    (E::TransactionalIdAuthorizationFailed,
                                          [FATAL, FATAL, __,    __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::KafkaStorageError,                [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::UnknownProducerId,                produce(Action::NewEpoch)),
    (E::FetchSessionIdNotFound,           [__,    __,    SESS,  __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::InvalidFetchSessionEpoch,         [__,    __,    SESS,  __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::ListenerNotFound,                 [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::FencedLeaderEpoch,                [META,  __,    META,  META,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::UnknownLeaderEpoch,               [__,    __,    RETRY, RETRY, __,    __,    __,    __,    __,    __,    __   ]),
    (E::UnsupportedCompressionType,       [TELL,  __,    TELL,  TELL,  __,    __,    __,    __,    __,    __,    __   ]),
    (E::OffsetNotAvailable,               [__,    __,    RETRY, RETRY, __,    __,    __,    __,    __,    __,    __   ]),
    (E::MemberIdRequired,                 [__,    __,    __,    __,    __,    __,    __,    __,    __,    ID,    __   ]),
    (E::GroupMaxSizeReached,              [__,    __,    __,    __,    __,    FATAL, __,    __,    __,    FATAL, FATAL]),
    (E::FencedInstanceId,                 [__,    __,    __,    __,    __,    FENCE, __,    __,    FENCE, FENCE, FENCE]),
    (E::InvalidRecord,                    produce(Action::Report)),
    (E::UnstableOffsetCommit,             [__,    __,    __,    __,    __,    __,    RETRY, __,    __,    __,    __   ]),
    (E::ProducerFenced,                   [FATAL, FATAL, __,    __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::UnknownTopicId,                   [META,  __,    META,  META,  __,    __,    TELL,  __,    __,    __,    __   ]),
    (E::InconsistentTopicId,              [META,  __,    META,  META,  __,    __,    TELL,  __,    __,    __,    __   ]),
    (E::FetchSessionTopicIdError,         [__,    __,    SESS,  __,    __,    __,    __,    __,    __,    __,    __   ]),
    (E::FencedMemberEpoch,                [__,    __,    __,    __,    __,    __,    __,    __,    GEN,   __,    __   ]),
];

#[cfg(test)]
pub(crate) mod walk {
    //! What the tests of the machines share: every code there is and some that nobody knows, and what is expected of
    //! each.
    use super::*;

    /// Codes as lists, as the notes on the wire protocol have them.
    pub(crate) type Listed<'a> = &'a [(Action, &'a [i16])];

    pub(crate) fn every_code() -> impl Iterator<Item = ErrorCode> {
        let numbers = (-3..=200).chain([12_345, i16::MIN, i16::MAX]).filter(|number| *number != 0);
        numbers.map(ErrorCode::from)
    }

    /// Compares what a machine was seen to do about every code with the lists; a code in none is `otherwise`.
    pub(crate) fn check(listed: Listed<'_>, otherwise: Action, mut seen: impl FnMut(ErrorCode) -> Action) {
        for code in every_code() {
            let mut rows = listed.iter().filter(|(_, codes)| codes.contains(&code.code()));
            let expected = rows.next().map_or(otherwise, |(action, _)| *action);
            assert_eq!(rows.next(), None, "{code} is listed twice");
            assert_eq!(seen(code), expected, "{} {code}", code.code());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_has_two_rows_and_no_row_says_what_holds_without_it() {
        for (at, (code, cells)) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|(other, _)| other.code() < code.code()), "{code}: in order, once");
            assert!(cells.iter().any(Option::is_some), "{code}: an empty row");
            assert!(code.name().is_some());
        }
    }

    #[test]
    fn an_unknown_code_is_told_where_something_was_asked_for_retried_by_readers_and_final_for_members() {
        let unknown = ErrorCode::from(12_345);
        let actions = Operation::ALL.map(|operation| action(operation, unknown));
        use Action::{Fatal, Refresh, Report, Retry};
        let expected = [Report, Fatal, Refresh, Refresh, Refresh, Report, Report, Retry, Fatal, Fatal, Fatal];
        assert_eq!(actions, expected);
    }
}
