#!/usr/bin/env bash
# Prints the entry of CHANGELOG.md for a version, without its heading.
#
#   scripts/release-notes.sh 0.2.0
set -euo pipefail
cd "${ROOT:-$(dirname "$0")/..}"

version=${1:?which version?}
notes=$(awk -v version="$version" '
    /^## / { heading = substr($0, 4); sub(/,.*/, "", heading); inside = heading == version; next }
    inside' CHANGELOG.md)
[ -n "$notes" ] || { echo "release: CHANGELOG.md has no entry for $version" >&2; exit 1; }
printf '%s\n' "$notes" | sed '/./,$!d'
