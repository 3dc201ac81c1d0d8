//! The words of every command.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| redis_rl::fuzzing::words(input));
