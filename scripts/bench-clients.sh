#!/usr/bin/env bash
# Measures the adapters of the packages, and puts the tables into their section of docs/BENCHMARK.md. `make bench` writes
# the rest of that page and carries the section over.
#
#   scripts/bench-clients.sh [FILE]    another page than docs/BENCHMARK.md
set -euo pipefail
cd "$(dirname "$0")/.."

page=${1:-docs/BENCHMARK.md}
section=$(mktemp)
trap 'rm -f "$section"' EXIT
model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
server=$(redis-server --version | grep -o 'v=[^ ]*')
load=$(cut -d ' ' -f 1 /proc/loadavg)
{
    printf '## Through the packages\n\n'
    cat <<TEXT
\`make bench-clients\` writes this section. Each adapter of the [packages](CLIENTS.md) stands beside what users of the framework have
today, which comes first. All take short turns, one after the other. Figures are medians of the turns; ratios (÷) are taken within each
turn, the smallest and the largest, or *no difference* where these are on both sides of 1. CPU is the processor time of one request.

Server: Redis ${server#v=}. Machine: ${model:-$(uname -m)}, $(nproc) processors. Load average
when the run began: $load. Where that is above the number of processors, the figures are those of a machine that had other work.
TEXT
    for language in python:Python node:Node.js rust:Rust; do
        printf '\n<details><summary>%s</summary>\n\n' "${language#*:}"
        "clients/${language%%:*}/bench.sh"
        printf '\n</details>\n'
    done
} | tee "$section"
scripts/page-section.sh clients bench-clients "$page" <"$section"
