#!/usr/bin/env bash
# Builds the subjects and plays the fault suite with them. MODULE is the module's file, SERVER the server. Arguments go to
# run.py: --quick plays the fixed choice of make test-clients.
set -euo pipefail
cd "$(dirname "$0")"

python=../python venv=../python/.venv
if ! cmp -s $python/requirements-dev.txt $venv/requirements-dev.txt; then
    rm -rf $venv
    "${PYTHON:-python3}" -m venv $venv
    $venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $python/requirements-dev.txt
    cp $python/requirements-dev.txt $venv/requirements-dev.txt
fi
$venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall $python
$venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt

# The service takes minutes to build, and is not in the fixed choice.
[[ " $* " == *" --quick "* ]] || (cd ../../envoy && "${CARGO:-cargo}" build --locked --release --quiet)

# The tests of the package have installed it, too.
[ ../node/node_modules/.package-lock.json -nt ../node/package-lock.json ] ||
    (cd ../node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
(cd ../node && npm run --silent build)
if command -v "${CARGO:-cargo}" > /dev/null; then
    "${CARGO:-cargo}" build --locked --release --quiet --manifest-path subjects/rust/Cargo.toml --target-dir ../rust/target
fi
if command -v go > /dev/null; then
    (cd subjects/go && go build -o ../../../go/.bin/faults-subject .)
fi
if command -v javac > /dev/null && command -v mvn > /dev/null; then
    mvn --batch-mode --quiet --file ../java/pom.xml -P faults -pl :redis-rl-faults -am -DskipTests package
else
    printf '\n%s\n\n' '*** THERE IS NO JDK OR NO MAVEN HERE: THE PACKAGE FOR JAVA IS NOT PLAYED ***' >&2
fi

$venv/bin/ruff format --check --quiet .
$venv/bin/ruff check --quiet .

exec $venv/bin/python run.py "$@"
