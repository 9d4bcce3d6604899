//! `tramline_fuzzing::MACHINES` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::MACHINES.check)(data);
});
