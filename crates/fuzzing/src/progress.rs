//! The text beside a committed offset.

use tramline_core::lanes::Frontier;
use tramline_core::lanes::progress::{FoundAt, Progress, SavedProgress, decode, encode};
use tramline_wire::checksum::crc32c;

use crate::counting::within;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The first byte says what follows: 0 the text itself, else its content, which gets the checksum and the clothes that
/// make it one.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((mode, rest)) = data.split_first() else { return false };
    let text = match mode % 2 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        _ => dressed(rest),
    };
    // A bit for an offset becomes a range of two numbers, and growing holds both halves.
    let most = 16 * 8 * 2 * text.len() + 1024;
    let Ok(read) = within(most, "a text of progress", || decode(&text)) else { return false };
    sound(&read);
    let found = FoundAt { offset: read.base, incarnation: read.incarnation, log_end: None };
    assert_eq!(read.clone().checked(found).as_ref(), Ok(&read), "it is believed beside its own offset");
    let frontier = Frontier { offset: read.base, leader_epoch: None };
    let progress = Progress { frontier, done: read.done.clone(), newest_epoch: read.newest_epoch };
    let again = encode(&progress, read.incarnation, 2 * text.len() + 64);
    if read.done.is_empty() {
        assert_eq!(again, "", "nothing is completed above the frontier, so that nothing is to be said");
    } else {
        assert_eq!(decode(&again).as_ref(), Ok(&read), "{text} was written again as {again}");
    }
    for limit in [0, 4, 20, text.len() / 2] {
        let short = encode(&progress, read.incarnation, limit);
        assert!(short.len() <= limit);
        if !short.is_empty() {
            let kept = decode(&short).expect("what was written is read");
            sound(&kept);
            let covered = |part: &std::ops::Range<i64>| {
                read.done.iter().any(|range| range.start <= part.start && part.end <= range.end)
            };
            assert!(kept.done.iter().all(covered), "nothing is named that is not completed");
        }
    }
    true
}

/// Sorted, apart, not empty, at or above the base.
fn sound(read: &SavedProgress) {
    let mut at = read.base;
    for (n, range) in read.done.iter().enumerate() {
        assert!(range.start < range.end && (range.start > at || (n == 0 && range.start == at)), "{read:?}");
        at = range.end;
    }
}

fn dressed(content: &[u8]) -> String {
    let bytes = [content, &crc32c(content).to_be_bytes()].concat();
    let mut text = String::from("tl1:");
    for three in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=three.len()].copy_from_slice(three);
        let group = u32::from_be_bytes(group);
        for place in 0..=three.len() {
            text.push(char::from(ALPHABET[(group >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let progress = |done: Vec<std::ops::Range<i64>>| {
        let frontier = Frontier { offset: 1000, leader_epoch: None };
        let text = encode(&Progress { frontier, done, newest_epoch: Some(4) }, Some(9), 4096);
        [&[0], text.as_bytes()].concat()
    };
    let runs: &[u8] = &[1, 0xe8, 7, 5, 0, 0, 0, 9, 0, 3, 10, 2, 1];
    let bits: &[u8] = &[1, 0xe8, 7, 0, 0, 0, 0, 0, 1, 0b1010_1100, 0x81];
    let dense = (0..40).map(|n| 1001 + 2 * n..1002 + 2 * n).collect();
    vec![progress(vec![1003..1010, 1020..2000]), progress(dense), runs.to_vec(), bits.to_vec()]
}
