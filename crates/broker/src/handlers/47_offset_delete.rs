//! OffsetDelete (47), version 0.
//!
//! Removes committed offsets of topics that no live member reads (else 86), also those that are not there. A group
//! that is not known gets 69, one whose members are not consumers 68. Answered when the removal is durable.

use tramline_wire::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(OffsetDeleteRequest, 0..=0, handle);

async fn handle(context: Context, request: OffsetDeleteRequest) -> Result<OffsetDeleteResponse, String> {
    let topics = context.node.topics();
    ask_coordinator!(context, OffsetDelete, |machine, now, wall, client| {
        machine.handle_offset_delete(client, &request, |id| topics.partition(id).is_some());
    })
}
