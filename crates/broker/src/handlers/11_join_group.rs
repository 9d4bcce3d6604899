//! JoinGroup (11), versions 0 to 9.
//!
//! Waits until the group has all its members or the rebalance timeout is over. Advertised and served from 0.
//! Gap: no regular-expression or other newer group protocol.

use tramline_wire::messages::{JoinGroupRequest, JoinGroupResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(JoinGroupRequest, 0..=9, handle);

async fn handle(context: Context, request: JoinGroupRequest) -> Result<JoinGroupResponse, String> {
    ask_coordinator!(context, Join, |machine, now, wall, client| machine
        .handle_join(now, wall, client, &request))
}
