//! DeleteAcls (31), versions 1 to 3: there is no authorizer, which 54 says. Tools take it for "access lists are off".

use tramline_wire::messages::delete_acls_response::DeleteAclsFilterResult;
use tramline_wire::messages::{DeleteAclsRequest, DeleteAclsResponse};

use crate::handlers::{NO_AUTHORIZER, SECURITY_DISABLED};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DeleteAclsRequest, 1..=3, handle);

async fn handle(_: Context, request: DeleteAclsRequest) -> Result<DeleteAclsResponse, String> {
    let refused = |_| DeleteAclsFilterResult {
        error_code: SECURITY_DISABLED,
        error_message: Some(NO_AUTHORIZER),
        ..DeleteAclsFilterResult::default()
    };
    let filter_results = request.filters.iter().map(refused).collect();
    Ok(DeleteAclsResponse { filter_results, ..DeleteAclsResponse::default() })
}
