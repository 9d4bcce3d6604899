//! ListTransactions (66), versions 0 to 2: transactions are not served, so there are none, whatever is asked for.

use tramline_wire::messages::{ListTransactionsRequest, ListTransactionsResponse};

use crate::routes::{Api, Context, api};

pub(crate) const API: Api = api!(ListTransactionsRequest, 0..=2, handle);

async fn handle(_: Context, _: ListTransactionsRequest) -> Result<ListTransactionsResponse, String> {
    Ok(ListTransactionsResponse::default())
}
