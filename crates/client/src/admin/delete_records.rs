//! Records: deleting the oldest of a partition.

use std::collections::BTreeMap;

use tramline_wire::messages::DeleteRecordsRequest;
use tramline_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use tramline_wire::{ErrorCode, Str};

use super::{Admin, AdminError, OPERATION_TIMEOUT, Refusal, millis, topics};
use crate::cluster::Target;

impl Admin {
    /// Deletes the records below an offset in each of these partitions of a topic. The answer has the new first offset of
    /// each, or why its leader refused: `OFFSET_OUT_OF_RANGE` for an offset above the end. One that is gone already
    /// changes nothing.
    ///
    /// # Errors
    /// [`AdminError`] when a leader is unknown, does not answer or says nothing about a partition; partitions of other leaders may have been shortened.
    pub async fn delete_records(
        &self,
        topic: impl Into<Str>,
        before: BTreeMap<i32, i64>,
    ) -> Result<BTreeMap<i32, Result<i64, Refusal>>, AdminError> {
        let topic = topic.into();
        let asked: Vec<i32> = before.keys().copied().collect();
        let description = topics::describe(self.cluster().await?, &topic).await?;
        let mut by_leader: BTreeMap<i32, Vec<DeleteRecordsPartition>> = BTreeMap::new();
        for (partition_index, offset) in before {
            let row = description.partitions.iter().find(|row| row.partition == partition_index);
            let leader = row.and_then(|row| row.leader);
            let Some(leader) = leader else {
                return Err(AdminError::Refused(Refusal::new(ErrorCode::LeaderNotAvailable, None)));
            };
            by_leader.entry(leader).or_default().push(DeleteRecordsPartition { partition_index, offset });
        }
        let mut deleted = BTreeMap::new();
        for (leader, partitions) in by_leader {
            let topics = vec![DeleteRecordsTopic { name: topic.clone(), partitions }];
            let request = DeleteRecordsRequest { topics, timeout_ms: millis(OPERATION_TIMEOUT) };
            let answer = self.ask(&Target::NodeControl(leader), request, |_| 0).await?;
            let about_it = answer.topics.iter().filter(|row| row.name == topic);
            for row in about_it.flat_map(|topic| &topic.partitions) {
                let outcome = Refusal::check(row.error_code, None).map(|()| row.low_watermark);
                deleted.entry(row.partition_index).or_insert(outcome);
            }
        }
        topics::all_told(&asked, deleted, |partition| format!("{topic}-{partition}"))
    }
}
