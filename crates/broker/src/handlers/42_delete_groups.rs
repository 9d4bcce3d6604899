//! DeleteGroups (42), versions 0 to 2.
//!
//! Only groups without members; their offsets go with them.

use tramline_wire::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DeleteGroupsRequest, 0..=2, handle);

async fn handle(context: Context, request: DeleteGroupsRequest) -> Result<DeleteGroupsResponse, String> {
    ask_coordinator!(context, DeleteGroups, |machine, now, wall, client| machine
        .handle_delete_groups(client, &request))
}
