#!/usr/bin/env bash
# Measures the packages, or the service, beside what users have today, and puts the tables into their section of docs/BENCHMARK.md.
#
#   scripts/bench-beside.sh clients|envoy
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?clients or envoy?}
section=$(mktemp)
trap 'rm -f "$section"' EXIT
model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
server=$("${REDIS_SERVER:-redis-server}" --version | grep -o 'v=[^ ]*')
where="Server: Redis ${server#v=}. Machine: ${model:-$(uname -m)}, $(nproc) processors. Load average when the run began: $(cut -d ' ' -f 1 /proc/loadavg)."

clients() {
    cat <<TEXT
## Through the packages

\`make bench-clients\` writes this section. Each adapter of the [packages](CLIENTS.md) stands beside what users of the framework have
today, which comes first. All take short turns, one after the other. Figures are medians of the turns; ratios (÷) are taken within each
turn, the smallest and the largest, or *no difference* where these are on both sides of 1. CPU is the processor time of one request.

$where
TEXT
    for language in python:Python node:Node.js rust:Rust; do
        printf '\n<details><summary>%s</summary>\n\n' "${language#*:}"
        "clients/${language%%:*}/bench.sh"
        printf '\n</details>\n'
    done
}

envoy() {
    cat <<TEXT
## Behind Envoy

\`make bench-envoy\` writes this section. [\`redis-rl-envoy\`](ENVOY.md) stands beside envoyproxy/ratelimit, of January 2026
and built by Go $(go env GOVERSION | sed 's/^go//'), on one Redis with the module, both with their default settings and windows of the
clock. Turns and ratios (÷, ours by theirs) are as [above](#through-the-packages). CPU is processor time, and commands are those of
Redis, of one request.

In *denied* requests the last descriptor is over its limit and the others are not. Each client comes back after more than a
second, so the [deny cache](ENVOY.md#the-deny-cache) answers none of them. In a *flood* it answers all but one a second of each
client. envoyproxy/ratelimit has a local cache, too, which is switched off unless configured.

$where

TEXT
    envoy/bench.sh
}

"$kind" | tee "$section"
scripts/page-section.sh "$kind" "bench-$kind" docs/BENCHMARK.md <"$section"
