//! A broker's side of producing: one log per partition and Kafka's rules for sequences.

use std::collections::{BTreeMap, VecDeque};
use std::string::String;
use std::vec::Vec;

use tramline_wire::{RecordBatch, TopicPartition, check_batch};

/// Epoch, then the last five batches: first and last sequence, offset.
type Known = (i16, VecDeque<(i32, i32, i64)>);

#[derive(Default)]
pub(super) struct Log {
    pub(super) values: Vec<String>,
    producers: BTreeMap<i64, Known>,
}

impl Log {
    /// The state of producers is lost, as after retention.
    pub(super) fn forget(&mut self) {
        self.producers.clear();
    }

    pub(super) fn append(&mut self, bytes: &bytes::Bytes) -> Result<i64, i16> {
        let header = check_batch(bytes).map_err(|_| 2i16)?;
        let (first, epoch) = (header.base_sequence, header.producer_epoch);
        let last = first.wrapping_add(header.record_count - 1) & i32::MAX;
        let offset = self.values.len() as i64;
        if let Some((known_epoch, batches)) = self.producers.get_mut(&header.producer_id) {
            let duplicate = batches.iter().find(|(f, l, _)| (*f, *l) == (first, last));
            if let Some((_, _, offset)) = duplicate.filter(|_| epoch == *known_epoch) {
                return Ok(*offset);
            }
            if epoch < *known_epoch {
                return Err(47);
            }
            let expected = match batches.back() {
                _ if epoch > *known_epoch => 0,
                Some((_, last, _)) => last.wrapping_add(1) & i32::MAX,
                None => first,
            };
            if first != expected {
                return Err(45);
            }
            if epoch > *known_epoch {
                batches.clear();
                *known_epoch = epoch;
            }
        }
        let (_, batches) = self.producers.entry(header.producer_id).or_insert((epoch, VecDeque::new()));
        batches.push_back((first, last, offset));
        if batches.len() > 5 {
            batches.pop_front();
        }
        let batch = RecordBatch::decode(TopicPartition::new("t", 0), bytes.clone()).map_err(|_| 2i16)?;
        for record in &batch {
            self.values
                .push(String::from_utf8(record.value().unwrap_or_default().to_vec()).unwrap_or_default());
        }
        Ok(offset)
    }
}
