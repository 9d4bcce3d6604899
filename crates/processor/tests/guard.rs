//! The guard against a source that commits what was never processed, on wrappers of a source.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Running, secs, settle, tp};
use tramline_processor::testing::{MemoryError, MemoryEvents, MemoryLog, MemorySource};
use tramline_processor::{
    CommitConfiguration, CommitError, CommitOffset, CommitPolicy, ConfigErrorKind, GroupMetadata, Lane,
    PartitionedExt, Source, SourceBatch,
};
use tramline_wire::{Record, TopicPartition};

/// A source of somebody else's around ours, that passes on who commits or does not.
struct Wrapper {
    inner: MemorySource,
    tells: bool,
}

impl Source for Wrapper {
    type Error = MemoryError;
    type Events = MemoryEvents;

    async fn poll(&self) -> Result<Option<SourceBatch>, MemoryError> {
        self.inner.poll().await
    }

    fn pause(&self, topic_partition: &TopicPartition) {
        self.inner.pause(topic_partition);
    }

    fn resume(&self, topic_partition: &TopicPartition) {
        self.inner.resume(topic_partition);
    }

    fn seek(&self, topic_partition: &TopicPartition, offset: i64) {
        self.inner.seek(topic_partition, offset);
    }

    async fn commit(&self, offsets: Vec<CommitOffset>) -> Result<(), CommitError> {
        self.inner.commit(offsets).await
    }

    fn events(&self) -> MemoryEvents {
        self.inner.events()
    }

    fn commit_configuration(&self) -> Option<CommitConfiguration> {
        if self.tells { self.inner.commit_configuration() } else { None }
    }

    fn group_metadata(&self) -> Option<GroupMetadata> {
        self.inner.group_metadata()
    }
}

fn wrapper(log: &MemoryLog, tells: bool) -> Wrapper {
    let auto = CommitConfiguration { auto_commit: true, auto_store: true, group: Some("g".into()) };
    let (inner, control) = MemorySource::with_configuration(log, auto);
    control.assign(&[tp(0)]);
    Wrapper { inner, tells }
}

#[tokio::test(start_paused = true)]
async fn t025_a_wrapper_that_tells_is_refused_like_what_it_wraps_and_one_that_does_not_is_not_inspected() {
    let log = MemoryLog::new();
    log.produce_many(&tp(0), 3);
    for policy in [CommitPolicy::OnRevoke, CommitPolicy::Periodic(secs(1))] {
        let refused = wrapper(&log, true).partitioned().commit(policy).build().unwrap_err();
        assert_eq!(refused.kind, ConfigErrorKind::AutoCommit, "{policy:?}");
        wrapper(&log, false).partitioned().commit(policy).build().unwrap();
    }
    let run = wrapper(&log, false).partitioned().build().unwrap();
    let handler = |_: Record, _: Lane| async { Ok::<(), std::io::Error>(()) };
    let run = Running::of(run, (), handler);
    settle().await;
    run.stop().await.0.unwrap();
    assert_eq!(log.committed(&tp(0)), Some(3), "a source that tells nothing is committed to");
}
