//! CreateAcls (30), versions 1 to 3: there is no authorizer, which 54 says. Tools take it for "access lists are off".

use tramline_wire::messages::create_acls_response::AclCreationResult;
use tramline_wire::messages::{CreateAclsRequest, CreateAclsResponse};

use crate::handlers::{NO_AUTHORIZER, SECURITY_DISABLED};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(CreateAclsRequest, 1..=3, handle);

async fn handle(_: Context, request: CreateAclsRequest) -> Result<CreateAclsResponse, String> {
    let refused = |_| AclCreationResult { error_code: SECURITY_DISABLED, error_message: Some(NO_AUTHORIZER) };
    let results = request.creations.iter().map(refused).collect();
    Ok(CreateAclsResponse { results, ..CreateAclsResponse::default() })
}
