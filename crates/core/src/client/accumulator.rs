//! Batches on their way out.
