#!/usr/bin/env bash
# Builds the packages for Python, Node.js and Rust as they are published. Needs the network for their build tools.
#
#   scripts/build-clients.sh OUT
#
# OUT receives python/ (a source distribution, and the wheel built from it), node/ (the output of npm pack) and rust/ (a .crate
# that was test-built from its contents). GITHUB_REPOSITORY (owner/name), if set, becomes the repository in package.json: npm
# compares it with the provenance.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?into which folder?}
mkdir -p "$out"/{python,node,rust}
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf 'packages: %s\n' "$*" >&2; }

scripts/functions.sh --check

say 'Python'
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r clients/python/requirements-dev.txt
(cd clients/python && "$work/venv/bin/hatchling" build --target sdist --directory "$out/python" >&2)
# The wheel is built from the source distribution, so that both are known to be complete.
mkdir "$work/sdist"
tar -xzf "$out"/python/*.tar.gz -C "$work/sdist" --strip-components 1
(cd "$work/sdist" && "$work/venv/bin/hatchling" build --target wheel --directory "$out/python" >&2)

say 'Node.js'
# In a copy, because package.json is changed.
mkdir "$work/clients"
tar -cf - --exclude=node_modules --exclude=dist --exclude=build -C clients node go/lua | tar -xf - -C "$work/clients"
(
    cd "$work/clients/node"
    npm ci --no-audit --no-fund --loglevel=error >&2
    if [ -n "${GITHUB_REPOSITORY:-}" ]; then
        npm pkg set repository.type=git "repository.url=git+https://github.com/$GITHUB_REPOSITORY.git" \
            repository.directory=clients/node
    fi
    npm pack --loglevel=error --pack-destination "$out/node" >&2
)

say 'Rust'
(cd clients/rust && cargo package --quiet --locked --allow-dirty --target-dir "$work/target" >&2)
cp "$work"/target/package/*.crate "$out/rust/"

# Their names have the version of the tree.
version=$(scripts/release.py check)
for file in python/redis_rl-$version{.tar.gz,-py3-none-any.whl} node/redis-rl-$version.tgz rust/redis-rl-client-$version.crate; do
    [ -f "$out/$file" ] || { say "$file is not there"; exit 1; }
done
(cd "$out" && find . -type f -printf '%P\n' | sort)
