//! DescribeCluster (60), versions 0 to 2.
//!
//! One broker, which is its own controller. Version 1 may ask for controllers instead: they have no listener of
//! their own here, which 115 says. Gap: authorized operations are never given.

use tramline_wire::ErrorCode;
use tramline_wire::messages::describe_cluster_response::DescribeClusterBroker;
use tramline_wire::messages::{DescribeClusterRequest, DescribeClusterResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeClusterRequest, 0..=2, handle);

const BROKERS: i8 = 1;

async fn handle(
    context: Context,
    request: DescribeClusterRequest,
) -> Result<DescribeClusterResponse, String> {
    let node = &context.node;
    if context.version >= 1 && request.endpoint_type != BROKERS {
        return Ok(DescribeClusterResponse {
            error_code: ErrorCode::UnsupportedEndpointType.code(),
            endpoint_type: request.endpoint_type,
            ..DescribeClusterResponse::default()
        });
    }
    let address = node.advertised();
    Ok(DescribeClusterResponse {
        endpoint_type: BROKERS,
        cluster_id: node.cluster_id.clone(),
        controller_id: node.node_id,
        brokers: vec![DescribeClusterBroker {
            broker_id: node.node_id,
            host: address.host,
            port: address.port,
            ..DescribeClusterBroker::default()
        }],
        ..DescribeClusterResponse::default()
    })
}
