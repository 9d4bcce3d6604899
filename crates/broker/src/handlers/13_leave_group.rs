//! LeaveGroup (13), versions 0 to 5.
//!
//! From version 3 several members at once, also static ones by their instance id.

use tramline_wire::messages::{LeaveGroupRequest, LeaveGroupResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(LeaveGroupRequest, 0..=5, handle);

async fn handle(context: Context, request: LeaveGroupRequest) -> Result<LeaveGroupResponse, String> {
    ask_coordinator!(context, Leave, |machine, now, wall, client| machine
        .handle_leave(now, wall, client, &request))
}
