//! DescribeGroups (15), versions 0 to 6.
//!
//! Gap: authorized operations are never given.

use tramline_wire::messages::{DescribeGroupsRequest, DescribeGroupsResponse};

use crate::handlers::ask_coordinator;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeGroupsRequest, 0..=6, handle);

async fn handle(context: Context, request: DescribeGroupsRequest) -> Result<DescribeGroupsResponse, String> {
    ask_coordinator!(context, DescribeGroups, |machine, now, wall, client| machine
        .handle_describe_groups(client, &request))
}
