//! The client's side of one cluster: exchanges on a connection, versions, metadata, batches on their way out.

pub mod accumulator;
pub mod api_versions;
pub mod auto_commit;
pub mod connection;
pub mod consumer_commits;
pub mod error_actions;
pub mod fetcher;
pub mod metadata;
pub mod retry;
