//! `tramline_fuzzing::PROGRESS` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::PROGRESS.check)(data);
});
