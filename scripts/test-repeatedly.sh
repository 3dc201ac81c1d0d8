#!/usr/bin/env bash
# Runs the live tests many times in a row on one engine, while other processes keep every processor busy: a test that depends
# on time or on luck fails sooner or later.
#
#   scripts/test-repeatedly.sh [TIMES] [ENGINE]     TIMES=20, ENGINE=redis-7.0, BUSY=8 processes
#
# `make build build-hooks` first. Ends at the first run that fails, with its log.
set -euo pipefail
cd "$(dirname "$0")/.."

times=${1:-20}
export ENGINES=${2:-redis-7.0}
log=$(mktemp)
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true; rm -f "$log"' EXIT

test=(cargo test --locked --profile tests --features test-hooks --test live)
"${test[@]}" --no-run
for _ in $(seq "${BUSY:-8}"); do
    (while :; do :; done) &
    busy+=($!)
done
for run in $(seq "$times"); do
    begun=$(date +%s)
    if ! "${test[@]}" >"$log" 2>&1; then
        cat "$log"
        echo "run $run of $times failed on $ENGINES" >&2
        exit 1
    fi
    echo "run $run of $times: $(grep '^test result' "$log" | tail -1), $(($(date +%s) - begun)) s"
done
