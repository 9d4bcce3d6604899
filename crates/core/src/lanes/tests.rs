//! Records of the wire, as lanes and dispatchers see them.

use std::vec::Vec;

use bytes::Bytes;
use tramline_wire::{
    BatchBuilder, Compression, Record, RecordBatch, TopicPartition, set_base_offset_and_epoch,
};

use super::{HasKey, HasOffset};

/// The first record of a batch at offset 7 in leader epoch 3, with a neighbour of `beside` bytes.
fn record(key: Option<&[u8]>, value: &[u8], beside: usize) -> Record {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(-1, key, Some(value), &[]).unwrap();
    builder.append(-1, None, Some(&std::vec![0; beside]), &[]).unwrap();
    let mut bytes = builder.build().to_vec();
    set_base_offset_and_epoch(&mut bytes, 7, 3);
    let batch = RecordBatch::decode(TopicPartition::new("t", 0), Bytes::from(bytes)).unwrap();
    batch.record(0).unwrap()
}

#[test]
fn the_key_is_that_of_the_wire_and_none_and_empty_are_two() {
    for key in [None, Some(&b""[..]), Some(b"ann")] {
        let record = record(key, b"v", 0);
        assert_eq!(HasKey::key(&record), key);
        assert_eq!(HasKey::key_bytes(&record).as_deref(), key);
    }
}

#[test]
fn offset_and_leader_epoch_are_those_of_the_batch() {
    let record = record(None, b"v", 0);
    assert_eq!((HasOffset::offset(&record), HasOffset::leader_epoch(&record)), (7, Some(3)));
}

#[test]
fn a_record_that_waits_for_long_leaves_a_batch_of_more_than_twice_its_size_and_a_kibibyte() {
    let with = |beside| record(Some(b"ann"), &[1; 97], beside);
    let most = 2 * 100 + 1024;
    let sizes: Vec<usize> = (0..most).filter(|&beside| with(beside).pinned_bytes() <= most).collect();
    let beside = sizes.len() - 1;
    assert_eq!(
        with(beside).pinned_bytes(),
        most,
        "a neighbour of the size that makes the batch just that large"
    );
    for (beside, leaves) in [(0, false), (beside, false), (beside + 1, true), (10 * most, true)] {
        let before = with(beside);
        let mut record = before.clone();
        let copied = record.settle_down();
        assert_eq!(copied, leaves.then(|| record.pinned_bytes()));
        assert_eq!(record.same_batch(&before), !leaves, "{} bytes pinned", before.pinned_bytes());
        assert_eq!((record.key(), record.value()), (before.key(), before.value()));
    }
}

#[test]
fn a_copy_is_made_of_a_record_smaller_than_the_limit_and_says_what_it_keeps_in_use() {
    let record = record(Some(b"ann"), &[1; 97], 5000);
    assert!(record.copied(100).is_none(), "as large as the limit");
    let (copy, bytes) = record.copied(101).unwrap();
    assert!(!copy.same_batch(&record) && copy.pinned_bytes() < record.pinned_bytes());
    assert_eq!(bytes, copy.pinned_bytes());
    assert_eq!((copy.offset(), copy.key(), copy.value()), (7, record.key(), record.value()));
}
