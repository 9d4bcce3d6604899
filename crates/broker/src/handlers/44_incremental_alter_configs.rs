//! IncrementalAlterConfigs (44), versions 0 to 1.
//!
//! Sets, removes, adds to and takes from single settings of topics; each resource for itself, all of its changes or
//! none. Lists alone can be added to (else 40). What the broker was told at its start stays: to set it is refused with 42.

use tramline_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use tramline_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use tramline_wire::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::admin::Refusal;
use crate::config_edit::{Answer, Edit, Edits, alter_each};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(IncrementalAlterConfigsRequest, 0..=1, handle);

async fn handle(
    context: Context,
    request: IncrementalAlterConfigsRequest,
) -> Result<IncrementalAlterConfigsResponse, String> {
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
    Ok(IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() })
}

fn edits(asked: AlterConfigsResource) -> Result<Edits, Refusal> {
    let edits = asked.configs.into_iter().map(edit).collect::<Result<_, _>>()?;
    Ok(Edits { replace: false, edits })
}

fn edit(config: AlterableConfig) -> Result<(String, Edit), Refusal> {
    let invalid = |what: &str| Refusal::new(ErrorCode::InvalidRequest, format!("{} {what}", config.name));
    let value =
        |value: &Option<Str>| value.as_ref().map(ToString::to_string).ok_or_else(|| invalid("has no value"));
    let edit = match config.config_operation {
        0 => Edit::Set(value(&config.value)?),
        1 => Edit::Remove,
        2 => Edit::Append(value(&config.value)?),
        3 => Edit::Subtract(value(&config.value)?),
        _ => return Err(invalid("is to be changed in a way that is not known")),
    };
    Ok((config.name.to_string(), edit))
}
