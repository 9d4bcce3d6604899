//! The table of APIs: which are served, in which versions, by whom. `ApiVersions` answers from the same table.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tramline_wire::messages::ApiVersionsRequest;
use tramline_wire::messages::api_versions_response::ApiVersion;
use tramline_wire::{ApiKey, Reader, Request, Str, decode_request_header, encode_response};

use crate::handlers;
use crate::node::Node;

/// What goes back.
#[derive(Debug)]
pub(crate) enum Reply {
    Frame(Vec<Bytes>),
    /// No bytes at all: what `acks=0` asks for.
    Nothing,
    Close(String),
}

pub(crate) type Pending = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A frame as it came in.
pub(crate) struct Call {
    pub(crate) node: Arc<Node>,
    pub(crate) peer: SocketAddr,
    pub(crate) frame: Bytes,
}

/// A request whose header was read.
pub(crate) struct Envelope {
    pub(crate) context: Context,
    pub(crate) correlation_id: i32,
    body: Reader,
}

/// Who asks, and in which version.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) node: Arc<Node>,
    pub(crate) peer: SocketAddr,
    pub(crate) client_id: Str,
    pub(crate) version: i16,
}

/// How far a request has come.
pub(crate) enum Started {
    /// It runs when the future is polled.
    Plain(Pending),
    /// The first future has put it in its place behind its forerunners; the second is its answer.
    Ordered(Pin<Box<dyn Future<Output = Pending> + Send>>),
}

/// One API of the table.
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    /// The versions advertised.
    pub(crate) min: i16,
    pub(crate) max: i16,
    /// Below it the connection is closed: advertised for clients that conclude something from it, served to nobody.
    pub(crate) served_from: i16,
    pub(crate) start: fn(Envelope) -> Started,
}

/// Declares an API whose requests are answered one after the other.
macro_rules! api {
    ($request:ty, $min:literal ..= $max:literal, $handle:path) => {
        $crate::routes::Api {
            key: <$request as tramline_wire::Request>::KEY,
            min: $min,
            max: $max,
            served_from: $min,
            start: |envelope| {
                $crate::routes::Started::Plain(Box::pin($crate::routes::respond::<$request, _, _>(
                    envelope, $handle,
                )))
            },
        }
    };
}
pub(crate) use api;

/// Every API that is served.
pub(crate) const APIS: &[Api] = &[
    handlers::produce::API,
    handlers::fetch::API,
    handlers::list_offsets::API,
    handlers::metadata::API,
    handlers::offset_commit::API,
    handlers::offset_fetch::API,
    handlers::find_coordinator::API,
    handlers::join_group::API,
    handlers::heartbeat::API,
    handlers::leave_group::API,
    handlers::sync_group::API,
    handlers::describe_groups::API,
    handlers::list_groups::API,
    handlers::api_versions::API,
    handlers::create_topics::API,
    handlers::delete_topics::API,
    handlers::delete_records::API,
    handlers::init_producer_id::API,
    handlers::offset_for_leader_epoch::API,
    handlers::describe_acls::API,
    handlers::create_acls::API,
    handlers::delete_acls::API,
    handlers::describe_configs::API,
    handlers::alter_configs::API,
    handlers::describe_log_dirs::API,
    handlers::create_partitions::API,
    handlers::delete_groups::API,
    handlers::elect_leaders::API,
    handlers::incremental_alter_configs::API,
    handlers::alter_partition_reassignments::API,
    handlers::list_partition_reassignments::API,
    handlers::offset_delete::API,
    handlers::describe_client_quotas::API,
    handlers::describe_user_scram_credentials::API,
    handlers::describe_quorum::API,
    handlers::describe_cluster::API,
    handlers::describe_producers::API,
    handlers::describe_transactions::API,
    handlers::list_transactions::API,
    handlers::list_config_resources::API,
    handlers::describe_topic_partitions::API,
];

/// The table as `ApiVersions` gives it.
pub(crate) fn advertised() -> Vec<ApiVersion> {
    let row = |api: &Api| ApiVersion { api_key: api.key.into(), min_version: api.min, max_version: api.max };
    APIS.iter().map(row).collect()
}

/// Whether requests of this frame's API may follow each other unanswered. Looks at the first bytes only.
pub(crate) fn is_ordered(frame: &[u8]) -> bool {
    frame.first_chunk::<2>().is_some_and(|key| i16::from_be_bytes(*key) == i16::from(ApiKey::Produce))
}

/// Finds who serves the request. Whatever cannot be served closes the connection, except `ApiVersions`.
pub(crate) fn start(call: Call) -> Started {
    let Some((key, version, correlation_id)) = first_fields(&call.frame) else {
        return close("a frame shorter than a request header".to_owned());
    };
    let Some(api) = APIS.iter().find(|api| i16::from(api.key) == key) else {
        return close(format!("API key {key}, which is not served"));
    };
    if version < api.served_from || version > api.max {
        if api.key == ApiKey::ApiVersions {
            return unknown_api_versions(correlation_id);
        }
        return close(format!("{} version {version}, which is not served", api.key));
    }
    match decode_request_header(call.frame) {
        Ok((header, body)) => {
            let context = Context {
                node: call.node,
                peer: call.peer,
                client_id: header.client_id.unwrap_or_default(),
                version,
            };
            (api.start)(Envelope { context, correlation_id, body })
        }
        Err(error) => close(format!("a request header of {} that does not decode: {error}", api.key)),
    }
}

fn first_fields(frame: &[u8]) -> Option<(i16, i16, i32)> {
    let [k0, k1, v0, v1, c0, c1, c2, c3] = *frame.first_chunk::<8>()?;
    Some((i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1]), i32::from_be_bytes([c0, c1, c2, c3])))
}

fn close(reason: String) -> Started {
    Started::Plain(ready(Reply::Close(reason)))
}

/// A client newer than us learns from the oldest form of the answer what it can speak.
fn unknown_api_versions(correlation_id: i32) -> Started {
    let response = handlers::api_versions::unsupported();
    Started::Plain(ready(frame::<ApiVersionsRequest>(correlation_id, 0, &response)))
}

pub(crate) fn ready(reply: Reply) -> Pending {
    Box::pin(std::future::ready(reply))
}

/// The answer as a frame. One that cannot be encoded is a bug of ours and ends the connection.
pub(crate) fn frame<R: Request>(correlation_id: i32, version: i16, response: &R::Response) -> Reply {
    match encode_response::<R>(correlation_id, version, response) {
        Ok(frame) => Reply::Frame(frame.into_chunks()),
        Err(error) => {
            tracing::error!(api = %R::KEY, version, %error, "an answer that does not encode");
            Reply::Close(format!("internal error: {error}"))
        }
    }
}

impl Envelope {
    /// The body as a request, or the reply that ends the connection.
    pub(crate) fn decode<R: Request>(&mut self) -> Result<R, Reply> {
        self.body.limit_elements(self.context.node.most_elements());
        R::decode(&mut self.body, self.context.version)
            .map_err(|error| Reply::Close(format!("a {} that does not decode: {error}", R::KEY)))
    }
}

/// Decodes, handles, encodes.
pub(crate) async fn respond<R, F, H>(mut envelope: Envelope, handle: F) -> Reply
where
    R: Request,
    F: FnOnce(Context, R) -> H,
    H: Future<Output = Result<R::Response, String>>,
{
    let request = match envelope.decode::<R>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let (correlation_id, version) = (envelope.correlation_id, envelope.context.version);
    match handle(envelope.context, request).await {
        Ok(response) => frame::<R>(correlation_id, version, &response),
        Err(reason) => Reply::Close(reason),
    }
}
