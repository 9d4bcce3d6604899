//! Round trips against the record codec of kafka-protocol, in both directions, over random records.
//!
//! Two of its limits shape the records: it keeps one header of each key, and computes with timestamps unchecked.
#![expect(clippy::unwrap_used, reason = "a test's helpers")]

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as kp;
use proptest::collection::vec;
use proptest::prelude::*;
use tramline_wire::batch::{ProduceRules, validate_produce_batch};
use tramline_wire::{BatchBuilder, Compression, Record, RecordBatch, Str, TopicPartition, batches};

#[derive(Debug, Clone)]
struct Input {
    timestamp: i64,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<(Str, Option<Bytes>)>,
}

fn field() -> impl Strategy<Value = Option<Bytes>> {
    // Lengths about the steps of a variable-length integer, and content that a codec can and cannot shorten.
    let random = vec(any::<u8>(), 0..70).prop_map(Bytes::from);
    let repeated = (any::<u8>(), 0usize..9000).prop_map(|(byte, len)| Bytes::from(vec![byte; len]));
    prop_oneof![2 => Just(None), 1 => Just(Some(Bytes::new())), 6 => random.prop_map(Some), 1 => repeated.prop_map(Some)]
}

fn timestamp() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1), 1_700_000_000_000..1_700_000_100_000i64, -(1i64 << 60)..(1i64 << 60)]
}

fn header_key() -> impl Strategy<Value = Str> {
    prop_oneof![Just(""), Just("a"), Just("trace"), Just("k\u{e9}y")].prop_map(Str::from)
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let headers = vec((header_key(), field()), 0..4);
    let input = (timestamp(), field(), field(), headers).prop_map(|(timestamp, key, value, headers)| Input {
        timestamp,
        key,
        value,
        headers,
    });
    vec(input, 1..40)
}

fn codec() -> impl Strategy<Value = Compression> {
    proptest::sample::select(Compression::ALL.to_vec())
}

fn build(inputs: &[Input], codec: Compression) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for input in inputs {
        let predicted = builder.size_bytes()
            + builder.record_len(
                input.timestamp,
                input.key.as_deref(),
                input.value.as_deref(),
                &input.headers,
            );
        let fits = |limit| {
            let (key, value) = (input.key.as_deref(), input.value.as_deref());
            !builder.would_exceed(limit, input.timestamp, key, value, &input.headers)
        };
        assert!(fits(predicted) && !fits(predicted - 1));
        builder
            .append(input.timestamp, input.key.as_deref(), input.value.as_deref(), &input.headers)
            .unwrap();
        assert_eq!(builder.size_bytes(), predicted);
    }
    let size = builder.size_bytes();
    let batch = builder.build();
    assert!(codec != Compression::None || batch.len() == size);
    assert!(builder.is_empty());
    batch
}

fn assert_same(record: &Record, input: &Input) {
    assert_eq!(record.timestamp(), input.timestamp);
    assert_eq!(record.key_bytes(), input.key);
    assert_eq!(record.value_bytes(), input.value);
    let expected: Vec<(&str, Option<&[u8]>)> =
        input.headers.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
    assert_eq!(record.headers().collect::<Vec<_>>(), expected);
}

/// The headers as kafka-protocol can hold them: of each key, the last one in the place of the first.
fn one_of_each(headers: &[(Str, Option<Bytes>)]) -> IndexMap<StrBytes, Option<Bytes>> {
    headers.iter().map(|(key, value)| (StrBytes::from_string(key.to_string()), value.clone())).collect()
}

