//! The files of a partition, as the next start finds them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tramline_log::storage::{MemoryStorage, OpenMode};
use tramline_log::{
    Append, AppendOutcome, Log, LogConfig, LogError, LogReader, ReadError, RecoveryMode, Storage,
};
use tramline_wire::checksum::crc32c;
use tramline_wire::{BatchBuilder, BatchHeader, Compression, batches, check_batch};

use crate::batches::seal;
use crate::counting::within;

const NOW: i64 = 1_700_000_000_000;
/// What a start holds whatever it finds: a window of a mebibyte, and a copy of what it cuts.
const FIXED: usize = 4 << 20;

/// The first byte: bit 0 makes the checksums right, bit 1 asks for a start that reads the tail only. Then files: a byte
/// for what it is, two for the offset in its name (counted from the largest one when bit 7 of the kind is set), two for
/// its length, and the bytes.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((mode, mut rest)) = data.split_first() else { return false };
    let memory = MemoryStorage::new();
    let storage = memory.shared();
    storage.create_dir_all(&dir()).expect("memory has no limits");
    while let Some((&[kind, o0, o1, l0, l1], behind)) = rest.split_first_chunk::<5>() {
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let (content, behind) = behind.split_at(length.min(behind.len()));
        rest = behind;
        let low = i64::from(u16::from_be_bytes([o0, o1]));
        let offset = if kind & 0x80 == 0 { low } else { i64::MAX - low };
        let mut content = content.to_vec();
        if mode & 1 == 1 {
            repair(kind, offset, &mut content);
        }
        put(&*storage, &name(kind, offset), &content);
    }
    let recovery = if mode & 2 == 0 { RecoveryMode::Full } else { RecoveryMode::Tail };
    let config = LogConfig { recovery, ..small() };
    let open = || Log::open(Arc::clone(&storage), dir(), config.clone(), NOW);
    let most = 16 * data.len() + FIXED;
    let Ok((mut log, report)) = within(most, "a start", open) else { return false };
    let reader = log.reader();
    assert!(reader.log_start() <= reader.log_end(), "{report:?}");
    read_through(&reader, recovery);
    let _ = (reader.offset_for_time(NOW, i64::MAX), reader.max_timestamp(i64::MAX));
    for epoch in -1..9 {
        let (found, end) = reader.epoch_end(epoch);
        assert!(found <= epoch && end <= reader.log_end(), "{epoch}: {found} {end}");
    }
    let _ = (log.active_producers(), log.producer_count(), reader.size_bytes());
    // The log goes on, and the next start finds what was appended.
    let end = reader.log_end();
    let Ok(appended) = append(&mut log) else { return true };
    assert_eq!(appended, end, "the next offset is the log's end");
    drop(log);
    let (log, again) = open().expect("what was opened once can be opened again");
    let reader = log.reader();
    assert_eq!(reader.log_end(), end + 1, "{again:?} after {report:?}");
    let slice = reader.read(end, 4096, i64::MAX, true).expect("what was just appended can be read");
    assert_eq!((slice.base_offset(), slice.next_offset()), (end, end + 1));
    read_through(&reader, recovery);
    report.log_end > 0
}

/// Appends one record and forces it; gives its offset.
fn append(log: &mut Log) -> Result<i64, LogError> {
    let group = vec![Append::check(batch(&["one more"])).expect("a batch of ours")];
    let epoch = log.reader().latest_epoch().unwrap_or(0).max(0);
    let outcome = log.append_group(group, epoch, NOW)?.remove(0);
    let AppendOutcome::Appended { base_offset, .. } = outcome else {
        panic!("a producer without an id is refused: {outcome:?}")
    };
    let ticket = log.take_sync().expect("something was appended");
    log.synced(ticket.force().expect("memory does not fail"))?;
    Ok(base_offset)
}

