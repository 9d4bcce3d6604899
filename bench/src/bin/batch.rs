//! Reading and building record batches, per record, against kafka-protocol.
//!
//! One thread, the batch in cache. Reading includes the checksum, the decompression, every record, and a look at its
//! key, value and headers. The codecs are not the same code: kafka-protocol compresses with the C libraries (lz4 at a
//! slower, tighter level), so the compressed lines compare what a user of each gets.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as kp;
use tramline_bench::{Case, interleave, print_table, stand};
use tramline_wire::{BatchBuilder, Compression, RecordBatch, Str, TopicPartition};

const ROUNDS: usize = 9;
const SLICE: Duration = Duration::from_millis(40);

type Headers = Vec<(Str, Option<Bytes>)>;

struct Input {
    key: Bytes,
    value: Bytes,
    headers: Headers,
}

/// Records of `size` bytes of key and value, JSON-like, with or without two headers; about 100 KB in all.
fn inputs(size: usize, headers: bool) -> Vec<Input> {
    let count = 100_000 / size;
    let mut state = 1u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count)
        .map(|n| {
            let key = format!("key-{:04}", random() % 1000);
            let mut value = String::new();
            while value.len() < size - key.len() {
                value +=
                    &format!(r#"{{"id":{n},"user":"u{}","amount":{}}}"#, random() % 5000, random() % 100_000);
            }
            value.truncate(size - key.len());
            let mut two = || {
                vec![
                    ("trace".into(), Some(Bytes::from(format!("{:08x}", random())))),
                    ("source".into(), Some(Bytes::from_static(b"bench"))),
                ]
            };
            let headers = if headers { two() } else { Vec::new() };
            Input { key: key.into(), value: value.into(), headers }
        })
        .collect()
}

fn theirs(inputs: &[Input]) -> Vec<kp::Record> {
    let record = |(n, input): (usize, &Input)| kp::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: kp::TimestampType::Creation,
        offset: n as i64,
        sequence: n as i32,
        timestamp: 1_700_000_000_000 + n as i64,
        key: Some(input.key.clone()),
        value: Some(input.value.clone()),
        headers: input
            .headers
            .iter()
            .map(|(k, v)| (StrBytes::from_string(k.to_string()), v.clone()))
            .collect::<IndexMap<_, _>>(),
    };
    inputs.iter().enumerate().map(record).collect()
}

fn their_codec(codec: Compression) -> kp::Compression {
    match codec {
        Compression::None => kp::Compression::None,
        Compression::Gzip => kp::Compression::Gzip,
        Compression::Snappy => kp::Compression::Snappy,
        Compression::Lz4 => kp::Compression::Lz4,
        Compression::Zstd => kp::Compression::Zstd,
    }
}

fn build_ours(builder: &mut BatchBuilder, inputs: &[Input]) -> Bytes {
    for (n, input) in (0..).zip(inputs) {
        builder
            .append(1_700_000_000_000 + n, Some(&input.key), Some(&input.value), &input.headers)
            .expect("100 KB fit a batch");
    }
    builder.build()
}

fn build_theirs(records: &[kp::Record], codec: Compression) -> BytesMut {
    let mut out = BytesMut::with_capacity(128 << 10);
    let options = kp::RecordEncodeOptions { version: 2, compression: their_codec(codec) };
    kp::RecordBatchEncoder::encode(&mut out, records, &options).expect("the records are sound");
    out
}

fn read_ours(tp: &TopicPartition, batch: &Bytes) -> usize {
    let batch = RecordBatch::decode(tp.clone(), batch.clone()).expect("the batch is sound");
    let look = |record: tramline_wire::Record| {
        let headers: usize = record.raw_headers().map(|(_, value)| value.map_or(0, <[u8]>::len)).sum();
        record.key().map_or(0, <[u8]>::len) + record.value().map_or(0, <[u8]>::len) + headers
    };
    batch.iter().map(look).sum()
}

fn read_theirs(batch: &Bytes) -> usize {
    let set = kp::RecordBatchDecoder::decode(&mut batch.clone()).expect("the batch is sound");
    let look = |record: &kp::Record| {
        let headers: usize = record.headers.values().map(|value| value.as_ref().map_or(0, Bytes::len)).sum();
        record.key.as_ref().map_or(0, Bytes::len) + record.value.as_ref().map_or(0, Bytes::len) + headers
    };
    set.records.iter().map(look).sum()
}

fn main() {
    // Codecs by name as arguments; all without.
    let mut chosen: Vec<Compression> =
        std::env::args().skip(1).map(|name| name.parse().expect("a codec's name")).collect();
    if chosen.is_empty() {
        chosen = Compression::ALL.to_vec();
    }
    println!("{}", stand());
    println!("median of {ROUNDS} rounds of {} ms, the two sides taking turns\n", SLICE.as_millis());
    let tp = TopicPartition::new("bench", 0);
    let mut rows = Vec::new();
    for (size, headers) in [(100, false), (100, true), (1000, false), (1000, true)] {
        let inputs = inputs(size, headers);
        let records = theirs(&inputs);
        let count = inputs.len() as u64;
        for codec in chosen.clone() {
            let mut builder = BatchBuilder::new(codec);
            let ours = build_ours(&mut builder, &inputs);
            let made_by_them = build_theirs(&records, codec).freeze();
            // Each side reads both batches and sees the same, or the figures would mean nothing.
            let seen = [
                read_ours(&tp, &ours),
                read_ours(&tp, &made_by_them),
                read_theirs(&ours),
                read_theirs(&made_by_them),
            ];
            assert!(seen.iter().all(|&sum| sum == seen[0]), "{codec}: {seen:?}");
            let read = [Case::new(count, || read_ours(&tp, &ours)), Case::new(count, || read_theirs(&ours))];
            let read = interleave(ROUNDS, SLICE, read);
            let build = [
                Case::new(count, || build_ours(&mut builder, &inputs)),
                Case::new(count, || build_theirs(&records, codec)),
            ];
            let build = interleave(ROUNDS, SLICE, build);
            let sizes = (ours.len(), made_by_them.len());
            for (what, [mine, other]) in [("read", read), ("build", build)] {
                rows.push(row(what, size, headers, codec, mine, other, sizes));
            }
        }
    }
    rows.sort_by_key(|row| row[0] == "build");
    let head = [
        "what",
        "record",
        "headers",
        "codec",
        "M rec/s",
        "ns/rec",
        "kp M rec/s",
        "kp ns/rec",
        "times",
        "bytes",
        "kp bytes",
    ];
    print_table(&head, 4, &rows);
}

fn row(
    what: &str,
    size: usize,
    headers: bool,
    codec: Compression,
    mine: f64,
    other: f64,
    sizes: (usize, usize),
) -> Vec<String> {
    vec![
        what.to_owned(),
        format!("{size} B"),
        if headers { "2" } else { "0" }.to_owned(),
        codec.to_string(),
        format!("{:.2}", 1000.0 / mine),
        format!("{mine:.1}"),
        format!("{:.2}", 1000.0 / other),
        format!("{other:.1}"),
        format!("{:.2}", other / mine),
        sizes.0.to_string(),
        sizes.1.to_string(),
    ]
}
