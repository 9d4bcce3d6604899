//! ListGroups (16), versions 0 to 5.
//!
//! Filters by state from version 4, by type from version 5.

use tramline_wire::messages::{ListGroupsRequest, ListGroupsResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ListGroupsRequest, 0..=5, handle);

async fn handle(context: Context, request: ListGroupsRequest) -> Result<ListGroupsResponse, String> {
    ask_coordinator!(context, ListGroups, |machine, now, wall, client| machine
        .handle_list_groups(client, &request))
}
