//! Bytes as text: the base64 alphabet that is safe in names and addresses, without padding.

use alloc::string::String;
use alloc::vec::Vec;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// How many bytes a text of `len` characters can stand for.
pub(super) const fn decoded_len(len: usize) -> usize {
    len / 4 * 3 + [0, 0, 1, 2][len % 4]
}

pub(super) fn encode(bytes: &[u8], out: &mut String) {
    for three in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=three.len()].copy_from_slice(three);
        let group = u32::from_be_bytes(group);
        for place in 0..=three.len() {
            let six = (group >> (18 - 6 * place)) & 63;
            out.push(char::from(ALPHABET[six as usize]));
        }
    }
}

/// None for what [`encode`] never gives.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(decoded_len(text.len()));
    for four in text.as_bytes().chunks(4) {
        let mut group = 0u32;
        for (place, &character) in four.iter().enumerate() {
            group |= u32::from(value(character)?) << (18 - 6 * place);
        }
        let bytes = group.to_be_bytes();
        let used = four.len().checked_sub(1).filter(|&used| used > 0)?;
        if bytes[1 + used..].iter().any(|&rest| rest != 0) {
            return None;
        }
        out.extend_from_slice(&bytes[1..=used]);
    }
    Some(out)
}

const fn value(character: u8) -> Option<u8> {
    Some(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}
