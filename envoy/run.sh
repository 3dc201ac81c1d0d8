#!/usr/bin/env bash
# Runs the service in the foreground, with the example configuration, on a private Redis with the module. Change
# examples/config while it runs. It listens on 127.0.0.1, unless HOST, GRPC_HOST, DEBUG_HOST and PROMETHEUS_ADDR say otherwise.
set -euo pipefail
cd "$(dirname "$0")"

module=${MODULE:-../target/release/libredis_rl.so}
folder=$(mktemp -d)
redis-server --port 0 --unixsocket "$folder/redis.sock" --loadmodule "$(realpath "$module")" --save '' --dir "$folder" \
    >"$folder/redis.log" &
redis=$!
trap 'kill $redis 2>/dev/null || true; wait $redis || true; rm -rf "$folder"' EXIT
until redis-cli -s "$folder/redis.sock" PING >/dev/null 2>&1; do
    kill -0 $redis 2>/dev/null || { cat "$folder/redis.log" >&2; exit 1; }
    sleep 0.05
done

cat <<'HELP'
gRPC at 8081, JSON at 8080, the configuration at http://localhost:6070/rlconfig, metrics at http://localhost:9090/metrics.

    curl -s localhost:8080/json -d '{"domain": "example", "descriptors":
        [{"entries": [{"key": "remote_address", "value": "10.0.0.1"}]}]}'

Five of them in a minute are let in. Ctrl-C ends it.
HELP
# Here and not with exec, so that the server goes, too.
export HOST=${HOST:-127.0.0.1} DEBUG_HOST=${DEBUG_HOST:-127.0.0.1} GRPC_HOST=${GRPC_HOST:-127.0.0.1}
export PROMETHEUS_ADDR=${PROMETHEUS_ADDR:-127.0.0.1:9090}
RUNTIME_ROOT=$PWD/examples USE_STATSD=false USE_PROMETHEUS=true REDIS_SOCKET_TYPE=unix REDIS_URL=$folder/redis.sock \
    "${SERVICE:-target/release/redis-rl-envoy}"
