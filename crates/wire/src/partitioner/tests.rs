//! Golden vectors of other implementations.

use super::*;

#[test]
fn murmur2_equals_the_published_values_of_the_java_client() {
    for (key, expected) in [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ] {
        assert_eq!(murmur2(key.as_bytes()), expected, "{key}");
    }
}

/// A key, then for FNV-1a and for murmur2 the hash (murmur2 without its sign) and the partitions of 2, 3, 4, 16, 64.
type Row = (&'static [u8], u32, [i32; 5], u32, [i32; 5]);

const COUNTS: [i32; 5] = [2, 3, 4, 16, 64];

fn rows() -> Vec<Row> {
    // Leaking two keys is simpler than owning all of them.
    let all: &'static [u8] = Vec::leak((0..=255).collect());
    let nines: &'static [u8] = Vec::leak([&b"customer/"[..], &[b'9'; 200]].concat());
    vec![
        (b"", 2_166_136_261, [1, 1, 1, 5, 5], 275_646_681, [1, 0, 1, 9, 25]),
        (&[0x00], 84_696_351, [1, 0, 3, 15, 31], 375_494_588, [0, 2, 0, 12, 60]),
        (&[0x7f], 4_195_109_838, [0, 0, 2, 14, 14], 21_296_028, [0, 0, 0, 12, 28]),
        (&[0x80], 2_232_128_415, [1, 0, 3, 15, 31], 857_690_492, [0, 2, 0, 12, 60]),
        (&[0xff], 2_047_574_606, [0, 2, 2, 14, 14], 1_836_015_963, [1, 0, 3, 11, 27]),
        (b"user-1", 4_115_888_500, [0, 1, 0, 4, 52], 1_404_122_828, [0, 2, 0, 12, 12]),
        (b"user-2", 4_166_221_357, [1, 1, 1, 13, 45], 1_822_501_856, [0, 2, 0, 0, 32]),
        (
            "\u{437}\u{430}\u{43a}\u{430}\u{437}-7".as_bytes(),
            3_316_163_555,
            [1, 2, 3, 3, 35],
            1_305_279_345,
            [1, 0, 1, 1, 49],
        ),
        ("order-\u{1f680}".as_bytes(), 2_783_056_589, [1, 2, 1, 13, 13], 1_759_927_856, [0, 2, 0, 0, 48]),
        (all, 2_426_689_733, [1, 2, 1, 5, 5], 199_136_374, [0, 1, 2, 6, 54]),
        (nines, 2_253_988_986, [0, 0, 2, 10, 58], 1_629_499_300, [0, 1, 0, 4, 36]),
    ]
}

#[test]
fn b214_fnv1a_and_murmur2_equal_the_golden_vectors() {
    for (key, fnv, fnv_partitions, murmur, murmur_partitions) in rows() {
        assert_eq!(fnv1a(key), fnv, "{key:02x?}");
        assert_eq!(murmur2(key).cast_unsigned() & 0x7fff_ffff, murmur, "{key:02x?}");
        let fold = |partitioner: Partitioner| COUNTS.map(|count| partitioner.partition(key, count).unwrap());
        assert_eq!(fold(Partitioner::Fnv1aUnsigned), fnv_partitions, "{key:02x?}");
        assert_eq!(fold(Partitioner::Murmur2), murmur_partitions, "{key:02x?}");
    }
}

#[test]
fn b214_the_two_folds_of_fnv1a_part_ways_exactly_above_the_sign_bit() {
    for (key, fnv, ..) in rows() {
        for count in [3, 7, 1000, i32::MAX] {
            let signed = i64::from(fnv.cast_signed()).abs() % i64::from(count);
            assert_eq!(Partitioner::Fnv1aSarama.partition(key, count).map(i64::from), Some(signed));
            let same = Partitioner::Fnv1aUnsigned.partition(key, count)
                == Partitioner::Fnv1aSarama.partition(key, count);
            assert!(same || fnv >= 1 << 31, "{key:02x?} of {count}");
        }
    }
    // By hand: 4115888500 is -179078796 as a signed number; modulo 3 that is 1 unsigned and 0 by absolute value.
    assert_eq!(Partitioner::Fnv1aUnsigned.partition(b"user-1", 3), Some(1));
    assert_eq!(Partitioner::Fnv1aSarama.partition(b"user-1", 3), Some(0));
}

#[test]
fn crc32_folds_unsigned_as_librdkafka_does() {
    // zlib.crc32 of CPython gives 0x7e264614 for this key.
    assert_eq!(Partitioner::Crc32.partition(b"user-1", 1000), Some((0x7e26_4614u32 % 1000).cast_signed()));
    assert_eq!(Partitioner::Crc32.partition(b"", 7), Some(0));
}

#[test]
fn a_count_that_is_not_positive_has_no_partition() {
    for count in [0, -1, i32::MIN] {
        for partitioner in
            [Partitioner::Murmur2, Partitioner::Fnv1aUnsigned, Partitioner::Fnv1aSarama, Partitioner::Crc32]
        {
            assert_eq!(partitioner.partition(b"key", count), None);
        }
        assert_eq!(RoundRobin::new().next_partition(count), None);
        assert_eq!(Sticky::new(1).partition(count), None);
    }
}

#[test]
fn round_robin_begins_at_zero_and_survives_its_wrap() {
    let mut turn = RoundRobin::new();
    let first: Vec<_> = (0..7).filter_map(|_| turn.next_partition(3)).collect();
    assert_eq!(first, [0, 1, 2, 0, 1, 2, 0]);
    let mut turn = RoundRobin::starting_at(u32::MAX);
    assert!(turn.next_partition(3).is_some_and(|p| (0..3).contains(&p)));
    assert_eq!(turn.next_partition(3), Some(0));
}

#[test]
fn sticky_stays_until_the_batch_closes_and_then_goes_elsewhere() {
    let mut sticky = Sticky::new(7);
    let mut seen = [0u32; 5];
    let mut current = sticky.partition(5).unwrap();
    for _ in 0..5000 {
        assert_eq!(sticky.partition(5), Some(current));
        seen[current as usize] += 1;
        let other = (current + 1) % 5;
        sticky.batch_closed(other, 5);
        assert_eq!(sticky.partition(5), Some(current), "a batch of another partition moves nothing");
        sticky.batch_closed(current, 5);
        let next = sticky.partition(5).unwrap();
        assert_ne!(next, current);
        current = next;
    }
    assert!(seen.iter().all(|&times| (800..1200).contains(&times)), "uneven: {seen:?}");
}

#[test]
fn sticky_follows_a_changing_number_of_partitions() {
    let mut sticky = Sticky::new(3);
    sticky.batch_closed(0, 1);
    assert_eq!(sticky.partition(1), Some(0));
    sticky.batch_closed(0, 1);
    assert_eq!(sticky.partition(1), Some(0), "with one partition there is nowhere else");
    sticky.batch_closed(0, 100);
    let far = sticky.partition(100).unwrap();
    assert!((1..100).contains(&far));
    assert_eq!(sticky.partition(1), Some(0), "a partition that is gone is left");
}
