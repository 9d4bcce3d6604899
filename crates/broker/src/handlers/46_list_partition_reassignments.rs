//! ListPartitionReassignments (46), version 0: with one node nothing ever moves.

use tramline_wire::messages::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ListPartitionReassignmentsRequest, 0..=0, handle);

async fn handle(
    _: Context,
    _: ListPartitionReassignmentsRequest,
) -> Result<ListPartitionReassignmentsResponse, String> {
    Ok(ListPartitionReassignmentsResponse::default())
}
