#!/usr/bin/env bash
# Tests the library in the tarball that scripts/package.sh has built for this machine's architecture: the demo and all live
# tests, on the server of the distribution.
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
# Tests of hooks build a module of their own; all others run with the library.
RL_MODULE=$library make test
