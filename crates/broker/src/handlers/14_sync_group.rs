//! SyncGroup (14), versions 0 to 5.
//!
//! Waits for the leader's assignments, and for their record to be durable.

use tramline_wire::messages::{SyncGroupRequest, SyncGroupResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(SyncGroupRequest, 0..=5, handle);

async fn handle(context: Context, request: SyncGroupRequest) -> Result<SyncGroupResponse, String> {
    ask_coordinator!(context, Sync, |machine, now, wall, client| machine
        .handle_sync(now, wall, client, &request))
}
