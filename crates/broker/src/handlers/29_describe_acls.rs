//! DescribeAcls (29), versions 1 to 3: there is no authorizer, which 54 says. Tools take it for "access lists are off".

use tramline_wire::messages::{DescribeAclsRequest, DescribeAclsResponse};

use crate::handlers::{NO_AUTHORIZER, SECURITY_DISABLED};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeAclsRequest, 1..=3, handle);

async fn handle(_: Context, _: DescribeAclsRequest) -> Result<DescribeAclsResponse, String> {
    Ok(DescribeAclsResponse {
        error_code: SECURITY_DISABLED,
        error_message: Some(NO_AUTHORIZER),
        ..DescribeAclsResponse::default()
    })
}
