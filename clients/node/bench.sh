#!/bin/sh
# Measures the stores beside those that their users have today. Arguments go to bench/bench.mjs.
set -eu
cd "$(dirname "$0")"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2
npm run --silent bench -- "$@"