/// Every read ends, goes forward and gives whole batches.
fn read_through(reader: &LogReader, recovery: RecoveryMode) {
    let mut at = reader.log_start();
    while at < reader.log_end() {
        match reader.read(at, 4096, i64::MAX, true) {
            Ok(slice) => {
                assert!(slice.next_offset() > at, "nothing at {at} below {}", reader.log_end());
                let bytes = slice.read().expect("what is published can be read");
                for found in batches(bytes) {
                    let (header, bytes) = found.expect("a slice has whole batches");
                    assert!(header.last_offset() < slice.next_offset());
                    assert!(recovery == RecoveryMode::Tail || check_batch(&bytes).is_ok(), "unsound at {at}");
                }
                at = slice.next_offset();
            }
            Err(ReadError::Damaged { from, next }) => {
                assert!(from <= at && next > at, "damage {from}..{next} at {at}");
                at = next;
            }
            Err(error) => panic!("{error} at {at}"),
        }
    }
}

fn dir() -> PathBuf {
    PathBuf::from("data/t-0")
}

fn small() -> LogConfig {
    LogConfig { segment_bytes: 4096, presize_bytes: 512, index_interval_bytes: 200, ..LogConfig::default() }
}

fn name(kind: u8, offset: i64) -> String {
    match kind & 3 {
        0 => format!("{offset:020}.log"),
        1 => format!("{offset:020}.snapshot"),
        2 => "checkpoint".to_owned(),
        _ => format!("{offset:020}.cut"),
    }
}

fn put(storage: &dyn Storage, name: &str, content: &[u8]) {
    let file = storage.open(&dir().join(name), OpenMode::Truncate).expect("memory has no limits");
    file.write_at(&[content], 0).expect("memory has no limits");
}

/// Makes checksums right, so that what they guard is reached.
fn repair(kind: u8, offset: i64, content: &mut [u8]) {
    match kind & 3 {
        0 => {
            let mut at = 0;
            while let Ok(header) = BatchHeader::parse(&content[at..]) {
                let end = (at + header.total_len()).min(content.len());
                seal(&mut content[at..end]);
                at = end;
            }
        }
        1 | 2 if content.len() >= 4 => {
            if kind & 3 == 1 && content.len() >= 18 {
                content[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            let place = content.len() - 4;
            let crc = crc32c(&content[..place]);
            content[place..].copy_from_slice(&crc.to_be_bytes());
        }
        _ => {}
    }
}

fn batch(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        builder.append(NOW, Some(b"k"), Some(value.as_bytes()), &[]).expect("a small record fits");
    }
    builder.build()
}

/// The files that a log of ours leaves, after a clean end and without one.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let seed = |mode: u8, clean: bool| {
        let storage = MemoryStorage::new().shared();
        storage.create_dir_all(&dir()).expect("memory has no limits");
        let config = LogConfig { segment_bytes: 400, ..small() };
        let (mut log, _) = Log::open(Arc::clone(&storage), dir(), config, NOW).expect("an empty log opens");
        for n in 0..6 {
            let mut builder = BatchBuilder::new(Compression::None);
            for value in ["a", "value of some length"] {
                builder.append(NOW, None, Some(value.as_bytes()), &[]).expect("a small record fits");
            }
            builder.producer(7, 0, 2 * n);
            let group = vec![Append::check(builder.build()).expect("a batch of ours")];
            log.append_group(group, 3, NOW).expect("memory does not fail");
            if let Some(ticket) = log.take_sync().filter(|_| n != 5) {
                log.synced(ticket.force().expect("memory does not fail")).expect("it was the latest");
            }
        }
        if clean {
            log.close().expect("memory does not fail");
        }
        let mut data = vec![mode];
        for entry in storage.list(&dir()).expect("it was created") {
            let kind = match Path::new(&entry.name).extension().and_then(|suffix| suffix.to_str()) {
                Some("log") => 0,
                Some("snapshot") => 1,
                _ => 2,
            };
            let offset: u16 = entry.name.get(..20).and_then(|digits| digits.parse().ok()).unwrap_or(0);
            let file = storage.open(&dir().join(&entry.name), OpenMode::ReadOnly).expect("it was listed");
            let mut content = vec![0; usize::try_from(file.len().expect("it is open")).unwrap_or(0)];
            file.read_at(&mut content, 0).expect("memory does not fail");
            let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            content.truncate(end);
            data.push(kind);
            data.extend_from_slice(&offset.to_be_bytes());
            data.extend_from_slice(&u16::try_from(content.len()).unwrap_or(0).to_be_bytes());
            data.extend_from_slice(&content);
        }
        data
    };
    vec![seed(0, true), seed(0, false), seed(1, true), seed(1, false), seed(2, false), seed(3, true)]
}
