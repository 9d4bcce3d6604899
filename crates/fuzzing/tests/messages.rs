//! Bytes no honest peer sends: no decoder panics on them, and none allocates more than a multiple of their number.

use bytes::Bytes;
use tramline_fuzzing::counting::peak_of;
use tramline_fuzzing::{Random, probe};
use tramline_wire::messages::ALL;
use tramline_wire::{Reader, Schema, decode_request_header};

/// What a decoder may hold at once for each byte of input.
const PER_BYTE: usize = 48;
/// What it may hold for each byte when no element of the array can be read.
const PER_UNREAD_BYTE: usize = 3;

fn reads(schema: &Schema, version: i16, bytes: &[u8], per_byte: usize) -> bool {
    probe(schema, version, &Reader::new(Bytes::copy_from_slice(bytes)), per_byte)
}

fn every_version(mut work: impl FnMut(&Schema, i16, Vec<u8>)) {
    for schema in ALL {
        for version in schema.min_version..=schema.max_version {
            let blank = schema.blank(version).expect("defaults fit every version").to_bytes();
            work(schema, version, blank.to_vec());
        }
    }
}

#[test]
fn a_length_that_lies_allocates_nothing_for_what_is_not_there() {
    let lies: [&[u8]; 6] = [
        &[0x7f, 0xff, 0xff, 0xff],
        &[0x80, 0, 0, 0],
        &[0x00, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0x07],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ];
    every_version(|schema, version, blank| {
        for place in 0..=blank.len() {
            for lie in lies {
                let over = (place + lie.len()).min(blank.len());
                reads(schema, version, &[&blank[..place], lie, &blank[over..]].concat(), PER_BYTE);
                reads(
                    schema,
                    version,
                    &[&blank[..place], lie, &blank[place..], &[0; 300]].concat(),
                    PER_BYTE,
                );
            }
        }
    });
}

#[test]
fn a_count_that_only_might_be_true_reserves_no_more_than_the_bytes_that_are_there() {
    // The count fits the bytes behind it, but no element in them is one: they are strings of absurd lengths.
    let counts: [&[u8]; 2] = [&[0x81, 0x40], &[0, 0, 0x20, 0]];
    every_version(|schema, version, blank| {
        for place in 0..blank.len() {
            for count in counts {
                let bytes = [&blank[..place], count, &[0x7f; 40_000]].concat();
                reads(schema, version, &bytes, PER_UNREAD_BYTE);
            }
        }
    });
}

#[test]
fn an_array_of_the_smallest_elements_stays_within_the_bound() {
    const COUNT: usize = 4000;
    let (low, high) = (((COUNT + 1) & 0x7f) as u8 | 0x80, ((COUNT + 1) >> 7) as u8);
    every_version(|schema, version, blank| {
        for place in 0..blank.len() {
            for (count, filler) in [(&[low, high][..], 1), (&[0, 0, (COUNT >> 8) as u8, COUNT as u8], 0)] {
                for width in [1, 2, 4] {
                    let elements = vec![filler; COUNT * width];
                    let bytes = [&blank[..place], count, &elements, &[0; 64]].concat();
                    reads(schema, version, &bytes, PER_BYTE);
                }
            }
        }
    });
}

#[test]
fn what_arrives_on_an_open_port_is_no_request_header() {
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &tls,
        b"",
        b"\0",
        b"\0\x12\0",
        b"\xff\xff\0\0\0\0\0\0\0\0",
    ] {
        let (header, peak) = peak_of(|| decode_request_header(Bytes::copy_from_slice(bytes)));
        assert!(header.is_err() && peak < 1024);
    }
    for seed in 0..20_000 {
        let bytes = Random::new(seed).bytes(40);
        let (_, peak) = peak_of(|| decode_request_header(Bytes::from(bytes)));
        assert!(peak < 1024, "seed {seed}");
    }
}
