//! The Kafka error codes that group messages carry, as the numbers their fields hold.

use tramline_wire::ErrorCode;

pub(crate) const NONE: i16 = ErrorCode::None.code();
pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = ErrorCode::UnknownTopicOrPartition.code();
pub(crate) const OFFSET_METADATA_TOO_LARGE: i16 = ErrorCode::OffsetMetadataTooLarge.code();
pub(crate) const INVALID_COMMIT_OFFSET_SIZE: i16 = ErrorCode::InvalidCommitOffsetSize.code();
pub(crate) const COORDINATOR_LOAD_IN_PROGRESS: i16 = ErrorCode::CoordinatorLoadInProgress.code();
pub(crate) const COORDINATOR_NOT_AVAILABLE: i16 = ErrorCode::CoordinatorNotAvailable.code();
pub(crate) const NOT_COORDINATOR: i16 = ErrorCode::NotCoordinator.code();
pub(crate) const ILLEGAL_GENERATION: i16 = ErrorCode::IllegalGeneration.code();
pub(crate) const INCONSISTENT_GROUP_PROTOCOL: i16 = ErrorCode::InconsistentGroupProtocol.code();
pub(crate) const INVALID_GROUP_ID: i16 = ErrorCode::InvalidGroupId.code();
pub(crate) const UNKNOWN_MEMBER_ID: i16 = ErrorCode::UnknownMemberId.code();
pub(crate) const INVALID_SESSION_TIMEOUT: i16 = ErrorCode::InvalidSessionTimeout.code();
pub(crate) const REBALANCE_IN_PROGRESS: i16 = ErrorCode::RebalanceInProgress.code();
pub(crate) const INVALID_REQUEST: i16 = ErrorCode::InvalidRequest.code();
pub(crate) const NON_EMPTY_GROUP: i16 = ErrorCode::NonEmptyGroup.code();
pub(crate) const GROUP_SUBSCRIBED_TO_TOPIC: i16 = ErrorCode::GroupSubscribedToTopic.code();
pub(crate) const GROUP_ID_NOT_FOUND: i16 = ErrorCode::GroupIdNotFound.code();
pub(crate) const MEMBER_ID_REQUIRED: i16 = ErrorCode::MemberIdRequired.code();
pub(crate) const GROUP_MAX_SIZE_REACHED: i16 = ErrorCode::GroupMaxSizeReached.code();
pub(crate) const FENCED_INSTANCE_ID: i16 = ErrorCode::FencedInstanceId.code();
