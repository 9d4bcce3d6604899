//! Bytes no honest peer sends: no decoder panics on them, and none allocates more than a multiple of their number.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use tramline_wire::messages::ALL;
use tramline_wire::{Reader, Schema, decode_request_header};

/// An allocator that counts what each thread holds.
#[allow(unsafe_code)]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};

    use super::{HELD, PEAK};

    struct Counting;

    fn grow(size: usize) {
        let held = HELD.get() + size;
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }

    // SAFETY: every call is handed on to the system's allocator as it came, so its promises are kept; the counters are
    // plain cells with constant initial values and no destructor, which neither allocate nor unwind.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            grow(layout.size());
            // SAFETY: the caller's layout, unchanged.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            HELD.set(HELD.get().saturating_sub(layout.size()));
            // SAFETY: `alloc` above got this pointer from the same allocator with the same layout.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;
}

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The most bytes held at once while `work` ran, beyond what was held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (PEAK.get() - before, result)
}

/// What a decoder may hold at once for each byte of input: an empty string takes one byte on the wire and 32 in memory,
/// and while an array of them grows, half of it exists twice.
const PER_BYTE: usize = 48;
/// What it may hold whatever the input: the first few elements of the arrays it is inside of.
const FIXED: usize = 4096;

/// A seeded source of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Mostly the bytes that lengths and counts are made of, so that decoders get far.
    fn byte(&mut self) -> u8 {
        match self.below(8) {
            0..3 => 0,
            3..6 => 1 + self.below(4) as u8,
            6 => 0xff,
            _ => self.next() as u8,
        }
    }
}

/// What it may hold for each byte when no element of the array can be read.
const PER_UNREAD_BYTE: usize = 3;

/// Decodes the bytes as `schema` and fails when that panics, holds too much, or gives a value that cannot be written.
/// Returns whether the bytes were accepted.
fn probe(schema: &Schema, version: i16, bytes: &[u8], seed: u64) -> bool {
    bounded_probe(schema, version, bytes, seed, PER_BYTE)
}

fn bounded_probe(schema: &Schema, version: i16, bytes: &[u8], seed: u64, per_byte: usize) -> bool {
    let frame = Bytes::copy_from_slice(bytes);
    let case = || format!("{} version {version}, seed {seed}, bytes {bytes:02x?}", schema.name);
    let decode = || schema.describe(&mut Reader::new(frame.clone()), version);
    let (peak, result) = peak_of(|| catch_unwind(AssertUnwindSafe(decode)));
    let Ok(result) = result else { panic!("panic: {}", case()) };
    assert!(peak <= per_byte * bytes.len() + FIXED, "{peak} bytes held for {}: {}", bytes.len(), case());
    if result.is_err() {
        return false;
    }
    let again = |bytes: Bytes| {
        schema.recode(&mut Reader::new(bytes), version).map(|frame| frame.map(|f| f.to_bytes()))
    };
    let Ok(Ok(once)) = again(frame) else { panic!("cannot be written: {}", case()) };
    assert_eq!(again(once.clone()), Ok(Ok(once)), "{}", case());
    true
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
fn random_and_mutated_bytes_cost_an_error_and_nothing_else() {
    let (mut accepted, mut refused) = (0, 0);
    every_version(|schema, version, blank| {
        for seed in 0..60 {
            let mut random = Random(seed ^ (version as u64) << 32);
            let mut bytes = blank.clone();
            if seed % 2 == 0 {
                bytes = (0..random.below(200)).map(|_| random.byte()).collect();
            }
            // Each accepted mutation is the ground of the next, so that values grow step by step.
            for _ in 0..8 {
                let mut mutated = bytes.clone();
                for _ in 0..=random.below(3) {
                    let place = random.below(mutated.len() + 1);
                    match random.below(4) {
                        0 if !mutated.is_empty() => {
                            mutated.remove(place.min(mutated.len() - 1));
                        }
                        1 => mutated.truncate(place),
                        2 if place < mutated.len() => mutated[place] = random.byte(),
                        _ => (0..=random.below(24)).for_each(|_| mutated.insert(place, random.byte())),
                    }
                }
                if probe(schema, version, &mutated, seed) {
                    accepted += 1;
                    bytes = mutated;
                } else {
                    refused += 1;
                }
            }
        }
    });
    assert!(
        accepted > 1000 && refused > 1000,
        "{accepted} accepted, {refused} refused: the mutations miss the point"
    );
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
                probe(schema, version, &[&blank[..place], lie, &blank[over..]].concat(), 0);
                probe(schema, version, &[&blank[..place], lie, &blank[place..], &[0; 300]].concat(), 0);
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
                bounded_probe(schema, version, &bytes, 0, PER_UNREAD_BYTE);
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
                    probe(schema, version, &[&blank[..place], count, &elements, &[0; 64]].concat(), 0);
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
        let (peak, header) = peak_of(|| decode_request_header(Bytes::copy_from_slice(bytes)));
        assert!(header.is_err() && peak < 1024);
    }
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.byte()).collect();
        let (peak, _) = peak_of(|| decode_request_header(Bytes::from(bytes)));
        assert!(peak < 1024, "seed {seed}");
    }
}
