//! Commits and committed offsets.

use std::collections::BTreeMap;

use tramline_wire::TopicPartition;

use super::builder::Settings;
use super::error::{CommitError, OffsetsError};
use super::shared::Shared;
use super::types::{CommitMode, GroupMetadata, OffsetAndMetadata, StartOffset};

#[derive(Debug)]
pub(super) struct Commits {}

impl Commits {
    pub(super) fn new(_settings: &Settings) -> Self {
        Self {}
    }
}

impl Shared {
    pub(super) async fn commit(
        &self,
        offsets: BTreeMap<TopicPartition, OffsetAndMetadata>,
    ) -> Result<(), CommitError> {
        let _ = offsets;
        std::future::pending().await
    }
    pub(super) async fn committed(
        &self,
        _partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, OffsetsError> {
        std::future::pending().await
    }
    pub(super) async fn offsets(
        &self,
        _partitions: &[TopicPartition],
        _at: StartOffset,
    ) -> Result<BTreeMap<TopicPartition, i64>, OffsetsError> {
        std::future::pending().await
    }
    pub(super) fn commit_mode(&self) -> CommitMode {
        self.settings.commit_mode
    }
    pub(super) fn group_metadata(&self) -> Option<GroupMetadata> {
        None
    }
    pub(super) async fn unsubscribe(&self) {}
    pub(super) fn dropped(&self) {}
}
