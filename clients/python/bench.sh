#!/usr/bin/env bash
# Measures the adapters in the virtual environment that test.sh makes. Arguments go to bench/bench.py.
set -euo pipefail
cd "$(dirname "$0")"
[[ -x .venv/bin/pytest ]] || ./test.sh --collect-only --quiet >/dev/null
exec .venv/bin/python bench/bench.py "$@"
