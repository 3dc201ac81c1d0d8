#!/usr/bin/env bash
# Lints, type checks and tests the package, in a virtual environment of its own (.venv). MODULE is the module's file,
# SERVER the server to test on, PYTHON the interpreter. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"

venv=.venv
if ! cmp -s requirements-dev.txt "$venv/requirements-dev.txt"; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
    cp requirements-dev.txt "$venv/requirements-dev.txt"
fi
# As a user would have it: from a wheel, with the Lua sources in it.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .

"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/python" scripts/make_sync.py --check
"$venv/bin/mypy"
"$venv/bin/pyright" --pythonpath "$venv/bin/python"

# limits' own tests come with its sources, which are not kept here. Without them that test is skipped.
limits=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("limits"))')
if [[ ! -e $venv/limits-$limits.tar.gz ]]; then
    "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
        --no-binary limits --dest "$venv" "limits==$limits" ||
        echo "the sources of limits $limits could not be fetched: its own tests are skipped" >&2
fi
[[ ! -e $venv/limits-$limits.tar.gz ]] || export LIMITS_SDIST="$PWD/$venv/limits-$limits.tar.gz"

exec "$venv/bin/pytest" "$@"
