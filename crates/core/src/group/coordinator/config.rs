//! What the coordinator can be told, and who is asking.

use core::time::Duration;

use tramline_wire::Str;

/// The longest id of a group, in bytes: it is written with each of its offsets.
pub(super) const MAX_GROUP_ID: usize = 4096;
/// What the records of one commit may take, in bytes: they are written as one batch.
pub(super) const MAX_COMMIT_BYTES: usize = 16 << 20;

/// Limits and delays of the coordinator. [`Config::default`] is right for an embedded, single-node broker.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shortest session timeout a member may ask for (Kafka: `group.min.session.timeout.ms`; 6 s).
    pub min_session_timeout: Duration,
    /// The longest session timeout a member may ask for (30 minutes).
    pub max_session_timeout: Duration,
    /// The most members one group may have (unlimited).
    pub max_group_size: usize,
    /// How long the first join of an empty group waits for others. Zero, unlike Kafka's 3 s: one process
    /// rarely starts many members, and every first join would pay for it.
    pub initial_rebalance_delay: Duration,
    /// How long a new member's first join may wait before it is taken for gone (5 minutes).
    pub new_member_join_timeout: Duration,
    /// The longest metadata string of a commit, in bytes (4096).
    pub max_offset_metadata: usize,
    /// What groups, members and offsets may take together, in bytes, about (256 MiB). Who wants more is refused; who
    /// goes on with what it has is not.
    pub max_bytes: usize,
    /// How long offsets of an empty group are kept (7 days).
    pub offsets_retention: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_session_timeout: Duration::from_secs(6),
            max_session_timeout: Duration::from_secs(1_800),
            max_group_size: usize::MAX,
            initial_rebalance_delay: Duration::ZERO,
            new_member_join_timeout: Duration::from_secs(300),
            max_offset_metadata: 4_096,
            max_bytes: 256 << 20,
            offsets_retention: Duration::from_secs(7 * 24 * 3_600),
        }
    }
}

/// Names one request of the driver's; the reply carries it. Never reused while a reply is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Who sent a request, and how it wants to be answered.
#[derive(Clone, Debug)]
pub struct Client {
    /// The `client_id` of the request header; empty when null.
    pub id: Str,
    /// The peer's address as Kafka prints it, for example `/127.0.0.1`.
    pub host: Str,
    /// The API version of the request; the reply is made for this version.
    pub version: i16,
    /// The name of this request.
    pub token: Token,
}
