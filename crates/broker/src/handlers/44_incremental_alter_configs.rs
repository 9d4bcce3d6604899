//! IncrementalAlterConfigs (44), versions 0 to 1.
//!
//! Sets, removes, adds to and takes from single settings of topics; each resource for itself, all of its changes or
//! none. Lists alone can be added to (else 40). Gap: topics only; what the broker is told at its start stays.

use tramline_wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use tramline_wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use tramline_wire::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::admin::Refusal;
use crate::config_edit::{Edit, Edits, alter, named_twice};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(IncrementalAlterConfigsRequest, 0..=1, handle);

async fn handle(
    context: Context,
    request: IncrementalAlterConfigsRequest,
) -> Result<IncrementalAlterConfigsResponse, String> {
    let keys: Vec<(i8, Str)> =
        request.resources.iter().map(|asked| (asked.resource_type, asked.resource_name.clone())).collect();
    let twice = named_twice(&keys);
    let mut responses = Vec::with_capacity(keys.len());
    for (asked, key) in request.resources.into_iter().zip(&keys) {
        let altered = match edits(asked) {
            Ok(edits) => alter(&context.node, key, &twice, edits, request.validate_only).await,
            Err(refusal) => Err(refusal),
        };
        let refusal = altered.err();
        responses.push(AlterConfigsResourceResponse {
            error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
            error_message: refusal.map(|refusal| refusal.message.into()),
            resource_type: key.0,
            resource_name: key.1.clone(),
        });
    }
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
