//! FindCoordinator (10), versions 0 to 5.
//!
//! This node, for groups and transactions of any name; no topic has to be created first. From version 4 several
//! keys at once. Gap: share groups, like any other key type, get 42.

use tramline_wire::messages::find_coordinator_response::Coordinator;
use tramline_wire::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use tramline_wire::{ErrorCode, Str};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(FindCoordinatorRequest, 0..=5, handle);

/// The first version that asks for several keys.
const BATCHED_FROM: i16 = 4;

async fn handle(
    context: Context,
    request: FindCoordinatorRequest,
) -> Result<FindCoordinatorResponse, String> {
    let node = &context.node;
    let address = node.advertised();
    let known = matches!(request.key_type, 0 | 1);
    let find = |key: Str| Coordinator {
        key,
        node_id: if known { node.node_id } else { -1 },
        host: if known { address.host.clone() } else { Str::new() },
        port: if known { address.port } else { -1 },
        error_code: if known { 0 } else { ErrorCode::InvalidRequest.code() },
        ..Coordinator::default()
    };
    if context.version >= BATCHED_FROM {
        let coordinators = request.coordinator_keys.into_iter().map(find).collect();
        return Ok(FindCoordinatorResponse { coordinators, ..FindCoordinatorResponse::default() });
    }
    let found = find(request.key);
    Ok(FindCoordinatorResponse {
        error_code: found.error_code,
        node_id: found.node_id,
        host: found.host,
        port: found.port,
        ..FindCoordinatorResponse::default()
    })
}
