#!/usr/bin/env bash
# Tries what scripts/package.sh has built for this machine's kind of processor: the library out of the tarball, with the demo
# and all live tests, on the server of the distribution.
#
#   scripts/try-package.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?which folder?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tarball in "$folder"/*.tar.*; do
    member=$(tar -tf "$tarball" | grep -E '(^|/)libredis_rl\.so$') || continue
    tar -xf "$tarball" -C "$work" "$member"
    library=$work/$member
done
[ -x "${library:?no tarball with a library in it}" ] || { echo "the library has no execute bit" >&2; exit 1; }

scripts/install-deps.sh build server
MODULE=$library scripts/demo.sh
# The tests bring a build of their own for what only tests need; everything else runs on the library.
RL_MODULE=$library make test
