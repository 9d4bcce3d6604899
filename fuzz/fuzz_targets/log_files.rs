//! `tramline_fuzzing::LOG_FILES` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::LOG_FILES.check)(data);
});
