//! Several records for one call of a handler.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use tramline_wire::Record;

use crate::error::BoxError;
use crate::lane::Lane;

/// Records of one lane in offset order, in key order of one key; never empty. Dereferences to a slice.
///
/// Cheap to clone. Its memory is used for later batches when no clone is left.
#[derive(Clone)]
pub struct Batch(pub(crate) Arc<Vec<Record>>);

impl Deref for Batch {
    type Target = [Record];

    fn deref(&self) -> &[Record] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Record;
    type IntoIter = std::slice::Iter<'a, Record>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

/// Processes several records at a time.
///
/// All or nothing: `Ok` completes every record of the batch, `Err` none, also when the handler has done
/// something for some of them. A batch holds what was queued, up to
/// [`max_handler_batch_size`](crate::PartitionedBuilder::max_handler_batch_size); nobody waits to fill it.
/// Otherwise as [`Handler`](crate::Handler).
///
/// Any `Fn(Batch, Lane) -> impl Future<Output = Result<(), E>>` is a batch handler.
pub trait BatchHandler: Send + Sync + 'static {
    /// What can go wrong.
    type Error: Into<BoxError> + Send + 'static;

    /// Processes `batch` of `lane`.
    fn handle(&self, batch: Batch, lane: Lane) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Fut, E> BatchHandler for F
where
    F: Fn(Batch, Lane) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<BoxError> + Send + 'static,
{
    type Error = E;

    fn handle(&self, batch: Batch, lane: Lane) -> impl Future<Output = Result<(), E>> + Send {
        self(batch, lane)
    }
}
