#!/usr/bin/env bash
# Measures the rate limit service beside envoyproxy/ratelimit, and puts the tables into their section of docs/BENCHMARK.md.
#
#   scripts/bench-envoy.sh [FILE]    another page than docs/BENCHMARK.md
set -euo pipefail
cd "$(dirname "$0")/.."

page=${1:-docs/BENCHMARK.md}
section=$(mktemp)
trap 'rm -f "$section"' EXIT
model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
server=$("${REDIS_SERVER:-redis-server}" --version | grep -o 'v=[^ ]*')
{
    printf '## Behind Envoy\n\n'
    cat <<TEXT
\`make bench-envoy\` writes this section. [\`redis-rl-envoy\`](ENVOY.md) stands beside envoyproxy/ratelimit, of January 2026
and built by Go $(go env GOVERSION | sed 's/^go//'), on one Redis with the module. Both run with the settings that they have by default. All descriptors
have windows of the clock, which is what both count by. The two take short turns, one after the other, so that a machine that is
busy elsewhere slows both. Figures are medians of the turns. Ratios (÷) are ours by theirs, taken within each turn: the
smallest and the largest, or *no difference* where these are on both sides of 1. CPU is processor time, and commands are those of Redis, of one request. Processor time
depends less on what else the machine does than the times of answers (p50, p99) and the most requests a second, which also depend
on the client, which shares the processors.

In *denied* requests the last descriptor is over its limit and the others are not. Each client comes back after more than a
second, so the [deny cache](ENVOY.md#the-deny-cache) answers none of them. In a *flood* it answers all but one a second of each
client: of 100 clients every twentieth request reaches Redis, of 10 one of 200. What Redis does when it is idle is part of its
processor time. envoyproxy/ratelimit has a local cache, too, which is switched off unless configured.

Server: Redis ${server#v=}. Machine: ${model:-$(uname -m)}, $(nproc) processors. Load average when the run began:
$(cut -d' ' -f1 /proc/loadavg). Where that is above the number of processors, times of answers and the most requests a second are
those of a machine that had other work, and no measure of either service.

TEXT
    envoy/bench.sh
} | tee "$section"
scripts/page-section.sh envoy bench-envoy "$page" <"$section"
