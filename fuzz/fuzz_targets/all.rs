//! The words of RL.ALL, which are right but for some.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| redis_rl::fuzzing::all_keys(input));
