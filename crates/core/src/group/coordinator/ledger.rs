//! The durable state: what a replay of the log gives.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tramline_wire::{Str, TopicPartition};

use super::output::{GroupRecord, ReplayError};
use super::record::{self, GroupValue, Key, OffsetValue};

/// Committed offsets and stored groups. Changes in [`Ledger::replay`] alone.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    offsets: BTreeMap<Str, BTreeMap<TopicPartition, OffsetValue>>,
    groups: BTreeMap<Str, GroupValue>,
}

impl Ledger {
    pub(super) fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), ReplayError> {
        match (record::read_key(key)?, value) {
            (Key::Unknown, _) => {}
            (Key::Offset(group, of), Some(value)) => {
                let value = record::read_offset(value)?;
                self.offsets.entry(group).or_default().insert(of, value);
            }
            (Key::Offset(group, of), None) => {
                if let Some(offsets) = self.offsets.get_mut(&group) {
                    offsets.remove(&of);
                    if offsets.is_empty() {
                        self.offsets.remove(&group);
                    }
                }
            }
            (Key::Group(group), Some(value)) => {
                self.groups.insert(group, record::read_group(value)?);
            }
            (Key::Group(group), None) => {
                self.groups.remove(&group);
            }
        }
        Ok(())
    }

    pub(super) fn groups(&self) -> &BTreeMap<Str, GroupValue> {
        &self.groups
    }

    /// Every group that has offsets, with them.
    pub(super) fn offsets(&self) -> &BTreeMap<Str, BTreeMap<TopicPartition, OffsetValue>> {
        &self.offsets
    }

    pub(super) fn offsets_of(&self, group: &str) -> impl Iterator<Item = (&TopicPartition, &OffsetValue)> {
        self.offsets.get(group).into_iter().flatten()
    }

    pub(super) fn offset(&self, group: &str, of: &TopicPartition) -> Option<&OffsetValue> {
        self.offsets.get(group)?.get(of)
    }

    pub(super) fn knows(&self, group: &str) -> bool {
        self.groups.contains_key(group) || self.offsets.contains_key(group)
    }

    pub(super) fn records(&self) -> Vec<GroupRecord> {
        let groups = self.groups.iter().map(|(group, value)| record::group_record(group, Some(value)));
        let offsets = self.offsets.iter().flat_map(|(group, offsets)| {
            offsets.iter().map(move |(of, value)| record::offset_record(group, of, Some(value)))
        });
        groups.chain(offsets).collect()
    }
}
