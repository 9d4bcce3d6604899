//! Texts there and back, cut short, damaged and foreign.

use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn progress(base: i64, done: &[(i64, i64)]) -> Progress {
    Progress {
        frontier: Frontier { offset: base, leader_epoch: None },
        done: done.iter().map(|&(from, until)| from..until).collect(),
        newest_epoch: Some(3),
    }
}

fn offsets(done: &[Range<i64>]) -> Vec<i64> {
    done.iter().cloned().flatten().collect()
}

#[test]
fn the_text_of_version_one_stays_what_it_is() {
    let text = encode(&progress(10, &[(11, 14), (20, 21)]), Some(7), 4096);
    assert_eq!(text, "tl1:CgQAAAAHAQ4EQBrtGQ");
    let saved = decode(&text).unwrap();
    assert_eq!((saved.base, offsets(&saved.done)), (10, [11, 12, 13, 20].to_vec()));
    assert_eq!((saved.newest_epoch, saved.incarnation), (Some(3), Some(7)));
}

#[test]
fn without_anything_above_the_frontier_there_is_no_text() {
    assert_eq!(encode(&progress(10, &[]), None, 4096), "");
    assert_eq!(encode(&progress(10, &[(11, 12)]), None, 12), "");
}

#[test]
fn b016_offsets_around_two_to_the_31_and_32_and_the_largest_come_back() {
    for base in [0, (1 << 31) - 2, (1 << 32) - 2, 9_000_000_000, i64::MAX - 100] {
        let done = [(base + 1, base + 2), (base + 4, base + 90)];
        let saved = decode(&encode(&progress(base, &done), None, 4096)).unwrap();
        assert_eq!((saved.base, saved.done), (base, progress(base, &done).done));
    }
}

#[test]
fn long_ranges_are_runs_and_scattered_ones_bits() {
    let far = encode(&progress(0, &[(1, 1_000_000), (5_000_000_000, 6_000_000_000)]), None, 4096);
    assert!(far.len() < 50, "{far}");
    let scattered: Vec<_> = (0..8000).step_by(2).map(|n| (n + 1, n + 2)).collect();
    let text = encode(&progress(0, &scattered), None, 4096);
    assert!(text.len() < 8000 / 8 * 4 / 3 + 30, "{}", text.len());
    assert_eq!(decode(&text).unwrap().done, progress(0, &scattered).done);
}

#[test]
fn b017_forty_thousand_scattered_completions_keep_their_lowest_within_the_limit() {
    let mut random = crate::lanes::Jitter::new(17);
    let done: Vec<_> =
        (0..40_000).filter(|_| random.draw() & 1 == 0).map(|n| (n * 2 + 1, n * 2 + 2)).collect();
    let text = encode(&progress(0, &done), None, 4096);
    assert!(text.len() <= 4096);
    let kept = decode(&text).unwrap().done;
    assert!(kept.len() > 5000, "{}", kept.len());
    assert_eq!(kept, progress(0, &done).done[..kept.len()]);
}

#[test]
fn what_is_not_ours_is_told_from_what_is_damaged() {
    for foreign in ["", "host-7", "bgBBAAAA", "{\"a\":1}", "tl", "tlx:abc", "\u{1F68B}"] {
        assert_eq!(decode(foreign), Err(Unusable::Foreign), "{foreign}");
    }
    assert_eq!(decode("tl2:CgQAAAAHAQ4EQBrtGQ"), Err(Unusable::OtherVersion));
    for damaged in
        ["tl1:", "tl1:A", "tl1:CgQAAAAHAQ4EQBrtGA", "tl1:CgQAAAAHAQ4EQBrt", "tl1:CgQ=", "tl1:\u{e9}"]
    {
        assert_eq!(decode(damaged), Err(Unusable::Damaged), "{damaged}");
    }
}

#[test]
fn a_text_is_believed_only_beside_its_offset_in_its_topic_and_within_the_log() {
    let saved = || decode(&encode(&progress(10, &[(11, 14)]), Some(7), 4096)).unwrap();
    let found = FoundAt { offset: 10, incarnation: Some(7), log_end: Some(14) };
    assert!(saved().checked(found).is_ok());
    assert!(saved().checked(FoundAt { incarnation: None, log_end: None, ..found }).is_ok());
    let refused = [
        (FoundAt { offset: 9, ..found }, Unusable::OtherOffset(10)),
        (FoundAt { offset: 11, ..found }, Unusable::OtherOffset(10)),
        (FoundAt { incarnation: Some(8), ..found }, Unusable::OtherTopic),
        (FoundAt { log_end: Some(13), ..found }, Unusable::BeyondLog { until: 14, end: 13 }),
    ];
    for (found, why) in refused {
        assert_eq!(saved().checked(found), Err(why), "{why}");
    }
}

#[test]
fn of_two_forms_that_name_as_much_the_shorter_one_is_taken_and_runs_when_both_are_as_long() {
    let kind = |at: i64| smallest(0, &[at..at + 1, at + 200..at + 201], 3).kind;
    assert_eq!(kind(1), BITS, "one byte and two");
    assert_eq!(kind(10), RUNS, "two bytes and two");
    assert_eq!(kind(20), RUNS, "three bytes and two");
}

#[test]
fn runs_fill_the_room_to_the_last_byte_and_no_further() {
    let written = |room| {
        let (body, all) = runs(0, &[1..2, 3..4], room);
        (body.bytes.len(), body.covered, all)
    };
    let expected = [(0, 0, false), (0, 0, false), (2, 1, false), (2, 1, false), (4, 2, true), (4, 2, true)];
    assert_eq!([0, 1, 2, 3, 4, 5].map(written), expected);
}

