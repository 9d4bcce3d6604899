//! The changes of the assignment, as the run sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tramline_processor::{RevocationHold, SourceEvent, SourceEvents};
use tramline_wire::TopicPartition;

use crate::shared::{Pending, Shared, State};

/// The assignment changes of an [`RdkafkaSource`](crate::RdkafkaSource). While one exists, revocations are held open.
pub struct RdkafkaEvents {
    shared: Arc<Shared>,
}

impl fmt::Debug for RdkafkaEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdkafkaEvents").finish_non_exhaustive()
    }
}

impl RdkafkaEvents {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        {
            let mut state = shared.lock();
            state.handles += 1;
            if state.handles == 1 {
                state.tell_what_is_assigned();
            }
        }
        Self { shared }
    }

    fn deliver(&self, pending: Pending) -> SourceEvent {
        match pending {
            Pending::Assigned { generation, partitions } => SourceEvent::Assigned { generation, partitions },
            Pending::Lost { partitions } => SourceEvent::Lost { partitions },
            Pending::Revoked { id, partitions, deadline } => SourceEvent::Revoked {
                partitions,
                deadline: Some(deadline),
                hold: RevocationHold::new(Token { shared: Arc::clone(&self.shared), id }),
            },
        }
    }
}

impl State {
    /// The first handle learns what happened before it existed.
    fn tell_what_is_assigned(&mut self) {
        let mut assigned: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        for (topic_partition, partition) in
            self.partitions.iter().filter(|(_, partition)| !partition.withheld)
        {
            assigned.entry(partition.generation).or_default().push(topic_partition.clone());
        }
        for (generation, partitions) in assigned {
            self.publish(Pending::Assigned { generation, partitions });
        }
    }
}

impl SourceEvents for RdkafkaEvents {
    async fn next(&mut self) -> Option<SourceEvent> {
        let pending = self.shared.wait(|state| match state.events.pop_front() {
            None if state.consumer.is_none() => Some(None),
            pending => pending.map(Some),
        });
        pending.await.map(|pending| self.deliver(pending))
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        let pending = self.shared.lock().events.pop_front()?;
        Some(self.deliver(pending))
    }
}

impl Drop for RdkafkaEvents {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.handles -= 1;
        if state.handles == 0 {
            for pending in std::mem::take(&mut state.events) {
                if let Pending::Revoked { id, .. } = pending {
                    state.release(id);
                }
            }
        }
    }
}

/// Gives its revocation's partitions back when it is dropped.
struct Token {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.shared.release(self.id);
    }
}
