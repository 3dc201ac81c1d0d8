//! A compact log's bytes, and calls on it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| redis_rl::fuzzing::compact(input));
