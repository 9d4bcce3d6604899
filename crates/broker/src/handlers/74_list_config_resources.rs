//! ListConfigResources (74), versions 0 to 1.
//!
//! The topics and the broker that have settings. Version 0 asks for client metrics only, of which there are none.

use tramline_wire::Str;
use tramline_wire::messages::list_config_resources_response::ConfigResource;
use tramline_wire::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ListConfigResourcesRequest, 0..=1, handle);

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

async fn handle(
    context: Context,
    request: ListConfigResourcesRequest,
) -> Result<ListConfigResourcesResponse, String> {
    let types = &request.resource_types;
    let wanted = |kind: i8| context.version >= 1 && (types.is_empty() || types.contains(&kind));
    let now = context.node.topics();
    let mut config_resources = Vec::new();
    if wanted(TOPIC) {
        config_resources.extend(
            now.iter()
                .map(|topic| ConfigResource { resource_name: topic.name.clone(), resource_type: TOPIC }),
        );
    }
    if wanted(BROKER) {
        let resource_name = Str::from(context.node.node_id.to_string());
        config_resources.push(ConfigResource { resource_name, resource_type: BROKER });
    }
    Ok(ListConfigResourcesResponse { config_resources, ..ListConfigResourcesResponse::default() })
}
