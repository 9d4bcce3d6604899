//! `tramline_fuzzing::RESPONSES` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::RESPONSES.check)(data);
});
