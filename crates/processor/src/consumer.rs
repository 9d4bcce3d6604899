//! Tramline's own consumer as a source.

use tramline_client::{
    CommitFailure, CommitMode, ConsumeError, Consumer, ErrorCode, Event, Events, FetchError,
    OffsetAndMetadata,
};
use tramline_wire::TopicPartition;

use crate::source::{
    CommitConfiguration, CommitError, CommitErrorKind, CommitOffset, Committed, FetchBlocked, GroupMetadata,
    RevocationHold, Source, SourceBatch, SourceEvent, SourceEvents,
};

impl Source for Consumer {
    type Error = ConsumeError;
    type Events = Events;

    async fn poll(&self) -> Result<Option<SourceBatch>, ConsumeError> {
        let fetched = match self.next_batch().await {
            Ok(fetched) => fetched,
            Err(ConsumeError::Closed) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(SourceBatch {
            topic_partition: fetched.topic_partition,
            generation: fetched.generation,
            records: fetched.records,
            first_offset: fetched.first_offset,
            next_offset: fetched.next_offset,
            leader_epoch: (fetched.leader_epoch >= 0).then_some(fetched.leader_epoch),
        }))
    }

    fn pause(&self, topic_partition: &TopicPartition) {
        Self::pause(self, [topic_partition]);
    }

    fn resume(&self, topic_partition: &TopicPartition) {
        Self::resume(self, [topic_partition]);
    }

    fn seek(&self, topic_partition: &TopicPartition, offset: i64) {
        if let Err(error) = Self::seek(self, topic_partition, offset) {
            // Taken away meanwhile: whoever has it now begins at the committed offset.
            tracing::debug!(%error, "not set back");
        }
    }

    fn paused(&self) -> Vec<TopicPartition> {
        Self::paused(self)
    }

    fn committed(&self, topic_partition: &TopicPartition) -> Option<Committed> {
        let known = self.last_committed(topic_partition)?;
        let log_end = self.known_end(topic_partition);
        Some(Committed::new(known.offset, known.metadata.to_string()).log_end(log_end))
    }

    fn incarnation(&self, topic_partition: &TopicPartition) -> Option<u32> {
        let id = self.topic_id(&topic_partition.topic)?;
        // The ids are random, so that 32 bits of them tell two topics of one name apart.
        Some(tramline_wire::checksum::crc32c(id.as_bytes()).max(1))
    }

    fn fetch_blocked(error: &ConsumeError) -> Option<FetchBlocked> {
        let ConsumeError::Partition(error) = error else {
            return None;
        };
        let offset = match error {
            // A matter of the settings, and of every new partition: better told at once than waited for.
            FetchError::NoPosition { .. } => return None,
            other => other.offset(),
        };
        Some(FetchBlocked::new(error.topic_partition().clone(), offset))
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        let offsets = offsets.into_iter().map(|commit| {
            let at = OffsetAndMetadata::new(commit.offset)
                .leader_epoch(commit.leader_epoch)
                .metadata(commit.metadata)
                .assigned_in(commit.generation);
            (commit.topic_partition, at)
        });
        Self::commit(self, offsets).await.map_err(|error| {
            let kind = error.failed.values().map(kind_of).max_by_key(|kind| severity(*kind));
            CommitError {
                partitions: error.failed.keys().cloned().collect(),
                ..CommitError::new(kind.unwrap_or(CommitErrorKind::Retriable), error)
            }
        })
    }

    fn events(&self) -> Events {
        Self::events(self)
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        let (auto_commit, auto_store) = match self.commit_mode() {
            CommitMode::Auto { store, .. } => (true, store),
            _ => (false, false),
        };
        let group = self.group_metadata().map(|group| group.group_id);
        Some(CommitConfiguration { auto_commit, auto_store, group })
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        Self::group_metadata(self).map(|group| GroupMetadata {
            group_id: group.group_id,
            generation: group.generation,
            member_id: group.member_id,
            instance_id: group.instance_id,
        })
    }
}

fn kind_of(failure: &CommitFailure) -> CommitErrorKind {
    match failure {
        CommitFailure::TimedOut { .. } => CommitErrorKind::Retriable,
        CommitFailure::Refused(ErrorCode::GroupAuthorizationFailed | ErrorCode::TopicAuthorizationFailed) => {
            CommitErrorKind::Unauthorised
        }
        CommitFailure::Refused(ErrorCode::OffsetMetadataTooLarge) => CommitErrorKind::MetadataTooLarge,
        // Not ours, fenced or closed, which the events tell; or an offset refused for good, a topic that was
        // deleted for instance, which is no reason to stop the others.
        _ => CommitErrorKind::Fenced,
    }
}

/// When partitions of one request failed in different ways, the worst decides what the run does.
const fn severity(kind: CommitErrorKind) -> u8 {
    match kind {
        CommitErrorKind::Unauthorised => 3,
        CommitErrorKind::MetadataTooLarge => 2,
        CommitErrorKind::Fenced => 1,
        _ => 0,
    }
}

impl SourceEvents for Events {
    async fn next(&mut self) -> Option<SourceEvent> {
        loop {
            if let Some(event) = translate(Self::next(self).await?) {
                return Some(event);
            }
        }
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        loop {
            if let Some(event) = translate(Self::try_next(self)?) {
                return Some(event);
            }
        }
    }
}

/// None for what changes nothing about the assignment.
fn translate(event: Event) -> Option<SourceEvent> {
    match event {
        Event::Assigned { generation, partitions } => Some(SourceEvent::Assigned { generation, partitions }),
        Event::Revoked(revocation) => Some(SourceEvent::Revoked {
            partitions: revocation.partitions().to_vec(),
            deadline: Some(revocation.deadline()),
            hold: RevocationHold::new(revocation),
        }),
        Event::Lost { partitions, .. } => Some(SourceEvent::Lost { partitions }),
        Event::PositionReset { generation, topic_partition, from, to } => {
            tracing::warn!(%topic_partition, ?from, to, "position reset");
            let back = from.is_some_and(|from| to < from);
            back.then(|| SourceEvent::SetBack { generation, partitions: vec![topic_partition] })
        }
        _ => None,
    }
}
