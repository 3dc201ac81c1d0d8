#!/usr/bin/env bash
# Shows the module at work on a private server: five requests pass, the sixth is denied, and when the window has moved
# on they pass again. Everything that it starts and writes is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

module=${MODULE:-$PWD/target/release/libredis_rl.so}
folder=$(mktemp -d)
socket=$folder/redis.sock
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi; rm -rf "$folder"' EXIT

redis-server --port 0 --unixsocket "$socket" --dir "$folder" --save '' --loadmodule "$module" >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    if redis-cli -s "$socket" ping >/dev/null 2>&1; then break; fi
    kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
    sleep 0.05
done

# ask VERDICT COMMAND ...: prints the call as a user would type it. Fails the demo if the decision is another one.
ask() {
    local verdict=$1 reply
    shift
    reply=$(redis-cli -s "$socket" "$@" | tr '\n' ' ')
    case $verdict:$reply in allowed:1* | denied:0*) ;; *) echo "$* should not have replied $reply" >&2; exit 1 ;; esac
    printf '  > %-28s [%s]  %s\n' "$*" "${reply% }" "$verdict"
}

redis-server --version | sed 's/ sha.*//'
echo
echo 'An exact sliding window: at most 5 requests in any 2 seconds.'
echo 'The reply is [allowed, requests before this one, window].'
for _ in 1 2 3 4 5; do ask allowed RL.SLIDING user:7 2 5; done
ask denied RL.SLIDING user:7 2 5
echo '  ... 2 seconds later the window has moved on'
sleep 2.1
ask allowed RL.SLIDING user:7 2 5
echo
echo 'A counter a window: at most 5 requests an hour.'
echo 'The reply is [allowed, requests with this one, seconds until the counter expires].'
for _ in 1 2 3 4 5; do ask allowed RL.FIXED user:7 3600 5; done
ask denied RL.FIXED user:7 3600 5
echo
echo 'What is stored, as plain commands show it:'
for key in $(redis-cli -s "$socket" --scan | sort); do
    printf '  %-18s %s\n' "$key" "$(redis-cli -s "$socket" type "$key")"
done
