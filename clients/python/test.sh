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
# As a user would have it: from a wheel, with the Lua sources in it. Makes src/redis_rl/_sync, too.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .

"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
"$venv/bin/pyright" --pythonpath "$venv/bin/python"

# The peers' own tests come with their sources, which are not kept here. Without them those tests are skipped.
sources() { # name, variable
    local version file
    version=$("$venv/bin/python" -c "from importlib.metadata import version; print(version('$1'))")
    file=$venv/$1-$version.tar.gz
    if [[ ! -e $file ]]; then
        "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
            --no-binary "$1" --dest "$venv" "$1==$version" ||
            echo "the sources of $1 $version could not be fetched: its own tests are skipped" >&2
    fi
    [[ ! -e $file ]] || export "$2=$PWD/$file"
}
sources limits LIMITS_SDIST
sources djangorestframework DRF_SDIST

# The last version of FastAPI whose routes of included routers are copies, for some of the tests.
older=$PWD/$venv/fastapi-0.136
[[ -d $older ]] || "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$older" 'fastapi==0.136.3' ||
    echo "FastAPI 0.136 could not be fetched: its tests are skipped" >&2
[[ ! -d $older ]] || export OLDER_FASTAPI=$older

# Two at a time, as they wait more than they compute. The tests of a file share their servers.
exec "$venv/bin/pytest" --numprocesses 2 --dist loadfile "$@"
