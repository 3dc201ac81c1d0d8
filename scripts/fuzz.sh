#!/usr/bin/env bash
# Runs the fuzz targets of fuzz/, one after the other: the parts of the module that need no server.
#
#   scripts/fuzz.sh            ten minutes each (SECONDS_EACH=n; TARGET=name for one)
#
# Takes cargo-fuzz (cargo install cargo-fuzz). Without a nightly toolchain the stable one is told to take the flags of the
# fuzzer. A finding lies in fuzz/artifacts; `cargo fuzz run TARGET FILE` runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-fuzz >/dev/null || { echo 'fuzz: there is no cargo-fuzz here: cargo install cargo-fuzz' >&2; exit 1; }
toolchain=()
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then toolchain=(+nightly); else export RUSTC_BOOTSTRAP=1; fi

for target in ${TARGET:-compact words all}; do
    cargo "${toolchain[@]}" fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-600}" -max_len=4096 -print_final_stats=1
done
