#!/usr/bin/env bash
# Measures the adapters in the virtual environment that test.sh makes. Arguments go to bench/bench.py.
set -euo pipefail
cd "$(dirname "$0")"
[[ -x .venv/bin/pytest ]] || ./test.sh --collect-only --quiet >/dev/null
# What stands here, and not what the tests last installed.
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
exec .venv/bin/python bench/bench.py "$@"
