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
and built by Go $(go env GOVERSION | sed 's/^go//'), on one Redis with the module, both with their default settings and windows of the
clock. Turns and ratios (÷, ours by theirs) are as [above](#through-the-packages). CPU is processor time, and commands are those of
Redis, of one request.

In *denied* requests the last descriptor is over its limit and the others are not. Each client comes back after more than a
second, so the [deny cache](ENVOY.md#the-deny-cache) answers none of them. In a *flood* it answers all but one a second of each
client. envoyproxy/ratelimit has a local cache, too, which is switched off unless configured.

Server: Redis ${server#v=}. Machine: ${model:-$(uname -m)}, $(nproc) processors. Load average when the run began:
$(cut -d' ' -f1 /proc/loadavg).

TEXT
    envoy/bench.sh
} | tee "$section"
scripts/page-section.sh envoy bench-envoy "$page" <"$section"
