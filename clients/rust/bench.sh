#!/usr/bin/env bash
# Measures the layer beside no limit at all and beside tower-governor, which counts in the process.
set -euo pipefail
cd "$(dirname "$0")"
exec cargo bench --locked --quiet --bench layers "$@"
