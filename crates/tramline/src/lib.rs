//! Ordered work, in parallel, over a partitioned log.
//!
//! This is the crate to depend on: it re-exports the client, the processing runtime and, with the
//! default feature `broker`, the embedded broker.

pub use tramline_client as client;
pub use tramline_processor as processor;
pub use tramline_wire as wire;

#[cfg(feature = "broker")]
pub use tramline_broker as broker;
