//! DescribeUserScramCredentials (50), version 0: nobody has any. Whoever is asked for by name is 91, as in Kafka.

use tramline_wire::ErrorCode;
use tramline_wire::messages::describe_user_scram_credentials_request::UserName;
use tramline_wire::messages::describe_user_scram_credentials_response::DescribeUserScramCredentialsResult;
use tramline_wire::messages::{DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeUserScramCredentialsRequest, 0..=0, handle);

async fn handle(
    _: Context,
    request: DescribeUserScramCredentialsRequest,
) -> Result<DescribeUserScramCredentialsResponse, String> {
    let unknown = |user: UserName| DescribeUserScramCredentialsResult {
        user: user.name,
        error_code: ErrorCode::ResourceNotFound.code(),
        error_message: Some("this broker keeps no SCRAM credentials".into()),
        ..DescribeUserScramCredentialsResult::default()
    };
    let results = request.users.unwrap_or_default().into_iter().map(unknown).collect();
    Ok(DescribeUserScramCredentialsResponse { results, ..DescribeUserScramCredentialsResponse::default() })
}
