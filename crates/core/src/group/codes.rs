//! The Kafka error codes that group messages carry, by name.

pub(crate) const NONE: i16 = 0;
pub(crate) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
pub(crate) const REQUEST_TIMED_OUT: i16 = 7;
pub(crate) const OFFSET_METADATA_TOO_LARGE: i16 = 12;
pub(crate) const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
pub(crate) const COORDINATOR_NOT_AVAILABLE: i16 = 15;
pub(crate) const NOT_COORDINATOR: i16 = 16;
pub(crate) const ILLEGAL_GENERATION: i16 = 22;
pub(crate) const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
pub(crate) const INVALID_GROUP_ID: i16 = 24;
pub(crate) const UNKNOWN_MEMBER_ID: i16 = 25;
pub(crate) const INVALID_SESSION_TIMEOUT: i16 = 26;
pub(crate) const REBALANCE_IN_PROGRESS: i16 = 27;
pub(crate) const GROUP_AUTHORIZATION_FAILED: i16 = 30;
pub(crate) const INVALID_REQUEST: i16 = 42;
pub(crate) const NON_EMPTY_GROUP: i16 = 68;
pub(crate) const GROUP_ID_NOT_FOUND: i16 = 69;
pub(crate) const MEMBER_ID_REQUIRED: i16 = 79;
pub(crate) const GROUP_MAX_SIZE_REACHED: i16 = 81;
pub(crate) const FENCED_INSTANCE_ID: i16 = 82;
pub(crate) const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;
