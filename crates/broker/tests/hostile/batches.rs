//! Record batches that are not what they say, or become far more than they are.

use bytes::Bytes;
use tokio::time::timeout;
use tramline_wire::{BatchBuilder, Compression, ErrorCode, RecordBatch, TopicPartition};

use crate::HANG;
use crate::common::{Client, Stage, batch, batch_at, now};

const CODEC_AT: usize = 22;
const LAST_DELTA_AT: usize = 23;
const MAX_TIMESTAMP_AT: usize = 35;
const COUNT_AT: usize = 57;
const HEADER_LEN: usize = 61;

/// The batch with some bytes replaced, and a checksum that fits.
fn forged(batch: &[u8], changes: &[(usize, &[u8])]) -> Bytes {
    let mut bytes = batch.to_vec();
    for (at, new) in changes {
        bytes[*at..*at + new.len()].copy_from_slice(new);
    }
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

/// The header of `batch` with other content under this codec.
fn with_content(batch: &[u8], codec: Compression, content: &[u8]) -> Bytes {
    let mut bytes = [&batch[..HEADER_LEN], content].concat();
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    forged(&bytes, &[(CODEC_AT, &[codec.id()])])
}

/// A frame of zstd in four bytes for each 128 KiB of the same byte.
fn zstd_bomb(bytes: usize) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0, 0x38];
    let blocks = bytes / BLOCK;
    for n in 1..=blocks {
        let header = u32::from(n == blocks) | 1 << 1 | u32::try_from(BLOCK).unwrap() << 3;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

/// Produces, and looks whether a reader still gets what was there before.
async fn refused(client: &mut Client, topic: &str, batch: Bytes) -> ErrorCode {
    let row = timeout(HANG, client.produce(topic, 0, -1, batch)).await.unwrap();
    assert_eq!(client.values(topic, 0, 0).await, [(0, "good".to_owned())]);
    ErrorCode::from(row.error_code)
}

async fn stage() -> (Stage, Client) {
    let stage = Stage::new().await;
    let mut client = stage.client().await;
    client.create_topic("t", 1).await;
    assert_eq!(client.produce("t", 0, -1, batch(&["good"])).await.error_code, 0);
    (stage, client)
}

#[tokio::test]
async fn a_batch_that_unpacks_to_gigabytes_is_refused_and_its_neighbours_go_on() {
    let (stage, mut client) = stage().await;
    let bomb = zstd_bomb(2 << 30);
    assert!(bomb.len() < 100_000);
    let plain = Compression::Zstd.decompress(&zstd_bomb(1 << 20), 1 << 20).unwrap();
    assert!(plain.len() == 1 << 20, "the frame is one that is read");
    let bomb = with_content(&batch(&["x"]), Compression::Zstd, &bomb);
    let mut good = stage.client().await;
    let hostile = refused(&mut client, "t", bomb);
    let others = async {
        good.create_topic("u", 1).await;
        for _ in 0..20 {
            assert_eq!(good.produce("u", 0, -1, batch(&["x"])).await.error_code, 0);
        }
    };
    let (code, ()) = tokio::join!(hostile, others);
    assert_eq!(code, ErrorCode::MessageTooLarge);
    // Four gigabytes are stated, and a few bytes are there.
    let stated = with_content(&batch(&["x"]), Compression::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
    assert_eq!(refused(&mut client, "t", stated).await, ErrorCode::CorruptMessage);
}

#[tokio::test]
async fn a_batch_whose_counts_or_lengths_lie_is_refused_under_every_codec() {
    let (_stage, mut client) = stage().await;
    for codec in Compression::ALL {
        let honest = batch_at(&["one", "two", "three"], now(), codec);
        for count in [1_i32, 2, 4, 1000, i32::MAX] {
            let delta = (count - 1).to_be_bytes();
            let lying = forged(&honest, &[(COUNT_AT, &count.to_be_bytes()), (LAST_DELTA_AT, &delta)]);
            assert_eq!(refused(&mut client, "t", lying).await, ErrorCode::CorruptMessage, "{codec}: {count}");
        }
        for (count, delta) in [(3_i32, 5_i32), (0, -1), (-3, -4), (3, -1)] {
            let changes = [(COUNT_AT, &count.to_be_bytes()[..]), (LAST_DELTA_AT, &delta.to_be_bytes())];
            let code = refused(&mut client, "t", forged(&honest, &changes)).await;
            assert_eq!(code, ErrorCode::InvalidRecord, "{codec}: {count} {delta}");
        }
        if codec != Compression::None {
            let garbage = with_content(&honest, codec, &[0x5a; 40]);
            assert_eq!(refused(&mut client, "t", garbage).await, ErrorCode::CorruptMessage, "{codec}");
        }
    }
    let honest = batch(&["one", "two", "three"]);
    for length in [0_u8, 1, 5, 0x7e, 0x7f, 0xff] {
        let lying = forged(&honest, &[(HEADER_LEN, &[length])]);
        assert_eq!(refused(&mut client, "t", lying).await, ErrorCode::CorruptMessage, "length {length}");
        // The same under a codec: the lie is seen only when it is unpacked.
        let mut packed = Vec::new();
        let content = [&[length][..], &honest[HEADER_LEN + 1..]].concat();
        Compression::Lz4.compress(&content, &mut packed).unwrap();
        let lying = with_content(&honest, Compression::Lz4, &packed);
        assert_eq!(refused(&mut client, "t", lying).await, ErrorCode::CorruptMessage, "length {length}, lz4");
    }
}

#[tokio::test]
async fn timestamps_at_the_ends_of_what_a_number_holds_are_refused_or_do_no_harm() {
    let (stage, mut client) = stage().await;
    for timestamp in [i64::MAX, i64::MAX - 1, i64::MIN] {
        let extreme = batch_at(&["x"], timestamp, Compression::None);
        assert_eq!(refused(&mut client, "t", extreme).await, ErrorCode::InvalidTimestamp, "{timestamp}");
    }
    // The records are of today, and the header says otherwise.
    let lying = forged(&batch(&["x"]), &[(MAX_TIMESTAMP_AT, &i64::MAX.to_be_bytes())]);
    assert_eq!(refused(&mut client, "t", lying).await, ErrorCode::InvalidTimestamp);
    let any = i64::MAX.to_string();
    let configs = [
        ("message.timestamp.after.max.ms", any.as_str()),
        ("message.timestamp.before.max.ms", any.as_str()),
        ("retention.ms", "1"),
    ];
    client.create_topic_with("any", 1, &configs).await;
    let mut builder = BatchBuilder::new(Compression::None);
    for timestamp in [i64::MAX, 0, i64::MAX - 1] {
        builder.append(timestamp, None, Some(b"x"), &[]).unwrap();
    }
    let extreme = builder.build();
    assert!(RecordBatch::decode(TopicPartition::new("any", 0), extreme.clone()).is_ok());
    assert_eq!(client.produce("any", 0, -1, extreme).await.error_code, 0);
    for asked in [i64::MAX, i64::MAX - 1, 1, -3] {
        let row = client.offset_at("any", 0, asked).await;
        assert_eq!((row.error_code, row.offset), (0, 0), "{asked}");
    }
    let stage = stage.restart(tramline_broker::BrokerConfig::default()).await;
    assert_eq!(stage.client().await.values("any", 0, 0).await.len(), 3);
}
