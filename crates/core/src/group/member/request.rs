//! What a member sends, and what it is answered.

use core::time::Duration;

use tramline_wire::Str;
use tramline_wire::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};

/// Names one request of the member's; its answer carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Where the coordinator of the group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorNode {
    /// Its node id.
    pub node_id: i32,
    /// Its host, as advertised.
    pub host: Str,
    /// Its port.
    pub port: u16,
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct MemberRequest {
    /// The name to answer with.
    pub id: RequestId,
    /// Where to send it; `None` means any broker.
    pub to: Option<CoordinatorNode>,
    /// How long to wait for the answer; afterwards report `Disconnected`.
    pub timeout: Duration,
    /// Send it past whatever is still unanswered on the coordinator's connection (give that connection up and
    /// open another): a parked Join would hold it back.
    pub overtakes: bool,
    /// The message.
    pub body: RequestBody,
}

/// The messages a member sends.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum RequestBody {
    FindCoordinator(FindCoordinatorRequest),
    Join(JoinGroupRequest),
    Sync(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveGroupRequest),
}

/// The messages a member is answered with.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ResponseBody {
    FindCoordinator(FindCoordinatorResponse),
    Join(JoinGroupResponse),
    Sync(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    Leave(LeaveGroupResponse),
}

/// There was no answer: the connection could not be made, broke, or the time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection broke before the answer came")]
pub struct Disconnected;

/// The API versions that the coordinator speaks and that requests are made for. The default suits every
/// broker since Kafka 2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// FindCoordinator: 4 and above ask for a list of keys.
    pub find_coordinator: i16,
    /// LeaveGroup: 3 and above carry a list of members.
    pub leave_group: i16,
}

impl Default for Versions {
    fn default() -> Self {
        Self { find_coordinator: 4, leave_group: 3 }
    }
}
