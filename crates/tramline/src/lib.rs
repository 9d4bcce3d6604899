//! Ordered work, in parallel, over a partitioned log.
