#!/usr/bin/env bash
# Builds the programs of envoyproxy/ratelimit from the Go module proxy into .er, once: the service, and what checks a folder
# of files. Its newest commit cannot be built: it needs a version of go-control-plane that the proxy does not have.
set -euo pipefail
cd "$(dirname "$0")"

for program in service_cmd config_check_cmd; do
    if [[ ! -x .er/$program ]]; then
        echo "building $program of envoyproxy/ratelimit" >&2
        GOBIN=$PWD/.er go install "github.com/envoyproxy/ratelimit/src/$program@v1.4.1-0.20260122083618-3fb702589d36"
    fi
done
