//! Ordered lanes per partition over any source of records.
