//! `tramline_fuzzing::BATCHES` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::BATCHES.check)(data);
});
