#!/usr/bin/env bash
# Runs a server with the module in the foreground. PORT sets the port (6379), SERVER the program (redis-server), MODULE
# the library. Arguments are passed to the server.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-6379}
server=${SERVER:-redis-server}
module=${MODULE:-$PWD/target/release/libredis_rl.so}
echo "a server with the module listens on port $port; try: redis-cli -p $port RL.SLIDING user:7 60 5" >&2
exec "$server" --port "$port" --save '' --loadmodule "$module" "$@"
