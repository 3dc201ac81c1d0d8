#!/bin/sh
# Checks formatting and lints, and runs the tests on live servers. MODULE names the module to test
# (target/release/libredis_rl.so of the repository unless set), REDIS_SERVER the server (the system's unless set). Arguments go to
# cargo test (--no-run: it checks and compiles).
set -eu
cd "$(dirname "$0")"
cargo=${CARGO:-cargo}

"$cargo" fmt --check
"$cargo" clippy --locked --all-targets --all-features -- -D warnings
# The library has to stand without its features, and with those that are on by default.
"$cargo" clippy --locked --lib --no-default-features -- -D warnings
"$cargo" clippy --locked --lib -- -D warnings
RUSTDOCFLAGS='-D warnings' "$cargo" doc --locked --no-deps --all-features --quiet
"$cargo" test --locked --all-features "$@"
