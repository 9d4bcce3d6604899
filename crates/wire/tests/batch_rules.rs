//! What the reader, the builder and a broker's rules each accept and refuse, one case a line.
#![expect(clippy::unwrap_used, reason = "a test's helpers")]

use bytes::Bytes;
use tramline_wire::batch::{
    BatchHeader, BatchRefusal, HEADER_LEN, ProduceRules, RecordFlaw, RefusalReason, Remainder, TimestampType,
    set_log_append_time, set_producer, validate_produce_batch, with_producer,
};
use tramline_wire::checksum::crc32c;
use tramline_wire::{
    BatchBuilder, BatchError, Compression, Record, RecordBatch, TopicPartition, batches, check_batch,
    set_base_offset_and_epoch,
};

fn three() -> BatchBuilder {
    let mut builder = BatchBuilder::new(Compression::None);
    for (timestamp, key) in [(1000, Some(&b"a"[..])), (1005, Some(b"b")), (990, Some(b"c"))] {
        builder.append(timestamp, key, Some(b"value"), &[]).unwrap();
    }
    builder
}

/// The batch of [`three`] with `bytes` at `at`, its checksum right again.
fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut batch = three().build().to_vec();
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    sealed(batch)
}

fn sealed(mut batch: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

/// A batch of one record made of these very bytes.
fn with_records(count: i32, last_offset_delta: i32, records: &[u8]) -> Vec<u8> {
    let mut batch = three().build().to_vec();
    batch.truncate(HEADER_LEN);
    batch.extend_from_slice(records);
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[23..27].copy_from_slice(&last_offset_delta.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    sealed(batch)
}

fn decode(batch: impl Into<Bytes>) -> Result<RecordBatch, BatchError> {
    RecordBatch::decode(TopicPartition::new("t", 1), batch.into())
}

fn flaw(records: &[u8]) -> (usize, RecordFlaw) {
    match decode(with_records(2, 9, records)) {
        Err(BatchError::Record { index, flaw, .. }) => (index, flaw),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_damage_is_named() {
    let good = three().build();
    let header = check_batch(&good).unwrap();
    assert_eq!(BatchHeader::parse(&good[..60]), Err(BatchError::TooShort { needed: 61, present: 60 }));
    assert_eq!(BatchHeader::parse(b""), Err(BatchError::TooShort { needed: 61, present: 0 }));
    assert_eq!(
        check_batch(&patched(16, &[1])),
        Err(BatchError::WrongMagic { magic: 1, base_offset: 0 }),
        "an old message set"
    );
    assert!(matches!(
        BatchHeader::parse(&patched(16, &[0])[..30]),
        Err(BatchError::WrongMagic { magic: 0, .. })
    ));
    for (stated, present) in [(48, good.len()), (-1, good.len()), (i32::MIN, good.len())] {
        let batch = patched(8, &i32::to_be_bytes(stated));
        assert_eq!(check_batch(&batch), Err(BatchError::LengthMismatch { base_offset: 0, stated, present }));
    }
    let stated = header.batch_length;
    let present = good.len() - 1;
    assert_eq!(
        check_batch(&good[..present]),
        Err(BatchError::LengthMismatch { base_offset: 0, stated, present })
    );
    let mut flipped = good.to_vec();
    set_base_offset_and_epoch(&mut flipped, 70, 3);
    assert!(check_batch(&flipped).is_ok(), "base offset and epoch lie outside the checksum");
    *flipped.last_mut().unwrap() ^= 1;
    match check_batch(&flipped) {
        Err(BatchError::Crc { base_offset: 70, stored, computed }) => {
            assert_eq!((stored, stored == computed), (header.crc, false));
        }
        other => panic!("{other:?}"),
    }
    let unknown = decode(patched(22, &[5]));
    assert_eq!(unknown.unwrap_err(), BatchError::UnknownCompression { base_offset: 0, id: 5 });
    assert!(matches!(
        decode(patched(22, &[1])),
        Err(BatchError::Decompression { codec: Compression::Gzip, .. })
    ));
}

#[test]
fn a_record_count_that_is_not_the_content_is_refused() {
    for (stated, found) in [(-1, 0), (2, 3), (4, 3), (0, 1)] {
        let error = decode(patched(57, &i32::to_be_bytes(stated))).map(|batch| batch.len());
        // With one record more stated, its offset delta is what shows first unless the header makes room.
        assert_eq!(error, Err(BatchError::RecordCount { base_offset: 0, stated, found }));
    }
}

#[test]
fn every_flaw_of_a_record_is_named_with_its_place() {
    // length, attributes, timestamp delta, offset delta, key, value, headers; zigzag: 2 is 1, 1 is -1.
    let first = [14, 0, 0, 0, 1, 1, 0, 0];
    assert_eq!(flaw(&first), (0, RecordFlaw::TrailingBytes(1)));
    let first = [12, 0, 0, 0, 1, 1, 0];
    let second = |bytes: &[u8]| flaw(&[&first[..], bytes].concat());
    assert_eq!(
        second(&[12, 0, 0, 0, 1, 1, 0]),
        (1, RecordFlaw::OffsetDelta { delta: 0, previous: 0, last: 9 })
    );
    assert_eq!(
        second(&[12, 0, 0, 20, 1, 1, 0]),
        (1, RecordFlaw::OffsetDelta { delta: 10, previous: 0, last: 9 })
    );
    assert_eq!(
        flaw(&[12, 0, 0, 1, 1, 1, 0]),
        (0, RecordFlaw::OffsetDelta { delta: -1, previous: -1, last: 9 })
    );
    assert_eq!(second(&[1]), (1, RecordFlaw::NegativeLength(-1)), "the record's length");
    assert_eq!(second(&[12, 0, 0, 2, 3, 1, 0]), (1, RecordFlaw::NegativeLength(-2)), "the key's length");
    assert_eq!(second(&[12, 0, 0, 2, 1, 3, 0]), (1, RecordFlaw::NegativeLength(-2)), "the value's length");
    assert_eq!(second(&[12, 0, 0, 2, 1, 1, 1]), (1, RecordFlaw::NegativeLength(-1)), "the number of headers");
    assert_eq!(second(&[16, 0, 0, 2, 1, 1, 2, 1, 1]), (1, RecordFlaw::NegativeLength(-1)), "a header's key");
    assert_eq!(
        second(&[16, 0, 0, 2, 1, 1, 2, 0, 3]),
        (1, RecordFlaw::NegativeLength(-2)),
        "a header's value"
    );
    assert_eq!(second(&[14, 0, 0, 2, 1, 1, 0]), (1, RecordFlaw::RunsPastEnd), "the record");
    assert_eq!(second(&[12, 0, 0, 2, 8, 1, 0]), (1, RecordFlaw::RunsPastEnd), "the key");
    assert_eq!(second(&[12, 0, 0, 2, 1, 8, 0]), (1, RecordFlaw::RunsPastEnd), "the value");
    assert_eq!(second(&[12, 0, 0, 2, 1, 1, 2]), (1, RecordFlaw::RunsPastEnd), "a header");
    assert_eq!(second(&[0]), (1, RecordFlaw::RunsPastEnd), "an empty record");
    assert_eq!(second(&[0xff, 0xff, 0xff, 0xff, 0x7f]), (1, RecordFlaw::VarintOverflow));
    let long_timestamp = [&[30, 0][..], &[0xff; 9], &[0x7f, 2, 1, 1, 0]].concat();
    assert_eq!(second(&long_timestamp), (1, RecordFlaw::VarintOverflow));
}

#[test]
fn a_compacted_batch_keeps_its_last_offset_and_may_have_gaps_or_be_empty() {
    let gaps = with_records(2, 9, &[12, 0, 0, 4, 1, 1, 0, 12, 0, 0, 14, 1, 1, 0]);
    let batch = decode(gaps).unwrap();
    assert_eq!(batch.iter().map(|record| record.offset()).collect::<Vec<_>>(), [2, 7]);
    assert_eq!(batch.header().last_offset(), 9);
    assert_eq!(batch.iter_from(3).map(|record| record.offset()).collect::<Vec<_>>(), [7]);
    let empty = decode(with_records(0, 9, &[])).unwrap();
    assert!(empty.is_empty() && empty.record(0).is_none() && empty.iter().next().is_none());
    assert_eq!(empty.header().last_offset(), 9);
}

#[test]
fn a_header_key_that_is_not_text_does_not_cost_the_batch() {
    let batch = decode(with_records(1, 9, &[18, 0, 0, 0, 1, 1, 2, 2, 0xff, 1])).unwrap();
    let record = batch.record(0).unwrap();
    assert_eq!(record.headers().collect::<Vec<_>>(), [("\u{fffd}", None)]);
    assert_eq!(record.raw_headers().collect::<Vec<_>>(), [(&[0xff][..], None)]);
}

#[test]
fn the_walk_ends_at_a_fragment_and_says_what_it_needs() {
    let batch = three().build();
    let two = [&batch[..], &batch[..]].concat();
    let empty = Remainder { bytes: 0, needed_bytes: None, base_offset: None };
    for cut in 0..batch.len() {
        let mut walk = batches(Bytes::copy_from_slice(&two[..batch.len() + cut]));
        assert_eq!(walk.next().unwrap().unwrap().1, batch);
        assert!(walk.next().is_none() && walk.next().is_none());
        let expected = Remainder {
            bytes: cut,
            needed_bytes: (cut >= 12).then_some(batch.len()),
            base_offset: (cut >= 8).then_some(0),
        };
        assert_eq!(walk.remainder(), if cut == 0 { empty } else { expected });
    }
    let mut walk = batches(Bytes::from(two));
    assert_eq!(walk.by_ref().count(), 2);
    assert_eq!(walk.remainder(), empty);
}

#[test]
fn the_walk_stops_at_what_is_no_batch() {
    let batch = three().build();
    for (at, bytes) in [(16usize, &[1u8][..]), (8, &[0, 0, 0, 48]), (8, &[0xff, 0xff, 0xff, 0xff])] {
        let mut second = batch.to_vec();
        second[at..at + bytes.len()].copy_from_slice(bytes);
        let mut walk = batches(Bytes::from([&batch[..], &second].concat()));
        assert!(walk.next().unwrap().is_ok());
        assert!(walk.next().unwrap().is_err());
        assert!(walk.next().is_none());
        assert_eq!(walk.remainder().bytes, batch.len());
    }
}

#[test]
fn builds_the_very_bytes_the_java_client_builds() {
    let java =
        include_str!("data/java_batches.txt").lines().find_map(|line| line.strip_prefix("none ")).unwrap();
    let mut builder = BatchBuilder::new(Compression::None);
    let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let headers = [
        ("trace".into(), text("a")),
        ("trace".into(), text("b")),
        ("none".into(), None),
        ("empty".into(), text("")),
    ];
    let value = Some(&b"first value, first value, first value"[..]);
    builder.append(1_700_000_000_000, Some(b"user-1"), value, &headers).unwrap();
    builder.append(1_699_999_999_000, None, Some(b""), &[]).unwrap();
    builder.append(1_700_000_000_500, Some(b""), None, &[]).unwrap();
    let key = "\u{437}\u{430}\u{43a}\u{430}\u{437}-7".as_bytes();
    builder.append(1_700_000_002_000, Some(key), Some(b"last"), &[("k\u{e9}y".into(), text("v"))]).unwrap();
    let ours = builder.producer(4711, 3, i32::MAX - 1).build();
    assert_eq!(ours.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), java);
}

#[test]
fn a_builder_begins_anew_after_each_batch() {
    for codec in Compression::ALL {
        let mut builder = BatchBuilder::with_capacity(codec, 4096);
        assert_eq!((builder.build().len(), builder.size_bytes()), (0, HEADER_LEN), "no record, no batch");
        builder.append(5, None, Some(b"one"), &[]).unwrap();
        builder.producer(1, 2, 3).transactional(true);
        let first = builder.build();
        builder.append(9, None, Some(b"two"), &[]).unwrap();
        let second = builder.build();
        let (first, second) = (check_batch(&first).unwrap(), check_batch(&second).unwrap());
        assert_eq!((first.producer_id, first.producer_epoch, first.base_sequence), (1, 2, 3));
        assert_eq!((second.producer_id, second.producer_epoch, second.base_sequence), (-1, -1, -1));
        assert!(first.is_transactional() && !second.is_transactional());
        assert_eq!((second.base_timestamp, second.base_offset, second.partition_leader_epoch), (9, 0, -1));
        assert_eq!((first.compression(), first.last_sequence(), second.last_sequence()), (Ok(codec), 3, -1));
    }
}

#[test]
fn records_of_one_batch_go_into_another_unchanged() {
    let mut log = three().build().to_vec();
    set_base_offset_and_epoch(&mut log, 40, 7);
    let batch = decode(log).unwrap();
    let mut builder = BatchBuilder::new(Compression::Lz4);
    for record in &batch {
        builder.append_record(&record).unwrap();
    }
    let copy = decode(builder.build()).unwrap();
    let fields = |record: Record| (record.timestamp(), record.key_bytes(), record.value_bytes());
    assert!(copy.iter().map(fields).eq(batch.iter().map(fields)));
    let third = batch.record(2).unwrap();
    assert_eq!((third.offset(), third.leader_epoch(), third.timestamp()), (42, Some(7), 990));
    assert!(third.same_batch(&batch.record(0).unwrap()) && !third.same_batch(&copy.record(2).unwrap()));
}

#[test]
fn a_producers_new_epoch_and_the_append_time_are_rewritten_under_a_right_checksum() {
    let original = three().producer(1, 0, 50).build();
    let kept = original.clone();
    let bumped = with_producer(original, 1, 1, 0).unwrap();
    assert_eq!(check_batch(&kept).unwrap().base_sequence, 50, "shared bytes are copied, not changed");
    let header = check_batch(&bumped).unwrap();
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (1, 1, 0));
    let mut stamped = bumped.to_vec();
    set_log_append_time(&mut stamped, 5555).unwrap();
    let batch = decode(stamped.clone()).unwrap();
    assert_eq!(batch.header().timestamp_type(), TimestampType::LogAppendTime);
    assert!(batch.iter().all(|record| record.timestamp() == 5555));
    *stamped.last_mut().unwrap() ^= 1;
    assert!(
        matches!(set_producer(&mut stamped, 9, 9, 9), Err(BatchError::Crc { .. })),
        "damage is not blessed"
    );
}

#[test]
fn a_record_from_parts_shows_what_it_was_given() {
    let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(b"value"));
    let headers = vec![("h".into(), None), ("h".into(), Some(Bytes::from_static(b"2")))];
    let tp = TopicPartition::new("t", 4);
    let record = Record::from_parts(tp.clone(), 9, 77, Some(key.clone()), Some(value.clone()), headers);
    assert_eq!((record.topic_partition(), record.topic(), record.partition()), (&tp, "t", 4));
    assert_eq!((record.offset(), record.timestamp(), record.leader_epoch()), (9, 77, None));
    assert_eq!(record.key_bytes().unwrap().as_ptr(), key.as_ptr(), "shared, not copied");
    assert_eq!(record.value_bytes(), Some(value));
    assert_eq!(record.headers().collect::<Vec<_>>(), [("h", None), ("h", Some(&b"2"[..]))]);
    assert_eq!(record.payload_len(), 3 + 5 + 3);
    assert_eq!(record.detached(), record);
    let empty = Record::from_parts(tp, 0, -1, None, Some(Bytes::new()), Vec::new());
    assert_eq!((empty.key(), empty.value(), empty.key_bytes()), (None, Some(&b""[..]), None));
}

fn refusal(batch: &[u8], rules: &ProduceRules) -> (i16, RefusalReason) {
    let refusal: BatchRefusal = validate_produce_batch(batch, rules).unwrap_err();
    (refusal.error_code(), refusal.reason)
}

#[test]
fn a_broker_refuses_each_broken_rule_with_kafkas_error_code() {
    let rules = ProduceRules::default();
    let good = three().build();
    assert!(validate_produce_batch(&good, &rules).is_ok());
    let code = |batch: &[u8]| refusal(batch, &rules).0;
    assert_eq!(refusal(b"", &rules), (87, RefusalReason::NoBatch));
    assert_eq!(refusal(&[&good[..], &good].concat(), &rules), (87, RefusalReason::SeveralBatches));
    assert_eq!(code(&patched(16, &[1])), 87, "an old magic");
    assert_eq!(code(&good[..good.len() - 1]), 2, "cut short");
    assert_eq!(code(&[&good[..], b"xyz"].concat()), 2, "bytes left over");
    assert_eq!(code(&good[..40]), 2, "half a header");
    assert_eq!(code(&patched(8, &[0, 0, 0, 48])), 2, "a length below a header's");
    let mut moved = good.to_vec();
    set_base_offset_and_epoch(&mut moved, 1, 0);
    assert_eq!(refusal(&moved, &rules), (87, RefusalReason::BaseOffset(1)));
    set_base_offset_and_epoch(&mut moved, 0, 99);
    assert!(validate_produce_batch(&moved, &rules).is_ok(), "any leader epoch is taken");
    let small = ProduceRules { max_message_bytes: good.len() - 1, ..rules.clone() };
    assert_eq!(
        refusal(&good, &small),
        (10, RefusalReason::TooLarge { size: good.len(), max: good.len() - 1 })
    );
    let mut flipped = good.to_vec();
    flipped[HEADER_LEN] ^= 1;
    assert_eq!(code(&flipped), 2, "a wrong checksum");
    for (count, delta) in [(3, 3), (4, 2), (0, -1), (-1, -2), (i32::MIN, i32::MAX)] {
        let mut batch = patched(57, &i32::to_be_bytes(count));
        batch[23..27].copy_from_slice(&i32::to_be_bytes(delta));
        let reason = RefusalReason::Count { count, last_offset_delta: delta };
        assert_eq!(refusal(&sealed(batch), &rules), (87, reason));
    }
    assert_eq!(refusal(&three().control(true).build(), &rules), (87, RefusalReason::Control));
    let sequence = RefusalReason::Sequence { producer_id: 5, base_sequence: -1 };
    assert_eq!(refusal(&three().producer(5, 0, -1).build(), &rules), (87, sequence));
    assert_eq!(code(&patched(22, &[6])), 76, "no such codec");
    assert_eq!(refusal(&patched(22, &[8]), &rules), (32, RefusalReason::Timestamp));
    let by_broker = ProduceRules { log_append_time: true, ..rules };
    assert!(validate_produce_batch(&patched(22, &[8]), &by_broker).is_ok());
}

#[test]
fn a_broker_looks_into_the_records_only_where_a_rule_needs_it() {
    let plain = ProduceRules::default();
    let old = ProduceRules { zstd: false, ..plain.clone() };
    let deep = ProduceRules { deep: true, ..plain.clone() };
    let compacted = ProduceRules { compacted: true, ..plain.clone() };
    let timely = ProduceRules { timestamps: Some((100, 200)), ..plain.clone() };
    for codec in Compression::ALL {
        let mut builder = BatchBuilder::new(codec);
        for (timestamp, key) in [(150, Some(&b"k"[..])), (-1, None), (201, Some(b"")), (99, None)] {
            builder.append(timestamp, key, None, &[]).unwrap();
        }
        let batch = builder.build();
        assert!(validate_produce_batch(&batch, &plain).is_ok());
        assert!(validate_produce_batch(&batch, &deep).is_ok());
        let places = |rules| {
            let refusal = validate_produce_batch(&batch, rules).unwrap_err();
            let places: Vec<i32> = refusal.record_errors.iter().map(|error| error.batch_index).collect();
            (refusal.error_code(), refusal.reason, places)
        };
        assert_eq!(places(&compacted), (87, RefusalReason::MissingKey, vec![1, 3]));
        assert_eq!(places(&timely), (32, RefusalReason::Timestamp, vec![2, 3]));
        let by_broker = ProduceRules { log_append_time: true, ..timely.clone() };
        assert!(validate_produce_batch(&batch, &by_broker).is_ok(), "the broker's clock needs no bounds");
        if codec == Compression::Zstd {
            assert_eq!(refusal(&batch, &old), (76, RefusalReason::Unsupported(codec)));
        } else {
            assert!(validate_produce_batch(&batch, &old).is_ok());
        }
        let tight = ProduceRules { max_uncompressed: 10, ..deep.clone() };
        assert_eq!(validate_produce_batch(&batch, &tight).is_ok(), codec == Compression::None);
    }
    let broken = with_records(3, 2, &[12, 0, 0, 0, 1, 1, 0]);
    assert!(validate_produce_batch(&broken, &plain).is_ok(), "not looked at");
    assert_eq!(refusal(&broken, &deep).0, 2);
}

#[test]
fn everything_about_a_record_may_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Record>();
    crosses::<RecordBatch>();
    crosses::<BatchError>();
    crosses::<BatchBuilder>();
    assert_eq!(size_of::<Record>(), 16);
}

#[test]
fn b124_timestamps_that_alternate_between_1970_and_today_come_back() {
    let times = [0, 1_780_000_000_000, 0, 1_780_000_000_000, -1, i64::MAX, 5];
    let mut builder = BatchBuilder::new(Compression::None);
    for timestamp in times {
        builder.append(timestamp, None, Some(b"v"), &[]).unwrap();
    }
    let batch = RecordBatch::decode(TopicPartition::new("t", 0), builder.build()).unwrap();
    let read: Vec<i64> = batch.iter().map(|record| record.timestamp()).collect();
    assert_eq!(read, times);
}
