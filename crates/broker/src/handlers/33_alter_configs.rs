//! AlterConfigs (33), versions 0 to 2.
//!
//! The settings given become all the settings a topic has; the others go back to their defaults. Each resource for
//! itself. Gap: topics only; what the broker is told at its start stays.

use tramline_wire::messages::alter_configs_request::AlterConfigsResource;
use tramline_wire::messages::alter_configs_response::AlterConfigsResourceResponse;
use tramline_wire::messages::{AlterConfigsRequest, AlterConfigsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::admin::Refusal;
use crate::config_edit::{Edit, Edits, alter, named_twice};
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(AlterConfigsRequest, 0..=2, handle);

async fn handle(context: Context, request: AlterConfigsRequest) -> Result<AlterConfigsResponse, String> {
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
