//! How a member behaves, and what it is made of.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use tramline_wire::Str;

use crate::group::assignor::Assignor;

/// What a member needs to know about itself.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The group to be a member of.
    pub group_id: Str,
    /// A name that survives restarts makes a static member: it does not leave at close, and a restart within
    /// the session timeout causes no rebalance.
    pub instance_id: Option<Str>,
    /// How long the coordinator keeps a silent member (45 s). Shorter finds dead members sooner and
    /// rebalances for short stalls.
    pub session_timeout: Duration,
    /// How long members get to finish their work and rejoin when a rebalance begins (60 s). Should be longer
    /// than the session timeout: a coordinator that is not heard of for this long may have gone on without us.
    pub rebalance_timeout: Duration,
    /// The time between heartbeats (3 s); a third of the session timeout at most.
    pub heartbeat_interval: Duration,
    /// The assignors offered, best first. The member is cooperative when all of them are.
    pub assignors: Vec<Assignor>,
    /// How long an answer may take, when it is not a Join (30 s).
    pub request_timeout: Duration,
    /// The first wait before a retry (100 ms), doubled up to `retry_backoff_max`, a fifth more or less.
    pub retry_backoff: Duration,
    /// The longest wait before a retry (1 s).
    pub retry_backoff_max: Duration,
    /// How much of the rebalance timeout is kept for the Join itself when a revocation is held open. The
    /// default, `None`, keeps one heartbeat interval and a tenth, but never more than half.
    pub revocation_margin: Option<Duration>,
    /// The rack, told to assignors.
    pub rack: Option<Str>,
}

impl MemberConfig {
    /// A dynamic, cooperative-sticky member of `group_id` with Kafka's timeouts.
    #[must_use]
    pub fn new(group_id: impl Into<Str>) -> Self {
        Self {
            group_id: group_id.into(),
            instance_id: None,
            session_timeout: Duration::from_secs(45),
            rebalance_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(3),
            assignors: vec![Assignor::CooperativeSticky],
            request_timeout: Duration::from_secs(30),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            revocation_margin: None,
            rack: None,
        }
    }

    /// Whether partitions are handed over one by one (every assignor can) or all at once.
    #[must_use]
    pub fn is_cooperative(&self) -> bool {
        self.assignors.iter().all(|assignor| assignor.is_cooperative())
    }

    /// How long a revocation may be held open, from the moment it is learned.
    #[must_use]
    pub fn revocation_window(&self) -> Duration {
        let half = self.rebalance_timeout / 2;
        let margin = self.revocation_margin.unwrap_or(self.heartbeat_interval + self.rebalance_timeout / 10);
        self.rebalance_timeout.saturating_sub(margin).max(half)
    }
}
