//! Record batches, and what is packed inside of them.

use bytes::Bytes;
use tramline_wire::batch::{
    HEADER_LEN, ProduceRules, set_log_append_time, validate_produce_batch, with_producer,
};
use tramline_wire::checksum::crc32c;
use tramline_wire::{
    BatchBuilder, BatchHeader, Compression, Record, RecordBatch, TopicPartition, batches, check_batch,
};

use crate::counting::within;

/// Bytes that may come out of one batch.
pub const LIMIT: usize = 64 << 10;
/// What a codec may hold beside its output: two blocks of lz4, and what it grows through.
const CODEC: usize = 6 * LIMIT + (17 << 20);

/// The first byte says what follows: 0 batches as they are; 1 the same, with length and checksum made right; from 2 on
/// packed bytes of the codec of that number. Anything above is taken for one of them.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((mode, rest)) = data.split_first() else { return false };
    match mode % 7 {
        0 => read(Bytes::copy_from_slice(rest)),
        1 => {
            let mut bytes = rest.to_vec();
            seal(&mut bytes);
            read(Bytes::from(bytes))
        }
        codec => Compression::from_id(codec - 2).is_some_and(|codec| unpack(codec, rest)),
    }
}

/// Makes the length and the checksum of a batch right, so that what lies behind them is reached.
pub fn seal(bytes: &mut [u8]) {
    if let Some(length) = bytes.len().checked_sub(12).filter(|_| bytes.len() >= HEADER_LEN) {
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[16] = 2;
        let crc = crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

fn unpack(codec: Compression, packed: &[u8]) -> bool {
    let most = if codec == Compression::None { 2 * LIMIT } else { CODEC };
    let plain = within(most, codec.name(), || codec.decompress(packed, LIMIT));
    if let Ok(plain) = &plain {
        assert!(plain.len() <= LIMIT, "{codec} gave more than it was allowed to");
    }
    // Whatever the bytes are, they survive being packed.
    let mut again = Vec::new();
    codec.compress(packed, &mut again).expect("memory can be written to");
    let back = codec.decompress(&again, packed.len());
    assert_eq!(back.as_deref(), Ok(packed), "{codec}");
    plain.is_ok()
}

fn read(bytes: Bytes) -> bool {
    let plain = |bytes: &[u8]| bytes.get(22).is_none_or(|attributes| attributes & 7 == 0);
    let walked = batches(bytes.clone()).map_while(Result::ok).all(|(_, batch)| plain(&batch));
    let most = 8 * bytes.len() + 4096 + if walked && plain(&bytes) { 0 } else { CODEC };
    let (sound, unread) = within(most, "a batch", || {
        let mut walk = batches(bytes.clone());
        let (mut sound, mut walked) = (0, 0);
        for (_, batch) in walk.by_ref().map_while(Result::ok) {
            walked += batch.len();
            sound += usize::from(inspect(&batch));
        }
        assert_eq!(walked + walk.remainder().bytes, bytes.len());
        (sound, walk.remainder().bytes)
    });
    if unread == bytes.len() {
        within(most, "no batch", || inspect(&bytes));
    }
    for (_, batch) in batches(bytes).map_while(Result::ok) {
        rebuild(batch);
    }
    sound > 0
}

/// Gives the bytes to everything that reads a batch. True when they are a sound one.
pub fn inspect(bytes: &Bytes) -> bool {
    let _ = BatchHeader::parse(bytes).map(|header| {
        (header.compression(), header.total_len(), header.last_offset(), header.last_sequence())
    });
    let _ = check_batch(bytes);
    let rules = ProduceRules {
        deep: true,
        compacted: true,
        timestamps: Some((0, i64::MAX)),
        max_uncompressed: LIMIT,
        ..ProduceRules::default()
    };
    let _ = validate_produce_batch(bytes, &rules).map_err(|refusal| refusal.error_code());
    let _ = with_producer(bytes.clone(), 1, 2, 3);
    let _ = set_log_append_time(&mut bytes.to_vec(), 4);
    let Ok(batch) = RecordBatch::decode_with_limit(TopicPartition::new("t", 0), bytes.clone(), LIMIT) else {
        return false;
    };
    for record in &batch {
        let shown =
            (record.offset(), record.timestamp(), record.key().map(<[u8]>::len), record.payload_len());
        assert_eq!(record.headers().count(), record.raw_headers().len(), "{shown:?}");
        assert!(record.value_bytes().as_deref() == record.value());
    }
    true
}

/// Timestamp, key, value, headers.
type Said = (i64, Option<Bytes>, Option<Bytes>, Vec<(Bytes, Option<Bytes>)>);

/// What a record says, wherever it stands.
fn said(record: &Record) -> Said {
    let headers = record
        .raw_headers()
        .map(|(name, value)| (Bytes::copy_from_slice(name), value.map(Bytes::copy_from_slice)));
    (record.timestamp(), record.key_bytes(), record.value_bytes(), headers.collect())
}

/// Records that were read are written into a batch of ours and read again as they were.
fn rebuild(bytes: Bytes) {
    let partition = || TopicPartition::new("t", 0);
    let Ok(batch) = RecordBatch::decode_with_limit(partition(), bytes, LIMIT) else { return };
    let mut builder = BatchBuilder::new(Compression::None);
    let mut kept = Vec::new();
    for record in &batch {
        // Timestamps too far apart have no place in one batch, and so have names of headers that are no text.
        if builder.append_record(&record).is_ok() {
            kept.push(said(&record));
        }
    }
    if kept.is_empty() {
        return;
    }
    let again = RecordBatch::decode(partition(), builder.build()).expect("a batch that was just built");
    let again: Vec<_> = again.iter().map(|record| said(&record)).collect();
    assert_eq!(again, kept);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for codec in Compression::ALL {
        let mut builder = BatchBuilder::new(codec);
        for n in 0..5i64 {
            let value =
                format!(r#"{{"id":{n},"text":"a value that repeats itself, a value that repeats itself"}}"#);
            let headers = [("a".into(), Some(Bytes::from_static(b"1"))), ("a".into(), None)];
            let headers = &headers[..if n % 2 == 0 { 0 } else { 2 }];
            let key = (n != 3).then_some(&b"key"[..]);
            builder
                .append(1_700_000_000_000 + n, key, Some(value.as_bytes()), headers)
                .expect("a small record fits");
        }
        builder.producer(7, 0, 3);
        let batch = builder.build();
        seeds.push([&[0], &batch[..]].concat());
        seeds.push([&[0], &batch[..], &batch[..]].concat());
        seeds.push([&[1], &batch[..]].concat());
        let mut packed = vec![codec.id() + 2];
        codec
            .compress(&b"something worth packing, ".repeat(20), &mut packed)
            .expect("memory can be written to");
        seeds.push(packed);
    }
    seeds
}
