//! Heartbeat (12), versions 0 to 4.
//!
//! Answered at once; 27 tells a member to join again.

use tramline_wire::messages::{HeartbeatRequest, HeartbeatResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(HeartbeatRequest, 0..=4, handle);

async fn handle(context: Context, request: HeartbeatRequest) -> Result<HeartbeatResponse, String> {
    ask_coordinator!(context, Heartbeat, |machine, now, wall, client| machine
        .handle_heartbeat(now, client, &request))
}