/// A text with a right checksum around this body, for offset 10.
fn crafted(kind: u8, body: &[u8]) -> Result<Vec<i64>, Unusable> {
    let content = [&[10, 0, 0, 0, 0, 0, kind], body].concat();
    let crc = crc32c(&content).to_be_bytes();
    let mut out = PREFIX.to_string();
    text::encode(&[&content[..], &crc[..]].concat(), &mut out);
    decode(&out).map(|saved| offsets(&saved.done))
}

#[test]
fn runs_that_are_empty_or_touch_or_do_not_end_are_damage() {
    assert_eq!(crafted(RUNS, &[0, 1, 2, 1]), Ok([10, 13].to_vec()));
    for damaged in [&[1, 0][..], &[0, 1, 0, 1], &[0, 1, 2], &[0x80], &[0, 0x81]] {
        assert_eq!(crafted(RUNS, damaged), Err(Unusable::Damaged), "{damaged:?}");
    }
    let long = |last| [&[0][..], &[0xff; 8], &[last]].concat();
    assert_eq!(crafted(RUNS, &long(0xff)), Err(Unusable::Damaged), "more than nine bytes");
    assert_eq!(crafted(RUNS, &[&long(0xff)[..], &[2]].concat()), Err(Unusable::Damaged), "more than 63 bits");
    assert_eq!(crafted(2, &[0, 1]), Err(Unusable::Damaged), "no such kind");
}

#[test]
fn every_byte_comes_back_from_its_text_and_a_lone_character_is_none() {
    let all: Vec<u8> = (0..=255).collect();
    for bytes in [&all[..], &all[1..], &all[2..], &all[3..]] {
        let mut out = std::string::String::new();
        text::encode(bytes, &mut out);
        assert_eq!(text::decode(&out).as_deref(), Some(bytes));
    }
    assert_eq!(text::decode("AAAA"), Some([0; 3].to_vec()));
    assert_eq!(text::decode("AAAAA"), None);
}

/// A base, and ranges at or above it, apart.
fn any_progress() -> impl Strategy<Value = Progress> {
    let base = prop_oneof![0..100i64, (1i64 << 31) - 50..(1i64 << 31) + 50, 0..(1i64 << 62)];
    let dense = proptest::collection::vec((1..4i64, 1..4i64), 0..3000);
    let loose = proptest::collection::vec((1..1_000_000i64, 1..1_000_000i64), 0..300);
    (base, prop_oneof![dense, loose], -1..5i32, any::<bool>()).prop_map(|(base, steps, epoch, at_base)| {
        let mut at = base;
        let mut done = Vec::new();
        for (number, (gap, length)) in steps.into_iter().enumerate() {
            let start = at + if number == 0 && at_base { 0 } else { gap };
            at = start + length;
            done.push(start..at);
        }
        let frontier = Frontier { offset: base, leader_epoch: None };
        Progress { frontier, done, newest_epoch: (epoch >= 0).then_some(epoch) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_fits_comes_back_and_what_does_not_keeps_its_lowest(
        progress in any_progress(),
        tag in any::<Option<u32>>(),
        limit in prop_oneof![0..64usize, 0..5000usize],
    ) {
        let whole = encode(&progress, tag, usize::MAX >> 8);
        if !progress.done.is_empty() {
            let saved = decode(&whole).unwrap();
            prop_assert_eq!(&saved.done, &progress.done);
            prop_assert_eq!((saved.base, saved.newest_epoch), (progress.frontier.offset, progress.newest_epoch));
            prop_assert_eq!(saved.incarnation, tag.filter(|&tag| tag != 0));
        }
        let text = encode(&progress, tag, limit);
        prop_assert!(text.len() <= limit && text.is_ascii());
        if whole.len() <= limit {
            prop_assert_eq!(&text, &whole);
        }
        if !text.is_empty() {
            // A prefix of what was completed, the last range perhaps cut.
            let kept = decode(&text).unwrap().done;
            prop_assert!(!kept.is_empty());
            let last = kept.len() - 1;
            prop_assert_eq!(&kept[..last], &progress.done[..last]);
            prop_assert_eq!(kept[last].start, progress.done[last].start);
            prop_assert!(kept[last].end <= progress.done[last].end);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        decode(&text).ok();
        let mut out = "tl1:".to_string();
        text::encode(&bytes, &mut out);
        decode(&out).ok();
        // With a right checksum the rest is looked at.
        let crc = crc32c(&bytes).to_be_bytes();
        let mut out = "tl1:".to_string();
        text::encode(&[&bytes[..], &crc[..]].concat(), &mut out);
        if let Ok(saved) = decode(&out) {
            let mut at = saved.base;
            for range in saved.done {
                prop_assert!(at <= range.start && range.start < range.end);
                at = range.end;
            }
        }
    }

    #[test]
    fn one_changed_character_is_noticed(progress in any_progress(), at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_-]") {
        let text = encode(&progress, Some(9), 4096);
        prop_assume!(!text.is_empty());
        let at = PREFIX.len() + at.index(text.len() - PREFIX.len());
        prop_assume!(text[at..=at] != to);
        let mut changed = text.clone();
        changed.replace_range(at..=at, &to);
        prop_assert_eq!(decode(&changed), Err(Unusable::Damaged));
    }
}
