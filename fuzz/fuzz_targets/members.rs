//! `tramline_fuzzing::MEMBERS` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::MEMBERS.check)(data);
});
