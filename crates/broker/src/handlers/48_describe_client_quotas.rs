//! DescribeClientQuotas (48), versions 0 to 1: there are none, an empty list and not null.

use tramline_wire::messages::{DescribeClientQuotasRequest, DescribeClientQuotasResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeClientQuotasRequest, 0..=1, handle);

async fn handle(_: Context, _: DescribeClientQuotasRequest) -> Result<DescribeClientQuotasResponse, String> {
    Ok(DescribeClientQuotasResponse { entries: Some(Vec::new()), ..DescribeClientQuotasResponse::default() })
}
