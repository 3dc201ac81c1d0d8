#!/usr/bin/env bash
# Puts standard input into a page, in place of the section of this name, or behind everything else.
#
#   scripts/page-section.sh NAME COMMAND PAGE    the section that `make COMMAND` writes
#
# `make bench` writes the rest of docs/BENCHMARK.md and carries these sections over (benches/limiters/report.rs has the
# same words).
set -euo pipefail

name=$1 command=$2 page=$3
begin="<!-- $name: written by make $command -->"
end="<!-- end of $name -->"

section=$(mktemp)
trap 'rm -f "$section" "$section.page"' EXIT
{ printf '%s\n' "$begin"; cat; printf '%s\n' "$end"; } >"$section"

# Without the old section, and without blank lines at the end.
awk -v begin="$begin" -v end="$end" '$0 == begin { skip = 1 } !skip { print } $0 == end { skip = 0 }' "$page" |
    cat -s | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$section.page"
{ cat "$section.page"; echo; cat "$section"; } >"$page"
echo "written: the section '$name' of $page" >&2
