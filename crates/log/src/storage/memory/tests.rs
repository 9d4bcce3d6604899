//! The memory storage itself: a crash test is worth as much as the disk it runs on.

use std::io;
use std::path::Path;

use super::{CallKind, MemoryStorage};
use crate::storage::{OpenMode, Storage, read_file};

fn content(storage: &MemoryStorage, path: &str) -> Option<Vec<u8>> {
    read_file(storage, Path::new(path)).unwrap().map(|bytes| bytes.to_vec())
}

fn names(storage: &MemoryStorage, dir: &str) -> Vec<String> {
    storage.list(Path::new(dir)).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn written_bytes_are_seen_at_once_and_durable_only_after_their_barrier() {
    let storage = MemoryStorage::new();
    let file = storage.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
    storage.sync_dir(Path::new("/")).unwrap();
    file.write_at(&[b"ab", b"cd"], 0).unwrap();
    assert_eq!(content(&storage, "f"), Some(b"abcd".to_vec()));
    assert_eq!(content(&storage.durable_image(), "f"), Some(Vec::new()));
    file.sync_data().unwrap();
    file.write_at(&[b"X"], 1).unwrap();
    file.set_len(3).unwrap();
    assert_eq!(content(&storage, "f"), Some(b"aXc".to_vec()));
    assert_eq!(content(&storage.durable_image(), "f"), Some(b"abcd".to_vec()));
    assert_eq!(content(&storage.after_kill(), "f"), Some(b"aXc".to_vec()));
}

#[test]
fn names_are_durable_only_after_the_barrier_of_their_directory() {
    let storage = MemoryStorage::new();
    storage.create_dir_all(Path::new("d/e")).unwrap();
    let file = storage.open(Path::new("d/e/f"), OpenMode::CreateNew).unwrap();
    file.write_at(&[b"x"], 0).unwrap();
    file.sync_data().unwrap();
    assert!(names(&storage.durable_image(), "").is_empty());
    storage.sync_dir(Path::new("d/e")).unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    assert!(names(&storage.durable_image(), "d").is_empty(), "the directory between them was not synced");
    storage.sync_dir(Path::new("d")).unwrap();
    assert_eq!(content(&storage.durable_image(), "d/e/f"), Some(b"x".to_vec()));
    storage.rename(Path::new("d/e/f"), Path::new("d/e/g")).unwrap();
    assert_eq!(names(&storage, "d/e"), ["g"]);
    assert_eq!(names(&storage.durable_image(), "d/e"), ["f"]);
    storage.sync_dir(Path::new("d/e")).unwrap();
    storage.remove(Path::new("d/e/g")).unwrap();
    assert_eq!(names(&storage.durable_image(), "d/e"), ["g"]);
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1, "a handle outlives its name");
}

#[test]
fn extended_files_read_as_zeros() {
    let storage = MemoryStorage::new();
    let file = storage.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    file.write_at(&[b"abc"], 0).unwrap();
    file.set_len(1).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(content(&storage, "f"), Some(vec![b'a', 0, 0, 0]));
    file.set_len(1 << 40).unwrap();
    assert_eq!(file.len().unwrap(), 1 << 40);
}

#[test]
fn from_the_crash_on_every_call_fails() {
    let storage = MemoryStorage::new();
    let file = storage.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    storage.crash_at(storage.effects() + 2);
    file.write_at(&[b"a"], 0).unwrap();
    file.sync_data().unwrap_err();
    assert!(storage.has_crashed());
    file.read_at(&mut [0], 0).unwrap_err();
    storage.list(Path::new("")).unwrap_err();
    assert_eq!(content(&storage.durable_image(), "f"), Some(Vec::new()), "the barrier was not reached");
}

#[test]
fn a_torn_image_holds_some_of_what_was_in_flight_and_all_that_was_forced() {
    let storage = MemoryStorage::new();
    let file = storage.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    file.write_at(&[&[1; 2048]], 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[&[2; 2048]], 2048).unwrap();
    storage.open(Path::new("g"), OpenMode::CreateNew).unwrap();
    let (mut kept_sectors, mut kept_names) = ([false; 5], [false; 2]);
    for seed in 0..100 {
        let torn = storage.torn_image(seed);
        let bytes = content(&torn, "f").unwrap();
        assert_eq!(bytes[..2048], [1; 2048], "seed {seed}");
        kept_sectors[bytes[2048..].iter().filter(|byte| **byte == 2).count() / 512] = true;
        kept_names[names(&torn, "").len() - 1] = true;
    }
    assert_eq!(kept_sectors, [true; 5], "any number of sectors");
    assert_eq!(kept_names, [true; 2]);
}

#[test]
fn a_fault_strikes_once_and_a_failed_barrier_loses_what_it_should_have_forced() {
    let storage = MemoryStorage::new();
    let file = storage.open(Path::new("f"), OpenMode::CreateNew).unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    storage.fail(CallKind::Write, 2, io::ErrorKind::StorageFull);
    file.write_at(&[b"ab"], 0).unwrap();
    assert_eq!(file.write_at(&[b"cd"], 2).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(content(&storage, "f"), Some(b"abc".to_vec()), "half of it was written");
    storage.fail(CallKind::SyncData, 1, io::ErrorKind::Other);
    file.sync_data().unwrap_err();
    file.sync_data().unwrap();
    assert_eq!(content(&storage, "f"), Some(b"abc".to_vec()));
    assert_eq!(content(&storage.durable_image(), "f"), Some(Vec::new()), "the second barrier lied");
    assert_eq!(storage.calls(CallKind::SyncData), 2);
}

#[test]
fn a_lock_is_held_by_one_handle_until_it_is_dropped() {
    let storage = MemoryStorage::new();
    let first = storage.open(Path::new("lock"), OpenMode::Create).unwrap();
    let second = storage.open(Path::new("lock"), OpenMode::Create).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
}
