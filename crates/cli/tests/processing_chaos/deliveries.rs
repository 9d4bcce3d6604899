//! The file that all members and the test append to: what happened, in one order over all processes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The number of a record's key, and its place among the records of that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    pub key: u32,
    pub of_key: u32,
}

impl Numbered {
    pub fn value(self) -> Vec<u8> {
        [self.key.to_be_bytes(), self.of_key.to_be_bytes()].concat()
    }

    pub fn of(value: &[u8]) -> Self {
        let number = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().unwrap());
        Self { key: number(0), of_key: number(4) }
    }
}

/// A record with a handler of one member, in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub member: u32,
    pub partition: i32,
    pub generation: i32,
    pub offset: i64,
    pub record: Numbered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A handler begins.
    Started(Delivery),
    /// It is about to fail.
    Failed(Delivery),
    /// It is about to succeed: written before the runtime can know.
    Completed(Delivery),
    /// The group's offset, written after it was read from the broker.
    Committed { partition: i32, offset: i64 },
    /// The process of a member is gone.
    Ended { member: u32, killed: bool },
}

/// Divides a page, so that no write spans two: a kill cuts a write between pages only.
const LENGTH: usize = 32;

impl Entry {
    fn bytes(self) -> [u8; LENGTH] {
        let nobody = Delivery {
            member: 0,
            partition: 0,
            generation: 0,
            offset: 0,
            record: Numbered { key: 0, of_key: 0 },
        };
        let (kind, at) = match self {
            Self::Started(at) => (1, at),
            Self::Failed(at) => (2, at),
            Self::Completed(at) => (3, at),
            Self::Committed { partition, offset } => (4, Delivery { partition, offset, ..nobody }),
            Self::Ended { member, killed } => (5 + u32::from(killed), Delivery { member, ..nobody }),
        };
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&at.offset.to_le_bytes());
        let numbers = [
            kind,
            at.member,
            at.partition.cast_unsigned(),
            at.generation.cast_unsigned(),
            at.record.key,
            at.record.of_key,
        ];
        for (slot, number) in bytes[8..].chunks_exact_mut(4).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_le_bytes(bytes[8 + 4 * at..12 + 4 * at].try_into().unwrap());
        let at = Delivery {
            member: number(1),
            partition: number(2).cast_signed(),
            generation: number(3).cast_signed(),
            offset: i64::from_le_bytes(bytes[..8].try_into().unwrap()),
            record: Numbered { key: number(4), of_key: number(5) },
        };
        match number(0) {
            1 => Self::Started(at),
            2 => Self::Failed(at),
            3 => Self::Completed(at),
            4 => Self::Committed { partition: at.partition, offset: at.offset },
            kind @ (5 | 6) => Self::Ended { member: at.member, killed: kind == 6 },
            kind => panic!("an entry of kind {kind}"),
        }
    }
}

/// Appends entries. What [`append`](Self::append) has written outlives a SIGKILL of its process.
pub struct Deliveries(File);

impl Deliveries {
    pub fn open(path: &Path) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(path).unwrap())
    }

    pub fn append(&self, entry: Entry) {
        // One call of write(2) on a file opened for appending, which the kernel puts behind all earlier ones.
        let written = (&self.0).write(&entry.bytes()).unwrap();
        assert_eq!(written, LENGTH, "an entry was cut");
    }
}

/// Every entry, oldest first.
pub fn read(path: &Path) -> Vec<Entry> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len() % LENGTH, 0, "an entry was cut");
    bytes.chunks_exact(LENGTH).map(Entry::of).collect()
}

#[test]
fn entries_are_read_as_they_were_appended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deliveries");
    let at = Delivery {
        member: 7,
        partition: 3,
        generation: -1,
        offset: 1 << 40,
        record: Numbered { key: 9, of_key: u32::MAX },
    };
    let entries = [
        Entry::Started(at),
        Entry::Failed(at),
        Entry::Completed(at),
        Entry::Committed { partition: 3, offset: 5 },
        Entry::Ended { member: 7, killed: true },
        Entry::Ended { member: 8, killed: false },
    ];
    let (one, two) = (Deliveries::open(&path), Deliveries::open(&path));
    for (n, entry) in entries.into_iter().enumerate() {
        if n % 2 == 0 { one.append(entry) } else { two.append(entry) }
    }
    assert_eq!(read(&path), entries);
}
