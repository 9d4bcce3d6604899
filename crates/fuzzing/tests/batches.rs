//! Hostile bytes: nothing that reads a batch panics, or takes more memory than its promise, whatever it is given.
//!
//! The mutations are a function of a seed that is printed; `TRAMLINE_MUTATIONS` sets their number and
//! `TRAMLINE_SEED` the seed.
#![expect(clippy::unwrap_used, reason = "a test's helpers")]

use bytes::Bytes;
use tramline_fuzzing::Random;
use tramline_fuzzing::batches::{LIMIT, inspect, seal};
use tramline_fuzzing::counting::peak_of;
use tramline_wire::batch::HEADER_LEN;
use tramline_wire::{BatchBuilder, Compression, RecordBatch, TopicPartition, batches};

fn batch_of(codec: Compression, records: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec);
    for n in 0..records {
        let value =
            format!(r#"{{"id":{n},"text":"a value that repeats itself, a value that repeats itself"}}"#);
        let headers = [("a".into(), Some(Bytes::from_static(b"1"))), ("a".into(), None)];
        let headers = &headers[..n % 3 % 2 * 2];
        let key = (n % 4 != 0).then_some(&b"key"[..]);
        builder.append(1_700_000_000_000 + n as i64, key, Some(value.as_bytes()), headers).unwrap();
    }
    builder.build().to_vec()
}

/// Every batch in a row of them is walked over, and the first is read by all that reads one.
fn read_everything(bytes: &Bytes) -> bool {
    let mut walk = batches(bytes.clone());
    let walked: usize = walk.by_ref().map_while(Result::ok).map(|(_, batch)| batch.len()).sum();
    assert_eq!(walked + walk.remainder().bytes, bytes.len());
    inspect(bytes)
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn mutated_forms_of_other_compressors_never_panic_and_stay_within_the_limit() {
    let seed = from_env("TRAMLINE_SEED", 20_261_129);
    let rounds = from_env("TRAMLINE_MUTATIONS", 60);
    println!("TRAMLINE_SEED={seed} TRAMLINE_MUTATIONS={rounds}");
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    for line in include_str!("../../wire/tests/data/codecs.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let parts: Vec<&str> = line.split(' ').collect();
        let codec: Compression = parts[0].parse().unwrap();
        let origin: Vec<u8> = parts[3].as_bytes().chunks(2).map(digits).collect();
        for round in 0..rounds {
            let mut random = Random::new(seed ^ round << 16 ^ origin.len() as u64);
            let mut packed = origin.clone();
            random.mutate(&mut packed);
            let limit = if random.below(2) == 0 { 1000 } else { 200_000 };
            let (plain, peak) = peak_of(|| codec.decompress(&packed, limit));
            assert!(plain.is_err() || plain.is_ok_and(|plain| plain.len() <= limit), "{line} round {round}");
            assert!(peak < 6 * limit + (17 << 20), "{codec} {} round {round}: {peak} bytes", parts[1]);
        }
    }
}

#[test]
fn mutated_batches_never_panic_and_stay_within_their_memory() {
    let seed = from_env("TRAMLINE_SEED", 20_261_129);
    let rounds = from_env("TRAMLINE_MUTATIONS", 1_000);
    println!("TRAMLINE_SEED={seed} TRAMLINE_MUTATIONS={rounds}");
    let mut sound = [0u64; 5];
    for codec in Compression::ALL {
        let origin = batch_of(codec, 12);
        for round in 0..rounds {
            let mut random = Random::new(seed ^ round << 8 ^ u64::from(codec.id()));
            let mut bytes = origin.clone();
            random.mutate(&mut bytes);
            if random.below(8) != 0 {
                seal(&mut bytes);
            }
            let bytes = Bytes::from(bytes);
            let (read, peak) = peak_of(|| read_everything(&bytes));
            sound[usize::from(codec.id())] += u64::from(read);
            // A mutation may also turn one codec's id into another's, so that each gets the room of all.
            let claimed = bytes.get(22).map_or(0, |attributes| attributes & 7);
            let codec_needs = if claimed == 0 { 0 } else { 6 * LIMIT + (17 << 20) };
            let most = 8 * bytes.len() + 2048 + codec_needs;
            assert!(peak <= most, "{codec} round {round}: {peak} bytes for {} given", bytes.len());
        }
    }
    // Some mutations must survive all checks, and most must not, or nothing was reached.
    assert!(sound.iter().all(|&read| read > 0 && read < rounds / 2), "{sound:?}");
}

#[test]
fn an_absurd_record_count_takes_no_memory() {
    let mut bytes = batch_of(Compression::None, 3);
    bytes[57..61].copy_from_slice(&i32::MAX.to_be_bytes());
    bytes[23..27].copy_from_slice(&(i32::MAX - 1).to_be_bytes());
    seal(&mut bytes);
    let bytes = Bytes::from(bytes);
    let tp = TopicPartition::new("t", 0);
    let (result, peak) = peak_of(|| RecordBatch::decode(tp, bytes.clone()));
    assert!(result.is_err());
    assert!(peak < 5 * bytes.len() + 1024, "{peak}");
}

#[test]
fn a_small_batch_that_unpacks_to_much_stops_at_the_limit() {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(0, None, Some(&vec![0; 4 << 20]), &[]).unwrap();
    let plain = builder.build();
    for codec in &Compression::ALL[1..] {
        let mut bomb = plain[..HEADER_LEN].to_vec();
        bomb[22] = codec.id();
        codec.compress(&plain[HEADER_LEN..], &mut bomb).unwrap();
        seal(&mut bomb);
        let bomb = Bytes::from(bomb);
        let tp = TopicPartition::new("t", 0);
        let (result, peak) = peak_of(|| RecordBatch::decode_with_limit(tp, bomb.clone(), 64 << 10));
        assert!(result.unwrap_err().to_string().contains("more than 65536 bytes"), "{codec}");
        assert!(peak < 2 << 20, "{codec} took {peak} bytes to see that");
    }
}

#[test]
fn a_batch_reads_without_an_allocation_per_record() {
    let one = Bytes::from(batch_of(Compression::None, 1));
    let many = Bytes::from(batch_of(Compression::None, 1000));
    let tp = TopicPartition::new("t", 0);
    let (_, small) = peak_of(|| RecordBatch::decode(tp.clone(), one).unwrap());
    let (batch, large) = peak_of(|| RecordBatch::decode(tp, many.clone()).unwrap());
    assert!(large <= small + 1000 * 32, "{large} against {small}");
    let (sum, held) = peak_of(|| {
        let fields = |r: tramline_wire::Record| r.key().map_or(0, <[u8]>::len) + r.headers().count();
        batch.iter().map(fields).sum::<usize>()
    });
    assert_eq!((sum, held), (750 * 3 + 333 * 2, 0), "walking the records holds no memory at all");
    assert!(batch.pinned_bytes() >= many.len() + 32_000 && batch.pinned_bytes() < many.len() + 40_000);
}
