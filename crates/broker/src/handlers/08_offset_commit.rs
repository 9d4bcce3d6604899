//! OffsetCommit (8), versions 2 to 9.
//!
//! Answered after the barrier of the commit, before which the data below the committed offsets was made durable:
//! no power cut leaves a commit above the end of its log. Partitions that do not exist get 3, the others are
//! committed all the same. `retention_time_ms` is the machine's business.

use tramline_wire::messages::{OffsetCommitRequest, OffsetCommitResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(OffsetCommitRequest, 2..=9, handle);

async fn handle(context: Context, request: OffsetCommitRequest) -> Result<OffsetCommitResponse, String> {
    let topics = context.node.topics();
    ask_coordinator!(context, OffsetCommit, |machine, now, wall, client| {
        machine.handle_offset_commit(now, wall, client, &request, |id| topics.partition(id).is_some());
    })
}
