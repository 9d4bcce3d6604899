//! `tramline_fuzzing::TASKS` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::TASKS.check)(data);
});
