//! `tramline_fuzzing::GROUP_LOG` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (tramline_fuzzing::GROUP_LOG.check)(data);
});
