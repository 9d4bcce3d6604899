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
/// Cheap to clone. Its memory is used for later batches when no clone is left. With
/// [`decode`](crate::PartitionedBuilder::decode) it has [`Decoded`](crate::Decoded) values, which
/// [`into_vec`](Self::into_vec) gives away.
pub struct Batch<R = Record>(pub(crate) Arc<Vec<R>>);

impl<R> Batch<R> {
    /// What the batch has, to keep: moved where that is possible, else copied.
    #[must_use]
    pub fn into_vec(self) -> Vec<R>
    where
        R: Clone,
    {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<R> Clone for Batch<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Deref for Batch<R> {
    type Target = [R];

    fn deref(&self) -> &[R] {
        &self.0
    }
}

impl<'a, R> IntoIterator for &'a Batch<R> {
    type Item = &'a R;
    type IntoIter = std::slice::Iter<'a, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<R: fmt::Debug> fmt::Debug for Batch<R> {
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
/// Any `Fn(Batch, Lane) -> impl Future<Output = Result<(), E>>` is a batch handler; with
/// [`decode`](crate::PartitionedBuilder::decode) any `Fn(Batch<Decoded<T>>, Lane)`.
pub trait BatchHandler<R = Record>: Send + Sync + 'static {
    /// What can go wrong.
    type Error: Into<BoxError> + Send + 'static;

    /// Processes `batch` of `lane`.
    fn handle(&self, batch: Batch<R>, lane: Lane) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Fut, E, R> BatchHandler<R> for F
where
    F: Fn(Batch<R>, Lane) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<BoxError> + Send + 'static,
{
    type Error = E;

    fn handle(&self, batch: Batch<R>, lane: Lane) -> impl Future<Output = Result<(), E>> + Send {
        self(batch, lane)
    }
}
