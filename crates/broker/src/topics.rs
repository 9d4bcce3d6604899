//! The topics the node serves: a list that is swapped as a whole, so that a request sees one state of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use tramline_wire::{Str, TopicPartition, Uuid};

use crate::partition::Partition;

/// Where the coordinator keeps offsets and groups.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// Names that clients can neither create nor write to.
pub(crate) const RESERVED: &[&str] =
    &[OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata"];

/// One topic as it is now.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: Str,
    pub(crate) id: Uuid,
    pub(crate) configs: BTreeMap<String, String>,
    pub(crate) partitions: Vec<Arc<Partition>>,
}

impl Topic {
    /// Whether the broker itself writes it. Clients see such topics marked, and can read them only.
    pub(crate) fn is_internal(&self) -> bool {
        RESERVED.contains(&self.name.as_str())
    }

    pub(crate) fn partition(&self, number: i32) -> Option<&Arc<Partition>> {
        usize::try_from(number).ok().and_then(|number| self.partitions.get(number))
    }
}

/// All topics at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topics {
    by_name: BTreeMap<Str, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
}

impl Topics {
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    pub(crate) fn by_id(&self, id: &Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(id)
    }

    pub(crate) fn partition(&self, id: &TopicPartition) -> Option<&Arc<Partition>> {
        self.by_name(&id.topic).and_then(|topic| topic.partition(id.partition))
    }

    /// In the order of the names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    pub(crate) fn put(&mut self, topic: Topic) {
        let topic = Arc::new(topic);
        self.by_id.insert(topic.id, Arc::clone(&topic));
        self.by_name.insert(topic.name.clone(), topic);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<Topic>> {
        let topic = self.by_name.remove(name)?;
        self.by_id.remove(&topic.id);
        Some(topic)
    }

    pub(crate) fn partition_count(&self) -> usize {
        self.by_name.values().map(|topic| topic.partitions.len()).sum()
    }
}

/// The one place that says which topics there are.
#[derive(Debug, Default)]
pub(crate) struct Shelf(RwLock<Arc<Topics>>);

impl Shelf {
    pub(crate) fn now(&self) -> Arc<Topics> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Only the holder of the admin lock changes it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Topics) -> T) -> T {
        let mut topics = (*self.now()).clone();
        let result = change(&mut topics);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(topics);
        result
    }
}
