#!/usr/bin/env bash
# Puts standard input into a page, in place of the section of this name, or behind everything else.
#
#   scripts/page-section.sh NAME COMMAND PAGE    the section that `make COMMAND` writes
set -euo pipefail

name=$1 command=$2 page=$3
begin="<!-- $name: written by make $command -->"
end="<!-- end of $name -->"

section="$begin"$'\n'"$(cat)"$'\n'"$end"
text=$(section=$section awk -v begin="$begin" -v end="$end" '
    $0 == begin { print ENVIRON["section"]; skip = done = 1 }
    !skip
    $0 == end { skip = 0 }
    END { if (!done) print "\n" ENVIRON["section"] }' "$page")
printf '%s\n' "$text" >"$page"
echo "written: the section '$name' of $page" >&2
