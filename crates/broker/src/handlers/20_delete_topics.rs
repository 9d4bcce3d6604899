//! DeleteTopics (20), versions 1 to 6.
//!
//! By name, from version 6 also by id. When the answer says 0 the topic is gone from every list and from the disk's
//! list of topics; fetches that waited for it are answered, and its committed offsets are removed.

use tramline_wire::messages::delete_topics_request::DeleteTopicState;
use tramline_wire::messages::delete_topics_response::DeletableTopicResult;
use tramline_wire::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use tramline_wire::{ErrorCode, Str, Uuid};

use crate::admin::Refusal;
use crate::node::Node;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DeleteTopicsRequest, 1..=6, handle);

async fn handle(context: Context, request: DeleteTopicsRequest) -> Result<DeleteTopicsResponse, String> {
    let by_name = request
        .topic_names
        .into_iter()
        .map(|name| DeleteTopicState { name: Some(name), ..DeleteTopicState::default() });
    let mut responses = Vec::new();
    for asked in request.topics.into_iter().chain(by_name) {
        responses.push(delete(&context.node, asked).await);
    }
    Ok(DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() })
}

async fn delete(node: &Node, asked: DeleteTopicState) -> DeletableTopicResult {
    let now = node.topics();
    let found = match &asked.name {
        Some(name) => now.by_name(name),
        None => now.by_id(&asked.topic_id),
    };
    let Some(topic) = found else {
        let code =
            if asked.name.is_some() { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::UnknownTopicId };
        return row(asked.name, asked.topic_id, Err(Refusal::new(code, "no such topic")));
    };
    let (name, id) = (topic.name.clone(), topic.id);
    let deleting = name.clone();
    let result = node.administer(move |admin| admin.delete(&deleting)).await;
    if result.is_ok() {
        node.groups.topic_deleted(&name).await;
    }
    row(Some(name), id, result)
}

fn row(name: Option<Str>, topic_id: Uuid, result: Result<(), Refusal>) -> DeletableTopicResult {
    let refusal = result.err();
    DeletableTopicResult {
        name,
        topic_id,
        error_code: refusal.as_ref().map_or(0, |refusal| refusal.code.code()),
        error_message: refusal.map(|refusal| refusal.message.into()),
    }
}
