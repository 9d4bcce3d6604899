//! AlterConfigs (33), versions 0 to 2.
//!
//! The settings given become all the settings a topic has; the others go back to their defaults. Each resource for
//! itself. What the broker was told at its start stays: to set it is refused with 42.

use tramline_wire::ErrorCode;
use tramline_wire::messages::alter_configs_request::AlterConfigsResource;
use tramline_wire::messages::alter_configs_response::AlterConfigsResourceResponse;
use tramline_wire::messages::{AlterConfigsRequest, AlterConfigsResponse};

use crate::admin::Refusal;
use crate::config_edit::{Answer, Edit, Edits, alter_each};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(AlterConfigsRequest, 0..=2, handle);

async fn handle(context: Context, request: AlterConfigsRequest) -> Result<AlterConfigsResponse, String> {
    let edits_of =
        |asked: AlterConfigsResource| ((asked.resource_type, asked.resource_name.clone()), edits(asked));
    let asked = request.resources.into_iter().map(edits_of).collect();
    let answers = alter_each(&context.node, asked, request.validate_only).await;
    let row = |answer: Answer| AlterConfigsResourceResponse {
        error_code: answer.error_code,
        error_message: answer.error_message,
        resource_type: answer.resource.0,
        resource_name: answer.resource.1,
    };
    let responses = answers.into_iter().map(row).collect();
    Ok(AlterConfigsResponse { responses, ..AlterConfigsResponse::default() })
}

fn edits(asked: AlterConfigsResource) -> Result<Edits, Refusal> {
    let edit = |config: tramline_wire::messages::alter_configs_request::AlterableConfig| {
        let Some(value) = config.value else {
            return Err(Refusal::new(ErrorCode::InvalidRequest, format!("{} has no value", config.name)));
        };
        Ok((config.name.to_string(), Edit::Set(value.to_string())))
    };
    let edits = asked.configs.into_iter().map(edit).collect::<Result<_, _>>()?;
    Ok(Edits { replace: true, edits })
}
