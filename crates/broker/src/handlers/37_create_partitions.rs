//! CreatePartitions (37), versions 0 to 3.
//!
//! One result per topic. A count not above the present one gets 37. New partitions start empty at offset 0.

use tramline_wire::ErrorCode;
use tramline_wire::messages::create_partitions_response::CreatePartitionsTopicResult;
use tramline_wire::messages::{CreatePartitionsRequest, CreatePartitionsResponse};

use crate::admin::Refusal;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(CreatePartitionsRequest, 0..=3, handle);

async fn handle(
    context: Context,
    request: CreatePartitionsRequest,
) -> Result<CreatePartitionsResponse, String> {
    let node = &context.node;
    let validate_only = request.validate_only;
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let (name, count) = (topic.name.clone(), topic.count);
        let elsewhere = topic
            .assignments
            .is_some_and(|rows| rows.iter().any(|assignment| assignment.broker_ids != [node.node_id]));
        let grown = if elsewhere {
            Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, "partitions live on this node"))
        } else {
            node.administer(move |admin| admin.grow(&name, count, validate_only)).await
        };
        let refusal = grown.err();
        results.push(CreatePartitionsTopicResult {
            name: topic.name,
            error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
            error_message: refusal.map(|refusal| refusal.message.into()),
        });
    }
    Ok(CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() })
}
