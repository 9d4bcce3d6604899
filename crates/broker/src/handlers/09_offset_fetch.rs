//! OffsetFetch (9), versions 1 to 9.
//!
//! Only offsets whose record is durable. A partition without a commit is -1 without an error.
//! Gap: no pending transactional offsets, so `require_stable` changes nothing.

use tramline_wire::messages::{OffsetFetchRequest, OffsetFetchResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(OffsetFetchRequest, 1..=9, handle);

async fn handle(context: Context, request: OffsetFetchRequest) -> Result<OffsetFetchResponse, String> {
    ask_coordinator!(context, OffsetFetch, |machine, now, wall, client| machine
        .handle_offset_fetch(client, &request))
}
