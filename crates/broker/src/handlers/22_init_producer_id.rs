//! InitProducerId (22), versions 0 to 5.
//!
//! A producer id that no run of this node ever gave out, with epoch 0. Ids come from blocks that are on the disk
//! before their first id is used. Gap: no transactions; a transactional id is refused with 35.

use tramline_wire::ErrorCode;
use tramline_wire::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::admin::Admin;
use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(InitProducerIdRequest, 0..=5, handle);

async fn handle(context: Context, request: InitProducerIdRequest) -> Result<InitProducerIdResponse, String> {
    let result = match request.transactional_id.as_deref() {
        None => context.node.administer(Admin::producer_id).await.map_err(|refusal| refusal.code),
        Some("") => Err(ErrorCode::InvalidRequest),
        Some(_) => Err(ErrorCode::UnsupportedVersion),
    };
    Ok(match result {
        Ok(producer_id) => {
            InitProducerIdResponse { producer_id, producer_epoch: 0, ..InitProducerIdResponse::default() }
        }
        Err(code) => InitProducerIdResponse {
            error_code: code.code(),
            producer_id: -1,
            producer_epoch: -1,
            ..InitProducerIdResponse::default()
        },
    })
}
