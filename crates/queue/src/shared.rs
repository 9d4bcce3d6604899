//! What a queue's handles share.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tramline_client::{Admin, AdminError, ClientConfig, Consumer, Producer, StartOffset};
use tramline_core::time::Timestamp;
use tramline_wire::{Str, TopicPartition};

use crate::error::ReadError;
use crate::topics::Topics;

/// How long a broker holds back an answer when there is nothing to read. New records end the wait at once; only a change
/// of what is followed waits for it.
const FETCH_WAIT: Duration = Duration::from_millis(500);

/// How long a partition may be without a leader before that is an error.
const LEADERLESS: Duration = Duration::from_secs(30);
/// How long to wait before something a cluster is about to settle is asked for again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Shared {
    pub client: ClientConfig,
    pub name: String,
    pub topics: Topics,
    pub shards: i32,
    pub results: bool,
    pub admin: Admin,
    pub producer: Producer,
}

impl Shared {
    pub fn all_shards(&self) -> impl Iterator<Item = i32> + use<> {
        0..self.shards
    }

    /// A reader of these partitions from these offsets. It has read nothing yet.
    pub async fn reader(
        &self,
        from: impl IntoIterator<Item = (TopicPartition, StartOffset)>,
    ) -> Result<Consumer, ReadError> {
        let builder = Consumer::builder(self.client.clone()).assign(from).fetch_max_wait(FETCH_WAIT);
        Ok(builder.build().await?)
    }

    /// The end of each partition of a topic.
    pub async fn ends(&self, topic: &Str) -> Result<BTreeMap<i32, i64>, ReadError> {
        self.offsets(topic, StartOffset::Latest).await
    }

    /// The first offset of each partition of a topic.
    pub async fn starts(&self, topic: &Str) -> Result<BTreeMap<i32, i64>, ReadError> {
        self.offsets(topic, StartOffset::Earliest).await
    }

    /// Asked again while a partition is between two leaders, as those of a topic that was just made are.
    async fn offsets(&self, topic: &Str, at: StartOffset) -> Result<BTreeMap<i32, i64>, ReadError> {
        let begun = Instant::now();
        loop {
            match self.admin.list_offsets(topic.clone(), at).await {
                Err(AdminError::Refused(refusal))
                    if refusal.code.is_retriable() && begun.elapsed() < LEADERLESS =>
                {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                answer => return Ok(answer?),
            }
        }
    }
}

/// Milliseconds since 1970 by the local clock.
pub(crate) fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