fn kp_codec(codec: Compression) -> kp::Compression {
    match codec {
        Compression::None => kp::Compression::None,
        Compression::Gzip => kp::Compression::Gzip,
        Compression::Snappy => kp::Compression::Snappy,
        Compression::Lz4 => kp::Compression::Lz4,
        Compression::Zstd => kp::Compression::Zstd,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_built_reads_back_and_kafka_protocol_reads_the_same(inputs in inputs(), codec in codec()) {
        let batch = build(&inputs, codec);
        let rules = ProduceRules { deep: true, max_message_bytes: usize::MAX, ..ProduceRules::default() };
        let header = validate_produce_batch(&batch, &rules).unwrap();
        prop_assert_eq!(header.max_timestamp, inputs.iter().map(|input| input.timestamp).max().unwrap());

        let ours = RecordBatch::decode(TopicPartition::new("t", 0), batch.clone()).unwrap();
        prop_assert_eq!(ours.len(), inputs.len());
        for (index, (record, input)) in ours.iter().zip(&inputs).enumerate() {
            prop_assert_eq!(record.offset(), index as i64);
            assert_same(&record, input);
            let detached = record.detached();
            prop_assert_eq!(&detached, &record);
            prop_assert!(!detached.same_batch(&record));
        }

        let unpack = |packed: &mut Bytes, codec: kp::Compression| {
            Ok(Bytes::from(Compression::from_id(codec as u8).unwrap().decompress(packed, 1 << 30).unwrap()))
        };
        let theirs = kp::RecordBatchDecoder::decode_with_custom_compression(&mut batch.clone(), Some(unpack)).unwrap();
        prop_assert_eq!(theirs.records.len(), inputs.len());
        for (theirs, input) in theirs.records.iter().zip(&inputs) {
            prop_assert_eq!(theirs.timestamp, input.timestamp);
            prop_assert_eq!(&theirs.key, &input.key);
            prop_assert_eq!(&theirs.value, &input.value);
            prop_assert_eq!(&theirs.headers, &one_of_each(&input.headers));
        }
    }

    #[test]
    fn what_kafka_protocol_writes_reads_the_same(
        inputs in inputs(),
        codec in codec(),
        base_offset in 0..1i64 << 40,
        gaps in vec(1i64..50, 40),
        epoch in -1i32..100,
        transactional in any::<bool>(),
    ) {
        let mut offset = base_offset;
        let records: Vec<kp::Record> = inputs.iter().zip(gaps).map(|(input, gap)| {
            let record = kp::Record {
                transactional,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: epoch,
                producer_id: 77,
                producer_epoch: 2,
                timestamp_type: kp::TimestampType::Creation,
                offset,
                sequence: (offset - base_offset) as i32,
                timestamp: input.timestamp,
                key: input.key.clone(),
                value: input.value.clone(),
                headers: one_of_each(&input.headers),
            };
            offset += gap;
            record
        }).collect();
        let pack = |plain: &mut BytesMut, out: &mut BytesMut, id: kp::Compression| {
            let mut packed = Vec::new();
            Compression::from_id(id as u8).unwrap().compress(plain, &mut packed).unwrap();
            out.extend_from_slice(&packed);
            Ok(())
        };
        let options = kp::RecordEncodeOptions { version: 2, compression: kp_codec(codec) };
        let mut bytes = BytesMut::new();
        kp::RecordBatchEncoder::encode_with_custom_compression(&mut bytes, &records, &options, Some(pack)).unwrap();

        let (header, batch) = batches(bytes.freeze()).next().unwrap().unwrap();
        prop_assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (77, 2, 0));
        prop_assert_eq!(header.is_transactional(), transactional);
        prop_assert_eq!(header.last_offset(), records.last().unwrap().offset);
        let ours = RecordBatch::decode(TopicPartition::new("t", 0), batch).unwrap();
        prop_assert_eq!(ours.len(), records.len());
        for (record, theirs) in ours.iter().zip(&records) {
            prop_assert_eq!(record.offset(), theirs.offset);
            prop_assert_eq!(record.leader_epoch(), (epoch >= 0).then_some(epoch));
            let headers = theirs.headers.iter().map(|(key, value)| (Str::from(key.as_str()), value.clone()));
            assert_same(&record, &Input {
                timestamp: theirs.timestamp,
                key: theirs.key.clone(),
                value: theirs.value.clone(),
                headers: headers.collect(),
            });
            let from: Vec<Record> = ours.iter_from(theirs.offset).collect();
            prop_assert_eq!(from.first(), Some(&record));
        }
        prop_assert_eq!(ours.iter_from(offset).count(), 0);
    }
}
