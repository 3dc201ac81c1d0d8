#!/bin/sh
# Installs what the tests need, and runs all checks of this package. The module has to be built before, or MODULE has to
# say where it is; functions and script need none.
set -eu
cd "$(dirname "$0")"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npm run --silent lint
npm test --silent
