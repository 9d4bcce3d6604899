//! `tramline_fuzzing::REQUESTS` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::REQUESTS.check)(data);
});
