#!/usr/bin/env bash
# Measures the service beside envoyproxy/ratelimit, which is built from the Go module proxy. Prints tables in Markdown.
# RATE, LENGTH and TURNS are described in benches/beside.rs.
set -euo pipefail
cd "$(dirname "$0")"

./peer.sh
PEER=$PWD/.er/service_cmd exec "${CARGO:-cargo}" bench --locked --quiet --bench beside
