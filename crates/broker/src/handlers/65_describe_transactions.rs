//! DescribeTransactions (65), version 0: transactions are not served, so no id is known.

use tramline_wire::messages::describe_transactions_response::TransactionState;
use tramline_wire::messages::{DescribeTransactionsRequest, DescribeTransactionsResponse};
use tramline_wire::{ErrorCode, Str};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(DescribeTransactionsRequest, 0..=0, handle);

async fn handle(
    _: Context,
    request: DescribeTransactionsRequest,
) -> Result<DescribeTransactionsResponse, String> {
    let unknown = |transactional_id: Str| TransactionState {
        error_code: ErrorCode::TransactionalIdNotFound.code(),
        transactional_id,
        ..TransactionState::default()
    };
    let transaction_states = request.transactional_ids.into_iter().map(unknown).collect();
    Ok(DescribeTransactionsResponse { transaction_states, ..DescribeTransactionsResponse::default() })
}
