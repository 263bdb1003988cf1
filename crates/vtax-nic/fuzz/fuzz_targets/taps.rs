#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vtax_nic::fuzz::taps(data));
