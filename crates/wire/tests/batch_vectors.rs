//! Batches and compressed bytes made by other implementations.
#![expect(clippy::unwrap_used, reason = "a test's helpers")]

use bytes::Bytes;
use tramline_wire::batch::{RecordBatch, TimestampType, batches};
use tramline_wire::compression::{Compression, DecompressError};
use tramline_wire::partitioner::murmur2;
use tramline_wire::{Record, TopicPartition};

const JAVA_BATCHES: &str = include_str!("data/java_batches.txt");
const CODECS: &str = include_str!("data/codecs.txt");

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect())
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn small() -> Vec<u8> {
    (0..40).flat_map(|i| format!(r#"{{"id":{i},"name":"tram","line":{}}}"#, i % 7).into_bytes()).collect()
}

fn big() -> Vec<u8> {
    (0..150_000).map(|i| b"0123456789abcdef"[(i / 1000 + i) % 16]).collect()
}

fn java_batch(name: &str) -> RecordBatch {
    let line = lines(JAVA_BATCHES).find(|line| line[0] == name).unwrap();
    RecordBatch::decode(TopicPartition::new("t", 3), unhex(line[1]).into()).unwrap()
}

fn headers(record: &Record) -> Vec<(&str, Option<&[u8]>)> {
    record.headers().collect()
}

#[test]
fn the_java_clients_batches_read_the_same_with_every_codec() {
    for codec in Compression::ALL {
        let batch = java_batch(codec.name());
        assert_eq!(batch.header().compression(), Ok(codec));
        assert_eq!((batch.header().producer_id, batch.header().producer_epoch), (4711, 3));
        assert_eq!(batch.header().base_sequence, 2_147_483_646);
        assert_eq!(batch.header().last_sequence(), 1, "sequences wrap to 0 after the largest");
        assert_eq!(batch.header().max_timestamp, 1_700_000_002_000);
        assert_eq!(batch.header().last_offset(), 3);

        let records: Vec<Record> = batch.iter().collect();
        let timestamps: Vec<i64> = records.iter().map(Record::timestamp).collect();
        let expected = [1_700_000_000_000, 1_699_999_999_000, 1_700_000_000_500, 1_700_000_002_000];
        assert_eq!(timestamps, expected, "{codec}");
        assert_eq!(records.iter().map(Record::offset).collect::<Vec<_>>(), [0, 1, 2, 3]);

        assert_eq!(records[0].key(), Some(&b"user-1"[..]));
        assert_eq!(records[0].value(), Some(&b"first value, first value, first value"[..]));
        let kept: [(&str, Option<&[u8]>); 4] =
            [("trace", Some(b"a")), ("trace", Some(b"b")), ("none", None), ("empty", Some(b""))];
        assert_eq!(headers(&records[0]), kept);
        assert_eq!(records[0].header("trace"), Some(Some(&b"b"[..])));
        assert_eq!(records[0].header("none"), Some(None));
        assert_eq!(records[0].header("absent"), None);

        assert_eq!((records[1].key(), records[1].value()), (None, Some(&b""[..])));
        assert_eq!((records[2].key(), records[2].value()), (Some(&b""[..]), None));
        assert_eq!(records[3].key(), Some("\u{437}\u{430}\u{43a}\u{430}\u{437}-7".as_bytes()));
        assert_eq!(headers(&records[3]), [("k\u{e9}y", Some(&b"v"[..]))]);
    }
}

#[test]
fn the_java_clients_batches_of_many_codec_blocks_read_the_same() {
    let big = big();
    // What the Java client's own murmur2 says about this value.
    assert_eq!(murmur2(&big), -1_400_675_746);
    for codec in &Compression::ALL[1..] {
        let batch = java_batch(&format!("big-{codec}"));
        let record = batch.record(0).unwrap();
        assert_eq!(record.value(), Some(&big[..]), "{codec}");
        assert_eq!((record.offset(), record.leader_epoch()), (7, Some(5)));
        assert_eq!(record.timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(record.timestamp(), 1_700_000_000_123, "the append time, not the record's own");
    }
}

#[test]
fn a_transaction_marker_of_the_java_client_is_a_readable_control_record() {
    let batch = java_batch("control");
    assert!(batch.header().is_control() && batch.header().is_transactional());
    let marker = batch.record(0).unwrap();
    assert!(marker.is_control());
    assert_eq!((marker.offset(), marker.leader_epoch()), (42, Some(6)));
    assert_eq!(marker.key(), Some(&[0, 0, 0, 1][..]), "version 0, type 1: commit");
}

#[test]
fn a_fetch_of_all_of_them_walks_to_the_fragment_at_its_end() {
    let mut fetched: Vec<u8> = lines(JAVA_BATCHES).flat_map(|line| unhex(line[1])).collect();
    let whole = fetched.len();
    let fragment = unhex(lines(JAVA_BATCHES).next().unwrap()[1]);
    fetched.extend_from_slice(&fragment[..fragment.len() - 1]);
    let mut walk = batches(Bytes::from(fetched));
    let lengths: Vec<usize> = walk.by_ref().map(|batch| batch.unwrap().1.len()).collect();
    assert_eq!(lengths.len(), 10);
    assert_eq!(lengths.iter().sum::<usize>(), whole);
    let remainder = walk.remainder();
    assert_eq!((remainder.bytes, remainder.needed_bytes), (fragment.len() - 1, Some(fragment.len())));
}

#[test]
fn b121_b122_every_form_a_codec_may_take_is_read() {
    for line in lines(CODECS) {
        let codec: Compression = line[0].parse().unwrap();
        let expected = if line[2] == "big" { big() } else { small() };
        let packed = unhex(line[3]);
        let plain = codec.decompress(&packed, expected.len());
        assert!(plain.as_ref() == Ok(&expected), "{codec} {}: {:?}", line[1], plain.map(|p| p.len()));
        let limit = expected.len() - 1;
        assert_eq!(
            codec.decompress(&packed, limit),
            Err(DecompressError::TooLarge { limit }),
            "{codec} {}",
            line[1]
        );
        let cut = codec.decompress(&packed[..packed.len() - 9], expected.len());
        assert!(cut.as_ref() != Ok(&expected), "{codec} {} cut short still reads whole", line[1]);
    }
}

#[test]
fn what_a_codec_writes_it_reads() {
    for codec in Compression::ALL {
        for plain in [Vec::new(), vec![7], small(), big()] {
            let mut packed = b"kept".to_vec();
            codec.compress(&plain, &mut packed).unwrap();
            assert_eq!(&packed[..4], b"kept", "compress appends");
            assert_eq!(codec.decompress(&packed[4..], plain.len()), Ok(plain), "{codec}");
        }
    }
}

#[test]
fn b121_a_xerial_header_whose_versions_stand_the_wrong_way_round_is_read() {
    let line = lines(CODECS).find(|line| line[1] == "xerial-blocks-of-300").unwrap();
    let mut packed = unhex(line[3]);
    packed[8..12].reverse();
    packed[12..16].reverse();
    assert_eq!(Compression::Snappy.decompress(&packed, small().len()), Ok(small()));
}
