//! What a member sends, and what it is answered.

use alloc::vec;
use core::time::Duration;

use tramline_wire::Str;
use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::leave_group_request::MemberIdentity;
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
    /// The group to find the coordinator of: [`find_coordinator`] makes the request.
    FindCoordinator(Str),
    Join(JoinGroupRequest),
    Sync(SyncGroupRequest),
    Heartbeat(HeartbeatRequest),
    /// Group and member: [`leave_group`] makes the request.
    Leave(Str, Str),
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

/// The question for a group's coordinator, in the form that this version has.
#[must_use]
pub fn find_coordinator(version: i16, group: Str) -> FindCoordinatorRequest {
    match version {
        ..4 => FindCoordinatorRequest { key: group, ..Default::default() },
        _ => FindCoordinatorRequest { coordinator_keys: vec![group], ..Default::default() },
    }
}

/// What an answer of any version says about this group's coordinator. One that says nothing about it says that there is
/// none now: node 0 of a message of defaults is nobody's coordinator.
#[must_use]
pub fn found_coordinator(group: &Str, response: FindCoordinatorResponse) -> Coordinator {
    const NOT_AVAILABLE: i16 = 15;
    let FindCoordinatorResponse { coordinators, error_code, node_id, host, port, .. } = response;
    // One key was asked about, so that a row without one is about it.
    let about_it = coordinators.into_iter().find(|row| row.key == *group || row.key.is_empty());
    about_it.unwrap_or_else(|| {
        let error_code = if error_code == 0 && host.is_empty() { NOT_AVAILABLE } else { error_code };
        Coordinator { key: group.clone(), node_id, host, port, error_code, ..Default::default() }
    })
}

/// A member's good-bye, in the form that this version has.
#[must_use]
pub fn leave_group(version: i16, group_id: Str, member_id: Str) -> LeaveGroupRequest {
    match version {
        ..3 => LeaveGroupRequest { group_id, member_id, ..Default::default() },
        _ => {
            let members = vec![MemberIdentity { member_id, ..Default::default() }];
            LeaveGroupRequest { group_id, members, ..Default::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramline_wire::{Message, encode_request};

    #[test]
    fn each_version_has_a_form_of_its_own_that_can_be_sent() {
        let group = || Str::from_static("g");
        for version in FindCoordinatorRequest::MIN_VERSION..=FindCoordinatorRequest::MAX_VERSION {
            let request = find_coordinator(version, group());
            encode_request(1, None, version, &request).expect("it has a form");
            assert_eq!(request.key.is_empty(), version >= 4);
        }
        for version in LeaveGroupRequest::MIN_VERSION..=LeaveGroupRequest::MAX_VERSION {
            let request = leave_group(version, group(), Str::from_static("m"));
            encode_request(1, None, version, &request).expect("it has a form");
            assert_eq!(request.members.len(), usize::from(version >= 3));
        }
    }
}
