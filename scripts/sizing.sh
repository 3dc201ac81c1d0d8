#!/usr/bin/env bash
# Measures what a key of each rule adds to a server's used_memory, and puts the table into its section of docs/BENCHMARK.md. The server's tables of
# keys and expiries are included: they double in size, so a key takes most just after that and least just before. Both are shown.
#
#   scripts/sizing.sh [ENGINE ...]    engines of tests/engines.tsv that `make engines` has fetched
set -euo pipefail
cd "$(dirname "$0")/.."

module=${MODULE:-$PWD/target/release/libredis_rl.so}
if [ $# -eq 0 ]; then set -- redis-7.0 redis-8.6 valkey-8.1; fi
cache=${REDIS_RL_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/redis-rl/engines}

# Title, requests of each key, call: # stands for the number of the user, which makes a key of 12 bytes.
rows=(
    'a counter: `RL.FIXED`|1|RL.FIXED user:# 36000 1000'
    'an arrival time: `RL.THROTTLE`|1|RL.THROTTLE user:# 100 100 36000'
    'a lease: `RL.ACQUIRE`, a holder of 16 bytes|1|RL.ACQUIRE user:# 16 36000 request-########'
    '`RL.SLIDING`, sorted set, 1 request|1|RL.SLIDING user:# 36000 1000'
    'the same, 10 requests|10|RL.SLIDING user:# 36000 1000'
    'the same, 100 requests|100|RL.SLIDING user:# 36000 1000'
    'the same, 200 requests|200|RL.SLIDING user:# 36000 1000'
    '`RL.SLIDING`, compact, 1 request|1|RL.SLIDING user:# 36000 1000 COST 1'
    'the same, 10 requests|10|RL.SLIDING user:# 36000 1000 COST 1'
    'the same, 100 requests|100|RL.SLIDING user:# 36000 1000 COST 1'
    'the same, 200 requests|200|RL.SLIDING user:# 36000 1000 COST 1'
)

folder=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cli() { redis-cli -s "$folder/socket" "$@"; }
used() { cli INFO memory | sed -n 's/^used_memory:\([0-9]*\).*/\1/p'; }

# settled: used_memory once the server has moved all keys into its larger tables and has freed the smaller ones.
settled() {
    while cli DEBUG HTSTATS 0 | grep -q 'rehashing target'; do sleep 0.1; done
    sleep 0.3
    used
}

# measure PROGRAM KEYS REQUESTS CALL: the bytes of a key. It makes the calls key by key, once for each request. Between two requests of
# a key lie at least 70 ms, with which each takes two bytes of a compact log.
measure() {
    local before after
    "$1" --port 0 --unixsocket "$folder/socket" --dir "$folder" --save '' --hz 100 --enable-debug-command yes --loadmodule "$module" >"$folder/log" 2>&1 &
    server=$!
    until cli PING >/dev/null 2>&1; do kill -0 "$server"; sleep 0.05; done
    before=$(settled)
    python3 - "$2" "$3" "$4" <<'PYTHON' | cli --pipe >"$folder/pipe" 2>&1 || { cat "$folder/pipe" >&2; return 1; }
import sys
import time
keys, requests, call = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for _ in range(requests):
    for key in range(1, keys + 1):
        words = call.replace("########", "%08d" % key).replace("#", str(1000000 + key)).split()
        print("*%d\r" % len(words), *("$%d\r\n%s\r" % (len(word), word) for word in words), sep="\n")
    sys.stdout.flush()
    time.sleep(0.07)
PYTHON
    [ "$(cli DBSIZE)" = "$2" ] || { echo "$(cli DBSIZE) keys in place of $2" >&2; return 1; }
    after=$(settled)
    kill "$server"
    wait "$server" || true
    server=
    echo $(((after - before + $2 / 2) / $2))
}

{
    echo '## Bytes of a key'
    echo
    echo "\`make sizing\` writes this section: bytes of \`used_memory\` for each key, just before and just after the server's tables"
    echo 'double. Keys have 12 bytes, as `user:1234567`; a longer key adds its length. Between two requests of a key lie at least 70 ms.'
    echo
    printf '| |%s\n|---|%s\n' "$(printf ' %s |' "$@")" "$(printf -- '--:|%.0s' "$@")"
    for row in "${rows[@]}"; do
        IFS='|' read -r title requests call <<<"$row"
        # About as many calls for each row, and a power of two of keys.
        keys=262144
        while [ $((keys * requests)) -gt 600000 ]; do keys=$((keys / 2)); done
        printf '| %s |' "$title"
        for engine in "$@"; do
            least=$(measure "$cache/$engine/server" $((keys * 98 / 100)) "$requests" "$call")
            most=$(measure "$cache/$engine/server" $((keys * 102 / 100)) "$requests" "$call")
            printf ' %s to %s |' "$least" "$most"
        done
        echo
    done
} | tee "$folder/section"
scripts/page-section.sh sizing sizing docs/BENCHMARK.md <"$folder/section"
