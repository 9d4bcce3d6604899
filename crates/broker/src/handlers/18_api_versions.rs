//! ApiVersions (18), versions 0 to 4.
//!
//! Answers the table of `routes`. A version we do not know is answered with the oldest form, code 35 and the whole
//! table, so that the client can choose again. The software name and version a client gives are not judged.
//! No features are finalized: transactions and the newer group protocol are not served.

use tramline_wire::ErrorCode;
use tramline_wire::messages::{ApiVersionsRequest, ApiVersionsResponse};

use crate::routes::{self, Api, Context, api};

pub(crate) const API: Api = api!(ApiVersionsRequest, 0..=4, handle);

async fn handle(_: Context, _: ApiVersionsRequest) -> Result<ApiVersionsResponse, String> {
    Ok(ApiVersionsResponse { api_keys: routes::advertised(), ..ApiVersionsResponse::default() })
}

/// For a version that is not served.
pub(crate) fn unsupported() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: routes::advertised(),
        ..ApiVersionsResponse::default()
    }
}
